//! The rules of the house that a machine can check: layers, sizes, unsafe code, names, documents.

mod circles;
mod names;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::fs;
use std::path::{Path, PathBuf};

/// Every crate with its layer: dependencies go to a strictly lower one.
const LAYERS: &[(&str, u32)] = &[
    ("djinn-cuda-sys", 0),
    ("djinn-lossless", 0),
    ("djinn-pages", 0),
    ("djinn-ringbuf", 0),
    ("djinn-template", 0),
    ("djinn-srg", 1),
    ("djinn-device", 2),
    ("djinn-cpu", 3),
    ("djinn-cuda", 3),
    ("djinn-vmu", 3),
    ("djinn-scheduler", 3),
    ("djinn-models", 4),
    ("djinn-engine", 5),
    ("djinn-host", 6),
    ("djinn-server", 7),
    ("djinn-cli", 8),
    ("djinn-bench", 8),
];

/// Modules that may hold `unsafe` code, each with its reason.
const UNSAFE: &[&str] = &[
    // Typed views of device memory that streams share; the one place that makes slices from pointers.
    "djinn-cpu/src/memory.rs",
    // The CPU device's kernels: vector loads and stores, and tasks that write disjoint parts of an output.
    "djinn-cpu/src/kernels",
    // Declarations of the kernels' launchers, generated, and calls of them that launch nothing.
    "djinn-cuda-sys/",
    // Calls into the driver, cuBLASLt and the launchers, each on handles and memory that the module owns.
    "djinn-cuda/src/present/context.rs",
    "djinn-cuda/src/present/launch.rs",
    "djinn-cuda/src/present/matmul.rs",
    "djinn-cuda/src/present/memory",
    "djinn-cuda/src/present/on_cpu.rs",
    "djinn-cuda/src/present/stream.rs",
];

/// Crates with modules of that list: their roots deny unsafe code where others forbid it.
const WITH_UNSAFE: &[&str] = &["djinn-cpu", "djinn-cuda", "djinn-cuda-sys"];

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().exec().expect("cargo metadata runs")
}

fn root() -> PathBuf {
    metadata().workspace_root.into()
}

/// Source files of the workspace, as paths relative to its root.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("folders are readable") {
            let path = entry.expect("entries are readable").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    for package in metadata().packages {
        for part in ["src", "tests", "benches", "examples"] {
            let dir = package.manifest_path.parent().expect("a manifest lies in a folder").join(part);
            if dir.is_dir() {
                walk(dir.as_std_path(), &mut found);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("sources are UTF-8");
        (path.strip_prefix(&root).expect("within the workspace").display().to_string(), text)
    };
    found.into_iter().map(read).collect()
}

fn layer(name: &str) -> u32 {
    let found = LAYERS.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("{name} is missing from the table of layers")).1
}

#[test]
fn dependencies_go_to_lower_layers() {
    let packages: Vec<Package> = metadata().packages;
    for package in &packages {
        let own = layer(&package.name);
        for dependency in package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development) {
            if packages.iter().any(|p| *p.name == dependency.name) {
                assert!(
                    layer(&dependency.name) < own,
                    "{} may not depend on {}",
                    package.name,
                    dependency.name
                );
            }
        }
    }
    assert_eq!(packages.len(), LAYERS.len(), "every row of the table is a crate");
}

#[test]
fn files_have_a_headline_and_a_bounded_size() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{path} does not open with //!");
        let lines = text.lines().count();
        assert!(lines <= 800, "{path} has {lines} lines");
        if path.ends_with("src/lib.rs") {
            assert!(lines <= 100, "{path} has {lines} lines");
        }
        let stem = Path::new(&path).file_stem().expect("a file").to_string_lossy().into_owned();
        let vague = ["utils", "util", "helpers", "common", "base", "manager", "mod"];
        assert!(!vague.contains(&stem.as_str()), "{path} has a vague name");
    }
}

#[test]
fn unsafe_code_stays_in_listed_modules() {
    for (path, text) in sources() {
        let allowed = UNSAFE.iter().any(|listed| path.starts_with(listed));
        let found = text.lines().any(|l| l.contains("allow(unsafe_code"));
        let own = path.starts_with("djinn-cli/tests/tidy/");
        assert!(allowed || !found || own, "{path} allows unsafe code; list it here");
    }
    for package in metadata().packages.iter().filter(|p| !WITH_UNSAFE.contains(&p.name.as_str())) {
        let lib = package.manifest_path.parent().expect("a folder").join("src/lib.rs");
        if let Ok(text) = fs::read_to_string(&lib) {
            assert!(text.contains("#![forbid(unsafe_code)]"), "{lib} does not forbid unsafe code");
        }
    }
}

#[test]
fn only_what_chooses_a_device_names_a_vendor() {
    let choosing = ["djinn-cli", "djinn-bench", "djinn-host", "djinn-cuda"];
    for (path, text) in sources().iter().filter(|(p, _)| !choosing.iter().any(|own| p.starts_with(own))) {
        let mut code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        assert!(!code.any(|l| l.to_lowercase().contains("cuda")), "{path} names CUDA in code");
    }
}

#[test]
fn every_crate_is_documented() {
    let root = root();
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let readme = fs::read_to_string(root.join("README.md")).expect("README.md");
    for package in metadata().packages {
        assert!(
            architecture.contains(&format!("`{}`", package.name)),
            "ARCHITECTURE.md misses {}",
            package.name
        );
        assert!(readme.contains(&*package.name), "README.md misses {}", package.name);
        let own = package.manifest_path.parent().expect("a folder").join("README.md");
        let own = fs::read_to_string(&own).unwrap_or_else(|_| panic!("{own} is missing"));
        assert!(own.contains("```"), "{}'s README has no example", package.name);
        assert!(package.description.is_some() && package.license.is_some(), "{}", package.name);
    }
}

#[test]
fn no_leftovers() {
    let marks =
        [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("FIX", "ME")];
    for (path, text) in sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{path} holds {mark}");
        }
    }
}
