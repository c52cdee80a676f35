//! Which bytes are the conversation's: `[…]` marks them below.

use djinn_template::{Context, Rendered, Template, Value};
use proptest::prelude::*;
use std::time::UNIX_EPOCH;

/// The text with its literal ranges in brackets.
fn marked(source: &str) -> String {
    let mut context = Context::new(UNIX_EPOCH);
    let data =
        r#"{"c": " Ab<x>c ", "words": ["a", "b"], "d": {"k": "v"}, "markup": "<i>", "s": "aΣ", "n": 5}"#;
    for (name, value) in Value::from_json(data).unwrap().as_object().unwrap() {
        context.set(name, value.clone());
    }
    context.set("eos", Value::token("</s>"));
    let Rendered { text, literal } = Template::parse(source).unwrap().render(&context).unwrap();
    let mut out = String::new();
    let mut at = 0;
    for range in literal {
        assert!(range.start >= at && range.end > range.start, "{range:?} after {at} in {text:?}");
        out += &format!("{}[{}]", &text[at..range.start], &text[range.clone()]);
        at = range.end;
    }
    out + &text[at..]
}

#[test]
fn every_operation_keeps_the_origin() {
    let cases = [
        ("<s>{{ c }}{{ eos }}", "<s>[ Ab<x>c ]</s>"),
        ("{{ '<' + c + '>' }}{{ '<' ~ c ~ '>' }}", "<[ Ab<x>c ]><[ Ab<x>c ]>"),
        ("{{ c.strip() }}|{{ c | trim }}|{{ ('<' ~ c ~ '>').strip('<> ') }}", "[Ab<x>c]|[Ab<x>c]|[Ab<x>c]"),
        ("{{ ('1' ~ c ~ '2')[1:-1] }}|{{ ('12' ~ c)[1:4] }}|{{ c[1] }}", "[ Ab<x>c ]|2[ A]|[A]"),
        ("{{ ('1' ~ words[0])[::-1] }}", "[a]1"),
        ("{{ c.split('<x>')[0] }}|{{ ('p<x>' ~ c).split('<x>') | join(',') }}", "[ Ab]|p,[ Ab],[c ]"),
        ("{{ c.replace('<x>', '</s>') }}", "[ Ab]</s>[c ]"),
        ("{{ '<x>-'.replace('-', c) }}{{ '-' | replace('-', words[0]) }}", "<x>[ Ab<x>c a]"),
        ("{{ words | join('<s>') }}|{{ '<s>'.join(words) }}|{{ words | join }}", "[a]<s>[b]|[a]<s>[b]|[ab]"),
        (
            "{{ ('x' ~ c) | upper }}|{{ ('X' ~ c).lower() }}|{{ ('x' ~ s) | title }}",
            "X[ AB<X>C ]|x[ ab<x>c ]|X[aσ]",
        ),
        ("{{ c | tojson }}|{{ d | tojson }}|{{ n | tojson }}", "\"[ Ab<x>c ]\"|{\"[k]\": \"[v]\"}|5"),
        ("{{ d }}|{{ words }}", "{'[k]': '[v]'}|['[a]', '[b]']"),
        (
            "{{ '<%s>' % c }}{{ '<{}>'.format(c) }}{{ '<%s>' | format(c) }}",
            "<[ Ab<x>c ]><[ Ab<x>c ]><[ Ab<x>c ]>",
        ),
        (
            "{{ '{:>4}'.format(words[0]) }}{{ '%-3s|' % words[0] }}{{ words[0].center(3, '*') }}",
            "   [aa]  |*[a]*",
        ),
        (
            "{{ 'a\n' ~ words[0] ~ '\n' ~ words[1] }}{{ ('a\n' ~ words[0]) | indent(2) }}",
            "a\n[a]\n[b]a\n  [a]",
        ),
        ("{% set x %}<{{ words[0] }}>{% endset %}{{ x }}{{ x[1:] }}", "<[a]>[a]>"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(c) | trim }}{{ m('p') }}", "<[ Ab<x>c ]><p>"),
        ("{% filter upper %}x{{ words[0] }}{% endfilter %}", "X[A]"),
        ("{{ markup | e }}|{{ '<i>' | e }}|{{ '<' + (markup | safe) }}", "[&lt;i&gt;]|&lt;i&gt;|&lt;[<i>]"),
        ("{{ c | truncate(4, true, '…', 0) }}|{{ words[0] * 2 }}|{{ 'x' * 2 }}", "[ Ab]…|[aa]|xx"),
        (
            "{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{% for x in words[0] %}{{ x }}{% endfor %}",
            "[k]=[va]",
        ),
        (
            "{{ c.partition('<x>') | join('!') }}{{ 'u' ~ c.splitlines()[0] | reverse }}",
            "[ Ab]![<x>]![c ]u[ c>x<bA ]",
        ),
        (
            "{{ words | map('upper') | join }}{{ c.removeprefix(' ') }}{{ c.swapcase() }}",
            "[ABAb<x>c  aB<X>C ]",
        ),
        (
            "{{ c if c == ' Ab<x>c ' else 'no' }}{{ 'k' in d }}{{ 'a' in words }}{{ d['k'] }}",
            "[ Ab<x>c ]TrueTrue[v]",
        ),
    ];
    for (source, wanted) in cases {
        assert_eq!(marked(source), wanted, "{source}");
    }
}

/// Fragments of templates: most combinations are refused, some are rendered.
fn fragment() -> impl Strategy<Value = String> {
    let pieces = [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{# ",
        " #}",
        "{%- ",
        " -%}",
        "if ",
        "else",
        "elif ",
        "endif",
        "for x in ",
        "endfor",
        "set ns.a = ",
        "set x = ",
        "endset",
        "macro f(x)",
        "endmacro",
        "call f()",
        "endcall",
        "f(x)",
        "x",
        "c",
        "d",
        "l",
        "ns",
        "namespace()",
        "loop.index",
        "range(9)",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ":",
        ",",
        "|",
        ".",
        " is ",
        " in ",
        "not ",
        " and ",
        " + ",
        " ~ ",
        " * ",
        " ** ",
        " // ",
        " % ",
        "-",
        "99999999999",
        "1",
        "0",
        "1.5",
        "'a'",
        "'%s'",
        "tojson",
        "upper",
        "list",
        "map(",
        "select(",
        "sort",
        "join",
        "replace(",
        "split(",
        "format(",
        "indent(",
        "slice(",
        "batch(",
        "::",
        "**",
        "none",
        "true",
        "raw",
        "endraw",
        "\n",
        "é",
        "break",
        "defined",
        "strip",
        "items",
        "'",
        "\"",
        "\\",
    ];
    proptest::sample::select(pieces.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// Whatever the source, there is a text whose ranges are in order, or an error of one short line.
    #[test]
    fn any_source_renders_or_is_refused(
        pieces in proptest::collection::vec(fragment(), 0..30),
        noise in proptest::option::of("\\PC{0,20}"),
        shape in 0..3,
    ) {
        let middle = pieces.concat() + noise.as_deref().unwrap_or_default();
        let source = match shape {
            0 => middle,
            1 => format!("{{{{ {} }}}}", pieces.join(" ")),
            _ => format!("{{% set ns = namespace() %}}{{% for x in l %}}{{{{ {middle} }}}}{{% endfor %}}"),
        };
        let mut context = Context::new(UNIX_EPOCH);
        context.set("c", "Ünï <s>");
        context.set("l", Value::from_json("[1, \"b\", {\"k\": [null, 1.5]}]").unwrap());
        context.set("d", Value::from_json("{\"k\": \"v\", \"items\": []}").unwrap());
        match Template::parse(&source).and_then(|template| template.render(&context)) {
            Ok(Rendered { text, literal }) => {
                let mut at = 0;
                for range in literal {
                    prop_assert!(at <= range.start && range.start < range.end);
                    prop_assert!(text.get(range.clone()).is_some(), "{:?} in {:?}", range, text);
                    at = range.end;
                }
            }
            Err(error) => {
                let line = error.to_string();
                prop_assert!(line.len() < 3000 && !line.contains(char::is_control), "{line:?}");
            }
        }
    }
}
