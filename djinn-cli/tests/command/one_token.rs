//! How much code one token of `djinn run` passes on its way from the prompt to the launches and back to text: few files,
//! and short ones. A stack is recorded at every operation of the CPU device and at every call of the tokenizer and of the
//! sampler; opening the model and the kernels are left out. ARCHITECTURE.md lists the files.

use std::backtrace::Backtrace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

/// These numbers only go down.
const MOST_FILES: usize = 15;
const MOST_LINES: usize = 2_500;

/// Where the calls say that they were made.
const CALLS: [&str; 3] = ["djinn::op", "djinn::tokenizer", "djinn::sampler"];

/// The stacks of each kind of call.
struct Stacks(Mutex<BTreeMap<String, BTreeSet<String>>>);

static STACKS: Stacks = Stacks(Mutex::new(BTreeMap::new()));

impl log::Log for Stacks {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        CALLS.contains(&metadata.target())
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let stack = Backtrace::force_capture().to_string();
            let mut stacks = self.0.lock().expect("no stack panics");
            stacks.entry(record.target().to_owned()).or_default().extend(files(&stack));
        }
    }

    fn flush(&self) {}
}

/// The workspace's source files in a stack, relative to its root.
fn files(stack: &str) -> impl Iterator<Item = String> + '_ {
    let places = stack.lines().filter_map(|line| line.trim().strip_prefix("at "));
    places.filter_map(|place| {
        let place = format!("{}.rs", place.split(".rs:").next()?);
        // Paths below the working directory, that of this crate, are short.
        let place = place.strip_prefix("./").map(|own| format!("djinn-cli/{own}")).unwrap_or(place);
        let at = place.find("djinn-").filter(|_| place.contains("/src/"))?;
        Some(place[at..].to_owned())
    })
}

#[test]
fn one_token_passes_few_files() {
    log::set_logger(&STACKS).expect("the only logger");
    log::set_max_level(log::LevelFilter::Trace);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let place = super::text::place();
    let model = place.path().join("model").display().to_string();
    let line =
        ["djinn", "run", &model, "Hi", "--device=cpu", "--greedy", "--ignore-eos", "-n=3", "--json", "-q"];
    let code = djinn_cli::run(line.iter().map(Into::into).collect());
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));

    let stacks = STACKS.0.lock().expect("no stack panics");
    for call in CALLS {
        assert!(stacks.get(call).is_some_and(|files| files.len() > 3), "{call} left no stack: {stacks:#?}");
    }
    let all: BTreeSet<&String> = stacks.values().flatten().collect();
    let lines = |file: &&String| {
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        text.lines().count()
    };
    let list: Vec<String> = all.iter().map(|file| format!("{:5}  {file}", lines(file))).collect();
    let sum: usize = all.iter().map(lines).sum();
    println!("{} files, {sum} lines\n{}", all.len(), list.join("\n"));
    assert!(
        all.len() <= MOST_FILES && sum <= MOST_LINES,
        "{} files, {sum} lines:\n{}",
        all.len(),
        list.join("\n")
    );
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for file in all {
        assert!(architecture.contains(file.as_str()), "ARCHITECTURE.md does not list {file}");
    }
}
