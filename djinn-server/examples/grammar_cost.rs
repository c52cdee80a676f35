//! What a constraint costs: time to make one, and time per token, over a model's vocabulary with tokens chosen at random.
//!
//! `cargo run --release -p djinn-server --example grammar_cost -- MODEL`

use djinn_engine::TokenMask;
use djinn_models::Tokenizer;
use djinn_models::gguf::Gguf;
use djinn_server::{CallForm, Grammars, ReasoningMode, ToolFormat, calls_schema};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a model's folder or GGUF file")?;
    let tokenizer = match path.ends_with(".gguf") {
        true => Tokenizer::from_gguf(&Gguf::open(&path)?)?,
        false => Tokenizer::from_dir(&path)?,
    };
    let tokenizer = tokenizer.ok_or("the model has no tokenizer")?;
    let ends = tokenizer.end_tokens();
    let began = Instant::now();
    let grammars = Grammars::new(&tokenizer, &ends)?;
    println!("{} tokens, prepared in {:.1?}", tokenizer.vocab_size(), began.elapsed());
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "age": { "type": "integer" },
            "tags": { "type": "array", "items": { "enum": ["a", "b", "c"] } },
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    let cases: [(&str, Value); 3] = [
        ("any object", json!({ "type": "object" })),
        ("an object", person.clone()),
        ("a call of eight functions", calls_schema((0..8).map(|_| ("f", &person)), 1)),
    ];
    for (name, schema) in cases {
        let began = Instant::now();
        let first = grammars.json_schema(&schema)?;
        let made = began.elapsed();
        let (mut times, mut state) = (Vec::new(), 1u64);
        for _ in 0..20 {
            let mut constraint = first.boxed_clone();
            for _ in 0..100 {
                let began = Instant::now();
                let mut mask = TokenMask::new(tokenizer.vocab_size());
                constraint.allow(&mut mask)?;
                let masked = began.elapsed();
                let allowed: Vec<u32> =
                    (0..tokenizer.vocab_size() as u32).filter(|&t| mask.contains(t)).collect();
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let token = allowed[(state >> 33) as usize % allowed.len()];
                let began = Instant::now();
                constraint.accept(token)?;
                times.push(masked + began.elapsed());
                if constraint.is_complete() || ends.contains(&token) {
                    break;
                }
            }
        }
        times.sort_unstable();
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        let (median, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        println!(
            "{name}: made in {made:.1?}; {} tokens: mean {mean:.1?}, median {median:.1?}, p99 {p99:.1?}",
            times.len()
        );
    }
    calls(&tokenizer, &grammars)
}

/// What a mask costs at places where calls may begin, and a copy of the constraint for another answer.
fn calls(tokenizer: &Tokenizer, grammars: &Grammars) -> Result<(), Box<dyn std::error::Error>> {
    let arguments = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "additionalProperties": false });
    let format = json!({ "type": "object", "properties": { "answer": { "type": "string" } } });
    for (name, format_of_calls, functions) in [
        ("Hermes, one function", ToolFormat::Hermes, 1),
        ("Mistral, eight functions", ToolFormat::Mistral, 8),
        ("Mistral, 128 functions", ToolFormat::Mistral, 128),
    ] {
        let form = CallForm {
            format: format_of_calls,
            functions: (0..functions).map(|at| (format!("function_{at}"), arguments.clone())).collect(),
            markers: Vec::new(),
            reasoning: ReasoningMode::Off,
        };
        for (format, texts) in [
            (None, &["So ", "So <", "So [", "So ["][..]),
            (Some(&format), &["", "<", "[TOOL", "[TOOL_CALLS]"]),
        ] {
            let first = grammars.calls(&form, format)?;
            let began = Instant::now();
            let copy = first.boxed_clone();
            let copied = began.elapsed();
            drop(copy);
            for text in texts {
                let mut constraint = first.boxed_clone();
                for token in tokenizer.encode(text, false)? {
                    constraint.accept(token)?;
                }
                let began = Instant::now();
                constraint.allow(&mut TokenMask::new(tokenizer.vocab_size()))?;
                let beside = if format.is_some() { "beside a format" } else { "in free text" };
                println!(
                    "{name}, {beside}: copied in {copied:.1?}, mask after {text:?} in {:.1?}",
                    began.elapsed()
                );
            }
        }
    }
    Ok(())
}
