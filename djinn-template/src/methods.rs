//! The methods of Python's types, by name.

pub(crate) mod strings;

use crate::error::Fault;
use crate::operators::integer;
use crate::printable::one_line;
use crate::render::{Args, Renderer};
use crate::value::{Dict, Key, Kind, Seq, SeqKind, Value, equal};

/// Methods of strings, sorted.
const STRINGS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Methods of mappings that change nothing; the sandbox hides the others.
const DICTS: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
/// Methods of integers and floats.
const NUMBERS: &[&str] = &["as_integer_ratio", "conjugate", "is_integer", "bit_length"];

/// Whether a value has a method of this name.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match &value.0 {
        Kind::Str(_) => STRINGS.binary_search(&name).is_ok(),
        Kind::Dict(_) => DICTS.contains(&name),
        Kind::Seq(seq) => match seq.kind {
            SeqKind::List => matches!(name, "count" | "index" | "copy"),
            SeqKind::Tuple | SeqKind::Range(_) => matches!(name, "count" | "index"),
            _ => false,
        },
        Kind::Int(_) | Kind::Float(_) | Kind::Bool(_) => NUMBERS.contains(&name),
        Kind::Loop(_) => matches!(name, "cycle" | "changed"),
        _ => false,
    }
}

/// Calls a method that exists.
pub(crate) fn call(r: &mut Renderer<'_>, value: &Value, name: &str, args: Args) -> Result<Value, Fault> {
    r.budget.work(20)?;
    r.budget.look_at(value)?;
    match (&value.0, name) {
        (Kind::Str(text), _) => strings::call(r, text, name, args),
        (Kind::Dict(dict), _) => dict_method(r, value, dict, name, args),
        (Kind::Seq(seq), "count" | "index") => sequence_method(r, seq, name, args),
        (Kind::Seq(seq), "copy") => {
            r.budget.items::<Value>(seq.items.len())?;
            Value::list(&r.budget, seq.items.clone())
        }
        (Kind::Float(number), "is_integer") => Ok((number.fract() == 0.0).into()),
        (_, "is_integer") if integer(value).is_some() => Ok(true.into()),
        _ => Err(unsupported(value, name)),
    }
}

pub(crate) fn unsupported(value: &Value, name: &str) -> Fault {
    Fault::Unsupported(format!("the method `{}` of a {}", one_line(name), value.type_name()))
}

fn dict_method(r: &Renderer<'_>, value: &Value, dict: &Dict, name: &str, args: Args) -> Result<Value, Fault> {
    if name == "get" {
        let [key, default] = args.bind("get", ["key", "default"])?;
        let key = Key::new(&r.budget, key.ok_or_else(|| Fault::new("get expected at least 1 argument"))?)?;
        return Ok(dict.entries.get(&key).cloned().or(default).unwrap_or(Value::NONE));
    }
    let [] = args.bind(name, [])?;
    r.budget.items::<Value>(dict.entries.len())?;
    match name {
        "copy" => Value::dict(&r.budget, dict.entries.clone()),
        "keys" => {
            let keys = dict.entries.keys().map(|key| key.0.clone()).collect();
            Value::seq(&r.budget, SeqKind::Keys, keys)
        }
        "values" => Value::seq(&r.budget, SeqKind::Values, dict.entries.values().cloned().collect()),
        "items" => Value::seq(&r.budget, SeqKind::Items, pairs(r, dict)?),
        _ => Err(unsupported(value, name)),
    }
}

/// The entries of a mapping as tuples.
pub(crate) fn pairs(r: &Renderer<'_>, dict: &Dict) -> Result<Vec<Value>, Fault> {
    let pair = |(key, value): (&Key, &Value)| Value::tuple(&r.budget, vec![key.0.clone(), value.clone()]);
    dict.entries.iter().map(pair).collect()
}

fn sequence_method(r: &Renderer<'_>, seq: &Seq, name: &str, args: Args) -> Result<Value, Fault> {
    let [item] = args.bind(name, ["value"])?;
    let item = item.ok_or_else(|| Fault::new(format!("{name} expected 1 argument")))?;
    let mut count = 0_i64;
    for (at, other) in seq.items.iter().enumerate() {
        if equal(&r.budget, &item, other)? {
            if name == "index" {
                return Ok((at as i64).into());
            }
            count += 1;
        }
    }
    if name == "index" { Err(Fault::new("the value is not in the list")) } else { Ok(count.into()) }
}

/// Python's white space: Unicode's, and four separators beside it.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
