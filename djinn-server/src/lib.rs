//! Djinn over HTTP: OpenAI's and Anthropic's APIs over one engine for each model.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod anthropic;
mod ask;
mod beginning;
mod blocking;
mod body;
mod debug;
mod error;
mod facts;
pub mod fields;
mod generate;
mod grammar;
mod guard;
mod listen;
mod live;
mod log_format;
mod metrics;
mod model;
mod openai;
mod openapi;
mod pace;
mod page;
mod remote;
mod reply;
mod request;
mod routes;
mod server;
mod sessions;
mod steering;
mod store;
#[cfg(feature = "otel")]
mod telemetry;
mod time_up;
mod tools;
mod write_times;

pub use debug::is_residual;
pub use error::{ApiError, Error, Result};
pub use generate::{
    Answers, FinishReason, GenerateRequest, OutputForm, Piece, SpelledToken, TokenInfo, TokenUsage,
};
pub use grammar::{COMPILE_LIMIT, CallForm, GrammarError, Grammars, calls_schema};
pub use guard::{AccessRules, Keys};
pub use listen::{BoundServer, Reload, Stop};
pub use log_format::LogFormat;
pub use model::{ServedModel, Serving, SharedDevice};
pub use server::{Limits, Server};
pub use sessions::SessionUse;
pub use steering::{LastingEdit, SteeredTokens, SteeringAlgorithm, SteeringUse, VectorUse};
pub use store::ModelStore;
#[cfg(feature = "otel")]
pub use telemetry::Telemetry;
pub use tools::{OutputEvent, OutputParser, ReasoningMode, ToolFormat};
