//! The routes: one table for the router and `/openapi.json`.

use crate::debug::{activation, cache, captures, hooks, lens, routes as debug, tokens as session_tokens};
use crate::openai::{chat, completions, models, responses, tokens};
use crate::remote::{generate, logits, tables, tables::Table};
use crate::reply::{self, Answered};
use crate::request::Pairs;
use crate::server::{ApiRequest, Server, metrics_page, ready};
use crate::sessions::{routes as sessions, transfer};
use crate::steering::routes as steering;
use crate::store::routes as store;
use crate::{ApiError, anthropic, live, openapi, page, request};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, head, post, put};
use djinn_host::{PlanAsked, SrgAsked, parameters};
use serde_json::json;
use std::sync::{Arc, LazyLock};

/// The type of files.
const BYTES: &str = "application/octet-stream";

pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    /// The names of its parameters.
    pub(crate) query: Vec<String>,
    /// The type of its request body, if that is not JSON.
    pub(crate) takes: Option<&'static str>,
    /// The type of its response.
    pub(crate) content: &'static str,
    /// Whether another route's handler serves it, since a name with slashes takes the rest of the path.
    is_part: bool,
    handler: MethodRouter<Arc<Server>>,
}

impl Route {
    fn query(self, names: &[impl ToString]) -> Self {
        Route { query: names.iter().map(ToString::to_string).collect(), ..self }
    }

    fn takes(self, takes: &'static str) -> Self {
        Route { takes: Some(takes), ..self }
    }

    fn content(self, content: &'static str) -> Self {
        Route { content, ..self }
    }

    fn part(self) -> Self {
        Route { is_part: true, ..self }
    }
}

/// Makes routes of one method.
macro_rules! of_method {
    ($($name:ident: $METHOD:ident $serve:ident,)*) => {
        $(fn $name<T: 'static>(
            path: &'static str,
            summary: &'static str,
            handler: impl Handler<T, Arc<Server>>,
        ) -> Route {
            Route {
                method: Method::$METHOD,
                path,
                summary,
                query: Vec::new(),
                takes: None,
                content: "application/json",
                is_part: false,
                handler: $serve(handler),
            }
        })*
    };
}
of_method! { reads: GET get, posts: POST post, puts: PUT put, deletes: DELETE delete, heads: HEAD head, }

/// An action on a session: the last part of the path.
fn acts(path: &'static str, summary: &'static str) -> Route {
    let action = path.rsplit('/').next().unwrap_or_default();
    let handler =
        move |id: Path<String>, query: Pairs, request: ApiRequest| sessions::act(id, action, query, request);
    posts(path, summary, handler).query(&["model"])
}

fn table() -> Vec<Route> {
    let version = async || reply::json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }));
    vec![
        posts("/v1/chat/completions", "Answers a conversation.", chat::complete),
        posts("/v1/completions", "Goes on with a text.", completions::complete),
        posts("/v1/responses", "Answers items, and keeps the response.", responses::create),
        reads("/v1/responses/{id}", "A response that is kept.", responses::retrieve),
        deletes("/v1/responses/{id}", "Forgets a response.", responses::delete),
        posts("/v1/responses/{id}/cancel", "Ends a response.", responses::cancel),
        reads("/v1/responses/{id}/input_items", "What a response answers.", responses::input_items)
            .query(&["limit", "order", "after"]),
        posts("/v1/messages", "Answers a conversation, as Anthropic's API does.", anthropic::create),
        posts(
            "/v1/messages/count_tokens",
            "Counts the tokens of such a conversation.",
            anthropic::count_tokens,
        ),
        posts("/v1/sessions", "Makes a session of this name.", sessions::create),
        reads("/v1/sessions", "The sessions of the key.", sessions::list),
        reads("/v1/sessions/{id}", "A session.", sessions::show).query(&["model"]),
        deletes("/v1/sessions/{id}", "Ends a session.", sessions::delete).query(&["model"]),
        reads("/v1/sessions/{id}/export", "A session as a file, with its keys and values.", transfer::export)
            .query(&["model"])
            .content(BYTES),
        posts("/v1/sessions/import", "Makes a session from such a file.", transfer::import)
            .query(&["id", "model", "turn"])
            .takes(BYTES),
        acts("/v1/sessions/{id}/signal", "Takes a hint, and answers what it changes."),
        acts("/v1/sessions/{id}/pause", "Holds a session."),
        acts("/v1/sessions/{id}/resume", "Lets a session go on."),
        acts("/v1/sessions/{id}/abort", "Ends a session's turn; what was computed stays."),
        acts("/v1/sessions/{id}/fork", "Makes a session that begins with all tokens of this one."),
        acts("/v1/sessions/{id}/heartbeat", "Keeps a session."),
        posts("/v1/sessions/{id}/breakpoints", "Sets a breakpoint.", debug::set).query(&["model"]),
        reads("/v1/sessions/{id}/breakpoints", "A session's breakpoints.", debug::list).query(&["model"]),
        deletes("/v1/sessions/{id}/breakpoints/{breakpoint}", "Takes a breakpoint away.", debug::clear)
            .query(&["model"]),
        reads("/v1/sessions/{id}/pause", "Waits until a session is paused at a breakpoint.", debug::wait)
            .query(&["model", "timeout_ms"]),
        reads(
            "/v1/sessions/{id}/activations/{hook}",
            "Values of a session that is paused.",
            activation::read,
        )
        .query(&["model", "format"]),
        posts(
            "/v1/sessions/{id}/activations/{hook}",
            "Changes values of a session that is paused.",
            activation::write,
        )
        .query(&["model", "op"]),
        reads("/v1/sessions/{id}/kv/{layer}", "Keys and values of a session that is paused.", cache::read)
            .query(&["model", "from", "to", "format"]),
        posts(
            "/v1/sessions/{id}/kv/{layer}",
            "Writes over keys or values of a session that is paused.",
            cache::write,
        )
        .query(&["model", "op", "from"]),
        posts("/v1/sessions/{id}/lens", "The best tokens as of each block.", lens::show).query(&["model"]),
        reads("/v1/sessions/{id}/captures", "Takes what breakpoints have read.", captures::take)
            .query(&["model", "format"]),
        reads("/v1/sessions/{id}/tokens", "All tokens of a session.", session_tokens::show)
            .query(&["model", "wait_ms"]),
        posts("/v1/sessions/{id}/steering", "Steers a session from its next token on.", debug::steer)
            .query(&["model"]),
        reads("/v1/store", "What the store of models holds.", store::show),
        posts(
            "/v1/store/manifests",
            "Registers a model; answers which pieces the store lacks.",
            store::register,
        ),
        deletes("/v1/store/manifests/{id}", "Forgets a manifest and what has come of it.", store::unregister),
        posts(
            "/v1/store/manifests/{id}/commit",
            "Makes a model whose pieces have come visible.",
            store::commit,
        ),
        heads("/v1/store/blobs/{hash}", "How far a piece has come.", store::head),
        puts("/v1/store/blobs/{hash}", "Sends a piece, from the header `Upload-Offset` on.", store::put)
            .takes(BYTES),
        deletes("/v1/models/{*name}", "Removes a model that was sent to the store.", store::delete_model),
        reads("/v1/models", "The models by name.", async |State(server): Shared| models::list(&server)),
        reads("/v1/models/{*name}", "A model.", get_model),
        reads("/v1/models/{*name}/hooks", "A model's hook points.", get_model).part(),
        reads("/v1/models/{*name}/plan", "What `djinn plan` prints of a model.", get_model)
            .part()
            .query(&parameters::<PlanAsked>())
            .content("text/plain"),
        reads("/v1/models/{*name}/srg", "What `djinn srg` prints of a model.", get_model)
            .part()
            .query(&parameters::<SrgAsked>())
            .content("text/plain"),
        posts("/v1/steering", "Keeps steering vectors under a name.", steering::create)
            .query(&["name", "model", "hook", "layer"]),
        reads("/v1/steering", "The steering vectors of the key.", steering::list),
        reads("/v1/steering/{name}", "A steering vector with its values.", steering::show).query(&["model"]),
        deletes("/v1/steering/{name}", "Forgets a steering vector.", steering::delete).query(&["model"]),
        puts(
            "/v1/steering/{name}/default",
            "Steers all requests that say nothing else.",
            steering::set_default,
        )
        .query(&["model"]),
        deletes("/v1/steering/{name}/default", "Ends that.", steering::end_default).query(&["model"]),
        posts("/tokenize", "The tokens of a text or a conversation.", tokens::tokenize),
        posts("/v1/generate", "Answers one prompt as `djinn run` does.", generate::generate)
            .content("text/event-stream"),
        posts("/v1/logits", "The logits of every position of some tokens.", logits::compute),
        posts("/detokenize", "The text of tokens.", tokens::detokenize),
        reads("/", "The page for people.", page::show).content("text/html"),
        reads("/v1/live", "Memory, sessions, steps and times; again and again, if asked to.", live::show)
            .query(&["model", "every_ms"]),
        posts("/v1/trace/start", "Begins a timeline of copies and launches.", live::trace::start)
            .query(&["model", "seconds"]),
        posts("/v1/trace/stop", "Ends it, and gives it in Chrome's trace event format.", live::trace::stop)
            .query(&["model"]),
        reads("/health", "The process lives.", async || {
            reply::json(StatusCode::OK, &json!({ "status": "ok" }))
        }),
        reads("/ready", "Whether all models answer.", ready),
        reads("/version", "The server's version.", version),
        reads("/metrics", "Counters, for Prometheus.", metrics_page).content("text/plain"),
        reads("/openapi.json", "This document.", async || {
            static DOCUMENT: LazyLock<serde_json::Value> = LazyLock::new(|| openapi::document(&table()));
            reply::json(StatusCode::OK, &*DOCUMENT)
        }),
    ]
}

/// The router. OpenAI's paths also work without `/v1`.
pub(crate) fn router(server: &Arc<Server>) -> Router {
    let mut router = Router::new();
    for Route { path, handler, .. } in table().into_iter().filter(|route| !route.is_part) {
        if let Some(short) = path.strip_prefix("/v1").filter(|_| !anthropic::is_own(path)) {
            router = router.route(short, handler.clone());
        }
        router = router.route(path, handler);
    }
    router
        .fallback(async |request: Request| {
            let message = format!("there is no {}", request.uri().path());
            ApiError::refused(StatusCode::NOT_FOUND, djinn_models::printable::one_line(&message))
        })
        .method_not_allowed_fallback(async || {
            ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method")
        })
        .layer(from_fn_with_state(Arc::clone(server), request::guard))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::clone(server))
}

type Shared = State<Arc<Server>>;

async fn get_model(State(server): Shared, Path(name): Path<String>, query: Pairs) -> Answered {
    match name.rsplit_once('/') {
        Some((name, "hooks")) => hooks::list(&server, name),
        Some((name, "plan")) => tables::show(&server, name, Table::Plan, &query).await,
        Some((name, "srg")) => tables::show(&server, name, Table::Graph, &query).await,
        _ => models::get(&server, &name),
    }
}
