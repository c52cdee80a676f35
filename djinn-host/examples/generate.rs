//! Text in, text out: `cargo run --release --example generate -- MODEL PROMPT`, MODEL being a folder or a file.

use djinn_host::{Djinn, Generation, Result, Setup};

fn main() -> Result<()> {
    let [model, prompt] = [1, 2].map(|i| std::env::args().nth(i).expect("MODEL PROMPT"));
    generate(&model, &prompt, |piece| print!("{piece}"))?;
    println!();
    Ok(())
}

/// Answers `prompt` with at most 150 MiB on the device: keys and values of 512 tokens, and what fits of the weights.
pub(crate) fn generate(model: &str, prompt: &str, on_text: impl FnMut(&str)) -> Result<String> {
    let mut djinn =
        Djinn::open(model, Setup { vram: Some(150 << 20), context: Some(512), ..Setup::default() })?;
    // With a seed, the text is the same each time.
    let generation = Generation { seed: Some(1), ..Generation::default() };
    let answer = djinn.generate(prompt, &generation, on_text)?;
    eprintln!("first token after {:?}", answer.stats.ttft);
    Ok(answer.text.unwrap_or_default())
}
