//! Tokens that hold more than a call's first bracket.

use super::*;
use serde_json::json;

const LONGER: [&str; 9] =
    ["{\"", "{\"name", "{ ", "{x", "{}", ">{\"", ">{x", "<tool_call>{\"", "<tool_call>{x"];
const END: u32 = 128;

/// The bytes of ASCII, an end, and longer tokens.
fn grammars() -> Grammars {
    let mut tokens: Vec<Vec<u8>> = (0..128).map(|byte| vec![byte]).collect();
    tokens.push(Vec::new());
    tokens.extend(LONGER.map(|text| text.as_bytes().to_vec()));
    Grammars::from_vocabulary(&tokens, &[END]).unwrap()
}

fn allowed(constraint: &mut dyn Constraint) -> Vec<&'static str> {
    let mut mask = TokenMask::new(END as usize + 1 + LONGER.len());
    constraint.allow(&mut mask).unwrap();
    let is_in = |at: usize| mask.contains(END + 1 + at as u32);
    LONGER.into_iter().enumerate().filter(|&(at, _)| is_in(at)).map(|(_, text)| text).collect()
}

fn write(constraint: &mut dyn Constraint, text: &str) {
    text.bytes().for_each(|byte| constraint.accept(byte.into()).unwrap());
}

#[test]
fn a_token_does_not_skip_the_beginning_of_a_call() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "additionalProperties": false });
    let form = |format, reasoning| CallForm {
        format,
        functions: vec![("f".to_owned(), schema.clone())],
        markers: Vec::new(),
        reasoning,
    };
    let grammars = grammars();
    let hermes = grammars.calls(&form(ToolFormat::Hermes, ReasoningMode::Off), None).unwrap();
    let mut text = hermes.boxed_clone();
    write(&mut *text, "So {");
    let free = &LONGER[..8];
    assert_eq!(allowed(&mut *text), free, "text is free, but for a call that means nothing");
    // With the opening's last character, or after it.
    write(&mut *text, "<tool_call");
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", "{x", "{}", ">{\"", "<tool_call>{\""]);
    write(&mut *text, ">\n");
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", ">{\"", ">{x", "<tool_call>{\""]);
    // A call that begins within a token goes on from there.
    let name = END + 2;
    text.accept(name).unwrap();
    assert_eq!(allowed(&mut *text), [""; 0]);
    write(&mut *text, "\":\"f\",\"arguments\":{\"a\":1}}");
    assert_eq!(allowed(&mut *text), free, "the call is complete");
    // At the beginning, for models whose calls have no marker; not within reasoning.
    let llama = form(ToolFormat::Llama3Json, ReasoningMode::Tagged);
    let mut text = grammars.calls(&llama, None).unwrap();
    let first = [&LONGER[..3], &LONGER[5..]].concat();
    assert_eq!(allowed(&mut *text), first);
    write(&mut *text, "<think>So: ");
    assert_eq!(allowed(&mut *text), LONGER);
    write(&mut *text, "</think>");
    assert_eq!(allowed(&mut *text), first);
}

/// All tokens of a byte that are allowed, as text.
fn bytes(constraint: &mut dyn Constraint) -> String {
    let mut mask = TokenMask::new(END as usize + 1 + LONGER.len());
    constraint.allow(&mut mask).unwrap();
    (0..128).filter(|&byte| mask.contains(byte)).map(|byte| char::from(byte as u8)).collect()
}

#[test]
fn a_call_may_begin_in_place_of_a_format() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "additionalProperties": false });
    let form = |format, names: &[&str]| CallForm {
        format,
        functions: names.iter().map(|name| ((*name).to_owned(), schema.clone())).collect(),
        markers: vec![(END, "[TOOL_CALLS]")],
        reasoning: ReasoningMode::Off,
    };
    let format = json!({ "type": "array", "items": false });
    let grammars = grammars();
    let mut text = grammars.calls(&form(ToolFormat::Hermes, &["f"]), Some(&format)).unwrap();
    assert_eq!((bytes(&mut *text).as_str(), allowed(&mut *text)), ("<[", vec!["<tool_call>{\""]));
    write(&mut *text, "<");
    assert_eq!((bytes(&mut *text).as_str(), allowed(&mut *text)), ("t", vec![]));
    write(&mut *text, "tool_call");
    assert_eq!((bytes(&mut *text).as_str(), allowed(&mut *text)), (">", vec![">{\""]));
    write(&mut *text, ">");
    let spaces = "\t\n\u{c}\r ";
    let opened = vec!["{\"", "{\"name", "{ "];
    assert_eq!((bytes(&mut *text), allowed(&mut *text)), (format!("{spaces}{{"), opened.clone()));
    write(&mut *text, "\n\n\n\n");
    assert_eq!((bytes(&mut *text), allowed(&mut *text)), ("{".to_owned(), opened));
    write(&mut *text, "{\"name\":\"f\",\"arguments\":{\"a\":1}}");
    assert!(text.is_complete());

    // The longer of two names goes on after the shorter one.
    let form = form(ToolFormat::Mistral, &["f", "fg"]);
    let first = grammars.calls(&form, Some(&format)).unwrap();
    let mut text = first.boxed_clone();
    let mut mask = TokenMask::new(END as usize + 1 + LONGER.len());
    text.allow(&mut mask).unwrap();
    assert!(mask.contains(END), "the marker");
    text.accept(END).unwrap();
    assert_eq!(bytes(&mut *text), format!("{spaces}[f"));
    write(&mut *text, "f");
    assert_eq!(bytes(&mut *text), format!("{spaces}[g{{"));
    assert_eq!(allowed(&mut *text), ["{\"", "{ ", "{}"]);
    write(&mut *text, "g[ARGS]{\"a\":1}");
    assert!(text.is_complete() && !first.is_complete());
}

#[test]
fn arguments_that_python_cannot_name_are_refused() {
    let form = |name: &str| CallForm {
        format: ToolFormat::Pythonic,
        functions: vec![("f".to_owned(), json!({ "properties": { name: { "type": "string" } } }))],
        markers: Vec::new(),
        reasoning: ReasoningMode::Off,
    };
    for good in ["my_arg", "a1", "größe"] {
        assert!(grammars().calls(&form(good), None).is_ok(), "{good}");
    }
    for bad in ["my-arg", "1a", "", "a b"] {
        match grammars().calls(&form(bad), None).err() {
            Some(GrammarError::Refused(why)) => assert!(why.contains("no argument's name"), "{why}"),
            other => panic!("{bad}: {other:?}"),
        }
    }
}

#[test]
fn definitions_are_not_repeated_beyond_bounds() {
    let properties: serde_json::Map<_, _> = (0..4000).map(|at| (format!("p{at}"), json!({}))).collect();
    let schema = json!({ "properties": properties, "$defs": { "a": { "const": "x".repeat(200 << 10) } } });
    let form = CallForm {
        format: ToolFormat::Pythonic,
        functions: vec![("f".to_owned(), schema)],
        markers: Vec::new(),
        reasoning: ReasoningMode::Off,
    };
    match grammars().calls(&form, None).err() {
        Some(GrammarError::TooLarge { what: "bytes", found, .. }) => assert!(found < 2 << 20, "{found}"),
        other => panic!("{other:?}"),
    }
}
