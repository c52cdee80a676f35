//! Renders templates for other programs: a JSON object per line of standard input, one per line of output.
//!
//! In: `template`, `variables` (JSON as text, whose order of keys counts), `tokens` (special tokens by name) and
//! `now` (seconds since 1970). Out: `text` and `literal`, or `error`.

use djinn_template::{Context, Error, Rendered, Template, Value};
use serde_json::{Value as Json, json};
use std::io::BufRead;
use std::time::{Duration, UNIX_EPOCH};

fn render(request: &Json) -> Result<Rendered, Error> {
    let text = |key: &str| request[key].as_str().unwrap_or_default();
    let mut context = Context::new(UNIX_EPOCH + Duration::from_secs(request["now"].as_u64().unwrap_or(0)));
    for (name, token) in request["tokens"].as_object().into_iter().flatten() {
        context.set(name, Value::token(token.as_str().unwrap_or_default()));
    }
    let variables = Value::from_json(text("variables"))?;
    for (name, value) in variables.as_object().into_iter().flatten() {
        context.set(name, value.clone());
    }
    Template::parse(text("template"))?.render(&context)
}

fn main() {
    for line in std::io::stdin().lock().lines() {
        let request = serde_json::from_str(&line.expect("standard input is text")).expect("a line is JSON");
        println!(
            "{}",
            match render(&request) {
                Ok(Rendered { text, literal }) => {
                    let literal: Vec<_> = literal.iter().map(|range| [range.start, range.end]).collect();
                    json!({ "text": text, "literal": literal })
                }
                Err(error) => json!({ "error": error.to_string() }),
            }
        );
    }
}
