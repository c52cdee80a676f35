//! Any bytes as a `config.json` with a `quantization_config`, a zero byte, and a safetensors file.

#![no_main]

use djinn_models::quantised::QuantisedDir;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else { return };
    if let Ok(file) = QuantisedDir::from_bytes(&bytes[..end], bytes[end + 1..].to_vec()) {
        djinn_fuzz::read_everything(&file);
    }
});
