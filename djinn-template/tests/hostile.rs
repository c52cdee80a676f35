//! Templates that ask for everything: each is refused with one line, on a thread with a stack of 2 MiB.

use djinn_template::{Context, Error, Rendered, Template, Value};
use std::time::UNIX_EPOCH;

const STACK: usize = 2 << 20;

fn render(source: &str) -> Result<Rendered, Error> {
    let messages = r#"[{"role": "user", "content": "Hi"}]"#;
    let mut context = Context::new(UNIX_EPOCH);
    context.set("messages", Value::from_json(messages).unwrap());
    Template::parse(source)?.render(&context)
}

/// Renders on a small stack, and drops the template there as well.
fn render_on_small_stack(source: String) -> Result<Rendered, Error> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || render(&source)).unwrap();
    thread.join().expect("the thread neither panics nor aborts")
}

/// Every case is refused, for a reason that holds this text.
fn refused(cases: &[(&str, String)]) {
    for (wanted, source) in cases {
        let shown: String = source.chars().take(100).collect();
        let error = match render_on_small_stack(source.clone()) {
            Err(error) => error.to_string(),
            Ok(found) => panic!("{shown}: rendered {} bytes", found.text.len()),
        };
        assert!(error.contains(wanted), "{shown}: {error}");
        assert!(error.len() < 700 && !error.contains(char::is_control), "{shown}: {error}");
    }
}

#[test]
fn deep_values_are_refused() {
    let doubled = |print: &str| {
        format!(
            "{{% set ns=namespace(l=[]) %}}{{% for i in range(100000) %}}{{% set ns.l=[ns.l] %}}{{% endfor %}}{print}"
        )
    };
    refused(&[
        ("nests", "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns }}".into()),
        ("nests", "{% set ns=namespace() %}{% set ns.a=ns %}{{ ns ~ '' }}".into()),
        ("nests", "{% set ns=namespace() %}{% set ns.a=[ns] %}{{ '%s' % ns }}".into()),
        ("unhashable", "{% set ns=namespace() %}{{ {ns: 1} }}".into()),
        ("nests a value", doubled("")),
        ("nests a value", doubled("{{ ns.l }}")),
        ("nests a value", doubled("{{ ns.l == [ns.l] }}")),
        ("nests a value", "{% set ns=namespace(f='x') %}{% for i in range(9999) %}{% set ns.f=[ns.f].count %}{% endfor %}".into()),
        ("nests", "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}".into()),
        ("nests", "{% macro m(x) %}{% for a in x %}{% if a %}{{ ((m(x))) ~ 1 }}{% endif %}{% endfor %}{% endmacro %}{{ m([1]) }}".into()),
        ("nests", "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}".into()),
        ("nests", "{% macro m(a=m()) %}{% endmacro %}{{ m() }}".into()),
    ]);
}

#[test]
fn cycles_compare_and_end() {
    let source = "{% set a=namespace() %}{% set b=namespace() %}{% set a.x=b %}{% set b.x=a %}\
        {{ a == b }}{{ a == a }}{{ [a] == [b] }}{{ a.x.x == a }}";
    assert_eq!(render_on_small_stack(source.into()).unwrap().text, "FalseTrueFalseTrue");
}

#[test]
fn deep_sources_are_refused() {
    let nested = |open: &str, inner: &str, close: &str, count: usize| {
        open.repeat(count) + inner + &close.repeat(count)
    };
    refused(&[
        ("nests", nested("{% if 1 %}", "x", "{% endif %}", 3000)),
        ("nests", nested("{% for a in [1] %}", "x", "{% endfor %}", 3000)),
        ("nests", format!("{{{{ {} }}}}", nested("[", "1", "]", 3000))),
        ("nests", format!("{{{{ {} }}}}", nested("(", "1", ")", 100_000))),
        ("nests", format!("{{{{ {} }}}}", nested("{1:", "1", "}", 3000))),
        ("nests", format!("{{{{ {} }}}}", nested("a(", "1", ")", 3000))),
        ("nests", format!("{{{{ {} }}}}", nested("a[", "1", "]", 3000))),
        ("nests", format!("{{{{ 1 is {} }}}}", nested("in [", "1", "]", 3000))),
        ("nests", format!("{{% set {} = 1 %}}", nested("(", "a", ")", 3000))),
        ("not closed", "{{".repeat(500_000)),
        ("not closed", "{% {{ }}".repeat(100_000)),
        ("bytes of source", "a".repeat((1 << 20) + 1)),
    ]);
}

#[test]
fn long_chains_are_read_and_dropped_without_recursion() {
    // They render, or are refused for what they compute: they end either way.
    let chains = [
        ("not ", "1", "", 200_000, Some("True")),
        ("-", "1", "", 300_000, Some("1")),
        ("1+", "1", "", 300_000, Some("300001")),
        ("'a'~", "'a'", "", 200_000, None),
        ("1 if 1 else ", "1", "", 80_000, Some("1")),
        ("1 and ", "1", "", 150_000, Some("1")),
        ("0 or ", "1", "", 150_000, Some("1")),
        ("1**", "1", "", 300_000, Some("1")),
        ("1*", "1", "", 300_000, Some("1")),
        ("1<", "1", "", 300_000, Some("False")),
        ("", "'a'", "|e", 300_000, Some("a")),
        ("", "'a'", "[0]", 200_000, Some("a")),
        ("", "a", ".b", 200_000, None),
        ("", "a", "()", 300_000, None),
        ("", "1", " is true", 100_000, None),
    ];
    for (before, middle, after, count, wanted) in chains {
        let source = format!("{{{{ {}{middle}{} }}}}", before.repeat(count), after.repeat(count));
        let found = render_on_small_stack(source);
        if let Some(wanted) = wanted {
            assert_eq!(found.unwrap().text, wanted, "{before}{middle}{after}");
        }
    }
    let arms = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}a".repeat(50_000));
    assert_eq!(render_on_small_stack(arms).unwrap().text, "");
}

#[test]
fn memory_is_refused_before_it_is_used() {
    let doubling = |start: &str, step: &str| {
        format!(
            "{{% set ns=namespace(s={start}) %}}{{% for i in range(60) %}}{{% set ns.s={step} %}}{{% endfor %}}"
        )
    };
    let wanted = "MiB of text and lists";
    refused(&[
        (wanted, doubling("'xxxxxxxx'", "ns.s ~ ns.s")),
        (wanted, doubling("'xxxxxxxx'", "ns.s + ns.s")),
        ("it ", doubling("'xxxxxxxx'", "ns.s.replace('x', 'xx')")),
        ("it ", doubling("'xxxxxxxx'", "ns.s | replace('', 'xx')")),
        (wanted, doubling("'xxxxxxxx'", "[ns.s, ns.s] | join(ns.s)")),
        (wanted, doubling("'xxxxxxxx'", "ns.s.join([ns.s, ns.s])")),
        (wanted, doubling("'x\n'", "ns.s | indent(ns.s, true)")),
        (wanted, doubling("'x\n'", "(ns.s ~ ns.s) | indent(1000)")),
        (wanted, doubling("'xxxxxxxx'", "'%s%s' % (ns.s, ns.s)")),
        (wanted, doubling("'xxxxxxxx'", "'{0}{0}'.format(ns.s)")),
        (wanted, doubling("'\\x01'", "(ns.s ~ '') | tojson")),
        (wanted, doubling("['x']", "ns.s + ns.s")),
        (wanted, doubling("['x']", "ns.s * 2")),
        (wanted, "{{ 'x' * 99999999999 }}".into()),
        (wanted, "{{ (range(9999) | list) * 99999999 }}".into()),
        (wanted, "{{ [1] | batch(2000000000, 0) | list }}".into()),
        (wanted, "{{ [1] | slice(2000000000) | list }}".into()),
        (wanted, "{{ 'x'.center(20000000000) }}".into()),
        (wanted, "{{ 'x' | indent(20000000000, true) }}".into()),
        (wanted, "{{ [1] | tojson(indent=20000000000) }}".into()),
        (wanted, "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}".into()),
        (wanted, "{% set s='ab' * 5000000 %}{% for c in s %}{% endfor %}".into()),
        (wanted, "{% set s=' a' * 20000000 %}{{ s.split() | length }}".into()),
        ("wider than", "{{ '%1000000000d' | format(1) }}".into()),
        ("wider than", "{{ '{:>2000000000}'.format(1) }}".into()),
        ("wider than", "{{ '%.1000000000f' % 1.5 }}".into()),
        ("range of more", "{{ range(999999999999) | list | length }}".into()),
        ("integer of more", "{{ 10 ** 1000000000 }}".into()),
    ]);
}

#[test]
fn work_is_refused() {
    let text = "{% set s='a'*5000000 %}";
    let list = "{% set l=range(90000) | list %}";
    let again = |setup: &str, work: &str| {
        format!(
            "{setup}{{% for i in range(100000) %}}{{% for j in range(100000) %}}{work}{{% endfor %}}{{% endfor %}}"
        )
    };
    refused(&[
        ("takes too long", again(text, "{% if 'b' in s %}{% endif %}")),
        ("takes too long", again(text, "{{ s.find('b') }}")),
        ("takes too long", again(text, "{{ s.count('aab') }}")),
        ("takes too long", again(text, "{{ s | length }}")),
        ("takes too long", again(text, "{% if s | int %}{% endif %}")),
        ("takes too long", again(text, "{% if s | float %}{% endif %}")),
        ("takes too long", again(text, "{% if s is string %}{% endif %}")),
        ("takes too long", again(text, "{{ s | wordcount }}")),
        ("it ", again(text, "{{ s == s ~ '' }}")),
        ("takes too long", again(text, "{% set t = s is upper %}")),
        ("it ", again("", "")),
        ("takes too long", again(list, "{% if 'x' in l %}{% endif %}")),
        ("it ", again(list, "{{ l | max }}")),
        ("takes too long", again(list, "{{ l.index(-1) if false }}{{ l.count(-1) }}")),
        ("it ", again(text, "{% set t = s | upper %}")),
        ("it ", again(text, "{% set t = s.strip() %}")),
        ("it ", again(text, "{% set t = s.split('a') %}")),
        ("it ", again(list, "{% set t = l | tojson %}")),
        ("it ", again(list, "{% set t = l | sort %}")),
        // A tree of 2^60 leaves.
        (
            "it ",
            "{% set ns=namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l=[ns.l,ns.l] %}{% endfor %}{{ ns.l }}".into(),
        ),
        (
            "it ",
            "{% set ns=namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l=[ns.l,ns.l] %}\
             {% set ns.m=[ns.m,ns.m] %}{% endfor %}{{ ns.l == ns.m }}"
                .into(),
        ),
        ("it ", "{% set ns=namespace(l=(1,)) %}{% for i in range(60) %}{% set ns.l=(ns.l,ns.l) %}{% endfor %}{{ {ns.l: 1} }}".into()),
    ]);
}

/// One operation, again and again, on what a template made.
fn again(setup: &str, work: &str) -> String {
    format!(
        "{setup}{{% set r=range(100000) %}}{{% for i in r %}}{{% for j in r %}}{{% set x={work} %}}\
         {{% endfor %}}{{% endfor %}}"
    )
}

#[test]
fn work_that_grows_with_names_and_keys_is_refused() {
    let name = "a".repeat(900_000);
    let long = "{% set s='ab'*5000000 %}";
    let names = "{% set e=dict(range(50000)|map('string')|batch(2)) %}";
    let parameters: Vec<String> = (0..1000).map(|at| format!("a{at}")).collect();
    let macros = format!("{names}{{% macro m({}) %}}{{{{ kwargs }}}}{{% endmacro %}}", parameters.join(","));
    let keys = format!("{long}{{% set d={{s: '', 't': 2}} %}}{{% set f='%('~s~')s' %}}");
    let tuples = format!("{long}{{% set d={{(s,): 1, 2: 3}} %}}{{% set e={{(s ~ '',): 1, 2: 3}} %}}");
    let wanted = "takes too long";
    refused(&[
        (wanted, format!("{names}{{{{ ('{{z}}'*1000000).format(**dict(e, z='')) }}}}")),
        (wanted, again(&keys, "f % d")),
        (wanted, again(&keys, "'' | format(**d)")),
        (wanted, again(&tuples, "d == e")),
        (wanted, again("{% set d={'a': 1, 'b': 2} %}", &format!("d.{name}"))),
        (wanted, again("{% set d=namespace(a=1, b=2) %}", &format!("d.{name}"))),
        (wanted, again(&macros, "m(**e)")),
        (wanted, again("", &format!("{}1", "-".repeat(900_000)))),
    ]);
}

#[test]
fn work_that_grows_with_texts_and_digits_is_refused() {
    let long = "{% set s='ab'*5000000 %}";
    let wanted = "takes too long";
    refused(&[
        (wanted, format!("{long}{{% set t=(s,)*1000000 %}}{{{{ s.startswith(t) }}}}")),
        (wanted, format!("{long}{{% set t=(s,)*1000000 %}}{{{{ s.endswith(t) }}}}")),
        (wanted, again(long, "'a'.find(s)")),
        (wanted, again(long, "'a'.count(s)")),
        (wanted, again(long, "'a'.replace(s, '')")),
        (wanted, again(long, "'a'.split(s)")),
        (wanted, again(long, "'a'.rpartition(s)")),
        (wanted, again(long, "'abc' | truncate(10000000, end=s, leeway=0)")),
        (wanted, again("{% set f='%'~'-'*5000000~'d' %}", "f % 1")),
        (wanted, again("{% set f='{'~'0'*5000000~'}' %}", "f.format(1)")),
        (wanted, again("{% set s='\u{e9}'*5000000 %}", "s.isprintable()")),
        (wanted, again("{% set s='1_'*5000000~'1' %}", "s | int")),
        ("it ", again("{% set s='\u{e9}'*50000 %}{% set c='\u{129}'*1000~'\u{e9}' %}", "s.strip(c)")),
        ("it ", again("", "'%.10000g' % 1.1e-300")),
        ("it ", again("", "'%.10000e' % 1.1e-300")),
        ("it ", again("", "'%.10000d' % 1")),
        ("it ", again("", "'%f' % 1.1e300")),
        (wanted, again("", "1.1e300 | round(2)")),
        ("MiB of text and lists", "{% set s='\\n'*60000000 %}{{ s.splitlines() | length }}".into()),
        ("MiB of text and lists", "{% set s='\\n'*30000000 %}{{ s | indent | length }}".into()),
    ]);
}

#[test]
fn numbers_beyond_their_types_are_exact_or_refused() {
    let shown = |source: &str| render(source).map(|found| found.text);
    assert_eq!(shown("{{ 1.5 | round(-2147483648) }}").unwrap(), "0.0");
    let range = "range(0, 9223372036854775807, 4611686018427387904)";
    assert_eq!(
        shown(&format!("{{{{ {range}[::1099511627776] }}}}")).unwrap(),
        "range(0, 5070602400912917605986812821504, 5070602400912917605986812821504)"
    );
    let again = "[::1099511627776]".repeat(9);
    assert!(matches!(shown(&format!("{{{{ {range}{again} }}}}")), Err(Error::Limit { .. })));
}

#[test]
fn what_templates_say_is_escaped_and_cut() {
    let raised = |text: &str| match render(&format!("{{{{ raise_exception({text}) }}}}")) {
        Err(Error::Raised { message, line: 1 }) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(raised("'Roles must\\n alternate'"), "Roles must alternate");
    assert_eq!(raised("'\\x1b]0;owned\\x07'"), "\\u{1b}]0;owned\\u{7}");
    assert_eq!(raised("'a\\u202eb'"), "a\\u{202e}b");
    assert_eq!(raised("'x' * 10000000").chars().count(), 500);
    refused(&[
        ("the statement `include`", "{% include 'default' %}".into()),
        ("the statement `import`", "{% import 'x' as y %}".into()),
        ("the filter `urlize`", "\n{{ 'x' | urlize }}".into()),
        ("the test `strange`", "{{ 'x' is strange }}".into()),
        ("is undefined (line 3)", "\n\n{{ missing.name }}".into()),
        ("unknown statement", format!("{{% {} %}}", "x".repeat(100_000))),
        ("the filter", format!("{{{{ 1 | {} }}}}", "x".repeat(100_000))),
        ("undefined", format!("{{{{ {}() }}}}", "x".repeat(100_000))),
    ]);
}

#[test]
fn data_is_bounded() {
    let refused = |text: &str, wanted: &str| {
        let error = Value::from_json(text).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.len() < 700, "{error}");
    };
    refused(&("[".repeat(5000) + &"]".repeat(5000)), "JSON");
    refused(&("[".repeat(120) + &"]".repeat(120)), "deep");
    refused(&format!("[{}1]", "1,".repeat(1_000_000)), "values");
    refused(&format!("\"{}\"", "x".repeat(17 << 20)), "bytes");
    refused("[1] 2", "JSON");
}
