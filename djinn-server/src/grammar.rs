//! Structured output: JSON schemas as constraints on a model's tokens.
//!
//! `llguidance` computes the allowed tokens. A schema comes from a stranger. Its size and depth are bounded before
//! compilation; memory and work are bounded during compilation and for each token. It is compiled on a thread of its
//! own, with a stack for the deepest schema and a time limit.

mod calls;
mod constraint;
mod schema;

pub use calls::CallForm;
pub(crate) use schema::MOST_CALLS;
pub use schema::calls_schema;

use constraint::GrammarConstraint;
use djinn_engine::Constraint;
use djinn_models::Tokenizer;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Why there is no constraint. All but [`Busy`](Self::Busy) are the request's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The schema exceeds a bound.
    #[error("the schema has {found} {what}; {most} is the most")]
    TooLarge {
        /// The unit.
        what: &'static str,
        /// The schema's number of them.
        found: usize,
        /// The most allowed.
        most: usize,
    },
    /// The schema is invalid, cannot be met, or uses an unsupported keyword.
    #[error("the schema cannot be used: {0}")]
    Refused(String),
    /// The schema took too long to compile.
    #[error("the schema took more than {} s to compile; simplify it", .0.as_secs())]
    TooSlow(Duration),
    /// Other schemas are being compiled.
    #[error("too many schemas are being compiled; try again")]
    Busy,
    /// The model has no token that ends a text.
    #[error("the model's tokenizer has no token that ends a text, which structured output needs")]
    NoEnd,
}

/// Makes constraints for one model's tokens. Making it takes some megabytes and tens of milliseconds; make it once.
pub struct Grammars {
    factory: Arc<ParserFactory>,
    compiling: Arc<Places>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a tokenizer, with the tokens `ends` that end a turn.
    ///
    /// # Errors
    /// [`GrammarError::NoEnd`] if none of them is in the vocabulary.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, GrammarError> {
        let ids = 0..tokenizer.vocab_size() as u32;
        // Empty tokens are never allowed. Special tokens are not text.
        let bytes = |id| tokenizer.token_bytes(id).unwrap_or_default().into_owned();
        Self::from_vocabulary(&ids.map(bytes).collect::<Vec<_>>(), ends)
    }

    /// For tokens by their bytes. Tokens that are not text have none.
    fn from_vocabulary(tokens: &[Vec<u8>], ends: &[u32]) -> Result<Self, GrammarError> {
        let ends: Vec<u32> = ends.iter().copied().filter(|&end| (end as usize) < tokens.len()).collect();
        let Some(&end) = ends.first() else { return Err(GrammarError::NoEnd) };
        // An end token is never text.
        let word = |(id, bytes): (u32, &Vec<u8>)| if ends.contains(&id) { Vec::new() } else { bytes.clone() };
        let words: Vec<Vec<u8>> = (0..).zip(tokens).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| refused(&error))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // Each takes one or two kilobytes.
            max_lexer_states: 20_000,
            max_grammar_size: 200_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Grammars { factory: Arc::new(factory), compiling: Arc::default() })
    }

    /// A constraint to JSON texts that meet a schema (draft 2020-12). White space between JSON tokens is a space, or a
    /// line break and its indentation. Blocks for up to [`COMPILE_LIMIT`], and for as long before if others compile:
    /// do not call it in an asynchronous task.
    ///
    /// # Errors
    /// [`GrammarError`] for a schema that is too large, invalid, or not supported by `llguidance`, such as one with
    /// references to other documents.
    pub fn json_schema(&self, schema: &Value) -> Result<Box<dyn Constraint>, GrammarError> {
        let schema = schema::checked(schema)?;
        let constraint = self.compile(schema)?;
        Ok(Box::new(constraint))
    }

    /// A constraint to any JSON object.
    ///
    /// # Errors
    /// [`GrammarError::Busy`].
    pub fn json_object(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        self.json_schema(&serde_json::json!({"type": "object"}))
    }

    fn compile(&self, schema: Value) -> Result<GrammarConstraint, GrammarError> {
        self.compile_grammar(TopLevelGrammar::from_json_schema(schema))
    }

    fn compile_grammar(&self, grammar: TopLevelGrammar) -> Result<GrammarConstraint, GrammarError> {
        let running = Running::new(&self.compiling)?;
        let factory = Arc::clone(&self.factory);
        let (done, result) = mpsc::sync_channel(1);
        let work = move || {
            let _running = running;
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let parser = factory.create_parser(grammar);
                let matcher = Matcher::new(parser);
                match matcher.get_error() {
                    Some(error) => Err(GrammarError::Refused(reason(&error))),
                    None => GrammarConstraint::new(matcher),
                }
            }));
            // The requester may have given up.
            let _ = done.send(made.unwrap_or_else(|_| {
                Err(GrammarError::Refused("the grammar's compiler failed on it".to_owned()))
            }));
        };
        let thread = std::thread::Builder::new().name("djinn-grammar".to_owned()).stack_size(COMPILE_STACK);
        thread.spawn(work).map_err(|_| GrammarError::Busy)?;
        match result.recv_timeout(COMPILE_LIMIT) {
            Ok(made) => made,
            Err(RecvTimeoutError::Timeout) => Err(GrammarError::TooSlow(COMPILE_LIMIT)),
            Err(RecvTimeoutError::Disconnected) => {
                Err(GrammarError::Refused("the grammar's compiler failed on it".to_owned()))
            }
        }
    }
}

/// How long a schema may take to compile.
pub const COMPILE_LIMIT: Duration = Duration::from_secs(10);

/// Stack bytes of a compiling thread: chains of references recurse. A usual schema touches little of it.
const COMPILE_STACK: usize = 256 << 20;

/// The most schemas that are compiled at the same time.
const MOST_COMPILING: usize = 4;

/// How many schemas are being compiled.
#[derive(Debug, Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A place among the running compilations.
struct Running(Arc<Places>);

impl Running {
    /// Waits for a place, at most as long as a compilation may take.
    fn new(places: &Arc<Places>) -> Result<Self, GrammarError> {
        let taken = places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut usize| *taken >= MOST_COMPILING;
        let waited = places.freed.wait_timeout_while(taken, COMPILE_LIMIT, full);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(GrammarError::Busy);
        }
        *taken += 1;
        Ok(Running(Arc::clone(places)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

fn refused(error: &dyn std::fmt::Display) -> GrammarError {
    GrammarError::Refused(reason(&error.to_string()))
}

/// A library's message as one line without appended traces, cut at 500 characters.
fn reason(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    // An error of a regex shows the pattern below its first line, and tells the reason last.
    let last = message.lines().filter_map(|line| line.strip_prefix("error: ")).next_back();
    let line = match last.filter(|_| first.ends_with(':')) {
        Some(last) => format!("{first} {last}"),
        None => first.to_owned(),
    };
    line.chars().take(500).collect()
}
