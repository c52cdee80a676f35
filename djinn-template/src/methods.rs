//! The methods of Python's types, by name. Those that Python has and templates do without are refused by name.

pub(crate) mod strings;

use crate::arguments::{Builtin, Given, unsupported};
use crate::error::{Eval, refuse};
use crate::render::Renderer;
use crate::value::{Dict, Key, Kind, SeqKind, Value, equal};

/// Methods of mappings that change nothing; the sandbox hides the others.
static DICTS: &[Builtin] = &[
    Builtin("copy", "", dict_method),
    Builtin("fromkeys", "*", unsupported),
    Builtin("get", "key default", get),
    Builtin("items", "", dict_method),
    Builtin("keys", "", dict_method),
    Builtin("values", "", dict_method),
];
/// Methods of sequences; the last one of lists only.
static SEQUENCES: &[Builtin] =
    &[Builtin("count", "value", search), Builtin("index", "value", search), Builtin("copy", "*", copy)];
/// Methods of integers and floats.
static NUMBERS: &[Builtin] = &[
    Builtin("as_integer_ratio", "*", unsupported),
    Builtin("bit_length", "*", unsupported),
    Builtin("conjugate", "*", unsupported),
    Builtin("is_integer", "*", |_, value, _| match value.0 {
        Kind::Float(number) => Ok((number.fract() == 0.0).into()),
        _ => Ok(true.into()),
    }),
];
static LOOPS: &[Builtin] = &[
    Builtin("cycle", "*", |r, value, given| r.loop_method(value, given)),
    Builtin("changed", "*", |r, value, given| r.loop_method(value, given)),
];

/// The method of this name that a value has.
pub(crate) fn find(value: &Value, name: &str) -> Option<&'static Builtin> {
    let table = match &value.0 {
        Kind::Str(_) => strings::METHODS,
        Kind::Dict(_) => DICTS,
        Kind::Seq(seq) => match seq.kind {
            SeqKind::List => SEQUENCES,
            SeqKind::Tuple | SeqKind::Range(_) => &SEQUENCES[..2],
            _ => return None,
        },
        Kind::Int(_) | Kind::Float(_) | Kind::Bool(_) => NUMBERS,
        Kind::Loop(_) => LOOPS,
        _ => return None,
    };
    Builtin::find(table, name)
}

fn get(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let key = Key::new(r.budget, given.required("key")?)?;
    let found = value.as_dict().and_then(|dict| dict.entries.get(&key).cloned());
    Ok(found.or(given.value("default")).unwrap_or(Value::NONE))
}

fn dict_method(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let Some(dict) = value.as_dict() else { return unsupported(r, value, given) };
    r.budget.items::<Value>(dict.entries.len())?;
    let (kind, items) = match given.callee {
        "copy" => return Value::dict(r.budget, dict.entries.clone()),
        "keys" => (SeqKind::Keys, dict.entries.keys().map(|key| key.0.clone()).collect()),
        "values" => (SeqKind::Values, dict.entries.values().cloned().collect()),
        _ => (SeqKind::Items, pairs(r, dict)?),
    };
    Value::seq(r.budget, kind, items)
}

/// The entries of a mapping as tuples.
pub(crate) fn pairs(r: &Renderer<'_>, dict: &Dict) -> Eval<Vec<Value>> {
    let pair = |(key, value): (&Key, &Value)| Value::tuple(r.budget, vec![key.0.clone(), value.clone()]);
    dict.entries.iter().map(pair).collect()
}

fn copy(r: &mut Renderer<'_>, value: &Value, _: &Given) -> Eval {
    let items = value.as_list().unwrap_or_default();
    r.budget.items::<Value>(items.len())?;
    Value::list(r.budget, items.to_vec())
}

/// `count` and `index`.
fn search(r: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let item = given.required("value")?;
    let mut count = 0_i64;
    for (at, other) in value.as_list().unwrap_or_default().iter().enumerate() {
        if equal(r.budget, &item, other)? {
            if given.callee == "index" {
                return Ok((at as i64).into());
            }
            count += 1;
        }
    }
    if given.callee == "index" { refuse!("the value is not in the list") } else { Ok(count.into()) }
}
