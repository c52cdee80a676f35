//! Any bytes as a packed file, with the hashes that it should have.

#![no_main]

use djinn_models::safetensors::SafetensorsDir;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    djinn_fuzz::seal(&mut bytes);
    if let Ok(file) = SafetensorsDir::from_packed_bytes(bytes) {
        djinn_fuzz::read_everything(&file);
    }
});
