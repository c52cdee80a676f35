//! Any bytes as a safetensors file.

#![no_main]

use djinn_models::safetensors::SafetensorsDir;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = SafetensorsDir::from_bytes(bytes.to_vec()) {
        djinn_fuzz::read_everything(&file);
    }
});
