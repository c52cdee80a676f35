//! Chat templates against transformers' own rendering, byte for byte. `scripts/make_chats.py` makes
//! `tests/chats/expected.json` and says what it holds.

use djinn_models::{ChatTemplate, Conversation};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Outputs without and with the generation prompt; none where the template raises.
type Outputs = [Option<String>; 2];

/// The file; inputs are JSON text in it, because templates see the order of their keys.
#[derive(serde::Deserialize)]
struct Expected {
    special: BTreeMap<String, String>,
    now: u64,
    conversations: BTreeMap<String, String>,
    templates: BTreeMap<String, BTreeMap<String, Outputs>>,
    snippet_input: String,
    snippets: Vec<(String, Option<String>)>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chats")
}

fn expected() -> Expected {
    serde_json::from_slice(&std::fs::read(root().join("expected.json")).unwrap()).unwrap()
}

impl Expected {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.now)
    }

    /// A directory with this template and the special tokens.
    fn template(&self, source: &str) -> Result<ChatTemplate, djinn_models::Error> {
        let dir = tempfile::tempdir().unwrap();
        let config = serde_json::to_string(&self.special).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        std::fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
        Ok(ChatTemplate::from_dir(dir.path())?.expect("there is a template"))
    }
}

/// How an output differs from the wanted one, if it does. What raises there must fail here, with one line.
fn difference(found: Result<String, djinn_models::Error>, wanted: Option<&String>) -> Option<String> {
    match (found, wanted) {
        (Ok(found), Some(wanted)) if found == *wanted => None,
        (Err(error), None) => {
            let message = error.to_string();
            let one_line = message.starts_with("chat template: ") && !message.contains('\n');
            (!one_line).then(|| format!("the message is {message:?}"))
        }
        (found, wanted) => Some(format!("\n  found  {found:?}\n  wanted {wanted:?}")),
    }
}

#[test]
fn templates_of_the_families_render_as_transformers_renders_them() {
    let expected = expected();
    let mut differing = Vec::new();
    let (mut rendered, mut raised) = (0, 0);
    for (name, cases) in &expected.templates {
        let source = std::fs::read_to_string(root().join(format!("{name}.jinja"))).unwrap();
        let template = expected.template(&source).unwrap();
        for (case, outputs) in cases {
            let given = Conversation::from_json(&expected.conversations[case]).unwrap().at(expected.now());
            for (prompt, wanted) in [false, true].into_iter().zip(outputs) {
                let found = template.render_conversation(&given, prompt).map(|rendered| rendered.text);
                differing.extend(difference(found, wanted.as_ref()).map(|d| format!("{name}, {case}: {d}")));
                *(if wanted.is_some() { &mut rendered } else { &mut raised }) += 1;
            }
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
    assert!(expected.templates.len() >= 6 && rendered > 150 && raised > 30, "{rendered}, {raised}");
}

#[test]
fn single_constructs_render_as_transformers_renders_them() {
    let expected = expected();
    let given = Conversation::from_json(&expected.snippet_input).unwrap().at(expected.now());
    let mut differing = Vec::new();
    for (source, wanted) in &expected.snippets {
        let found = expected.template(source).and_then(|template| template.render_conversation(&given, true));
        let found = found.map(|rendered| rendered.text);
        differing.extend(difference(found, wanted.as_ref()).map(|d| format!("{source:?}: {d}")));
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
    assert!(expected.snippets.len() > 150);
}
