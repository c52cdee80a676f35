//! Any text as a conversation, rendered by a fixed template that prints all of it.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| djinn_fuzz::render_conversation(text));
