//! Any text as a settings file, in both formats.

#![no_main]

use djinn_host::settings;
use std::path::Path;

libfuzzer_sys::fuzz_target!(|text: &str| {
    for name in ["a.toml", "a.yaml"] {
        let _ = settings::parse(Path::new(name), text);
    }
});
