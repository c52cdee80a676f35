//! The engine's tests, as one program: each of them would compile the engine for its devices again.

mod cache_types;
mod cancelled;
mod checkpoints;
mod choice;
mod encodings;
mod exactness;
mod experts;
mod families;
mod hooks;
mod hooks_transformers;
mod not_finite;
mod parking;
mod quantised;
mod replay;
mod runtime;
mod sessions;
mod shapes;
mod smollm2;
mod trace;
mod turns;

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
