//! The functions that every template sees, and what they keep: namespaces and joiners.

use crate::arguments::{Builtin, Given};
use crate::error::{Eval, Fault, refuse};
use crate::printable::one_line;
use crate::render::Renderer;
use crate::time;
use crate::value::{Key, Kind, SeqKind, Value};
use indexmap::IndexMap;

/// Longest range, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

pub(crate) static FUNCTIONS: &[Builtin] = &[
    Builtin("dict", "*", |r, _, given| Value::dict(r.budget, entries(r, given)?)),
    Builtin("joiner", "sep", |r, _, given| {
        let separator = given.value("sep").unwrap_or_else(|| Value::token(", "));
        object(r, Object::Joiner { separator, used: false })
    }),
    Builtin("namespace", "*", |r, _, given| {
        let entries = entries(r, given)?;
        entries.keys().filter_map(Key::as_str).try_for_each(check_attribute)?;
        object(r, Object::Namespace(entries))
    }),
    Builtin("raise_exception", "message", |r, _, given| {
        let message = r.printed(&given.required("message")?)?;
        Err(Fault::Raised(one_line(message.as_str())))
    }),
    Builtin("range", "start stop step", range),
    Builtin("strftime_now", "format", |r, _, given| {
        let format = given.required_text("format")?;
        r.budget.bytes(format.len().saturating_mul(8))?;
        Ok(Value::token(time::strftime(format.as_str(), r.now)?))
    }),
];

/// What changes while a template is rendered. Values refer to it by number, so that no value holds itself.
pub(crate) enum Object {
    Namespace(IndexMap<Key, Value>),
    Joiner { separator: Value, used: bool },
}

fn object(r: &mut Renderer<'_>, object: Object) -> Eval {
    r.budget.items::<Object>(1)?;
    r.objects.push(object);
    Ok(Value(Kind::Object(r.objects.len() - 1)))
}

fn range(r: &mut Renderer<'_>, _: &Value, given: &Given) -> Eval {
    let number = |name| match given.integer(name)?.map(i64::try_from) {
        Some(Err(_)) => refuse!("range: {name} is too large"),
        Some(Ok(number)) => Ok(Some(i128::from(number))),
        None => Ok(None),
    };
    let (start, stop) = match (number("start")?, number("stop")?) {
        (Some(stop), None) => (0, stop),
        (Some(start), Some(stop)) => (start, stop),
        _ => return refuse!("range expected at least 1 argument"),
    };
    let step = number("step")?.unwrap_or(1);
    let count = match step {
        0 => return refuse!("range: the third argument must not be zero"),
        1.. => (stop - start + step - 1) / step,
        _ => (start - stop - step - 1) / -step,
    };
    let count = count.max(0);
    if count > MAX_RANGE {
        return Err(Fault::Limit(format!("makes a range of more than {MAX_RANGE} items")));
    }
    r.budget.items::<Value>(count as usize)?;
    let items = (0..count).map(|at| (start + at * step).into()).collect();
    Value::seq(r.budget, SeqKind::Range([start, stop, step]), items)
}

/// What `dict` and `namespace` are given: a mapping or pairs, and names.
fn entries(r: &Renderer<'_>, given: &Given) -> Eval<IndexMap<Key, Value>> {
    let mut entries = IndexMap::new();
    match given.any.positional.as_slice() {
        [] => {}
        [Value(Kind::Dict(dict))] => {
            r.budget.items::<[Value; 3]>(dict.entries.len())?;
            entries = dict.entries.clone();
        }
        [pairs] => {
            for pair in r.taken(pairs)? {
                let Ok([key, value]) = <[Value; 2]>::try_from(r.taken(&pair)?) else {
                    return refuse!("a mapping is made of pairs");
                };
                r.budget.items::<[Value; 3]>(1)?;
                entries.insert(Key::new(r.budget, key)?, value);
            }
        }
        _ => return refuse!("expected at most 1 argument"),
    }
    for (name, value) in &given.any.named {
        entries.insert(Key::new(r.budget, Value(Kind::Str(name.clone())))?, value.clone());
    }
    Ok(entries)
}

/// Refuses attributes of namespaces that transformers refuses.
pub(crate) fn check_attribute(name: &str) -> Eval<()> {
    if name.starts_with('_') {
        let name = one_line(name);
        return refuse!("a namespace has no attributes with an underscore in front ('{name}')");
    }
    Ok(())
}

/// Calls a joiner: nothing the first time, its separator from then on.
pub(crate) fn call_object(r: &mut Renderer<'_>, at: usize) -> Eval {
    match &mut r.objects[at] {
        Object::Joiner { used: used @ false, .. } => {
            *used = true;
            Ok(Value::token(""))
        }
        Object::Joiner { separator, .. } => Ok(separator.clone()),
        Object::Namespace(_) => refuse!("'namespace' object is not callable"),
    }
}
