//! Schemas before they are compiled: bounds, options, and the schema of tool calls.

use super::GrammarError;
use serde_json::{Map, Value, json};

/// Values that a schema may have: objects, lists, strings, …
const MOST_VALUES: usize = 10_000;

/// Bytes of all strings and keys of a schema.
const MOST_BYTES: usize = 256 << 10;

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
    // Without a bound on white space, a model may write nothing else.
    let options = json!({ "whitespace_pattern": r"\x20|\x0A\x20{0,16}" });
    schema.insert("x-guidance".to_owned(), options);
    Ok(Value::Object(schema))
}

fn within(what: &'static str, found: usize, most: usize) -> Result<(), GrammarError> {
    if found > most { Err(GrammarError::TooLarge { what, found, most }) } else { Ok(()) }
}

/// The schema of texts that are a list of one to `most` calls in [`ToolFormat::JsonList`](crate::tools::ToolFormat):
/// each names one of `functions`, pairs of a name and the JSON schema of its arguments, and has arguments that meet
/// its schema.
pub fn calls_schema<'a>(functions: impl IntoIterator<Item = (&'a str, &'a Value)>, most: u32) -> Value {
    let (mut calls, mut parameters) = (Vec::new(), Map::new());
    for (at, (name, schema)) in functions.into_iter().enumerate() {
        let key = format!("function_{at}");
        let reference = format!("#/$defs/{key}");
        let object = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty());
        let mut schema = if object(schema) { schema.clone() } else { json!({ "type": "object" }) };
        if let Some(map) = schema.as_object_mut() {
            // Arguments are an object, whether their schema says so or not.
            map.entry("type").or_insert_with(|| json!("object"));
        }
        rebase(&mut schema, &reference, false);
        parameters.insert(key, schema);
        calls.push(json!({
            "type": "object",
            "properties": { "name": { "const": name }, "arguments": { "$ref": reference } },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }));
    }
    json!({ "type": "array", "minItems": 1, "maxItems": most, "items": { "anyOf": calls }, "$defs": parameters })
}

/// Makes references within a schema right for a document where the schema is at `root`. `names` says that the value
/// maps names to schemas, so that its keys are no keywords.
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
