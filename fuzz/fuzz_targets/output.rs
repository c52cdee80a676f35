//! Any text as a model's output with tool calls: the first byte names the format and how reasoning begins.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| djinn_fuzz::read_output(bytes));
