//! The functions of the engine that templates call (filters, tests, methods, globals), and their arguments.

use crate::budget::Budget;
use crate::error::{Eval, Fault, refuse};
use crate::operators::integer;
use crate::printable::one_line;
use crate::render::Renderer;
use crate::text::Text;
use crate::value::{Key, Kind, Value, truth};
use indexmap::IndexMap;
use std::sync::Arc;

#[derive(Clone, Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<Text>, Value)>,
}

impl Args {
    /// The position of a named argument, which each one is compared with.
    pub(crate) fn position(&self, budget: &Budget, name: &str) -> Eval<Option<usize>> {
        budget.work(self.named.len() as u64 * (4 + name.len() as u64 / 4))?;
        Ok(self.named.iter().position(|(known, _)| known.as_str() == name))
    }

    /// The named arguments as a mapping.
    pub(crate) fn mapping(self, budget: &Budget) -> Eval {
        let mut entries = IndexMap::new();
        for (name, value) in self.named {
            entries.insert(Key::new(budget, Value(Kind::Str(name)))?, value);
        }
        Value::dict(budget, entries)
    }
}

/// A function of the engine: its name, the names of its parameters (or `*` for any arguments), and what it does
/// with what stands before it: a filtered or tested value, a method's receiver.
#[derive(Debug)]
pub(crate) struct Builtin(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) fn(&mut Renderer<'_>, &Value, &Given) -> Eval,
);

impl Builtin {
    pub(crate) fn find(table: &'static [Builtin], name: &str) -> Option<&'static Builtin> {
        table.iter().find(|builtin| builtin.0 == name)
    }

    pub(crate) fn call(&self, r: &mut Renderer<'_>, value: &Value, args: Args) -> Eval {
        r.budget.work(20)?;
        r.budget.look_at(value)?;
        self.2(r, value, &Given::new(self.0, self.1, args)?)
    }
}

/// A method that Python has and that is not here.
pub(crate) fn unsupported(_: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    Err(Fault::Unsupported(format!("the method `{}` of a {}", given.callee, value.type_name())))
}

/// The arguments of a [`Builtin`], under the names of its parameters.
pub(crate) struct Given {
    pub(crate) callee: &'static str,
    parameters: &'static str,
    values: Vec<Option<Value>>,
    /// The arguments of one that takes any.
    pub(crate) any: Args,
}

impl Given {
    pub(crate) fn new(callee: &'static str, parameters: &'static str, args: Args) -> Eval<Self> {
        if parameters == "*" {
            return Ok(Self { callee, parameters, values: Vec::new(), any: args });
        }
        let names = parameters.split_ascii_whitespace();
        let (given, most) = (args.positional.len(), names.clone().count());
        if given > most {
            return refuse!("{callee} takes at most {most} arguments, not {given}");
        }
        let mut values: Vec<_> = args.positional.into_iter().map(Some).collect();
        values.resize(most, None);
        for (name, value) in args.named {
            let name = name.as_str();
            let Some(at) = names.clone().position(|known| known == name) else {
                return refuse!("{callee} has no argument '{}'", one_line(name));
            };
            if values[at].replace(value).is_some() {
                return refuse!("{callee} got '{name}' twice");
            }
        }
        Ok(Self { callee, parameters, values, any: Args::default() })
    }

    /// The argument for a parameter, if it is given.
    pub(crate) fn value(&self, name: &str) -> Option<Value> {
        let at = self.parameters.split_ascii_whitespace().position(|known| known == name);
        self.values[at.expect("a parameter of the builtin")].clone()
    }

    /// The argument for a parameter, if it is given and not `None`.
    pub(crate) fn some(&self, name: &str) -> Option<Value> {
        self.value(name).filter(|value| !value.is_none())
    }

    pub(crate) fn required(&self, name: &str) -> Eval {
        self.value(name).map_or_else(|| refuse!("{} needs the argument '{name}'", self.callee), Ok)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| truth(&value))
    }

    /// A string; none for `None`.
    pub(crate) fn text(&self, name: &str) -> Eval<Option<Arc<Text>>> {
        self.some(name).map(|value| self.as_text(&value).cloned()).transpose()
    }

    pub(crate) fn required_text(&self, name: &str) -> Eval<Arc<Text>> {
        self.as_text(&self.required(name)?).cloned()
    }

    /// The text of an argument that must be a string.
    pub(crate) fn as_text<'v>(&self, value: &'v Value) -> Eval<&'v Arc<Text>> {
        let wrong = || refuse!("{}: expected str, not {}", self.callee, value.type_name());
        value.as_text().map_or_else(wrong, Ok)
    }

    pub(crate) fn integer(&self, name: &str) -> Eval<Option<i128>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let wrong = || refuse!("'{}' object cannot be interpreted as an integer", value.type_name());
        integer(&value).map_or_else(wrong, |number| Ok(Some(number)))
    }

    /// A number of things: none below 0.
    pub(crate) fn count(&self, name: &str, default: usize) -> Eval<usize> {
        let most = |number: i128| usize::try_from(number.max(0)).unwrap_or(usize::MAX);
        Ok(self.integer(name)?.map_or(default, most))
    }

    /// The most of something: without a limit if it is not given, or negative.
    pub(crate) fn limit(&self, name: &str) -> Eval<usize> {
        Ok(self.integer(name)?.and_then(|number| usize::try_from(number).ok()).unwrap_or(usize::MAX))
    }
}
