//! Tokens that hold more than a call's first bracket.

use super::*;
use serde_json::json;

const LONGER: [&str; 7] = ["{\"", "{\"name", "{ ", "{x", "{}", ">{\"", ">{x"];
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
    assert_eq!(allowed(&mut *text), LONGER, "text is free");
    // With the opening's last character, or after it.
    write(&mut *text, "<tool_call");
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", "{x", "{}", ">{\""]);
    write(&mut *text, ">\n");
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", ">{\"", ">{x"]);
    // A call that begins within a token goes on from there.
    let name = END + 2;
    text.accept(name).unwrap();
    assert_eq!(allowed(&mut *text), [""; 0]);
    write(&mut *text, "\":\"f\",\"arguments\":{\"a\":1}}");
    assert_eq!(allowed(&mut *text), LONGER, "the call is complete");
    // At the beginning, for models whose calls have no marker; not within reasoning.
    let llama = form(ToolFormat::Llama3Json, ReasoningMode::Tagged);
    let mut text = grammars.calls(&llama, None).unwrap();
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", ">{\"", ">{x"]);
    write(&mut *text, "<think>So: ");
    assert_eq!(allowed(&mut *text), LONGER);
    write(&mut *text, "</think>");
    assert_eq!(allowed(&mut *text), ["{\"", "{\"name", "{ ", ">{\"", ">{x"]);
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
