//! Any bytes as the files of a tokenizer: `j` and tokenizer.json, `m` and tokenizer.model, `v` and vocab.json,
//! a zero byte and merges.txt, `g` and a GGUF file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| djinn_fuzz::encode_everything(bytes));
