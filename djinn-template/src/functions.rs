//! The functions that every template sees, and what they keep: namespaces and joiners.

use crate::error::Fault;
use crate::operators::integer;
use crate::printable::one_line;
use crate::render::{Args, Renderer};
use crate::time;
use crate::value::{Key, Kind, SeqKind, Value};
use indexmap::IndexMap;

/// Longest range, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

/// A function by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Dict,
    Joiner,
    Namespace,
    RaiseException,
    Range,
    StrftimeNow,
}

impl Function {
    pub(crate) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "dict" => Self::Dict,
            "joiner" => Self::Joiner,
            "namespace" => Self::Namespace,
            "raise_exception" => Self::RaiseException,
            "range" => Self::Range,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }
}

/// What changes while a template is rendered. Values refer to it by number, so that no value holds itself.
pub(crate) enum Object {
    Namespace(IndexMap<Key, Value>),
    Joiner { separator: Value, used: bool },
}

/// Calls a function.
pub(crate) fn call(r: &mut Renderer<'_>, function: Function, args: Args) -> Result<Value, Fault> {
    match function {
        Function::Range => range(r, args),
        Function::Dict => {
            let entries = entries(r, args)?;
            Value::dict(&r.budget, entries)
        }
        Function::Namespace => {
            let entries = entries(r, args)?;
            entries.keys().filter_map(Key::as_str).try_for_each(check_attribute)?;
            object(r, Object::Namespace(entries))
        }
        Function::Joiner => {
            let [separator] = args.bind("joiner", ["sep"])?;
            object(
                r,
                Object::Joiner { separator: separator.unwrap_or_else(|| Value::token(", ")), used: false },
            )
        }
        Function::RaiseException => {
            let [message] = args.bind("raise_exception", ["message"])?;
            let message = message.ok_or_else(|| Fault::new("raise_exception needs a message"))?;
            let message = r.string(&message)?;
            Err(Fault::Raised(one_line(message.as_str().unwrap_or_default())))
        }
        Function::StrftimeNow => {
            let [format] = args.bind("strftime_now", ["format"])?;
            let Some(Value(Kind::Str(format))) = format else {
                return Err(Fault::new("strftime_now needs a format"));
            };
            r.budget.bytes(format.len().saturating_mul(8))?;
            Ok(Value::token(time::strftime(format.as_str(), r.now)?))
        }
    }
}

fn object(r: &mut Renderer<'_>, object: Object) -> Result<Value, Fault> {
    r.budget.items::<Object>(1)?;
    r.objects.push(object);
    Ok(Value(Kind::Object(r.objects.len() - 1)))
}

fn range(r: &Renderer<'_>, args: Args) -> Result<Value, Fault> {
    let [first, second, step] = args.bind("range", ["start", "stop", "step"])?;
    let number = |value: Option<Value>| match value {
        None => Ok(None),
        Some(value) => match integer(&value).map(i64::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => {
                Err(Fault::new(format!("'{}' object cannot be interpreted as an integer", value.type_name())))
            }
        },
    };
    let (start, stop) = match (number(first)?, number(second)?) {
        (Some(stop), None) => (0, stop),
        (Some(start), Some(stop)) => (start, stop),
        _ => return Err(Fault::new("range expected at least 1 argument")),
    };
    let step = number(step)?.unwrap_or(1);
    let (wide_start, wide_stop, wide_step) = (i128::from(start), i128::from(stop), i128::from(step));
    let count = match wide_step {
        0 => return Err(Fault::new("range: the third argument must not be zero")),
        1.. => (wide_stop - wide_start + wide_step - 1) / wide_step,
        _ => (wide_start - wide_stop - wide_step - 1) / -wide_step,
    }
    .max(0);
    if count > MAX_RANGE {
        return Err(Fault::Limit(format!("makes a range of more than {MAX_RANGE} items")));
    }
    r.budget.items::<Value>(count as usize)?;
    let items = (0..count).map(|at| Value(Kind::Int(wide_start + at * wide_step))).collect();
    Value::seq(&r.budget, SeqKind::Range([start, stop, step]), items)
}

/// What `dict` and `namespace` are given: a mapping or pairs, and names.
fn entries(r: &Renderer<'_>, args: Args) -> Result<IndexMap<Key, Value>, Fault> {
    let mut entries = IndexMap::new();
    if args.positional.len() > 1 {
        return Err(Fault::new("expected at most 1 argument"));
    }
    if let Some(given) = args.positional.first() {
        match given.as_dict() {
            Some(dict) => {
                r.budget.items::<[Value; 3]>(dict.entries.len())?;
                entries = dict.entries.clone();
            }
            None => {
                for pair in r.taken(given)? {
                    let pair = r.taken(&pair)?;
                    let [key, value] = pair.as_slice() else {
                        return Err(Fault::new("a mapping is made of pairs"));
                    };
                    r.budget.items::<[Value; 3]>(1)?;
                    entries.insert(Key::new(&r.budget, key.clone())?, value.clone());
                }
            }
        }
    }
    for (name, value) in args.named {
        entries.insert(Key::new(&r.budget, Value(Kind::Str(name)))?, value);
    }
    Ok(entries)
}

/// Refuses attributes of namespaces that transformers refuses.
pub(crate) fn check_attribute(name: &str) -> Result<(), Fault> {
    if name.starts_with('_') {
        let name = one_line(name);
        return Err(Fault::new(format!(
            "a namespace has no attributes with an underscore in front ('{name}')"
        )));
    }
    Ok(())
}

/// Calls a joiner: nothing the first time, its separator from then on.
pub(crate) fn call_object(r: &mut Renderer<'_>, at: usize) -> Result<Value, Fault> {
    match &mut r.objects[at] {
        Object::Joiner { separator, used } => {
            let first = !std::mem::replace(used, true);
            Ok(if first { Value::token("") } else { separator.clone() })
        }
        _ => Err(Fault::new("'namespace' object is not callable")),
    }
}
