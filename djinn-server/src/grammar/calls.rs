//! Calls that meet their schemas, wherever the model begins one. Text is free until a call begins, and again after it.
//!
//! A call's grammar begins at its first bracket, after the introduction of calls in the model's format. A token with
//! the bracket and more is allowed there only if the grammar allows the rest, so that no token skips the grammar's
//! beginning.

use super::constraint::GrammarConstraint;
use super::{COMPILE_LIMIT, GrammarError, Grammars, schema};
use crate::{ReasoningMode, ToolFormat};
use djinn_engine::{Constraint, ConstraintError, TokenMask};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokTrie, TrieNode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes of the latest text in which a call's beginning is searched: more than any function's name.
const TAIL: usize = 512;
/// The most white space before a call's bracket.
const MOST_SPACE: usize = 4;
const THINK: &[u8] = b"<think>";
const END_THINK: &[u8] = b"</think>";
const CALL_ID: &[u8] = b"[CALL_ID]";
const ARGS: &[u8] = b"[ARGS]";

/// The form of calls.
#[derive(Clone, Debug)]
pub struct CallForm {
    /// The model's format.
    pub format: ToolFormat,
    /// The functions that may be called, with the JSON schemas of their arguments.
    pub functions: Vec<(String, Value)>,
    /// Special tokens that occur in the text by name, such as [`ToolFormat::markers`] and `<think>`.
    pub markers: Vec<(u32, &'static str)>,
    /// Whether reasoning precedes the text. It contains no calls.
    pub reasoning: ReasoningMode,
}

/// Where calls may be introduced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Anywhere,
    /// At the beginning of the text, or after reasoning.
    Start,
    AfterCall,
}

/// The introduction of a call, before its bracket.
struct Opening {
    literal: Vec<u8>,
    place: Where,
    bracket: u8,
    grammar: usize,
}

/// Shared by all copies of a constraint.
struct Plan {
    openings: Vec<Opening>,
    markers: Vec<(u32, &'static str)>,
    /// At their beginnings. Each call takes a copy.
    grammars: Vec<Mutex<GrammarConstraint>>,
    /// Tokens with a whole opening and its bracket. There are hardly any.
    whole: BTreeMap<u32, Begun>,
    env: TokEnv,
    /// Calls without a marker are part of the text's format.
    formatted: bool,
}

/// What a token may go on with: the rest of an opening, then white space and a bracket.
struct Continuation<'a> {
    opening: &'a Opening,
    rest: &'a [u8],
    /// Whether white space may precede the rest.
    spaced: bool,
}

/// A call that a token begins.
#[derive(Clone, Copy)]
struct Begun {
    /// Where the token has the bracket.
    at: usize,
    grammar: usize,
}

/// What may come outside of calls.
enum Text {
    Anything,
    /// A value of a format, or, before it has `begun`, a call instead.
    Format {
        format: GrammarConstraint,
        begun: bool,
    },
    /// The introduction of a call has begun instead of the format.
    Opening,
    Call(GrammarConstraint),
    /// Nothing more: a call came instead of the format.
    Nothing,
}

struct CallConstraint {
    plan: Arc<Plan>,
    text: Text,
    /// The latest text outside of calls and reasoning.
    tail: Vec<u8>,
    /// Where the tail begins, unless it was cut.
    begins: Option<Where>,
    thinking: bool,
    /// Reasoning may begin.
    may_think: bool,
}

impl Grammars {
    /// A constraint to texts with calls that meet their schemas. With a `format`, a text is a value of that schema, or
    /// ends with its first call or list of calls. Blocks as [`json_schema`](Self::json_schema).
    ///
    /// # Errors
    /// As [`json_schema`](Self::json_schema).
    pub fn calls(
        &self,
        form: &CallForm,
        format: Option<&Value>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let (openings, grammars) = self.openings(form)?;
        let grammars = grammars.into_iter().map(Mutex::new).collect();
        let text = match format {
            None => Text::Anything,
            Some(format) if form.format == ToolFormat::Llama3Json => {
                // Its calls have no marker: they are plain objects.
                let call = schema::call_schema(&form.functions, "parameters");
                let format = self.compile(schema::checked(&schema::either(format, &call))?)?;
                Text::Format { format, begun: false }
            }
            Some(format) => Text::Format { format: self.compile(schema::checked(format)?)?, begun: false },
        };
        let env = self.factory.tok_env().clone();
        let (markers, formatted) = (form.markers.clone(), format.is_some());
        let mut plan = Plan { openings, markers, grammars, whole: BTreeMap::new(), env, formatted };
        let marked = plan.openings.iter().filter(|opening| opening.place == Where::Anywhere);
        let marked = marked.map(|opening| Continuation { opening, rest: &opening.literal, spaced: false });
        plan.whole = plan.next(&marked.collect::<Vec<_>>()).1;
        Ok(Box::new(CallConstraint {
            plan: Arc::new(plan),
            text,
            tail: Vec::new(),
            begins: Some(Where::Start),
            thinking: form.reasoning == ReasoningMode::Open,
            may_think: form.reasoning == ReasoningMode::Tagged,
        }))
    }

    /// The introductions of calls, and the grammars after them.
    fn openings(&self, form: &CallForm) -> Result<(Vec<Opening>, Vec<GrammarConstraint>), GrammarError> {
        let opening = |literal: &str, place, bracket, grammar| Opening {
            literal: literal.as_bytes().to_vec(),
            place,
            bracket,
            grammar,
        };
        let marked = form.format.opening().unwrap_or_default();
        let functions = &form.functions;
        Ok(match form.format {
            ToolFormat::Hermes => {
                let call = schema::call_schema(functions, "arguments");
                (
                    vec![opening(marked, Where::Anywhere, b'{', 0)],
                    vec![self.compile(schema::checked(&call)?)?],
                )
            }
            ToolFormat::Llama3Json => {
                let call = schema::call_schema(functions, "parameters");
                let places = [(marked, Where::Anywhere), ("", Where::Start), (";", Where::AfterCall)];
                let openings = places.map(|(literal, place)| opening(literal, place, b'{', 0));
                (openings.into(), vec![self.compile(schema::checked(&call)?)?])
            }
            ToolFormat::Mistral => {
                let named = functions.iter().map(|(name, schema)| (name.as_str(), schema));
                let list = schema::calls_schema(named, schema::MOST_CALLS);
                let mut openings = vec![opening(marked, Where::Anywhere, b'[', 0)];
                let mut grammars = vec![self.compile(schema::checked(&list)?)?];
                let began = Instant::now();
                for (name, arguments) in functions {
                    if began.elapsed() > COMPILE_LIMIT {
                        return Err(GrammarError::TooSlow(COMPILE_LIMIT));
                    }
                    for literal in [format!("{marked}{name}[ARGS]"), format!("{marked}{name}")] {
                        openings.push(opening(&literal, Where::Anywhere, b'{', grammars.len()));
                    }
                    let arguments = schema::arguments(arguments);
                    grammars.push(self.compile(schema::checked(&arguments)?)?);
                }
                (openings, grammars)
            }
            ToolFormat::Pythonic => {
                let openings = [(marked, Where::Anywhere), ("", Where::Start)];
                let grammar = TopLevelGrammar::from_lark(schema::pythonic(functions)?);
                (
                    openings.map(|(literal, place)| opening(literal, place, b'[', 0)).into(),
                    vec![self.compile_grammar(grammar)?],
                )
            }
            ToolFormat::JsonList => {
                let named = functions.iter().map(|(name, schema)| (name.as_str(), schema));
                let list = schema::calls_schema(named, schema::MOST_CALLS);
                (vec![opening("", Where::Start, b'[', 0)], vec![self.compile(schema::checked(&list)?)?])
            }
        })
    }
}

impl Plan {
    fn bytes(&self, token: u32) -> &[u8] {
        match self.markers.iter().find(|(id, _)| *id == token) {
            Some((_, name)) => name.as_bytes(),
            None => self.env.tok_trie().token(token),
        }
    }

    /// The grammar that begins in `text`, and where.
    fn begun(&self, text: &[u8], begins: Option<Where>) -> Option<(usize, usize)> {
        let at = |opening: &Opening| {
            let body = match opening.place {
                Where::Anywhere => last(text, &opening.literal).map(|at| at + opening.literal.len())?,
                _ if self.formatted || begins != Some(opening.place) => return None,
                _ => {
                    let space = text.len() - text.trim_ascii_start().len();
                    text[space..].starts_with(&opening.literal).then_some(space + opening.literal.len())?
                }
            };
            let rest = text[body..].trim_ascii_start();
            rest.starts_with(&[opening.bracket]).then_some((opening.grammar, text.len() - rest.len()))
        };
        self.openings.iter().find_map(at)
    }

    /// How openings that have begun may go on in the next token: those at the text's end, or, if the text is to be
    /// `only` an opening, the text itself.
    fn continuations(&self, text: &[u8], begins: Option<Where>, only: bool) -> Vec<Continuation<'_>> {
        let mut found = Vec::new();
        for opening in &self.openings {
            let literal = opening.literal.as_slice();
            let mut add = |had: usize, spaced: bool| {
                found.push(Continuation { opening, rest: &literal[had..], spaced });
            };
            match opening.place {
                Where::Anywhere if only => match text.strip_prefix(literal) {
                    Some(space) if is_space(space) => add(literal.len(), false),
                    Some(_) => {}
                    None if literal.starts_with(text) => add(text.len(), false),
                    None => {}
                },
                Where::Anywhere => {
                    if text.trim_ascii_end().ends_with(literal) {
                        add(literal.len(), false);
                    }
                    (1..literal.len())
                        .filter(|&had| text.ends_with(&literal[..had]))
                        .for_each(|had| add(had, false));
                }
                place if !self.formatted && begins == Some(place) => {
                    let had = text.trim_ascii();
                    if literal.starts_with(had) {
                        add(had.len(), had.is_empty());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The tokens that go on with an opening: within it, and those with the bracket of its call, each once.
    fn next(&self, continuations: &[Continuation<'_>]) -> (Vec<u32>, BTreeMap<u32, Begun>) {
        let trie = self.env.tok_trie();
        let (mut within, mut begun) = (Vec::new(), BTreeMap::new());
        for Continuation { opening, rest, spaced } in continuations {
            let mut places = vec![(trie.root(), 0)];
            if *spaced {
                spaces(trie, &mut places);
            }
            for (from, depth) in places {
                let mut node = Some(from);
                for byte in *rest {
                    node = node.and_then(|node| trie.child_at_byte(node, *byte));
                    within.extend(node.and_then(TrieNode::token_id));
                }
                let Some(node) = node else { continue };
                let mut after = vec![(node, depth + rest.len())];
                spaces(trie, &mut after);
                within.extend(after[1..].iter().filter_map(|(node, _)| node.token_id()));
                for (node, at) in after {
                    let Some(bracket) = trie.child_at_byte(node, opening.bracket) else { continue };
                    all_below(trie, bracket, &mut |token| {
                        begun.entry(token).or_insert(Begun { at, grammar: opening.grammar });
                    });
                }
            }
        }
        within.sort_unstable();
        within.dedup();
        (within, begun)
    }

    /// Whether a text is the introduction of a call, or its beginning.
    fn may_begin(&self, text: &[u8]) -> bool {
        let marked = self.openings.iter().filter(|opening| opening.place == Where::Anywhere);
        marked.map(|opening| &opening.literal).any(|literal| {
            literal.starts_with(text)
                || text
                    .strip_prefix(literal.as_slice())
                    .is_some_and(|rest| rest.len() <= MOST_SPACE && rest.iter().all(u8::is_ascii_whitespace))
        })
    }

    /// The grammar of this number.
    fn grammar(&self, at: usize) -> MutexGuard<'_, GrammarConstraint> {
        self.grammars[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the grammar accepts the call that a token begins.
    fn accepts(&self, token: u32, Begun { at, grammar }: Begun) -> bool {
        let tokens = self.tokens(&self.env.tok_trie().token(token)[at..]);
        tokens.is_some_and(|tokens| self.grammar(grammar).accepts(&tokens))
    }

    /// A call that may begin with these tokens, before them.
    fn call(&self, grammar: usize, tokens: &[u32]) -> Option<GrammarConstraint> {
        let mut grammar = self.grammar(grammar);
        grammar.accepts(tokens).then(|| grammar.copy())
    }

    /// The tokens of a piece of text. `None` if it ends within a character that has no token of its own.
    fn tokens(&self, text: &[u8]) -> Option<Vec<u32>> {
        let trie = self.env.tok_trie();
        let tokens = trie.greedy_tokenize(text);
        let whole: Vec<u8> = tokens.iter().flat_map(|&token| trie.token(token)).copied().collect();
        (whole == text).then_some(tokens)
    }
}

fn is_space(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

/// Adds all places of a trie that white space leads to from the given ones, each with its depth.
fn spaces<'a>(trie: &'a TokTrie, places: &mut Vec<(&'a TrieNode, usize)>) {
    let mut at = 0;
    while let Some(&(node, depth)) = places.get(at) {
        let next = trie.node_children(node).filter(|child| child.byte().is_ascii_whitespace());
        places.extend(next.map(|child| (child, depth + 1)));
        at += 1;
    }
}

/// Tells the tokens at a place of a trie and below.
fn all_below(trie: &TokTrie, node: &TrieNode, tell: &mut dyn FnMut(u32)) {
    let mut left = vec![node];
    while let Some(node) = left.pop() {
        node.token_id().into_iter().for_each(&mut *tell);
        left.extend(trie.node_children(node));
    }
}

/// Where `text` has `literal` last.
fn last(text: &[u8], literal: &[u8]) -> Option<usize> {
    text.windows(literal.len().max(1)).rposition(|window| window == literal)
}

impl CallConstraint {
    /// Allows tokens that begin a call instead of a format.
    fn allow_openings(&self, allowed: &mut TokenMask) {
        let plan = &self.plan;
        let (mut within, begun) = plan.next(&plan.continuations(&self.tail, self.begins, true));
        within.extend(plan.markers.iter().map(|(id, _)| *id));
        let vocab = allowed.vocab();
        let is_known = |token: u32| (token as usize) < vocab;
        for token in within.into_iter().filter(|&token| is_known(token)) {
            if plan.may_begin(&[&self.tail, plan.bytes(token)].concat()) {
                allowed.insert(token);
            }
        }
        for (token, begun) in begun.into_iter().filter(|&(token, _)| is_known(token)) {
            if plan.accepts(token, begun) {
                allowed.insert(token);
            }
        }
    }

    /// Reads text outside of calls.
    fn read(&mut self, bytes: &[u8]) -> Result<(), ConstraintError> {
        self.tail.extend_from_slice(bytes);
        if self.may_think {
            let text = self.tail.trim_ascii_start();
            self.thinking = text.starts_with(THINK);
            self.may_think = !self.thinking && THINK.starts_with(text);
        }
        if self.thinking {
            if let Some(at) = last(&self.tail, END_THINK) {
                self.tail.drain(..at + END_THINK.len());
                (self.thinking, self.begins) = (false, Some(Where::Start));
            }
        } else if self.tail.ends_with(ARGS)
            && let Some(at) = last(&self.tail, CALL_ID)
        {
            // A call's id does not count.
            self.tail.truncate(at);
            self.tail.extend_from_slice(ARGS);
        }
        if self.thinking {
            self.cut();
            return Ok(());
        }
        if let Some((grammar, from)) = self.plan.begun(&self.tail, self.begins)
            && let Some(tokens) = self.plan.tokens(&self.tail[from..])
            && let Some(mut call) = self.plan.call(grammar, &tokens)
        {
            tokens.into_iter().try_for_each(|token| call.accept(token))?;
            self.text = Text::Call(call);
            self.end_call();
            return Ok(());
        }
        self.cut();
        Ok(())
    }

    fn cut(&mut self) {
        if let Some(more @ 1..) = self.tail.len().checked_sub(TAIL) {
            self.tail.drain(..more);
            self.begins = None;
        }
    }

    /// Text is free again after a complete call. An answer with a format ends.
    fn end_call(&mut self) {
        if let Text::Call(call) = &self.text
            && call.is_complete()
        {
            self.text = if self.plan.formatted { Text::Nothing } else { Text::Anything };
            self.tail.clear();
            self.begins = Some(Where::AfterCall);
        }
    }
}

impl fmt::Debug for CallConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = matches!(self.text, Text::Call(_));
        f.debug_struct("CallConstraint").field("calls", &calls).finish_non_exhaustive()
    }
}

impl Constraint for CallConstraint {
    fn allow(&mut self, allowed: &mut TokenMask) -> Result<(), ConstraintError> {
        match &mut self.text {
            Text::Call(call) => return call.allow(allowed),
            Text::Format { format, begun } => {
                format.allow(allowed)?;
                if !*begun {
                    self.allow_openings(allowed);
                }
                return Ok(());
            }
            Text::Opening => {
                self.allow_openings(allowed);
                return Ok(());
            }
            Text::Anything | Text::Nothing => {}
        }
        let mut words = vec![u32::MAX; allowed.vocab().div_ceil(32)];
        if !self.thinking {
            let plan = &self.plan;
            let (_, begun) = plan.next(&plan.continuations(&self.tail, self.begins, false));
            for (&token, &begun) in plan.whole.iter().chain(&begun) {
                if (token as usize) < allowed.vocab() && !plan.accepts(token, begun) {
                    words[token as usize / 32] &= !(1 << (token % 32));
                }
            }
        }
        allowed.insert_words(&words);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let plan = Arc::clone(&self.plan);
        let bytes = plan.bytes(token);
        match &mut self.text {
            Text::Call(call) => {
                call.accept(token)?;
                self.end_call();
                return Ok(());
            }
            Text::Format { format, begun } => {
                if *begun || format.accepts(&[token]) {
                    *begun = true;
                    return format.accept(token);
                }
                self.text = Text::Opening;
            }
            Text::Opening | Text::Anything | Text::Nothing => {}
        }
        self.read(bytes)
    }

    fn is_complete(&self) -> bool {
        match &self.text {
            Text::Format { format, .. } => format.is_complete(),
            Text::Nothing => true,
            Text::Anything | Text::Opening | Text::Call(_) => false,
        }
    }

    fn boxed_clone(&self) -> Box<dyn Constraint> {
        let text = match &self.text {
            Text::Anything => Text::Anything,
            Text::Nothing => Text::Nothing,
            Text::Opening => Text::Opening,
            Text::Format { format, begun } => Text::Format { format: format.copy(), begun: *begun },
            Text::Call(call) => Text::Call(call.copy()),
        };
        Box::new(CallConstraint { plan: Arc::clone(&self.plan), text, tail: self.tail.clone(), ..*self })
    }
}

#[cfg(test)]
mod tests;
