//! The fuzz targets' corpus of templates and conversations, and every front half joined to every back half:
//! a text whose literal ranges are in order, or an error of one line.

use djinn_models::{ChatTemplate, Conversation, Error, Rendered};
use std::path::Path;

fn seeds(target: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "{} seeds in {}", paths.len(), dir.display());
    paths.into_iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// The seeds, and fronts of each with backs of each.
fn spliced(target: &str) -> Vec<String> {
    let seeds = seeds(target);
    let half = |text: &str| text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
    let mut all = seeds.clone();
    for front in &seeds {
        all.extend(seeds.iter().map(|back| front[..half(front)].to_owned() + &back[half(back)..]));
    }
    all
}

/// Whether it rendered; an error must be one line.
fn holds(found: Result<Rendered, Error>) -> bool {
    match found {
        Ok(Rendered { text, literal }) => {
            let mut at = 0;
            for range in literal {
                assert!(at <= range.start && range.start < range.end && text.get(range.clone()).is_some());
                at = range.end;
            }
            true
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() < 1000 && !message.contains(char::is_control), "{message:?}");
            false
        }
    }
}

#[test]
fn templates_of_the_corpus_end() {
    let given = r#"{"messages": [{"role": "user", "content": "Hi <s>"}, {"role": "assistant", "content": null}],
        "tools": [{"name": "f", "parameters": {"a": [1, 2.5]}}]}"#;
    let given = Conversation::from_json(given).unwrap();
    let render = |source: &String| {
        let template = ChatTemplate::new(source, Some("<s>".into()), None)?;
        template.render_conversation(&given, true)
    };
    let rendered = spliced("template").iter().filter(|source| holds(render(source))).count();
    assert!(rendered >= 10, "{rendered}");
}

#[test]
fn conversations_of_the_corpus_end() {
    let source = "{{ messages }}{{ messages | tojson(indent=2) }}{{ tools }}{{ documents }}{{ x | string | upper }}\
        {% for m in messages %}{{ m.role }}{{ m.content }}{{ m.get('tool_calls') | tojson }}{% endfor %}";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let render = |text: &String| template.render_conversation(&Conversation::from_json(text)?, true);
    let rendered = spliced("conversation").iter().filter(|text| holds(render(text))).count();
    assert!(rendered >= 8, "{rendered}");
}
