//! Any text as a chat template, rendered over a fixed conversation.

#![no_main]

libfuzzer_sys::fuzz_target!(|source: &str| djinn_fuzz::render_template(source));
