//! Fields of requests that send models, and of those that the command makes with `--server`.

use super::debug::STEERED;
use super::{Endpoint, HINTS, METADATA, MODEL, SESSION_ID, WEAKER, yes};

/// `/v1/store/manifests`.
pub const STORE_MANIFESTS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/store/manifests",
    fields: &[
        yes("name", "what requests will call the model: `NAME` or `ORG/NAME`"),
        yes(
            "files",
            "a list of files, each with its `path` and `pieces`; a piece has `hash` (BLAKE3 as hexadecimal digits), `bytes`, \
             and `tensor` (`name`, `dtype`, `shape`) where it is one: [remote models](remote.md)",
        ),
    ],
};

/// `/v1/logits`.
pub const LOGITS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/logits",
    fields: &[
        MODEL,
        yes("tokens", "a list of token ids; together their logits are at most 8,388,608 numbers"),
        yes("format", "`json`, a row for each position, or `text`, the best five of each. Default `json`"),
    ],
};

const MAKERS: &str =
    "default: the model's makers'; with none of the four and no `do_sample` of theirs, greedy";

/// `/v1/generate`.
pub const GENERATE: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/generate",
    fields: &[
        MODEL,
        yes("prompt", "a text, which goes through the chat template unless `raw`"),
        yes("prompt_tokens", "a list of token ids in place of `prompt`"),
        yes(
            "messages",
            "a conversation in place of `prompt`: a system message or none, the user's messages and their answers in turn, a message \
             of the user's. The oldest turns are left out where the context has no room for them and an answer; the first event \
             tells how many are `forgotten`",
        ),
        yes("raw", "the prompt as it is, without the chat template"),
        yes("system", "the system message; an empty one leaves it to the template"),
        yes("max_tokens", "default 256"),
        yes("greedy", "always the likeliest token"),
        yes("temperature", MAKERS),
        yes("top_k", MAKERS),
        yes("top_p", MAKERS),
        yes("min_p", MAKERS),
        yes("repetition_penalty", "default: the model's makers', else 1"),
        yes("seed", "another one each time, if not given; it is told"),
        yes("stop", "a list of up to 16 texts of up to 1024 bytes"),
        yes("ignore_eos", ""),
        SESSION_ID,
        yes("prompt_cache_key", WEAKER),
        yes("program_id", WEAKER),
        yes("user", WEAKER),
        METADATA,
        HINTS[0],
        HINTS[1],
        HINTS[2],
        STEERED,
    ],
};
