//! Schemas before they are compiled: bounds, options, and the schema of tool calls.

use super::GrammarError;
use crate::tools::is_python_name;
use djinn_models::printable::one_line;
use serde_json::{Map, Value, json};

/// The most values of a schema: objects, lists, strings, …
const MOST_VALUES: usize = 10_000;

/// Bytes of all strings and keys of a schema.
const MOST_BYTES: usize = 256 << 10;

/// The most calls of an answer that must have some, or of one list.
pub(crate) const MOST_CALLS: u32 = 32;

/// How deep a schema's values may nest.
const MOST_LEVELS: usize = 64;

/// The schema within its bounds, with the options for its compiler.
pub(super) fn checked(schema: &Value) -> Result<Value, GrammarError> {
    let (mut values, mut bytes) = (0, 0);
    let mut rest = vec![(schema, 1)];
    while let Some((value, level)) = rest.pop() {
        values += 1;
        bytes += value.as_str().map_or(0, str::len);
        within("levels", level, MOST_LEVELS)?;
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, level + 1))),
            Value::Object(map) => {
                bytes += map.keys().map(String::len).sum::<usize>();
                rest.extend(map.values().map(|item| (item, level + 1)));
            }
            _ => {}
        }
        within("values", values.max(rest.len()), MOST_VALUES)?;
        within("bytes", bytes, MOST_BYTES)?;
    }
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::Refused("it must be an object".to_owned())),
    };
    // Without a bound, a model may generate white space only.
    let options = json!({ "whitespace_pattern": r"\x20|\x0A\x20{0,16}" });
    schema.insert("x-guidance".to_owned(), options);
    Ok(Value::Object(schema))
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), GrammarError> {
    if found > most { Err(GrammarError::TooLarge { what, found, most }) } else { Ok(()) }
}

/// The schema of a list of one to `most` calls in [`ToolFormat::JsonList`](crate::tools::ToolFormat). Each call names
/// one of `functions`, pairs of a name and the JSON schema of its arguments, and meets that schema.
pub fn calls_schema<'a>(functions: impl IntoIterator<Item = (&'a str, &'a Value)>, most: u32) -> Value {
    let (calls, parameters) = calls(functions, "arguments");
    json!({ "type": "array", "minItems": 1, "maxItems": most, "items": { "anyOf": calls }, "$defs": parameters })
}

/// The schema of one call, whose arguments are under `key`.
pub(super) fn call_schema(functions: &[(String, Value)], key: &str) -> Value {
    let (calls, parameters) = calls(functions.iter().map(|(name, schema)| (name.as_str(), schema)), key);
    json!({ "anyOf": calls, "$defs": parameters })
}

/// The schema of values that meet one of two.
pub(super) fn either(a: &Value, b: &Value) -> Value {
    let (mut a, mut b) = (a.clone(), b.clone());
    rebase(&mut a, "#/$defs/a", false);
    rebase(&mut b, "#/$defs/b", false);
    json!({ "anyOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }], "$defs": { "a": a, "b": b } })
}

/// The schema of a function's arguments: an object, even if it does not say so.
pub(super) fn arguments(schema: &Value) -> Value {
    let object = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty());
    let mut schema = if object(schema) { schema.clone() } else { json!({ "type": "object" }) };
    if let Some(map) = schema.as_object_mut() {
        map.entry("type").or_insert_with(|| json!("object"));
    }
    schema
}

/// The grammar of a list of calls in Python's form, without its white space: `[f(a=1, b="x"), g()]`. Arguments are JSON, in
/// the order of their schema.
pub(super) fn pythonic(functions: &[(String, Value)]) -> Result<String, GrammarError> {
    let mut rules = "start: \"[\" call (\", \" call)* \"]\"\n".to_owned();
    let names: Vec<String> = (0..functions.len()).map(|at| format!("call_{at}")).collect();
    rules += &format!("call: {}\n", names.join(" | "));
    for (at, (name, schema)) in functions.iter().enumerate() {
        let schema = checked(&arguments(schema))?;
        let empty = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&empty);
        let is_required = |name: &str| {
            schema["required"].as_array().is_some_and(|required| required.iter().any(|r| r == name))
        };
        rules += &format!("call_{at}: {} head_{at}_0 \")\"\n", quoted(&format!("{name}(")));
        for (place, (property, value)) in properties.iter().enumerate() {
            if !is_python_name(property) {
                let property = one_line(property);
                let why =
                    format!("the model writes calls in Python, where `{property}` is no argument's name");
                return Err(GrammarError::Refused(why));
            }
            let mut value = match value {
                Value::Object(map) => map.clone(),
                _ => Map::new(),
            };
            // References are relative to the whole document.
            for key in ["$defs", "definitions", "x-guidance"] {
                value.extend(schema.get(key).map(|own| (key.to_owned(), own.clone())));
            }
            rules += &format!(
                "value_{at}_{place}: {} %json {}\n",
                quoted(&format!("{property}=")),
                Value::Object(value)
            );
            let next = place + 1;
            let (head, rest) = (format!("head_{at}_{next}"), format!("rest_{at}_{next}"));
            let skip = |to: &str| if is_required(property) { String::new() } else { format!(" | {to}") };
            rules += &format!("head_{at}_{place}: value_{at}_{place} {rest}{}\n", skip(&head));
            rules += &format!("rest_{at}_{place}: \", \" value_{at}_{place} {rest}{}\n", skip(&rest));
            // Each value has all definitions with it.
            within("bytes", rules.len(), 4 * MOST_BYTES)?;
        }
        let end = properties.len();
        rules += &format!("head_{at}_{end}: \"\"\nrest_{at}_{end}: \"\"\n");
    }
    Ok(rules)
}

/// A text in a grammar's syntax.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// The schemas of single calls, and those of their arguments by name.
fn calls<'a>(
    functions: impl IntoIterator<Item = (&'a str, &'a Value)>,
    arguments_key: &str,
) -> (Vec<Value>, Map<String, Value>) {
    let (mut calls, mut parameters) = (Vec::new(), Map::new());
    for (at, (name, schema)) in functions.into_iter().enumerate() {
        let key = format!("function_{at}");
        let reference = format!("#/$defs/{key}");
        let mut schema = arguments(schema);
        rebase(&mut schema, &reference, false);
        parameters.insert(key, schema);
        calls.push(json!({
            "type": "object",
            "properties": { "name": { "const": name }, arguments_key: { "$ref": reference } },
            "required": ["name", arguments_key],
            "additionalProperties": false,
        }));
    }
    (calls, parameters)
}

/// Rewrites references within a schema for a document that has the schema at `root`. `names`: the value maps names to
/// schemas, so its keys are not keywords.
fn rebase(value: &mut Value, root: &str, names: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rebase(item, root, false)),
        Value::Object(map) => {
            for (key, item) in map {
                match (key.as_str(), item) {
                    ("$ref", Value::String(to)) if !names && to.starts_with('#') => {
                        *to = format!("{root}{}", to[1..].trim_end_matches('/'));
                    }
                    // Values, not schemas.
                    ("const" | "enum" | "default" | "examples", _) if !names => {}
                    (key, item) => {
                        let maps =
                            ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
                        rebase(item, root, !names && maps.contains(&key));
                    }
                }
            }
        }
        _ => {}
    }
}
