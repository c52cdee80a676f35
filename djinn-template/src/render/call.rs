//! Calls: arguments, macros, functions and methods.

use super::Renderer;
use crate::ast::{self, Arguments, Expr};
use crate::error::Fault;
use crate::text::Text;
use crate::value::{Closure, Key, Kind, Value, undefined};
use crate::{functions, methods};
use indexmap::IndexMap;
use std::sync::Arc;

/// Evaluated arguments.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<Text>, Value)>,
}

impl Args {
    /// The arguments under their names, none where one is not given.
    pub(crate) fn bind<const N: usize>(
        self,
        callee: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Fault> {
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(Fault::new(format!("{callee} takes at most {N} arguments, not {given}")));
        }
        let mut found = [const { None }; N];
        for (slot, value) in found.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = names.iter().position(|known| *known == name.as_str()) else {
                let name = crate::printable::one_line(name.as_str());
                return Err(Fault::new(format!("{callee} has no argument '{name}'")));
            };
            if found[at].replace(value).is_some() {
                return Err(Fault::new(format!("{callee} got '{}' twice", names[at])));
            }
        }
        Ok(found)
    }
}

impl<'t> Renderer<'t> {
    pub(super) fn arguments(&mut self, given: &'t Arguments) -> Result<Args, Fault> {
        let mut args = Args { positional: self.each(&given.positional)?, named: Vec::new() };
        for (name, value) in &given.named {
            args.named.push((name.clone(), self.eval(value)?));
        }
        if let Some(list) = &given.unpacked {
            let list = self.eval(list)?;
            args.positional.extend(self.taken(&list)?);
        }
        if let Some(mapping) = &given.unpacked_named {
            let mapping = self.eval(mapping)?;
            let Some(dict) = mapping.as_dict() else {
                return Err(Fault::new("the argument behind ** must be a mapping"));
            };
            self.budget.items::<(Arc<Text>, Value)>(dict.entries.len())?;
            for (key, value) in &dict.entries {
                let Some(name) = key.0.as_text() else { return Err(Fault::new("keywords must be strings")) };
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }

    /// `value.name(…)`.
    pub(super) fn call_attribute(
        &mut self,
        value: &Value,
        name: &Arc<Text>,
        given: &'t Arguments,
    ) -> Result<Value, Fault> {
        if !name.as_str().starts_with('_') && methods::exists(value, name.as_str()) {
            let args = self.arguments(given)?;
            return self.call_method(value, name.as_str(), args);
        }
        let callee = self.attribute(value, name)?;
        let args = self.arguments(given)?;
        self.call(&callee, args)
    }

    fn call_method(&mut self, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
        match value.0 {
            Kind::Loop(id) => self.loop_method(id, name, args.positional),
            _ => methods::call(self, value, name, args),
        }
    }

    /// Calls a value.
    pub(crate) fn call(&mut self, callee: &Value, args: Args) -> Result<Value, Fault> {
        match &callee.0 {
            Kind::Macro(closure) => self.call_macro(closure, args),
            Kind::Function(function) => functions::call(self, *function, args),
            Kind::Method(bound) => self.call_method(&bound.receiver, bound.name.as_str(), args),
            Kind::Object(at) => functions::call_object(self, *at),
            Kind::Undefined(name) => Err(undefined(name.as_deref())),
            _ => Err(Fault::new(format!("'{}' object is not callable", callee.type_name()))),
        }
    }

    /// A call block: a call of a macro, which gets `caller`.
    pub(super) fn call_with(
        &mut self,
        callee: &'t Expr,
        given: &'t Arguments,
        caller: Value,
    ) -> Result<Value, Fault> {
        let callee = self.eval(callee)?;
        let args = self.arguments(given)?;
        let Kind::Macro(closure) = &callee.0 else {
            return Err(Fault::Unsupported("a `call` of what is no macro".into()));
        };
        let (index, scope, serial) = (closure.index, closure.scope, closure.serial);
        self.call_macro(&Closure { index, scope, serial, caller: Some(caller) }, args)
    }

    fn call_macro(&mut self, closure: &Closure, args: Args) -> Result<Value, Fault> {
        let tree = self.tree;
        let defined = &tree.macros[closure.index];
        if self.scopes.get(closure.scope).is_none_or(|scope| scope.serial != closure.serial) {
            return Err(Fault::Unsupported("a macro behind the end of its block".into()));
        }
        self.budget.work(50)?;
        let line = self.line;
        let text = self.captured(|r| {
            r.within(closure.scope, |r| {
                r.bind_parameters(defined, closure, args)?;
                r.run(&defined.body)
            })
        })?;
        self.line = line;
        Ok(text)
    }

    /// Assigns a macro's parameters in its scope, in their order: a default sees those before it.
    fn bind_parameters(
        &mut self,
        defined: &'t ast::Macro,
        closure: &Closure,
        args: Args,
    ) -> Result<(), Fault> {
        let tree = self.tree;
        let name = || crate::printable::one_line(tree.names[defined.name].as_str());
        let Args { positional, mut named } = args;
        let mut positional = positional.into_iter();
        let mut caller = closure.caller.clone();
        for (parameter, default) in &defined.parameters {
            let known = tree.names[*parameter].as_str();
            let by_name = named.iter().position(|(given, _)| given.as_str() == known);
            let by_name = by_name.map(|at| named.remove(at).1);
            let given = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    return Err(Fault::new(format!("macro '{}' got '{known}' twice", name())));
                }
                (given, None) | (None, given) => given,
            };
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, _) if *parameter == ast::CALLER && caller.is_some() => {
                    caller.take().unwrap_or(Value::NONE)
                }
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value(Kind::Undefined(Some(tree.names[*parameter].clone()))),
            };
            self.set(*parameter, value)?;
        }
        if defined.uses.caller {
            let by_name = named.iter().position(|(given, _)| given.as_str() == "caller");
            let given = by_name.map(|at| named.remove(at).1).or(caller);
            let missing = || Value(Kind::Undefined(Some(tree.names[ast::CALLER].clone())));
            self.set(ast::CALLER, given.unwrap_or_else(missing))?;
        } else if closure.caller.is_some() {
            return Err(Fault::new(format!("macro '{}' does not use `caller`", name())));
        }
        let rest: Vec<Value> = positional.collect();
        if defined.uses.varargs {
            let rest = Value::tuple(&self.budget, rest)?;
            self.set(ast::VARARGS, rest)?;
        } else if !rest.is_empty() {
            let takes = defined.parameters.len();
            return Err(Fault::new(format!("macro '{}' takes not more than {takes} argument(s)", name())));
        }
        if defined.uses.kwargs {
            let mut entries = IndexMap::new();
            for (key, value) in named {
                entries.insert(Key::new(&self.budget, Value(Kind::Str(key)))?, value);
            }
            let entries = Value::dict(&self.budget, entries)?;
            self.set(ast::KWARGS, entries)?;
        } else if let Some((unknown, _)) = named.first() {
            let unknown = crate::printable::one_line(unknown.as_str());
            return Err(Fault::new(format!("macro '{}' takes no keyword argument '{unknown}'", name())));
        }
        Ok(())
    }
}
