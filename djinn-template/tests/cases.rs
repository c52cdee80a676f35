//! Single constructs against Jinja itself. `scripts/make_template_cases.py` makes `cases.json`.

use djinn_template::{Context, Error, Template, Value};
use std::time::UNIX_EPOCH;

/// What Jinja renders and this crate refuses by name.
const REFUSED: [&str; 3] =
    ["{{ '{:>{}}'.format(1, 2) }}", "{% for x in l recursive %}{% endfor %}", "{{ l[1,2] }}"];

#[derive(serde::Deserialize)]
struct Cases {
    variables: String,
    cases: Vec<(String, Option<String>)>,
}

fn render(source: &str, variables: &Value) -> Result<String, Error> {
    let mut context = Context::new(UNIX_EPOCH);
    for (name, value) in variables.as_object().unwrap() {
        context.set(name, value.clone());
    }
    Ok(Template::parse(source)?.render(&context)?.text)
}

#[test]
fn single_constructs_render_as_jinja_renders_them() {
    let Cases { variables, cases } = serde_json::from_str(include_str!("cases.json")).unwrap();
    let variables = Value::from_json(&variables).unwrap();
    let mut differing = Vec::new();
    for (source, wanted) in &cases {
        let found = render(source, &variables);
        let same = match REFUSED.contains(&source.as_str()) {
            true => matches!(found, Err(Error::Unsupported { .. })),
            false => found.as_ref().ok() == wanted.as_ref(),
        };
        if !same {
            differing.push(format!("{source:?}\n  found  {found:?}\n  wanted {wanted:?}"));
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n"));
    assert!(cases.len() > 700, "{}", cases.len());
}
