//! No two files of a crate need each other: what a file imports never leads back to it. A file and the files in the
//! folder of its name are one thing in parts, so arrows between the two are left out.

use super::sources;
use std::collections::{BTreeMap, BTreeSet};

/// Crates whose files are held to it.
const CRATES: &[&str] = &["djinn-engine", "djinn-scheduler", "djinn-cuda"];

type Path = Vec<String>;

/// The files of a crate's library by their module's path, without tests.
fn modules(name: &str) -> BTreeMap<Path, String> {
    let root = format!("{name}/src/");
    let files = sources().into_iter().filter(|(path, _)| path.starts_with(&root) && !is_test(path));
    let module = |path: &str| -> Path {
        let inner = path[root.len()..].trim_end_matches(".rs");
        if inner == "lib" { Vec::new() } else { inner.split('/').map(str::to_owned).collect() }
    };
    files
        .map(|(path, text)| (module(&path), text.split("#[cfg(test)]").next().unwrap_or("").to_owned()))
        .collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/src/bin/")
}

/// Every path of the code that begins with `crate`, `super` or `self`, groups in braces written out.
fn paths(text: &str) -> BTreeSet<Path> {
    let code: String =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            // `super::super::x` is read from its first word.
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                expand(&mut code[at..].chars().peekable(), &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn expand(chars: &mut Chars<'_>, prefix: &mut Path, found: &mut BTreeSet<Path>) {
    let depth = prefix.len();
    loop {
        while chars.peek().is_some_and(|c| c.is_whitespace()) {
            chars.next();
        }
        let mut word = String::new();
        while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_' || *c == '*') {
            word.push(c);
        }
        if word.is_empty() {
            if chars.next_if_eq(&'{').is_some() {
                loop {
                    expand(chars, &mut prefix.clone(), found);
                    while chars.next_if(|c| c.is_whitespace()).is_some() {}
                    if chars.next_if_eq(&',').is_none() {
                        break;
                    }
                }
                chars.next_if_eq(&'}');
            }
            break;
        }
        prefix.push(word);
        let mut ahead = chars.clone();
        if ahead.next() == Some(':') && ahead.next() == Some(':') {
            *chars = ahead;
        } else {
            // A new name is none of the path.
            while chars.peek().is_some_and(|c| c.is_alphanumeric() || *c == '_' || *c == ' ') {
                chars.next();
            }
            found.insert(prefix.clone());
            break;
        }
    }
    prefix.truncate(depth);
}

/// The file that a path of `from` leads to, re-exports followed.
fn target(from: &[String], path: &[String], modules: &BTreeMap<Path, String>, depth: u32) -> Option<Path> {
    let mut at: Path = if path[0] == "crate" { Vec::new() } else { from.to_vec() };
    let ups = path.iter().take_while(|word| *word == "super").count();
    at.truncate(at.len().saturating_sub(ups));
    let mut rest = &path[ups.max(1)..];
    while let [word, more @ ..] = rest {
        let inner = [&*at, std::slice::from_ref(word)].concat();
        if !modules.contains_key(&inner) {
            break;
        }
        (at, rest) = (inner, more);
    }
    // A name that the file only passes on belongs to the file that has it.
    if let Some(name) = rest.first()
        && depth < 4
    {
        let passed_on = passes_on(&modules[&at]).into_iter().find(|path| path.last() == Some(name));
        if let Some(mut path) = passed_on {
            if !["crate", "super", "self"].contains(&path[0].as_str()) {
                path.insert(0, "self".to_owned());
            }
            return target(&at, &path, modules, depth + 1);
        }
    }
    Some(at)
}

/// The paths of a file's `pub use` declarations.
fn passes_on(text: &str) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    for (at, opening) in text.match_indices("pub use ").chain(text.match_indices("pub(crate) use ")) {
        expand(&mut text[at + opening.len()..].chars().peekable(), &mut Vec::new(), &mut found);
    }
    found
}

/// The files that each file needs.
fn needs(modules: &BTreeMap<Path, String>) -> BTreeMap<Path, BTreeSet<Path>> {
    let of = |module: &Path, text: &String| {
        let found = paths(text);
        let mut all: BTreeSet<Path> =
            found.iter().filter_map(|path| target(module, path, modules, 0)).collect();
        // `use child::Name` needs the child.
        for (child, _) in
            modules.iter().filter(|(path, _)| path.len() == module.len() + 1 && path.starts_with(module))
        {
            let name = child.last().expect("a child has a name");
            if text.contains(&format!("use {name}::")) || text.contains(&format!(" {name}::")) {
                all.insert(child.clone());
            }
        }
        all.remove(module);
        all.retain(|other| !other.starts_with(module) && !module.starts_with(other));
        all
    };
    modules.iter().map(|(module, text)| (module.clone(), of(module, text))).collect()
}

#[test]
fn no_two_files_need_each_other() {
    for name in CRATES {
        let modules = modules(name);
        assert!(modules.len() > 5, "{name} has files");
        let needs = needs(&modules);
        for start in needs.keys().filter(|module| !module.is_empty()) {
            let (mut seen, mut queue) = (BTreeMap::new(), vec![start]);
            while let Some(at) = queue.pop() {
                for next in needs[at].iter().filter(|module| !module.is_empty()) {
                    if seen.insert(next, at).is_none() {
                        queue.push(next);
                    }
                }
            }
            if seen.contains_key(start) {
                let mut way = vec![start.join("::")];
                let mut at = seen[start];
                while at != start {
                    way.push(at.join("::"));
                    at = seen[at];
                }
                way.reverse();
                panic!("{name}: {} leads back to itself by {}", start.join("::"), way.join(" -> "));
            }
        }
    }
}
