//! Every field of every request: supported, ignored or refused. The documentation (`docs/server-fields.md`) and the
//! refusals are made from these tables, and a test compares them with what clients send.

mod debug;
mod remote;

pub use debug::{
    ACTIVATIONS, BREAKPOINTS, CACHE, LENS, RESUME, SESSION_STEERING, STEERING, STEERING_DEFAULT,
};

pub use remote::{GENERATE, LOGITS, STORE_MANIFESTS};

/// How the server treats a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has the effect of its API, within the limits of the note.
    Supported {
        /// A note; may be empty.
        note: &'static str,
    },
    /// It is accepted and changes nothing.
    Ignored {
        /// Why that is right.
        because: &'static str,
    },
    /// It is answered with 400 and its name, unless it is null or neutral.
    Refused {
        /// JSON values with which it would change nothing.
        neutral: &'static [&'static str],
        /// What to do.
        instead: &'static str,
    },
}

/// A field of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestField {
    /// Its name.
    pub name: &'static str,
    /// How it is treated.
    pub support: Support,
}

/// A request with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its method.
    pub method: &'static str,
    /// Its path.
    pub path: &'static str,
    /// The known fields. Others are ignored, or refused where they would change a result unseen.
    pub fields: &'static [RequestField],
}

const fn yes(name: &'static str, note: &'static str) -> RequestField {
    RequestField { name, support: Support::Supported { note } }
}

const fn ignored(name: &'static str, because: &'static str) -> RequestField {
    RequestField { name, support: Support::Ignored { because } }
}

const fn refused(
    name: &'static str,
    neutral: &'static [&'static str],
    instead: &'static str,
) -> RequestField {
    RequestField { name, support: Support::Refused { neutral, instead } }
}

/// Session hints of all requests that generate.
const HINTS: [RequestField; 3] = [
    yes(
        "agent_hints",
        "`expected_tool_duration_ms`: how long the session waits after its turn; `cache_ttl_ms`: how long it is kept; others are labels",
    ),
    yes(
        "nvext",
        "Dynamo's: `agent_hints.priority` (higher goes first), `session_control` (`session_id`, `action`, `timeout` in seconds); others have no effect",
    ),
    yes(
        "kv_hints",
        "vLLM's envelope of version 0.1; the action `djinn.signal` of version 1 is a signal after the turn, others have no effect",
    ),
];

const MODEL: RequestField =
    yes("model", "a name from `/v1/models`; may be left out where there is one model");

/// These fields name the session if no better name is given.
const WEAKER: &str = "a text names the session, where nothing better does";
const SESSION_ID: RequestField = yes(
    "session_id",
    "names the session that the request is a turn of, as headers do: [sessions](../djinn-server/README.md#sessions)",
);

const METADATA: RequestField = yes("metadata", "`user_id` names the session, where nothing better does");

const LABEL: &str = "a label for the provider's own records";

// Fields of both chats and completions.
const TEMPERATURE: RequestField =
    yes("temperature", "0 to 2; 0 is greedy. Default: the model's makers', else 1");
const TOP_P: RequestField = yes("top_p", "0 to 1. Default: the model's makers', else 1");
const TOP_K: RequestField = yes("top_k", "vLLM's; 0 or -1 keeps all. Default: the model's makers', else all");
const MIN_P: RequestField = yes("min_p", "vLLM's; 0 to 1");
const REPETITION_PENALTY: RequestField =
    yes("repetition_penalty", "vLLM's; above 0 to 10. Default: the model's makers', else 1");
const REPEAT_PENALTY: RequestField =
    yes("repeat_penalty", "llama.cpp's name for `repetition_penalty`, which wins");
const FREQUENCY_PENALTY: RequestField = yes("frequency_penalty", "-2 to 2");
const PRESENCE_PENALTY: RequestField = yes("presence_penalty", "-2 to 2");
const LOGIT_BIAS: RequestField = yes("logit_bias", "token ids to -100 to 100; at most 1024");
const SEED: RequestField = yes("seed", "same seed, same request: same answer. Else another one each time");
const STOP: RequestField =
    yes("stop", "one text or up to 4, each of up to 1024 bytes; never part of the answer");
const STOP_TOKEN_IDS: RequestField = yes("stop_token_ids", "vLLM's; up to 64");
const IGNORE_EOS: RequestField = yes("ignore_eos", "vLLM's");
const PRIORITY: RequestField = yes("priority", "vLLM's: a whole number, lower goes first");
const CACHE_SALT: RequestField =
    yes("cache_salt", "requests share prefixes only with those of the same salt and key");
const STREAM_OPTIONS: RequestField = yes("stream_options", "`include_usage`, `continuous_usage_stats`");

/// Fields of vLLM and llama.cpp that would change answers.
const ELSEWHERE: [RequestField; 11] = [
    refused("allowed_token_ids", &["[]"], "give these tokens a `logit_bias` of 100"),
    refused("bad_words", &["[]"], "give their tokens a `logit_bias` of -100"),
    refused("use_beam_search", &["false"], "take `n`, and choose by the log-probabilities"),
    refused("length_penalty", &["1"], "it is of beam search, which there is not; leave it out"),
    refused("truncate_prompt_tokens", &[], "shorten the prompt"),
    refused("include_stop_str_in_output", &["false"], "append the stop string to the answer"),
    refused("mirostat", &["0"], "use `temperature` with `top_p` or `min_p`"),
    refused("typical_p", &["1"], "use `top_p` or `min_p`"),
    refused("dry_multiplier", &["0"], "use `repetition_penalty` or `frequency_penalty`"),
    refused("xtc_probability", &["0"], "use `temperature`"),
    refused("top_n_sigma", &["-1", "0"], "use `top_p` or `min_p`"),
];

/// `/v1/chat/completions`.
pub const CHAT: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/chat/completions",
    fields: &[
        yes("messages", "text, and parts of the type `text`; images, audio and files are refused"),
        MODEL,
        yes("stream", ""),
        STREAM_OPTIONS,
        yes("max_completion_tokens", "wins over `max_tokens`"),
        yes("max_tokens", "cut to the room that the context has after the prompt, which is also the default"),
        TEMPERATURE,
        TOP_P,
        TOP_K,
        MIN_P,
        REPETITION_PENALTY,
        REPEAT_PENALTY,
        FREQUENCY_PENALTY,
        PRESENCE_PENALTY,
        LOGIT_BIAS,
        SEED,
        yes("n", "1 to 16; each answer has its own seed"),
        STOP,
        STOP_TOKEN_IDS,
        IGNORE_EOS,
        yes(
            "logprobs",
            "of the model's own logits, before penalties and filters; `bytes` are each token's, also of a part of a character",
        ),
        yes("top_logprobs", "0 to 20, with `logprobs`"),
        PRIORITY,
        CACHE_SALT,
        yes("chat_template_kwargs", "vLLM's: variables for the chat template, as `enable_thinking`"),
        refused(
            "chat_template",
            &[],
            "use `chat_template_kwargs`, or `/v1/completions` with a prompt that has the form",
        ),
        yes("add_generation_prompt", "vLLM's: `false` leaves the conversation where it ends"),
        yes("documents", "for templates that read them"),
        yes("reasoning_effort", "given to the chat template, which may not read it"),
        yes(
            "tools",
            "up to 128 functions; given to the chat template, or to the system message where it knows no tools. \
             Calls and results of earlier messages are then written as `<tool_call>` and `<tool_response>`. \
             Arguments meet their schemas where a call is demanded, and where there is a `response_format`. Otherwise only \
             those of functions with `strict` do, from the moment the model begins a call; those of other functions are what \
             the model writes",
        ),
        yes(
            "tool_choice",
            "`none`, `auto`, `required`, a function, `allowed_tools`. With a call that is demanded the answer is 1 to 32 \
             calls, of a named function one, and arguments meet their schemas. With `auto`, the model is shown only the \
             allowed tools",
        ),
        refused("functions", &["[]"], "it is deprecated"),
        refused("function_call", &["\"none\"", "\"auto\""], "it is deprecated"),
        yes(
            "response_format",
            "`text`, `json_object` (also with llama.cpp's `schema`), `json_schema`. If the model may also call \
             tools, the answer is either a value of the format or a call (Mistral, pythonic: a list of calls). If a call is \
             demanded, the format has no effect",
        ),
        yes("parallel_tool_calls", "with `false` the answer ends after its first call"),
        refused("audio", &[], "answers are text"),
        refused("modalities", &["[\"text\"]", "[]"], "answers are text; leave it out"),
        refused("prediction", &[], "it changes no answer; leave it out"),
        refused("web_search_options", &[], "the server searches nothing; give the model a tool"),
        refused("moderation", &[], "the server moderates nothing; leave it out"),
        refused("store", &["false"], "the server keeps no answers; leave it out"),
        refused("verbosity", &["\"medium\""], "say it in the prompt"),
        refused("best_of", &["1"], "take `n`, and choose by the log-probabilities"),
        refused("echo", &["false"], "the prompt is not repeated"),
        refused("continue_final_message", &["false"], "use `/v1/completions`"),
        refused("min_tokens", &["0"], "use `ignore_eos` with `max_tokens`"),
        refused("n_predict", &["-1"], "use `max_completion_tokens`"),
        ELSEWHERE[0],
        ELSEWHERE[1],
        ELSEWHERE[2],
        ELSEWHERE[3],
        ELSEWHERE[4],
        ELSEWHERE[5],
        ELSEWHERE[6],
        ELSEWHERE[7],
        ELSEWHERE[8],
        ELSEWHERE[9],
        ELSEWHERE[10],
        refused("prompt_logprobs", &["0"], "use `djinn logits`"),
        refused("return_token_ids", &["false"], "use `/v1/completions` or `/v1/generate`"),
        refused("json_schema", &[], "use `response_format`"),
        refused("grammar", &["\"\""], "use `response_format`"),
        refused("guided_json", &[], "use `response_format`"),
        refused("guided_regex", &[], "use `response_format`"),
        refused("guided_choice", &[], "use `response_format`"),
        refused("guided_grammar", &[], "use `response_format`"),
        refused("structured_outputs", &[], "use `response_format`"),
        ignored("safety_identifier", LABEL),
        ignored("service_tier", "there is one tier"),
        ignored("prompt_cache_options", "prefixes are kept while there is room"),
        ignored("prompt_cache_retention", "prefixes are kept while there is room"),
        SESSION_ID,
        yes("prompt_cache_key", WEAKER),
        yes("program_id", WEAKER),
        yes("user", WEAKER),
        METADATA,
        HINTS[0],
        HINTS[1],
        HINTS[2],
        debug::STEERED,
        yes("conversation", WEAKER),
    ],
};

/// `/v1/completions`.
pub const COMPLETIONS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/completions",
    fields: &[
        yes(
            "prompt",
            "a text, a list of token ids, or a list of up to 64 of these, whose answers are numbered prompt by prompt",
        ),
        MODEL,
        yes("stream", ""),
        STREAM_OPTIONS,
        yes("max_tokens", "default 16; cut to the room that the context has after the prompt"),
        TEMPERATURE,
        TOP_P,
        TOP_K,
        MIN_P,
        REPETITION_PENALTY,
        REPEAT_PENALTY,
        FREQUENCY_PENALTY,
        PRESENCE_PENALTY,
        LOGIT_BIAS,
        SEED,
        yes("n", "1 to 16 for each prompt, 128 in all; each answer to a prompt has its own seed"),
        STOP,
        STOP_TOKEN_IDS,
        IGNORE_EOS,
        yes(
            "logprobs",
            "0 to 20 alternatives, and the token itself; of the model's own logits, before penalties and filters. A part of a character is spelled by its bytes, as `bytes:\\xf0`",
        ),
        yes("echo", "the prompt goes before each answer; not together with `logprobs`"),
        yes("add_special_tokens", "vLLM's: `false` adds no BOS to a text"),
        yes(
            "return_token_ids",
            "vLLM's: each answer has the ids of its tokens in `token_ids`, but not the prompt's. A model without a tokenizer \
             gives nothing else: its `text` is empty",
        ),
        PRIORITY,
        CACHE_SALT,
        refused("suffix", &["\"\""], "nothing is filled into a text"),
        refused("best_of", &["1"], "take `n`, and choose by the log-probabilities"),
        refused("response_format", &["{\"type\":\"text\"}"], "only `{\"type\": \"text\"}` is"),
        refused("json_schema", &[], "use `/v1/chat/completions` with `response_format`"),
        refused("grammar", &["\"\""], "use `/v1/chat/completions` with `response_format`"),
        refused("min_tokens", &["0"], "use `ignore_eos` with `max_tokens`"),
        refused("n_predict", &[], "use `max_tokens`"),
        ELSEWHERE[0],
        ELSEWHERE[1],
        ELSEWHERE[2],
        ELSEWHERE[3],
        ELSEWHERE[4],
        ELSEWHERE[5],
        ELSEWHERE[6],
        ELSEWHERE[7],
        ELSEWHERE[8],
        ELSEWHERE[9],
        ELSEWHERE[10],
        refused("prompt_logprobs", &["0"], "use `djinn logits`"),
        SESSION_ID,
        yes("prompt_cache_key", WEAKER),
        yes("program_id", WEAKER),
        yes("user", WEAKER),
        METADATA,
        HINTS[0],
        HINTS[1],
        HINTS[2],
        debug::STEERED,
        yes("conversation", WEAKER),
    ],
};

/// `/v1/messages`.
pub const MESSAGES: Endpoint = Endpoint { method: "POST", path: "/v1/messages", fields: MESSAGE_FIELDS };

/// `/v1/messages/count_tokens`, whose fields are those of `/v1/messages` and mean the same.
pub const COUNT_TOKENS: Endpoint =
    Endpoint { method: "POST", path: "/v1/messages/count_tokens", fields: MESSAGE_FIELDS };

const MESSAGE_FIELDS: &[RequestField] = &[
    yes(
        "messages",
        "text, tools' calls and results, thinking; images and documents are refused, and so is an answer's beginning as the \
         last message, but not to count tokens",
    ),
    yes("system", "a text or blocks of text"),
    MODEL,
    yes(
        "max_tokens",
        "needed, but not to count tokens; cut to the room that the context has after the prompt",
    ),
    yes("stream", ""),
    yes("stop_sequences", "up to 16, each of up to 1024 bytes; never part of the answer"),
    yes("temperature", "0 to 2; 0 is greedy. Default: the model's makers', else 1"),
    yes("top_p", "0 to 1. Default: the model's makers', else 1"),
    yes("top_k", "0 or -1 keeps all. Default: the model's makers', else all"),
    yes("tools", "up to 128 of the client's own; tools that Anthropic's servers run are refused"),
    yes(
        "tool_choice",
        "`auto`, `any`, `tool`, `none`; `disable_parallel_tool_use`. A call that is demanded comes without thinking",
    ),
    yes(
        "thinking",
        "gives the chat template `enable_thinking`, which it may not read; `budget_tokens` has no effect",
    ),
    yes(
        "output_config",
        "`effort` is given to the chat template, which may not read it; `format` as `response_format` in `/v1/chat/completions`",
    ),
    yes("seed", "as in `/v1/chat/completions`"),
    yes("priority", "as in `/v1/chat/completions`"),
    yes("cache_salt", "as in `/v1/chat/completions`"),
    yes("ignore_eos", "as in `/v1/chat/completions`"),
    refused("container", &[], "the server runs no tools"),
    refused("mcp_servers", &["[]"], "the server runs no tools"),
    ignored("cache_control", "prefixes are found by their content, and kept while there is room"),
    ignored("context_management", "the conversation is what the client sends"),
    METADATA,
    ignored("diagnostics", LABEL),
    ignored("inference_geo", "the server is where it is"),
    ignored("service_tier", "there is one tier"),
    ignored("speed", "there is one speed"),
    ignored("user_profile_id", LABEL),
    ignored("workspace_id", LABEL),
    SESSION_ID,
    yes("prompt_cache_key", WEAKER),
    yes("program_id", WEAKER),
    yes("user", WEAKER),
    HINTS[0],
    HINTS[1],
    HINTS[2],
    debug::STEERED,
    yes("conversation", WEAKER),
];

/// `/v1/responses`.
pub const RESPONSES: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/responses",
    fields: &[
        yes(
            "input",
            "a text or items: messages of text, function calls and their outputs, reasoning; others are refused",
        ),
        MODEL,
        yes("instructions", "the first system message; not taken over from the previous response"),
        yes("previous_response_id", "goes on from a response that is kept"),
        yes(
            "store",
            "default true; the 10,000 responses that were used last are kept, of 256 MiB in all, in memory",
        ),
        yes("stream", ""),
        yes("max_output_tokens", "else as many as the context has room for"),
        yes("temperature", "0 to 2; 0 is greedy. Default: the model's makers', else 1"),
        yes("top_p", "0 to 1. Default: the model's makers', else 1"),
        yes("tools", "up to 128 functions; others are refused"),
        yes("tool_choice", "as in `/v1/chat/completions`"),
        yes("parallel_tool_calls", "as in `/v1/chat/completions`"),
        yes("text", "`format` as `response_format` in `/v1/chat/completions`; `verbosity` only as `medium`"),
        yes(
            "reasoning",
            "`effort` is given to the chat template, which may not read it; there are no summaries",
        ),
        yes("include", "`message.output_text.logprobs`; others name what no answer has"),
        yes("top_logprobs", "0 to 20, with `include`"),
        yes("metadata", "given back; `user_id` names the session, where nothing better does"),
        yes("top_k", "as in `/v1/chat/completions`"),
        yes("min_p", "as in `/v1/chat/completions`"),
        yes("repetition_penalty", "as in `/v1/chat/completions`"),
        yes("frequency_penalty", "as in `/v1/chat/completions`"),
        yes("presence_penalty", "as in `/v1/chat/completions`"),
        yes("seed", "as in `/v1/chat/completions`"),
        yes("ignore_eos", "as in `/v1/chat/completions`"),
        yes("priority", "as in `/v1/chat/completions`"),
        yes("cache_salt", "as in `/v1/chat/completions`"),
        yes("chat_template_kwargs", "as in `/v1/chat/completions`"),
        refused("background", &["false"], "stream the response"),
        refused("conversation", &[], "use `previous_response_id`"),
        refused("prompt", &[], "the server keeps no prompts"),
        refused("truncation", &["\"disabled\""], "shorten the input"),
        refused("context_management", &["[]"], "shorten the input"),
        refused("moderation", &[], "the server moderates nothing; leave it out"),
        ignored("background_options", "nothing runs in the background"),
        ignored("access_programs", LABEL),
        ignored("image", "the model reads text only"),
        ignored("max_tool_calls", "counts calls of tools that the server runs, and it runs none"),
        ignored("stream_options", "events are not padded"),
        ignored("safety_identifier", LABEL),
        ignored("service_tier", "there is one tier"),
        ignored("prompt_cache_options", "prefixes are kept while there is room"),
        ignored("prompt_cache_retention", "prefixes are kept while there is room"),
        SESSION_ID,
        yes("prompt_cache_key", WEAKER),
        yes("program_id", WEAKER),
        yes("user", WEAKER),
        HINTS[0],
        HINTS[1],
        HINTS[2],
        debug::STEERED,
    ],
};

/// `/tokenize`.
pub const TOKENIZE: Endpoint = Endpoint {
    method: "POST",
    path: "/tokenize",
    fields: &[
        yes("prompt", "a text"),
        yes("content", "llama.cpp's name for `prompt`"),
        yes("messages", "a conversation, in place of `prompt`"),
        MODEL,
        yes("add_special_tokens", "default true for `prompt`, false for `content`"),
        yes("add_special", "llama.cpp's name for `add_special_tokens`"),
        yes("add_generation_prompt", "for `messages`; default true"),
        yes("chat_template_kwargs", "for `messages`"),
        yes("return_token_strs", "also gives each token's spelling"),
        yes("with_pieces", "llama.cpp's: each token is an object with its `id` and `piece`"),
        refused("tools", &["[]"], "leave it out"),
        refused(
            "chat_template",
            &[],
            "use `chat_template_kwargs`, or `prompt` with a text that has the form",
        ),
        ignored(
            "parse_special",
            "names of special tokens in a text are those tokens; in messages they are text",
        ),
    ],
};

/// `/detokenize`.
pub const DETOKENIZE: Endpoint =
    Endpoint { method: "POST", path: "/detokenize", fields: &[yes("tokens", "a list of token ids"), MODEL] };

/// `/v1/sessions`.
pub const SESSIONS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions",
    fields: &[
        yes("id", "1 to 256 visible ASCII characters; another one each time, if not given"),
        MODEL,
        yes("parent", "the name of another session; it is shown"),
        yes("ttl_s", "seconds that it is kept without use"),
    ],
};

/// `/v1/sessions/{id}/signal`.
pub const SIGNAL: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/signal",
    fields: &[
        yes("phase", "`io_wait`, `compute` or `idle`"),
        yes("tool", "for `io_wait`: waits are learned by this name, of up to 128 bytes"),
        yes("estimated_resume_ms", "for `io_wait`: from now until the next request"),
    ],
};

/// `/v1/sessions/{id}/fork`.
pub const FORK: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/fork",
    fields: &[yes("id", "the new session's; another one each time, if not given")],
};

/// All requests that have a body.
pub const ENDPOINTS: &[Endpoint] = &[
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    TOKENIZE,
    DETOKENIZE,
    SESSIONS,
    SIGNAL,
    RESUME,
    FORK,
    BREAKPOINTS,
    ACTIVATIONS,
    CACHE,
    LENS,
    SESSION_STEERING,
    STEERING,
    STEERING_DEFAULT,
    STORE_MANIFESTS,
    LOGITS,
    GENERATE,
];

/// The tables as a page of Markdown.
pub fn document() -> String {
    let mut page = String::from(
        "# Fields of requests\n\nEvery field of every request, and what becomes of it. A refused field is answered with \
         status 400 and its name in `param`, unless it is null or neutral. Fields that are not listed are ignored; requests \
         that set breakpoints, change a paused session, read its lens or resume it refuse them. This \
         page is made by `cargo run -p djinn-server --example fields`.\n",
    );
    for endpoint in ENDPOINTS {
        page += &format!("\n## `{} {}`\n\n| field | | |\n|---|---|---|\n", endpoint.method, endpoint.path);
        for RequestField { name, support } in endpoint.fields {
            let (word, note) = match support {
                Support::Supported { note } => ("supported", (*note).to_owned()),
                Support::Ignored { because } => ("ignored", (*because).to_owned()),
                Support::Refused { neutral: [], instead } => ("refused", (*instead).to_owned()),
                Support::Refused { neutral, instead } => {
                    let neutral: Vec<String> = neutral.iter().map(|value| format!("`{value}`")).collect();
                    ("refused", format!("{instead}. Neutral: {}", neutral.join(", ")))
                }
            };
            page += &format!("| `{name}` | {word} | {note} |\n");
        }
    }
    page
}
