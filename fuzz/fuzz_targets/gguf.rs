//! Any bytes as a GGUF file.

#![no_main]

use djinn_models::gguf::Gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = Gguf::from_bytes(bytes.to_vec()) {
        djinn_fuzz::read_everything(&file);
    }
});
