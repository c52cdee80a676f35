//! The tests of model files, as one program: each of them would be linked with everything again.

#[path = "reference/interpreter.rs"]
mod interpreter;

mod chats;
mod checkpoints;
mod gguf_families;
mod hostile_chats;
mod hostile_files;
mod hostile_folder;
mod hostile_tokenizers;
mod packed;
mod quantised;
mod reference;
mod rendered;
mod stored;
mod tokenizers;

/// A file that is not named above would not be run.
#[test]
fn every_file_is_run() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).expect("the tests' folder") {
        let name = file.expect("an entry").file_name();
        let Some(module) = name.to_str().expect("UTF-8").strip_suffix(".rs") else { continue };
        let named = include_str!("main.rs").contains(&format!("mod {module};"));
        assert!(named || module == "main", "{module} is no module of the tests");
    }
}
