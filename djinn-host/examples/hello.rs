//! The shortest program: `cargo run --release --example hello -- MODEL`, MODEL being a folder or a file.

use djinn_host::{Djinn, Generation, Setup};

fn main() -> djinn_host::Result<()> {
    let model = std::env::args().nth(1).expect("MODEL");
    // At most 150 MiB on the device; the other weights stream from host memory.
    let setup = Setup { vram: Some(150 << 20), context: Some(512), ..Setup::default() };
    let prompt = "What is the capital of France?";
    let answer =
        Djinn::open(&model, setup)?.generate(prompt, &Generation::default(), |piece| print!("{piece}"))?;
    println!("\n{} tokens, the first after {:?}", answer.tokens.len(), answer.stats.ttft);
    Ok(())
}
