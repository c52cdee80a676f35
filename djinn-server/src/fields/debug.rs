//! Fields of requests that stop sessions, read and change activations, and steer.

use super::{Endpoint, MODEL, RequestField, yes};

/// The field of all requests that generate.
pub(super) const STEERED: RequestField = yes(
    "steering",
    "`vectors`, as EasySteer's: `source` (a name of `/v1/steering`), `scale`, `layers`, `apply` (`prompt`, `generation`), \
     `algorithm` (`direct` or `erase`): [steering](breakpoints.md#steering). `edits`: changes of all tokens, each with its \
     `hook`, the fields of `POST …/activations/{hook}` but `positions`, and `apply`: \
     [lasting changes](breakpoints.md#lasting-changes)",
);

/// `/v1/sessions/{id}/breakpoints`.
pub const BREAKPOINTS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/breakpoints",
    fields: &[
        yes("hook", "a hook point's name or alias: `/v1/models/{name}/hooks`"),
        yes("tokens", "`any` (default), `prompt` or `generated`"),
        yes("positions", "`from` and `to`: tokens of the session, counted from 0, without `to`"),
        yes(
            "steps",
            "`from` and `to`: places of generated tokens in their turn, counted from 1, without `to`; tokens of prompts are left out",
        ),
        yes(
            "condition",
            "`type` `token` (`tokens`: ids; the token must be one of them), `entropy` (`above`, in nats) or `probe` (`direction`, `above`)",
        ),
        yes("action", "`pause` (default), `capture` or `pause_and_capture`"),
        yes("hits", "after this number it is used up; default 1, and for `capture` any number (null)"),
        yes("ttl_ms", "how long a pause may last; default 300000, at most what the server allows"),
        yes(
            "on_ttl",
            "`resume` (default) or `abort`, which ends the session, not its turn alone as `POST …/abort` does",
        ),
    ],
};

/// `/v1/sessions/{id}/activations/{hook}`.
pub const ACTIVATIONS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/activations/{hook}",
    fields: &[
        yes("op", "`set`, `add`, `scale`, `clamp` or `project_out`"),
        yes(
            "values",
            "for `set`, `add` and `project_out` (a direction): one row for all tokens, or, but for `project_out`, one for each",
        ),
        yes("strength", "for `add`: the values are multiplied by it; default 1"),
        yes("factor", "for `scale`"),
        yes("low", "for `clamp`; no bound, if not given"),
        yes("high", "for `clamp`; no bound, if not given"),
        yes(
            "positions",
            "a list of tokens of the session, or `from` and `to`; all that are paused, if not given",
        ),
        yes(
            "columns",
            "a list of columns, or `from` and `to`, without `to`, such as those of a head or a neuron; all, if not given. \
             `values` are then of these columns",
        ),
    ],
};

/// `/v1/sessions/{id}/kv/{layer}`. Files of safetensors have `op` and `from` in the query.
pub const CACHE: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/kv/{layer}",
    fields: &[
        yes("op", "`set`, `add`, `scale`, `clamp` or `project_out`"),
        yes("part", "`keys` or `values`"),
        yes(
            "values",
            "for `set` and `add`: `[tokens, kv_heads, head_dim]`, or one row of `kv_heads · head_dim` for all tokens; for `project_out`: a direction, one row",
        ),
        yes("factor", "for `scale`"),
        yes("low", "for `clamp`; no bound, if not given"),
        yes("high", "for `clamp`; no bound, if not given"),
        yes(
            "positions",
            "`from` and `to`, without `to`; all tokens before those that are paused, if not given",
        ),
    ],
};

/// `/v1/sessions/{id}/lens`.
pub const LENS: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/lens",
    fields: &[
        yes(
            "hooks",
            "names of hook points where the residual stream is; the end of every block, if not given",
        ),
        yes("top", "tokens of each; 1 to 100, default 5"),
        yes("position", "the token; the last that is paused, if not given"),
    ],
};

/// `/v1/sessions/{id}/resume`.
pub const RESUME: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/resume",
    fields: &[yes(
        "until",
        "where it pauses again: `next_layer`, `next_token`, or an object with a later `hook` of the same tokens",
    )],
};

/// `/v1/steering`. Files of safetensors or GGUF have all but `vector` and `layers` in the query.
pub const STEERING: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/steering",
    fields: &[
        yes("name", "1 to 256 visible ASCII characters; what stood there is replaced"),
        MODEL,
        yes("vector", "one direction"),
        yes("hook", "where `vector` is added"),
        yes("layer", "in place of `hook`: after this block"),
        yes("layers", "layers as keys, each with a direction; in place of `vector`"),
    ],
};

/// `/v1/steering/{name}/default`.
pub const STEERING_DEFAULT: Endpoint = Endpoint {
    method: "PUT",
    path: "/v1/steering/{name}/default",
    fields: &[yes("scale", "default 1"), yes("apply", "`prompt` and `generation`; both, if not given")],
};

/// `/v1/sessions/{id}/steering`.
pub const SESSION_STEERING: Endpoint = Endpoint {
    method: "POST",
    path: "/v1/sessions/{id}/steering",
    fields: &[
        yes("vectors", "as in the field `steering` of requests"),
        yes("edits", "as there. Two empty lists end the steering"),
    ],
};
