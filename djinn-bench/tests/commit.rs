//! The commit that programs carry: that of their build, right after every commit, edit and checkout.

use std::path::Path;
use std::process::{Command, Output};

/// A workspace of one program that prints what the build script recorded.
const FILES: [(&str, &str); 4] = [
    ("Cargo.toml", "[workspace]\nmembers = [\"djinn-x\"]\nresolver = \"3\"\n"),
    ("djinn-x/Cargo.toml", "[package]\nname = \"djinn-x\"\nversion = \"0.1.0\"\nedition = \"2024\"\n"),
    ("djinn-x/build.rs", include_str!("../build.rs")),
    ("djinn-x/src/main.rs", "fn main() { println!(\"{}\", env!(\"DJINN_COMMIT\")); }\n"),
];

fn run(folder: &Path, program: &str, arguments: &[&str], given: &str) -> Output {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).env("DJINN_COMMIT", given).env_remove("CARGO_TARGET_DIR");
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"];
    text(run(folder, "git", &[&who[..], arguments].concat(), ""))
}

/// What the program prints after it was built where anything changed.
fn recorded(folder: &Path, given: &str) -> String {
    text(run(folder, env!("CARGO"), &["run", "-q", "--offline"], given))
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("a file");
}

#[test]
fn the_record_follows_commits_edits_and_reverts() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    FILES.iter().for_each(|(name, text)| write(folder, name, text));
    assert_eq!(recorded(folder, ""), "unknown", "no repository");
    assert_eq!(recorded(folder, "abc1234"), "abc1234", "as the builder of an archive says");
    write(folder, ".gitignore", "target\n");
    git(folder, &["init", "-q"]);
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "one"]);
    let head = || git(folder, &["rev-parse", "--short", "HEAD"]);
    // Cargo asks anew only if something changed that it was told of; here that is the source.
    write(folder, "djinn-x/build.rs", &format!("{}\n", FILES[2].1));
    assert_eq!(recorded(folder, "abc1234"), format!("{}-dirty", head()), "git knows better");
    git(folder, &["checkout", "-q", "."]);
    assert_eq!(recorded(folder, ""), head(), "the edit was taken back");
    write(folder, "notes.md", "No source.\n");
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "two"]);
    assert_eq!(recorded(folder, ""), head(), "the sources are the same, the commit is another");
    write(folder, "djinn-x/src/other.rs", "//! New.\n");
    assert_eq!(recorded(folder, ""), format!("{}-dirty", head()), "a file that is not committed");
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "three"]);
    assert_eq!(recorded(folder, ""), head());
}

#[test]
fn a_copy_within_another_repository_names_none_of_its_commits() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    FILES.iter().for_each(|(name, text)| write(folder, &format!("vendor/{name}"), text));
    git(folder, &["init", "-q"]);
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "theirs"]);
    assert_eq!(recorded(&folder.join("vendor"), ""), "unknown");
}

#[test]
fn results_and_versions_name_the_program_s_commit_wherever_it_runs() {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let bench = |arguments: &[&str]| {
        text(run(elsewhere.path(), env!("CARGO_BIN_EXE_djinn-bench"), arguments, "wrong"))
    };
    let commit = env!("DJINN_COMMIT");
    assert!(bench(&["--version"]).ends_with(&format!("(commit {commit})")));
    assert!(bench(&["link"]).contains(&format!("commit {commit}:")));
}
