//! Calls in every form, cut anywhere, malformed anywhere.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

const FORMATS: [ToolFormat; 5] = [
    ToolFormat::Hermes,
    ToolFormat::Llama3Json,
    ToolFormat::Mistral,
    ToolFormat::Pythonic,
    ToolFormat::JsonList,
];

fn parser(format: Option<ToolFormat>, mode: ReasoningMode) -> OutputParser {
    OutputParser::new(format, mode, ["f", "get_weather"].map(String::from), 7)
}

/// Events without respect to how the text was cut.
fn joined(events: impl IntoIterator<Item = OutputEvent>) -> Vec<OutputEvent> {
    use OutputEvent::*;
    let mut all: Vec<OutputEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Text(text)), Text(more)) => text.push_str(&more),
            (Some(Reasoning(text)), Reasoning(more)) => text.push_str(&more),
            (Some(CallArguments { index, piece }), CallArguments { index: same, piece: more })
                if *index == same =>
            {
                piece.push_str(&more);
            }
            (_, event) => all.push(event),
        }
    }
    all
}

fn parse(mut parser: OutputParser, text: &str) -> Vec<OutputEvent> {
    let mut events = parser.push(text);
    events.extend(parser.finish());
    joined(events)
}

/// Events as one line: `text|name(arguments)`, `!` after calls that are not complete, `~` before reasoning.
fn line(events: &[OutputEvent]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for event in events {
        match event {
            OutputEvent::Text(text) => parts.push(text.clone()),
            OutputEvent::Reasoning(text) => parts.push(format!("~{text}")),
            OutputEvent::CallStart { name, .. } => parts.push(format!("{name}!")),
            OutputEvent::CallArguments { piece, .. } => *parts.last_mut().expect("a call") += piece,
            OutputEvent::CallEnd { .. } => {
                let call = parts.last_mut().expect("a call");
                *call = call.replacen('!', "", 1);
            }
        }
    }
    parts.join("|")
}

fn read(format: ToolFormat, text: &str) -> String {
    line(&parse(parser(Some(format), ReasoningMode::Off), text))
}

#[test]
fn every_form_is_read() {
    use ToolFormat::*;
    let cases = [
        (Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "f{\"a\": 1}"),
        (
            Hermes,
            "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": {\"b\": [1, {\"}\": \"\\\"\"}]}, \"name\": \"get_weather\"}</tool_call>\n",
            "Let me see.|f{}|get_weather{\"b\": [1, {\"}\": \"\\\"\"}]}",
        ),
        // Marked calls may name anything; the closing tag and arguments may be missing.
        (Hermes, "<tool_call>{\"name\": \"other\"}", "other{}"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": null, \"id\": 3}</tool_c", "f{}"),
        (
            Hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
            "f{\"a\": 1}",
        ),
        (Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and more", "f{}| and more"),
        (
            Hermes,
            "<tool_call>{\"name\":\"f\"}\n<tool_call>\n{\"name\":\"g\"}<tool_call>{\"name\":\"h\"}</tool_call>",
            "f{}|g{}|h{}",
        ),
        (Hermes, "<tool_call>{\"name\":\"f\"}<tool_call>x", "f{}|<tool_call>x"),
        (Hermes, "<tool_call>{\"name\":\"f\"}<tool>", "f{}|<tool>"),
        (Llama3Json, "{\"name\": \"f\", \"parameters\": {\"a\": \"x\"}}", "f{\"a\": \"x\"}"),
        (Llama3Json, " <|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "f{}"),
        (
            Llama3Json,
            "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"get_weather\",\"parameters\":{\"a\":2}}\n",
            "f{}|get_weather{\"a\":2}",
        ),
        (Mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "f{\"a\": 1}"),
        (
            Mistral,
            "Yes.[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"g\",\"arguments\":{}}]",
            "Yes.|f{}|g{}",
        ),
        (Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", "f{\"a\": 1}|g{}"),
        (Mistral, "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS] {\"a\": 1}", "f{\"a\": 1}"),
        (Mistral, "[TOOL_CALLS]f{\"a\": {}}", "f{\"a\": {}}"),
        (
            Pythonic,
            "[f(a=1, b='x\\'y\\n', c=[True, None, 1.5e3], d={\"k\": (1, -2,)}), get_weather()]",
            "f{\"a\":1,\"b\":\"x'y\\n\",\"c\":[true,null,1.5e3],\"d\":{\"k\":[1,-2]}}|get_weather{}",
        ),
        (Pythonic, "<|python_start|>[f(a=\")]\")]<|python_end|>", "f{\"a\":\")]\"}"),
        (Pythonic, "[f(a=\"\\ud83d\\ude00\", b='\\uD83D\\uDE00!')]", "f{\"a\":\"😀\",\"b\":\"😀!\"}"),
        (
            Pythonic,
            "[f(a=.5, b=1., c=+3, d=\"\\u00e9\\q\")] done",
            "f{\"a\":0.5,\"b\":1.0,\"c\":3,\"d\":\"é\\\\q\"}| done",
        ),
        (
            JsonList,
            "[{\"name\":\"f\",\"arguments\":{\"a\":1}},{\"name\":\"get_weather\",\"arguments\":{}}]",
            "f{\"a\":1}|get_weather{}",
        ),
    ];
    for (format, text, expected) in cases {
        assert_eq!(read(format, text), expected, "{format:?}: {text}");
    }
}

#[test]
fn what_is_no_call_is_text() {
    use ToolFormat::*;
    let same = [
        (Hermes, "<tool_call>no</tool_call>"),
        (Hermes, "a < b <tool_ and <tool_call"),
        (Hermes, "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>"),
        (Hermes, "<tool_call>{\"arguments\": {}}</tool_call>"),
        (Hermes, "<tool_call>{\"name\": \"no name\", \"arguments\": {}}"),
        (Hermes, "<tool_call>{\"name\" \"f\"}"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arg"),
        (Llama3Json, "{\"name\": \"unknown\", \"parameters\": {}}"),
        (Llama3Json, "{\"name\": \"f\"}"),
        (Llama3Json, "{\"answer\": 42} "),
        (Llama3Json, "So: {\"name\": \"f\", \"parameters\": {}}"),
        (Llama3Json, "<|python_tag|>brave_search.call(query=\"x\")"),
        (Mistral, "[TOOL_CALLS] []"),
        (Mistral, "[TOOL_CALLS] [1]"),
        (Mistral, "[TOOL_CALLS]f[ARGS]3"),
        (Mistral, "[TOOL_CALLS]f g{}"),
        (Mistral, "[1, 2]"),
        (Pythonic, "[link](https://example.org)"),
        (Pythonic, "[f(1)]"),
        (Pythonic, "[f(a=b)]"),
        (Pythonic, "[f(a=1"),
        (Pythonic, "[f(a='\\ud83d')]"),
        (Pythonic, "[f(a='\\ude00\\ud83d')]"),
        (Pythonic, "[f(a='\\ud83d\\u0041')]"),
        (Pythonic, "[other(a=1)]"),
        (JsonList, "[1]"),
        (JsonList, "words"),
    ];
    for (format, text) in same {
        assert_eq!(read(format, text), text, "{format:?}");
    }
    // A marker within what was no call is looked at again.
    let text = "<tool_call>oops <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    assert_eq!(read(Hermes, text), "<tool_call>oops|f{}");
    // Without a format there are no calls, and white space stays.
    let text = "  <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> \n";
    assert_eq!(line(&parse(parser(None, ReasoningMode::Off), text)), text);
}

#[test]
fn calls_that_break_off_are_not_ended_and_the_rest_is_text() {
    use ToolFormat::*;
    let cases = [
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", "f!{\"a\": 1"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": x}} y", "f!{\"a\": |x}} y"),
        (Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {}, oops", "f!{}|, oops"),
        (Mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}} {\"name\"", "f{}| {\"name\""),
        (Pythonic, "[f(a=1), f(b)]", "f{\"a\":1}|, f(b)]"),
    ];
    for (format, text, expected) in cases {
        assert_eq!(read(format, text), expected, "{format:?}: {text}");
    }
    // Calls keep numbers and ids of their own.
    let text = "<tool_call>{\"name\":\"f\",\"arguments\":{x <tool_call>{\"name\":\"f\",\"arguments\":{}}";
    let events = parse(parser(Some(Hermes), ReasoningMode::Off), text);
    let starts: Vec<(u32, &str)> = events
        .iter()
        .filter_map(|event| match event {
            OutputEvent::CallStart { index, id, .. } => Some((*index, id.as_str())),
            _ => None,
        })
        .collect();
    assert!(matches!(starts[..], [(0, first), (1, second)] if first != second), "{events:?}");
}

#[test]
fn reasoning_is_apart() {
    let read = |mode, text| line(&parse(parser(Some(ToolFormat::Hermes), mode), text));
    use ReasoningMode::*;
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let text = format!("<think>\nHm, {call}?\n\nSo.\n</think>\n\nYes.{call}");
    assert_eq!(read(Tagged, &text), format!("~Hm, {call}?\n\nSo.|Yes.|f{{}}"));
    assert_eq!(read(Open, "Hm.</think>\n\nYes."), "~Hm.|Yes.");
    assert_eq!(read(Open, "Hm, no end </th"), "~Hm, no end </th");
    assert_eq!(read(Tagged, "<think>\n\n</think>\n\nYes."), "Yes.");
    assert_eq!(read(Tagged, " <thin> ice"), " <thin> ice");
    assert_eq!(read(Tagged, "Yes. <think>no</think>"), "Yes. <think>no</think>");
    assert_eq!(read(Off, "<think>no</think>"), "<think>no</think>");
    assert_eq!(read(Tagged, &format!("<think>x</think>{call}")), "~x|f{}");
    let llama = parser(Some(ToolFormat::Llama3Json), Open);
    assert_eq!(line(&parse(llama, "x</think>\n{\"name\":\"f\",\"parameters\":{}}")), "~x|f{}");
}

#[test]
fn formats_are_known_by_their_templates() {
    let detect = |template| ToolFormat::detect(template, |_| false);
    assert_eq!(detect("{% if tools %}<tool_call>{{ x }}</tool_call>{% endif %}"), Some(ToolFormat::Hermes));
    assert_eq!(detect("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]"), Some(ToolFormat::Mistral));
    assert_eq!(detect("{% if tools %}<|python_tag|>{% endif %}"), Some(ToolFormat::Llama3Json));
    assert_eq!(detect("{{ tools }}[func_name1(params_name1=params_value1)]"), Some(ToolFormat::Pythonic));
    assert_eq!(detect("{{ tools }}<tool_call><function=f>"), None, "Qwen3-Coder's XML");
    assert_eq!(detect("{{ messages }}<tool_call>"), None);
    assert_eq!(ToolFormat::detect("{{ tools }}", |t| t == "[TOOL_CALLS]"), Some(ToolFormat::Mistral));
    assert_eq!(ReasoningMode::detect("{{ x }}", "<|im_start|>assistant\n<think>\n"), ReasoningMode::Open);
    assert_eq!(ReasoningMode::detect("split('</think>')", "assistant\n"), ReasoningMode::Tagged);
    assert_eq!(ReasoningMode::detect("{{ x }}", "assistant\n"), ReasoningMode::Off);
}

#[test]
fn ids_have_the_form_that_templates_take() {
    for format in FORMATS {
        let id = |nonce| OutputParser::new(Some(format), ReasoningMode::Off, [], nonce).id();
        let (one, other) = (id(1), id(2));
        assert_ne!(one, other);
        assert!(one.len() == if format == ToolFormat::Mistral { 9 } else { 29 }, "{one}");
        assert!(one.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    }
    let demanded = OutputParser::new(Some(ToolFormat::JsonList), ReasoningMode::Off, [], 1);
    assert_eq!(demanded.short_ids().id().len(), 9);
}

#[test]
fn what_is_held_is_bounded() {
    let beginnings = [
        (ToolFormat::Hermes, "<tool_call>{\"x\": \""),
        (ToolFormat::Hermes, "<tool_call>"),
        (ToolFormat::Llama3Json, "{\"arguments\": {\"x\": \""),
        (ToolFormat::Mistral, "[TOOL_CALLS]"),
        (ToolFormat::Mistral, "[TOOL_CALLS] ["),
        (ToolFormat::Mistral, "[TOOL_CALLS] a"),
        (ToolFormat::Pythonic, "[f(a=\""),
        (ToolFormat::Pythonic, "["),
        (ToolFormat::Pythonic, "[f(),"),
        (ToolFormat::JsonList, "[{\"name\":\"f\"},"),
        (ToolFormat::Llama3Json, "{\"name\":\"f\",\"parameters\":{}};"),
    ];
    let hold = |(format, text): (ToolFormat, &str)| {
        for filler in [" ", "x", "["] {
            let mut parser = parser(Some(format), ReasoningMode::Tagged);
            parser.push(text);
            for _ in 0..120 {
                parser.push(&filler.repeat(10_000));
                assert!(parser.held() <= MOST, "{format:?}: {text}{filler}");
            }
        }
    };
    std::thread::scope(|scope| {
        for beginning in beginnings {
            scope.spawn(move || hold(beginning));
        }
    });
}

#[test]
fn how_often_a_call_comes_is_bounded() {
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let events = parse(parser(Some(ToolFormat::Hermes), ReasoningMode::Off), &call.repeat(200));
    let calls = events.iter().filter(|event| matches!(event, OutputEvent::CallEnd { .. })).count();
    assert_eq!(calls, 128);
    assert!(matches!(events.last(), Some(OutputEvent::Text(text)) if text.len() == 72 * call.len()));
    // Deep values are no calls, whatever is nested.
    for (format, open) in [
        (ToolFormat::Hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":"),
        (ToolFormat::Hermes, "<tool_call>{\"x\":"),
        (ToolFormat::Pythonic, "[f(a="),
    ] {
        let text = format!("{open}{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let events = parse(parser(Some(format), ReasoningMode::Off), &text);
        assert!(!events.iter().any(|event| matches!(event, OutputEvent::CallEnd { .. })));
    }
}

const MOST: usize = (1 << 20) + 4200;

/// Parts of texts: markers, calls, their fragments, and words.
const PARTS: [&str; 34] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[ARGS]",
    "[CALL_ID]",
    "<think>",
    "</think>",
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"\\u00e9\\\"\"]}}",
    "{\"name\":\"get_weather\",\"parameters\":{}}",
    "f(a=1, b='x')",
    "get_weather()",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "\"",
    "\\",
    ",",
    ";",
    ":",
    " ",
    "\n",
    "f",
    "\"name\"",
    "\"arguments\":",
    "1.5e3",
    "é€😀",
    "word ",
    "null",
];

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        9 => prop::sample::select(&PARTS[..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

fn mode() -> impl Strategy<Value = ReasoningMode> {
    prop::sample::select(vec![ReasoningMode::Off, ReasoningMode::Tagged, ReasoningMode::Open])
}

/// What must hold for the events of any text.
fn check(format: Option<ToolFormat>, mode: ReasoningMode, text: &str, cuts: &[usize]) {
    let whole = parse(parser(format, mode), text);
    let mut pieces = parser(format, mode);
    let (mut events, mut from) = (Vec::new(), 0);
    for &cut in cuts {
        let cut = text.floor_char_boundary(cut % (text.len() + 1)).max(from);
        events.extend(pieces.push(&text[from..cut]));
        from = cut;
    }
    events.extend(pieces.push(&text[from..]));
    events.extend(pieces.finish());
    assert_eq!(joined(events), whole, "{format:?} {mode:?}: {text:?} cut at {cuts:?}");

    // Calls come in order, and complete ones have an object for arguments.
    let (mut next, mut open): (u32, Option<(u32, String)>) = (0, None);
    let mut kept = 0;
    for event in &whole {
        match event {
            OutputEvent::CallStart { index, .. } => {
                assert_eq!(*index, next, "{text:?}");
                next += 1;
                open = Some((*index, String::new()));
            }
            OutputEvent::CallArguments { index, piece } => {
                let (call, arguments) = open.as_mut().expect("a call began");
                assert_eq!(call, index);
                arguments.push_str(piece);
            }
            OutputEvent::CallEnd { index } => {
                let (call, arguments) = open.take().expect("a call began");
                assert_eq!(call, *index);
                let value: Value = match serde_json::from_str(&arguments) {
                    Ok(value) => value,
                    // Half of a surrogate pair is JSON by its grammar, and no text.
                    Err(error) => {
                        assert!(arguments.contains("\\u"), "{text:?}: {arguments}: {error}");
                        continue;
                    }
                };
                assert!(value.is_object(), "{text:?}: {arguments}");
            }
            OutputEvent::Text(text) | OutputEvent::Reasoning(text) => {
                kept += text.chars().filter(|c| !c.is_whitespace()).count();
                open = None;
            }
        }
    }
    // Without calls nothing is lost but tags of reasoning and white space.
    if next == 0 {
        let all = text.chars().filter(|c| !c.is_whitespace()).count();
        let tags = ["<think>", "</think>"].map(|tag| tag.len() * usize::from(text.contains(tag)));
        let tags = if mode == ReasoningMode::Off { 0 } else { tags.iter().sum() };
        assert!(kept <= all && kept + tags >= all, "{format:?} {mode:?}: {text:?} became {whole:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_cut_gives_the_same_events(
        text in text(),
        format in prop::option::of(prop::sample::select(&FORMATS[..])),
        mode in mode(),
        mut cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        cuts.iter_mut().for_each(|cut| *cut %= text.len() + 1);
        cuts.sort_unstable();
        check(format, mode, &text, &cuts);
        let every: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        check(format, mode, &text, &every);
    }

    #[test]
    fn mutations_of_calls_lose_nothing(
        at in any::<prop::sample::Index>(),
        with in prop::sample::select(&PARTS[..]),
        drop in 0usize..6,
        which in 0usize..6,
        mode in mode(),
    ) {
        let whole = [
            "Hm.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, -2.5e1, \"x\\n\"], \"b\": null}}</tool_call>",
            "{\"name\": \"f\", \"parameters\": {\"a\": true}}; {\"name\": \"get_weather\", \"parameters\": {}}",
            "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": true}}",
            "Hm.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": {}}}, {\"arguments\": {}, \"name\": \"g\"}]",
            "[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{\"a\": {}}[TOOL_CALLS]g{\"b\": 0}",
            "<|python_start|>[f(a=1, b='x', c={'k': [None]}), get_weather(u=(1,))]<|python_end|>",
        ][which];
        let from = at.index(whole.len() + 1);
        let text = format!("{}{with}{}", &whole[..from], &whole[(from + drop).min(whole.len())..]);
        for format in FORMATS {
            let every: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            check(Some(format), mode, &text, &every);
        }
    }
}
