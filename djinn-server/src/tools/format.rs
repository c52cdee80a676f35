//! The forms in which models write tool calls.

/// How a model writes tool calls. The names are those of vLLM's parsers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one element for each call: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `{"name": …, "parameters": {…}}` at the beginning of the text, after `<|python_tag|>` or not; more calls
    /// after `;`: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS]` and a list of `{"name": …, "arguments": {…}}`; or, for each call, `[TOOL_CALLS]`, its name,
    /// `[ARGS]` and its arguments: Mistral.
    Mistral,
    /// `[f(a=1), g(b="x")]` at the beginning of the text: Llama 3.2 and 4.
    Pythonic,
    /// A list of `{"name": …, "arguments": {…}}` as the whole text: what calls are constrained to that a client
    /// demands.
    JsonList,
}

/// Whether a text has reasoning, between `<think>` and `</think>`, before its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningMode {
    /// Tags are text like any other.
    #[default]
    Off,
    /// Where the text begins with `<think>`.
    Tagged,
    /// The prompt ends with `<think>`: the text begins with reasoning.
    Open,
}

pub(super) const THINK: &str = "<think>";
pub(super) const END_THINK: &str = "</think>";

impl ToolFormat {
    /// The format that a chat template (Jinja) teaches; `is_special` says whether the tokenizer has a special token of
    /// that spelling. `None` for a template without tools or with a form that is not known here.
    pub fn detect(template: &str, is_special: impl Fn(&str) -> bool) -> Option<Self> {
        if !template.contains("tools") {
            return None;
        }
        if template.contains("[TOOL_CALLS]") || is_special("[TOOL_CALLS]") {
            return Some(ToolFormat::Mistral);
        }
        // Others, such as Qwen3-Coder's, put XML between the same tags.
        if template.contains("<tool_call>") {
            return (!template.contains("<function=")).then_some(ToolFormat::Hermes);
        }
        // Templates of pythonic models show a call with a keyword argument.
        if ["[func_name1(", "[func_call_name1(", "[func1("].iter().any(|call| template.contains(call)) {
            return Some(ToolFormat::Pythonic);
        }
        let llama = template.contains("<|python_tag|>") || template.contains("\"parameters\": dictionary of");
        llama.then_some(ToolFormat::Llama3Json)
    }

    /// Special tokens that are part of calls: where the tokenizer has one of this spelling, the parser is to be given
    /// it as text.
    pub fn markers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["<tool_call>", "</tool_call>"],
            ToolFormat::Llama3Json => &["<|python_tag|>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            ToolFormat::Pythonic => &["<|python_start|>", "<|python_end|>"],
            ToolFormat::JsonList => &[],
        }
    }

    /// What begins calls anywhere in a text.
    pub(crate) fn opening(self) -> Option<&'static str> {
        match self {
            ToolFormat::Hermes => Some("<tool_call>"),
            ToolFormat::Llama3Json => Some("<|python_tag|>"),
            ToolFormat::Mistral => Some("[TOOL_CALLS]"),
            ToolFormat::Pythonic => Some("<|python_start|>"),
            ToolFormat::JsonList => None,
        }
    }

    /// What begins calls where a text begins.
    pub(super) fn bare_opening(self) -> Option<char> {
        match self {
            ToolFormat::Llama3Json => Some('{'),
            ToolFormat::Pythonic | ToolFormat::JsonList => Some('['),
            ToolFormat::Hermes | ToolFormat::Mistral => None,
        }
    }
}

impl ReasoningMode {
    /// The mode for a model with this chat template, after a rendered `prompt`.
    pub fn detect(template: &str, prompt: &str) -> Self {
        if prompt.trim_end().ends_with(THINK) {
            ReasoningMode::Open
        } else if template.contains(THINK) || template.contains(END_THINK) {
            ReasoningMode::Tagged
        } else {
            ReasoningMode::Off
        }
    }
}
