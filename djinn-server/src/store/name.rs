//! Names of models in a store, and of their folders.

use djinn_models::stored::LONGEST_NAME;
use std::path::Path;

/// Stands for a slash in a folder's name.
const SLASH: &str = "--";
/// Path segments below a model's name, which cannot be names.
pub(super) const PARTS: [&str; 3] = ["hooks", "plan", "srg"];

/// Refuses invalid names. A name has one or two parts, as `mine` and `org/name`, of letters, digits and `._-`.
pub(super) fn check(name: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let is_part =
        |part: &str| part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.bytes().all(plain);
    let parts: Vec<&str> = name.split('/').collect();
    let last = parts.last().copied().unwrap_or_default();
    let fine = name.len() <= LONGEST_NAME && parts.len() <= 2 && parts.iter().all(|part| is_part(part));
    match fine && !name.contains(SLASH) && !PARTS.contains(&last) {
        true => Ok(()),
        false => Err(format!(
            "a model's name is NAME or ORG/NAME of up to {LONGEST_NAME} letters, digits and ._- without {SLASH}, each begins \
             with a letter or digit, and the last is not hooks, plan or srg"
        )),
    }
}

/// The folder of a name that was checked.
pub(super) fn folder(name: &str) -> String {
    name.replace('/', SLASH)
}

/// The name of a folder's model.
pub(super) fn of_folder(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?.replacen(SLASH, "/", 1);
    check(&name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folders_and_back() {
        for name in ["mine", "org/name", "Llama-3.1-8B", "a_b/c.d"] {
            assert_eq!(check(name), Ok(()), "{name}");
            assert_eq!(of_folder(Path::new(&folder(name))).as_deref(), Some(name));
        }
        let long = "x".repeat(LONGEST_NAME + 1);
        let bad = [
            "", ".", "..", "../x", "a/../b", "a/b/c", "/a", "a/", ".a", "-a", "a--b", "a b", "ä", "a/hooks",
            "plan",
        ];
        for name in bad.into_iter().chain([long.as_str()]) {
            assert!(check(name).is_err(), "{name}");
        }
    }
}
