//! A chat, one line after the other: `cargo run --release --example chat -- MODEL`.

use djinn_host::{Djinn, Generation, Setup};
use std::io::{BufRead, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).expect("MODEL");
    chat(&model, stdin().lock(), stdout())
}

/// Answers each line of `input` on `output`.
pub(crate) fn chat(
    model: &str,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut djinn = Djinn::open(model, Setup::default())?;
    let generation = Generation { temperature: Some(0.7), seed: Some(1), ..Generation::default() };
    let mut chat = djinn.chat(&generation)?;
    for line in input.lines() {
        let mut failed = Ok(());
        chat.say(&line?, |piece| failed = output.write_all(piece.as_bytes()))?;
        failed.and_then(|()| writeln!(output))?;
    }
    Ok(())
}
