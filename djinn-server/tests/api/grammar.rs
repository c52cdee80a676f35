//! Schemas of many kinds, sampled at random: what ends by itself is valid, the rest is the beginning of a value.

use djinn_engine::{Constraint, NoToken, Sampler, Sampling, TokenMask};
use djinn_models::Tokenizer;
use djinn_models::gguf::Gguf;
use djinn_server::{
    COMPILE_LIMIT, CallForm, GrammarError, Grammars, OutputEvent, OutputParser, ReasoningMode, ToolFormat,
    calls_schema,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

fn tokenizer(name: &str) -> Tokenizer {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../djinn-models/tests/data/tokenizer").join(name);
    Tokenizer::from_gguf(&Gguf::open(data).expect("a file")).expect("sound").expect("a tokenizer")
}

struct Random(u64);

impl Random {
    /// Below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % most
    }
}

/// Schemas as clients send them.
fn realistic() -> Vec<Value> {
    let address = json!({"type": "object", "properties": {"street": {"type": "string", "maxLength": 20}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false});
    vec![
        json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"home": {"$ref": "#/$defs/address"}, "work": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]}}, "required": ["home", "work"], "additionalProperties": false, "$defs": {"address": address}}),
        json!({"type": "object", "properties": {"steps": {"type": "array", "maxItems": 3, "items": {"type": "object", "properties": {"explanation": {"type": "string", "maxLength": 10}, "output": {"type": "string", "maxLength": 10}}, "required": ["explanation", "output"], "additionalProperties": false}}, "final_answer": {"type": "string", "maxLength": 10}}, "required": ["steps", "final_answer"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"sentiment": {"enum": ["positive", "negative", "neutral"]}, "score": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["sentiment", "score"], "additionalProperties": false}),
        json!({"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1, "maxItems": 2}),
        json!({"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "when": {"type": "string", "format": "date-time"}}, "required": ["id"], "additionalProperties": false}),
        json!({"enum": [1, "two", null, [3], {"four": 4}]}),
        json!({"const": {"a": [true, "é\n\"", 1.5]}}),
        json!({"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["kind", "r"], "additionalProperties": false}, {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["kind", "side"], "additionalProperties": false}]}),
        json!({"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "required": ["tree"], "additionalProperties": false, "$defs": {"node": {"type": "object", "properties": {"value": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"], "additionalProperties": false}}}),
        json!({"type": ["string", "integer", "null"], "maxLength": 5}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 3}),
        json!({"type": "string", "pattern": "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$"}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": false, "minItems": 2}),
        json!({"type": "object"}),
        json!({}),
    ]
}

/// A schema of bounded values, made at random.
fn generated(random: &mut Random, levels: usize) -> Value {
    let nested = levels > 0;
    match random.below(if nested { 9 } else { 6 }) {
        0 => json!({"type": "boolean"}),
        1 => {
            let least = -(random.below(100) as i64);
            json!({"type": "integer", "minimum": least, "maximum": random.below(1000)})
        }
        2 => json!({"type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(6)}),
        3 => json!({"enum": ["red", "green \u{1f642}", 3, null, false]}),
        4 => {
            let pattern = ["^[a-f]{2,4}$", "^x(yz)*$", "^\\d+\\.\\d$"][random.below(3)];
            json!({"type": "string", "pattern": pattern})
        }
        5 => json!({"type": "number", "minimum": 0, "exclusiveMaximum": 10}),
        6 => {
            json!({"type": "array", "items": generated(random, levels - 1), "minItems": random.below(2), "maxItems": 1 + random.below(3)})
        }
        7 => json!({"anyOf": [generated(random, levels - 1), generated(random, levels - 1)]}),
        _ => {
            let names: Vec<String> = (0..1 + random.below(4)).map(|at| format!("field_{at}")).collect();
            let required: Vec<&String> = names.iter().filter(|_| random.below(3) > 0).collect();
            let required = json!(required);
            let properties: serde_json::Map<String, Value> =
                names.into_iter().map(|name| (name, generated(random, levels - 1))).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

/// Whether a value meets a schema at `root`: the keywords that the schemas here use, read off the specification.
fn meets(schema: &Value, value: &Value, root: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema.as_bool().expect("a schema") };
    let count = |value: &Value| value.as_u64().expect("a count") as usize;
    schema.iter().all(|(keyword, wanted)| match (keyword.as_str(), value) {
        ("$ref", _) => {
            let to = wanted.as_str().expect("text").trim_start_matches('#');
            meets(root.pointer(to).expect("it is there"), value, root)
        }
        ("type", _) => {
            let named = |name: &Value| match name.as_str().expect("text") {
                "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "null" => value.is_null(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("{other}"),
            };
            wanted.as_array().map_or_else(|| named(wanted), |names| names.iter().any(named))
        }
        ("const", _) => value == wanted,
        ("enum", _) => wanted.as_array().expect("a list").contains(value),
        ("anyOf", _) => wanted.as_array().expect("a list").iter().any(|one| meets(one, value, root)),
        ("oneOf", _) => {
            wanted.as_array().expect("a list").iter().filter(|one| meets(one, value, root)).count() == 1
        }
        ("properties", Value::Object(map)) => map
            .iter()
            .all(|(name, value)| wanted.get(name).is_none_or(|schema| meets(schema, value, root))),
        ("required", Value::Object(map)) => {
            let names = wanted.as_array().expect("a list");
            names.iter().all(|name| map.contains_key(name.as_str().expect("text")))
        }
        ("additionalProperties", Value::Object(map)) => {
            let known = |name: &str| schema.get("properties").is_some_and(|all| all.get(name).is_some());
            map.iter().all(|(name, value)| known(name) || meets(wanted, value, root))
        }
        ("maxProperties", Value::Object(map)) => map.len() <= count(wanted),
        ("prefixItems", Value::Array(items)) => {
            wanted.as_array().expect("a list").iter().zip(items).all(|(one, item)| meets(one, item, root))
        }
        ("items", Value::Array(items)) => {
            let before = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            items.iter().skip(before).all(|item| meets(wanted, item, root))
        }
        ("minItems", Value::Array(items)) => items.len() >= count(wanted),
        ("maxItems", Value::Array(items)) => items.len() <= count(wanted),
        ("minLength", Value::String(text)) => text.chars().count() >= count(wanted),
        ("maxLength", Value::String(text)) => text.chars().count() <= count(wanted),
        ("pattern", Value::String(text)) => matches(wanted.as_str().expect("text"), text),
        ("minimum", Value::Number(number)) => number.as_f64() >= wanted.as_f64(),
        ("maximum", Value::Number(number)) => number.as_f64() <= wanted.as_f64(),
        ("exclusiveMaximum", Value::Number(number)) => number.as_f64() < wanted.as_f64(),
        _ => {
            // Keywords for other types say nothing, and formats are annotations.
            let known = "properties required additionalProperties maxProperties prefixItems items minItems maxItems \
                minLength maxLength pattern minimum maximum exclusiveMaximum format $defs";
            assert!(known.split_whitespace().any(|known| known == keyword), "{keyword} is not checked");
            true
        }
    })
}

/// The patterns of the schemas here, by hand.
fn matches(pattern: &str, text: &str) -> bool {
    let digits = |text: &str, count: usize| text.len() == count && text.chars().all(|c| c.is_ascii_digit());
    match pattern {
        "^[0-9]{5}$" => digits(text, 5),
        "^[a-f]{2,4}$" => (2..=4).contains(&text.len()) && text.chars().all(|c| matches!(c, 'a'..='f')),
        "^x(yz)*$" => text.strip_prefix('x').is_some_and(|rest| rest.replace("yz", "").is_empty()),
        "^\\d+\\.\\d$" => text.split_once('.').is_some_and(|(whole, part)| {
            !whole.is_empty()
                && whole.chars().chain(part.chars()).all(char::is_numeric)
                && part.chars().count() == 1
        }),
        "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$" => {
            let area = text.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            let rest = match area {
                Some((area, rest)) if digits(area, 3) => rest,
                Some(_) => return false,
                None => text,
            };
            rest.split_once('-').is_some_and(|(first, second)| digits(first, 3) && digits(second, 4))
        }
        other => panic!("{other} is not checked"),
    }
}

/// Samples a text from random logits, in which what ends strings and values is likelier. Whether it ended by itself.
fn sample(
    tokenizer: &Tokenizer,
    mut constraint: Box<dyn Constraint>,
    seed: u64,
    most: usize,
) -> Result<(Vec<u8>, bool), NoToken> {
    let ends = tokenizer.end_tokens();
    // A model's table may be larger than the vocabulary.
    let vocab = tokenizer.vocab_size() + 5;
    let mut random = Random(seed);
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let copy = constraint.boxed_clone();
    let mut sampler = Sampler::new(sampling).expect("sound").with_constraint(Some(copy));
    let (mut text, mut context) = (Vec::new(), vec![0]);
    for _ in 0..most {
        let mut logits: Vec<f32> = (0..vocab).map(|_| random.below(1000) as f32 / 400.0).collect();
        for (id, logit) in (0..).zip(&mut logits) {
            let closing =
                tokenizer.token_bytes(id).is_some_and(|b| matches!(&*b, b"\"" | b"}" | b"]" | b"\"}"));
            *logit += if closing || ends.contains(&id) { 6.0 } else { 0.0 };
        }
        let token = sampler.choose(&logits, &context)?.token;
        // The one that was copied says the same.
        let mut mask = TokenMask::new(vocab);
        constraint.allow(&mut mask)?;
        assert!(mask.contains(token));
        constraint.accept(token)?;
        if ends.contains(&token) {
            return Ok((text, true));
        }
        // Where text is free, it may have special tokens.
        text.extend_from_slice(&tokenizer.token_bytes(token).unwrap_or_default());
        context.push(token);
        if sampler.is_complete() {
            return Ok((text, true));
        }
    }
    Ok((text, false))
}

#[test]
fn what_ends_by_itself_is_valid_and_the_rest_is_a_beginning() {
    let mut schemas = realistic();
    let mut random = Random(7);
    while schemas.len() < 200 {
        schemas.push(generated(&mut random, 3));
    }
    let mut ended = 0;
    let tokenizers = ["byte_level.gguf", "sentencepiece.gguf"].map(tokenizer);
    let grammars = tokenizers.each_ref().map(|t| Grammars::new(t, &t.end_tokens()).expect("it has an end"));
    for (at, schema) in schemas.iter().enumerate() {
        let which = at % 2;
        let constraint =
            grammars[which].json_schema(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let (text, whole) = sample(&tokenizers[which], constraint, at as u64, 200).expect("it goes on");
        let shown = String::from_utf8_lossy(&text).into_owned();
        if whole {
            ended += 1;
            let value: Value =
                serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{schema}: {shown}: {e}"));
            assert!(meets(schema, &value, schema), "{schema}: {shown}");
        } else {
            // Cut in mid-value, not wrong. Of a number every beginning may be whole.
            match serde_json::from_slice::<Value>(&text) {
                Ok(value) => assert!(value.is_number(), "{schema}: {shown}"),
                Err(error) => {
                    assert!(
                        error.is_eof() || std::str::from_utf8(&text).is_err(),
                        "{schema}: {shown}: {error}"
                    )
                }
            }
        }
    }
    assert!(ended > 150, "{ended} of {} ended", schemas.len());
}

#[test]
fn calls_that_a_client_demands_are_calls() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    let weather = json!({"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}, "$ref": {"type": "boolean"}}, "required": ["city"], "additionalProperties": false, "$defs": {"city": {"type": "string", "maxLength": 6}}});
    let tree = json!({"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": false});
    let functions = [("get_weather", &weather), ("tree", &tree), ("now", &json!(null))];
    let mut calls = 0;
    for seed in 0..40 {
        let offered = if seed % 2 == 0 { &functions[..] } else { &functions[..1] };
        let schema = calls_schema(offered.iter().copied(), 2);
        let constraint = grammars.json_schema(&schema).expect("a schema");
        let (text, whole) = sample(&tokenizer, constraint, seed, 150).expect("it goes on");
        let text = String::from_utf8_lossy(&text).into_owned();
        let names = offered.iter().map(|(name, _)| (*name).to_owned());
        let mut parser = OutputParser::new(Some(ToolFormat::JsonList), ReasoningMode::Off, names, seed);
        let (mut name, mut arguments) = (String::new(), String::new());
        let events = [parser.push(&text), if whole { parser.finish() } else { Vec::new() }].concat();
        for event in events {
            match event {
                OutputEvent::CallStart { name: called, .. } => (name, arguments) = (called, String::new()),
                OutputEvent::CallArguments { piece, .. } => arguments += &piece,
                OutputEvent::CallEnd { .. } => {
                    calls += 1;
                    let schema = offered.iter().find(|(offered, _)| *offered == name).expect("offered").1;
                    let schema = if schema.is_null() { &json!({"type": "object"}) } else { schema };
                    let value: Value = serde_json::from_str(&arguments).expect("JSON");
                    assert!(meets(schema, &value, schema), "{name}: {arguments}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
    assert!(calls > 20, "{calls} calls");
}

/// Functions with schemas that are soon met, and one without.
fn functions() -> Vec<(String, Value)> {
    let weather = json!({"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}, "hours": {"type": "integer", "minimum": 0, "maximum": 9}, "wind": {"type": "boolean"}}, "required": ["city", "wind"], "additionalProperties": false, "$defs": {"city": {"type": "string", "maxLength": 6}}});
    let pick = json!({"type": "object", "properties": {"color": {"enum": ["red", "green"]}}, "required": ["color"], "additionalProperties": false});
    vec![("get_weather".to_owned(), weather), ("pick".to_owned(), pick)]
}

fn form(format: ToolFormat) -> CallForm {
    CallForm { format, functions: functions(), markers: Vec::new(), reasoning: ReasoningMode::Off }
}

/// Gives a text to a constraint byte by byte; each is to be allowed.
fn write(tokenizer: &Tokenizer, constraint: &mut dyn Constraint, text: &str) {
    let vocab = tokenizer.vocab_size();
    for byte in text.bytes() {
        let is_it = |&id: &u32| tokenizer.token_bytes(id).is_some_and(|bytes| *bytes == [byte]);
        let token = (0..vocab as u32).find(is_it).expect("a token for each byte");
        let mut mask = TokenMask::new(vocab);
        constraint.allow(&mut mask).expect("it goes on");
        assert!(mask.contains(token), "{:?} of {text:?}", char::from(byte));
        constraint.accept(token).expect("it is allowed");
    }
}

/// How many calls of a text are complete; their arguments meet their schemas.
fn valid_calls(format: ToolFormat, text: &str) -> usize {
    let functions = functions();
    let names = functions.iter().map(|(name, _)| name.clone());
    let mut parser = OutputParser::new(Some(format), ReasoningMode::Off, names, 1);
    let (mut name, mut arguments, mut calls) = (String::new(), String::new(), 0);
    for event in [parser.push(text), parser.finish()].concat() {
        match event {
            OutputEvent::CallStart { name: called, .. } => (name, arguments) = (called, String::new()),
            OutputEvent::CallArguments { piece, .. } => arguments += &piece,
            OutputEvent::CallEnd { .. } => {
                calls += 1;
                let schema = &functions.iter().find(|(offered, _)| *offered == name).expect("offered").1;
                let value: Value = serde_json::from_str(&arguments).expect("JSON");
                assert!(meets(schema, &value, schema), "{text}: {name}: {arguments}");
            }
            OutputEvent::Text(_) | OutputEvent::Reasoning(_) => {}
        }
    }
    calls
}

/// Text is free; what follows the beginning of a call, in each form, is a call.
#[test]
fn calls_that_a_model_begins_meet_their_schemas() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    let cases = [
        (ToolFormat::Hermes, "<tool_call>{"),
        (ToolFormat::Hermes, "So {x}, [1] <tool_call>\n{"),
        (ToolFormat::Llama3Json, "{"),
        (ToolFormat::Llama3Json, "So {x} <|python_tag|>{"),
        (ToolFormat::Mistral, "So {x} [TOOL_CALLS] ["),
        (ToolFormat::Mistral, "[TOOL_CALLS]get_weather{"),
        (ToolFormat::Mistral, "[TOOL_CALLS]get_weather[ARGS] {"),
        (ToolFormat::Mistral, "[TOOL_CALLS]pick[CALL_ID]ab12[ARGS]{"),
        (ToolFormat::Pythonic, " ["),
        (ToolFormat::Pythonic, "So [x] <|python_start|>["),
    ];
    for (at, (format, begins)) in cases.into_iter().enumerate() {
        let mut complete = 0;
        let made = grammars.calls(&form(format), None).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        for seed in 0..8 {
            let mut constraint = made.boxed_clone();
            write(&tokenizer, &mut *constraint, begins);
            let (text, _) = sample(&tokenizer, constraint, (at * 8 + seed) as u64, 60).expect("it goes on");
            complete += valid_calls(format, &format!("{begins}{}", String::from_utf8_lossy(&text)));
        }
        assert!(complete > 3, "{format:?} {begins}: {complete} calls");
    }
    // Reasoning calls nothing.
    let reasoning = CallForm { reasoning: ReasoningMode::Tagged, ..form(ToolFormat::Hermes) };
    let mut constraint = grammars.calls(&reasoning, None).expect("a form");
    write(&tokenizer, &mut *constraint, "<think>I might <tool_call>{x}</think> <tool_call>{\"name");
}

#[test]
fn an_answer_is_its_format_or_a_call() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    let format = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": false});
    let named = r#"{"name":"pick","parameters":{"color":"red"}}"#;
    let hermes = "<tool_call>\n{\"name\":\"pick\",\"arguments\":{\"color\":\"red\"}}";
    let mistral = "[TOOL_CALLS]pick[ARGS]{\"color\":\"red\"}";
    let cases =
        [(ToolFormat::Hermes, hermes), (ToolFormat::Llama3Json, named), (ToolFormat::Mistral, mistral)];
    for (kind, call) in cases {
        let made = grammars.calls(&form(kind), Some(&format)).expect("a form");
        for text in ["{\"n\":5}", call] {
            write(&tokenizer, &mut *made.boxed_clone(), text);
        }
        assert_eq!(valid_calls(kind, call), 1);
        let mut mask = TokenMask::new(tokenizer.vocab_size());
        made.boxed_clone().allow(&mut mask).expect("it goes on");
        for id in 0..tokenizer.vocab_size() as u32 {
            let text = tokenizer.token_bytes(id).unwrap_or_default();
            let is_free = text.first().is_some_and(u8::is_ascii_alphanumeric);
            assert!(!(is_free && mask.contains(id)), "{kind:?}: {:?}", String::from_utf8_lossy(&text));
        }
    }
}

#[test]
fn schemas_that_come_together_wait_for_each_other() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    std::thread::scope(|scope| {
        let make = |at| {
            let grammars = &grammars;
            scope.spawn(move || grammars.json_schema(&json!({ "const": at })).map(|_| ()))
        };
        let made: Vec<_> = (0..32).map(make).collect();
        assert!(made.into_iter().all(|made| made.join().expect("no panic").is_ok()));
    });
}

#[test]
fn a_refusal_tells_its_reason_on_one_line() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    for (schema, reason) in [
        (json!({"type": "string", "pattern": "^(?=a)b$"}), "look-around"),
        (json!({"type": "string", "pattern": "(("}), "unclosed group"),
        (json!({"$ref": "#"}), "no text meets it: a `$ref` leads to itself"),
    ] {
        let message = grammars.json_schema(&schema).expect_err("it cannot be used").to_string();
        assert!(message.contains(reason) && !message.contains('\n'), "{schema}: {message}");
    }
}

#[test]
fn schemas_of_strangers_are_refused_in_time() {
    let tokenizer = tokenizer("byte_level.gguf");
    let grammars = Grammars::new(&tokenizer, &tokenizer.end_tokens()).expect("it has an end");
    let nested = |levels: usize, key: &str| (0..levels).fold(json!({}), |inner, _| json!({ key: inner }));
    let chain = |links: usize| {
        let link = |at: usize| (format!("a{at}"), json!({"$ref": format!("#/$defs/a{}", at + 1)}));
        let mut defs: serde_json::Map<String, Value> = (0..links).map(link).collect();
        defs.insert(format!("a{links}"), json!({"type": "null"}));
        json!({"$ref": "#/$defs/a0", "$defs": defs})
    };
    let doubling = |levels: usize, how: &str| {
        let twice = |at: usize| {
            let next = json!({"$ref": format!("#/$defs/a{}", at + 1)});
            (format!("a{at}"), json!({ how: [next, next] }))
        };
        let mut defs: serde_json::Map<String, Value> = (0..levels).map(twice).collect();
        defs.insert(format!("a{levels}"), json!({"type": "integer"}));
        json!({"$ref": "#/$defs/a0", "$defs": defs})
    };
    let hostile = vec![
        nested(65, "not"),
        nested(60, "not"),
        nested(60, "items"),
        json!({"enum": vec![0; 10_001]}),
        json!({"const": "x".repeat(300_000)}),
        json!({"enum": (0..9_000).map(|at| format!("value number {at}")).collect::<Vec<_>>()}),
        chain(2_000),
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "https://example.org/schema.json"}),
        json!({"$ref": "#/nowhere"}),
        doubling(25, "allOf"),
        doubling(25, "anyOf"),
        doubling(25, "oneOf"),
        json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}),
        json!({"type": "string", "pattern": "(a|aa)*(b|bb)*(.*x){20}"}),
        json!({"type": "string", "pattern": "(("}),
        json!({"type": "string", "pattern": "^(a)\\1$"}),
        json!({"type": "string", "minLength": 1_000_000_000u64}),
        json!({"type": "string", "maxLength": 1_000_000_000u64}),
        json!({"type": "array", "minItems": 1_000_000_000u64, "items": {"type": "null"}}),
        json!({"type": "array", "maxItems": 1_000_000_000u64, "items": {"type": "null"}}),
        json!({"type": "integer", "multipleOf": 1e-300}),
        json!({"type": "integer", "minimum": -1e308, "maximum": 1e308}),
        json!({"type": "object", "minProperties": 1_000_000u64}),
        json!({"type": "object", "properties": (0..3_000).map(|at| (format!("p{at}"), json!({}))).collect::<serde_json::Map<_, _>>()}),
        json!({"type": 3}),
        json!({"type": "nothing"}),
        json!({"properties": []}),
        json!({"x-guidance": 5}),
        json!({"x-guidance": {"whitespace_pattern": "x"}}),
        json!(false),
        json!([]),
        json!("{}"),
        json!({"not": {}}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
    ];
    for schema in hostile {
        let shown: String = schema.to_string().chars().take(120).collect();
        let began = Instant::now();
        match grammars.json_schema(&schema) {
            Ok(constraint) => {
                // It is what it says, at each step.
                // What it costs to go on is bounded as well.
                let Ok((text, whole)) = sample(&tokenizer, constraint, 3, 20) else { continue };
                let value = serde_json::from_slice::<Value>(&text);
                assert_eq!(whole, value.is_ok() && whole, "{shown}");
            }
            Err(error) => {
                let message = error.to_string();
                assert!(!message.contains('\n') && message.len() < 700, "{shown}: {message}");
                assert_ne!(error, GrammarError::Busy, "{shown}");
            }
        }
        // A bound on hanging, not on speed.
        assert!(began.elapsed() < 3 * COMPILE_LIMIT, "{shown}: {:?}", began.elapsed());
    }
    assert_eq!(Grammars::new(&tokenizer, &[u32::MAX]).expect_err("no end"), GrammarError::NoEnd);
}
