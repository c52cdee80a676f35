//! The state machine that reads a text, character by character.

use super::call::{CallNews, CallReader, is_name};
use super::format::{END_THINK, ReasoningMode, THINK, ToolFormat};
use super::pythonic::{self, ArgumentsScanner};
use std::collections::BTreeSet;

/// Bytes of a call that are held back until it is certain that it is one; longer ones are text.
const MOST_HELD: usize = 1 << 20;

/// Bytes between calls, and of a name, that are held back.
const MOST_BETWEEN: usize = 4096;

/// Calls of one text; more are text.
const MOST_CALLS: u32 = 128;

/// What a piece of text made certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text of the answer.
    Text(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// Counts the calls from 0.
        index: u32,
        /// Unlike that of any other call: nine letters and digits for Mistral's templates, else `call_` and 24
        /// hexadecimal digits.
        id: String,
        /// The function.
        name: String,
    },
    /// A piece of the call's arguments: a JSON object when joined.
    CallArguments {
        /// The call.
        index: u32,
        /// The piece, never empty.
        piece: String,
    },
    /// The call is complete. One without this was cut short.
    CallEnd {
        /// The call.
        index: u32,
    },
}

/// Reads one text.
#[derive(Clone, Debug)]
pub struct OutputParser {
    format: Option<ToolFormat>,
    names: BTreeSet<String>,
    nonce: u64,
    /// Whether ids are those of Mistral's templates.
    short_ids: bool,
    state: State,
    calls: u32,
    /// What may be the beginning of a marker or a call: text, if it turns out to be none.
    held: String,
    /// White space that goes if a call follows.
    space: String,
    /// Whether a call just ended: white space goes if nothing follows either.
    after_call: bool,
    /// Whether a marker introduced the calls that are read.
    marked: bool,
    /// Whether a call began that is not over.
    calling: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space came. Reasoning, or calls without a marker, may begin here.
    Start {
        tagged: bool,
    },
    Reasoning {
        begun: bool,
    },
    /// White space after reasoning is dropped.
    AfterReasoning,
    Text,
    /// After the marker of a call.
    Opened,
    /// In Mistral's newer form, a call's name and what follows it.
    Name,
    Call(CallReader),
    /// Arguments without an object around them.
    BareArguments(CallReader),
    /// After a call: another one, the end of the calls, or text.
    Between,
    /// Python's form: the name of a function.
    PythonName {
        first: bool,
    },
    PythonArguments {
        name: String,
        scanner: ArgumentsScanner,
        from: usize,
    },
    PythonNext,
}

impl OutputParser {
    /// Bytes that are held back.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len() + self.space.len()
    }

    /// A parser at the beginning of a text. `names` are the functions that may be called: text without a marker is a
    /// call only if it names one. Without a `format`, nothing is. `nonce` makes the ids of calls, and must differ from
    /// text to text.
    pub fn new(
        format: Option<ToolFormat>,
        reasoning: ReasoningMode,
        names: impl IntoIterator<Item = String>,
        nonce: u64,
    ) -> Self {
        let state = match reasoning {
            ReasoningMode::Open => State::Reasoning { begun: false },
            ReasoningMode::Tagged => State::Start { tagged: true },
            ReasoningMode::Off => State::Start { tagged: false },
        };
        let (held, space) = (String::new(), String::new());
        let names = names.into_iter().collect();
        OutputParser {
            format,
            names,
            nonce,
            short_ids: format == Some(ToolFormat::Mistral),
            state,
            calls: 0,
            held,
            space,
            after_call: false,
            marked: false,
            calling: false,
        }
    }

    /// The same with ids for Mistral's templates, whatever the format.
    #[must_use]
    pub fn short_ids(self) -> Self {
        OutputParser { short_ids: true, ..self }
    }

    /// Takes the next piece of the text; gives what is certain now. Neighbouring events of one kind are one.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut out = Out::default();
        for c in text.chars() {
            self.take(c, &mut out);
        }
        out.events
    }

    /// Ends the text: what was held back is text, or the beginning of a call that was cut short.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let mut out = Out::default();
        match self.state {
            State::Reasoning { begun } => {
                let rest = std::mem::take(&mut self.held);
                self.think(begun, &rest, &mut out);
            }
            // Closing marks that models leave out, or a part of them.
            State::Between | State::PythonNext if self.after_call => self.held.clear(),
            _ => {
                if !self.held.is_empty() {
                    self.give_held(&mut out);
                } else if !self.after_call {
                    out.text(&std::mem::take(&mut self.space));
                }
            }
        }
        self.state = State::Text;
        out.events
    }

    fn take(&mut self, c: char, out: &mut Out) {
        match &mut self.state {
            State::Start { tagged } => {
                let tagged = *tagged;
                self.start(tagged, c, out);
            }
            State::Reasoning { begun } => {
                let begun = *begun;
                self.reasoning(begun, c, out);
            }
            State::AfterReasoning if c.is_whitespace() => {}
            State::AfterReasoning => self.start_over(c, out),
            State::Text => self.text(c, out),
            State::Opened => self.opened(c, out),
            State::Name => self.name(c, out),
            State::Call(_) | State::BareArguments(_) => self.call(c, out),
            State::Between => self.between(c, out),
            State::PythonName { first } => {
                let first = *first;
                self.python_name(first, c, out);
            }
            State::PythonArguments { .. } => self.python_arguments(c, out),
            State::PythonNext => self.python_next(c, out),
        }
        let most = match self.state {
            State::Call(_) | State::BareArguments(_) | State::PythonArguments { .. } => MOST_HELD,
            _ => MOST_BETWEEN,
        };
        if self.held.len() > most {
            self.fail(out);
        }
    }

    /// The first character after reasoning: as at the beginning, but for reasoning.
    fn start_over(&mut self, c: char, out: &mut Out) {
        self.state = State::Start { tagged: false };
        self.take(c, out);
    }

    fn start(&mut self, tagged: bool, c: char, out: &mut Out) {
        if tagged {
            if self.held.is_empty() && c.is_whitespace() {
                return self.keep_space(c, out);
            }
            self.held.push(c);
            if self.held == THINK {
                self.held.clear();
                self.space.clear();
                self.state = State::Reasoning { begun: false };
            } else if !THINK.starts_with(&self.held) {
                // No reasoning: the same text again, without it.
                self.state = State::Start { tagged: false };
                for c in std::mem::take(&mut self.held).chars() {
                    self.take(c, out);
                }
            }
            return;
        }
        match self.format.and_then(ToolFormat::bare_opening) {
            _ if c.is_whitespace() => self.keep_space(c, out),
            Some(opening) if c == opening && self.calls < MOST_CALLS => self.open(c, out),
            _ => {
                self.state = State::Text;
                self.text(c, out);
            }
        }
    }

    fn reasoning(&mut self, begun: bool, c: char, out: &mut Out) {
        self.held.push(c);
        if self.held == END_THINK {
            self.held.clear();
            self.space.clear();
            self.state = State::AfterReasoning;
            return;
        }
        let certain = self.held.len() - overlap(&self.held, END_THINK);
        let piece: String = self.held.drain(..certain).collect();
        self.think(begun, &piece, out);
    }

    /// Reasoning, without the white space around it.
    fn think(&mut self, mut begun: bool, piece: &str, out: &mut Out) {
        for c in piece.chars() {
            if !c.is_whitespace() {
                out.reasoning(&std::mem::take(&mut self.space));
                out.reasoning(c.encode_utf8(&mut [0; 4]));
                begun = true;
            } else if begun {
                self.space.push(c);
                if self.space.len() > MOST_BETWEEN {
                    out.reasoning(&std::mem::take(&mut self.space));
                }
            }
        }
        self.state = State::Reasoning { begun };
    }

    fn text(&mut self, c: char, out: &mut Out) {
        let Some(opening) = self.format.and_then(ToolFormat::opening).filter(|_| self.calls < MOST_CALLS)
        else {
            return self.plain(c, out);
        };
        self.held.push(c);
        if self.held == opening {
            self.marked = true;
            self.state = State::Opened;
            return;
        }
        let certain = self.held.len() - overlap(&self.held, opening);
        for c in self.held.drain(..certain).collect::<String>().chars() {
            self.plain(c, out);
        }
    }

    /// A character that is text; white space waits for what follows.
    fn plain(&mut self, c: char, out: &mut Out) {
        if c.is_whitespace() {
            self.keep_space(c, out);
        } else {
            self.after_call = false;
            out.text(&std::mem::take(&mut self.space));
            out.text(c.encode_utf8(&mut [0; 4]));
        }
    }

    fn keep_space(&mut self, c: char, out: &mut Out) {
        self.space.push(c);
        if self.space.len() > MOST_BETWEEN {
            self.after_call = false;
            out.text(&std::mem::take(&mut self.space));
        }
    }

    /// What was held is text after all.
    fn give_held(&mut self, out: &mut Out) {
        self.after_call = false;
        out.text(&std::mem::take(&mut self.space));
        out.text(&std::mem::take(&mut self.held));
    }

    fn fail(&mut self, out: &mut Out) {
        self.give_held(out);
        // A call that began keeps its number.
        self.calls += u32::from(std::mem::take(&mut self.calling));
        self.close();
    }

    /// What was held is no call, and `c` comes after it.
    fn fail_before(&mut self, c: char, out: &mut Out) {
        self.fail(out);
        self.text(c, out);
    }

    /// A call without a marker may begin with `c`.
    fn open(&mut self, c: char, out: &mut Out) {
        self.state = State::Opened;
        self.opened(c, out);
    }

    fn opened(&mut self, c: char, out: &mut Out) {
        let format = self.format.expect("a call has a form");
        match (format, c) {
            (_, c) if c.is_whitespace() => self.held.push(c),
            (ToolFormat::Hermes | ToolFormat::Llama3Json, '{') => self.begin(c, out),
            (ToolFormat::Mistral | ToolFormat::JsonList, '[') => {
                self.held.push(c);
                self.state = State::Between;
            }
            (ToolFormat::Pythonic, '[') => {
                self.held.push(c);
                self.state = State::PythonName { first: true };
            }
            (ToolFormat::Mistral, c) if is_name(c.encode_utf8(&mut [0; 4])) => {
                self.held.push(c);
                self.state = State::Name;
            }
            _ => self.fail_before(c, out),
        }
    }

    /// A call's object begins with `c`.
    fn begin(&mut self, c: char, out: &mut Out) {
        if self.calls >= MOST_CALLS {
            return self.fail_before(c, out);
        }
        let optional = self.format != Some(ToolFormat::Llama3Json);
        self.state = State::Call(CallReader::new(optional));
        self.call(c, out);
    }

    /// Mistral's newer form: `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, where ids and `[ARGS]` may be missing.
    fn name(&mut self, c: char, out: &mut Out) {
        const OPENING: &str = "[TOOL_CALLS]";
        let head = self.held.rsplit(OPENING).next().unwrap_or_default().trim_start();
        let (name, after) = head.find('[').map_or((head, None), |at| (&head[..at], Some(&head[at..])));
        let fits = match after {
            None => c == '[' || is_name(c.encode_utf8(&mut [0; 4])),
            Some(after) => {
                let grown = format!("{after}{c}");
                match grown.strip_prefix("[CALL_ID]") {
                    Some(id) => {
                        let (id, rest) = id.split_at(id.find('[').unwrap_or(id.len()));
                        id.chars().all(|c| c.is_ascii_alphanumeric()) && "[ARGS]".starts_with(rest)
                    }
                    None => "[CALL_ID]".starts_with(&grown) || "[ARGS]".starts_with(&grown),
                }
            }
        };
        let ready = after.is_none_or(|after| after.trim_end().ends_with("[ARGS]"));
        if ready && (c == '{' || c.is_whitespace()) && is_name(name.trim_end()) {
            if c != '{' {
                return self.held.push(c);
            }
            let name = name.trim_end().to_owned();
            if self.calls >= MOST_CALLS {
                return self.fail_before(c, out);
            }
            // The object that the name and the arguments stand for.
            let mut reader = CallReader::new(false);
            for c in format!("{{\"name\":\"{name}\",\"arguments\":").chars() {
                reader.push(c);
            }
            self.state = State::BareArguments(reader);
            self.call(c, out);
        } else if fits && self.held.len() < 512 {
            self.held.push(c);
        } else {
            self.fail_before(c, out);
        }
    }

    fn call(&mut self, c: char, out: &mut Out) {
        let (State::Call(reader) | State::BareArguments(reader)) = &mut self.state else {
            unreachable!("a call is read")
        };
        match reader.push(c) {
            CallNews::Nothing => self.held.push(c),
            CallNews::Began(name) => {
                if !self.may_call(&name) {
                    return self.fail_before(c, out);
                }
                self.start_call(name, out);
                out.arguments(self.calls, c);
            }
            CallNews::Argument => out.arguments(self.calls, c),
            CallNews::Ended(whole) => {
                if let Some((name, arguments)) = whole {
                    if !self.may_call(&name) {
                        return self.fail_before(c, out);
                    }
                    self.start_call(name, out);
                    arguments.chars().for_each(|c| out.arguments(self.calls, c));
                }
                self.end_call(State::Between, out);
            }
            CallNews::Wrong => return self.fail_before(c, out),
        }
        // Bare arguments are over with their own brace.
        if let State::BareArguments(reader) = &mut self.state
            && reader.is_over()
        {
            self.end_call(State::Between, out);
        }
    }

    /// Whether there may be a call of this name: without a marker, only one that was offered.
    fn may_call(&self, name: &str) -> bool {
        self.marked || self.names.contains(name)
    }

    fn start_call(&mut self, name: String, out: &mut Out) {
        self.held.clear();
        self.space.clear();
        self.calling = true;
        let index = self.calls;
        out.events.push(OutputEvent::CallStart { index, id: self.id(), name });
    }

    fn end_call(&mut self, state: State, out: &mut Out) {
        out.events.push(OutputEvent::CallEnd { index: self.calls });
        self.calls += 1;
        self.calling = false;
        self.held.clear();
        self.after_call = true;
        self.state = state;
    }

    pub(super) fn id(&self) -> String {
        let mut state = self.nonce ^ u64::from(self.calls).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (first, second) = (mix(&mut state), mix(&mut state));
        if self.short_ids {
            const LETTERS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
            let digit = |at: u32| char::from(LETTERS[(first / 62u64.pow(at) % 62) as usize]);
            return (0..9).map(digit).collect();
        }
        format!("call_{first:016x}{:08x}", second as u32)
    }

    /// Between two calls in JSON.
    fn between(&mut self, c: char, out: &mut Out) {
        let format = self.format.expect("a call has a form");
        self.held.push(c);
        let held = self.held.trim_start();
        // The head of a list, which no call has followed yet.
        let head = held.strip_prefix("[TOOL_CALLS]").unwrap_or(held).trim_start();
        let list = matches!(format, ToolFormat::Mistral | ToolFormat::JsonList);
        match format {
            _ if held.is_empty() => {}
            ToolFormat::Hermes if held == "</tool_call>" => self.close(),
            // The next call, where the model leaves out the end of the last one.
            ToolFormat::Hermes if held == "<tool_call>" => self.state = State::Opened,
            ToolFormat::Hermes if ["</tool_call>", "<tool_call>"].iter().any(|tag| tag.starts_with(held)) => {
            }
            ToolFormat::Llama3Json if held == ";" || held == "," => {}
            ToolFormat::Llama3Json if c.is_whitespace() => {}
            ToolFormat::Llama3Json if c == '{' => self.again(out),
            _ if list && c == '{' && matches!(head.trim_end_matches('{').trim_end(), "[" | ",") => {
                self.again(out)
            }
            _ if list && head == "]" && self.after_call => self.close(),
            _ if list && matches!(head.trim_end(), "[" | ",") => {}
            // The next call of Mistral's newer form.
            ToolFormat::Mistral if "[TOOL_CALLS]".starts_with(held) => {
                if held == "[TOOL_CALLS]" {
                    self.held = "[TOOL_CALLS]".to_owned();
                    self.state = State::Opened;
                }
            }
            _ => {
                self.held.pop();
                self.fail_before(c, out);
            }
        }
    }

    /// The calls are over.
    fn close(&mut self) {
        self.held.clear();
        self.marked = false;
        self.state = State::Text;
    }

    /// The character that was held last begins a call.
    fn again(&mut self, out: &mut Out) {
        let c = self.held.pop().expect("it was held");
        self.begin(c, out);
    }

    fn python_name(&mut self, first: bool, c: char, out: &mut Out) {
        let head = self.held.trim_start_matches("<|python_start|>").trim_start();
        let head = head.strip_prefix(if first { '[' } else { ',' }).unwrap_or(head).trim_start();
        if c == '(' && self.names.contains(head) && self.calls < MOST_CALLS {
            let name = head.to_owned();
            self.held.push(c);
            let from = self.held.len();
            self.state = State::PythonArguments { name, scanner: ArgumentsScanner::default(), from };
        } else if head.is_empty() && c.is_whitespace()
            || self.names.iter().any(|name| name.strip_prefix(head).is_some_and(|rest| rest.starts_with(c)))
        {
            self.held.push(c);
        } else {
            self.fail_before(c, out);
        }
    }

    fn python_arguments(&mut self, c: char, out: &mut Out) {
        let State::PythonArguments { name, scanner, from } = &mut self.state else {
            unreachable!("arguments are read")
        };
        if !scanner.push(c) {
            return self.held.push(c);
        }
        match pythonic::arguments(&self.held[*from..]) {
            None => self.fail_before(c, out),
            Some(arguments) => {
                let name = std::mem::take(name);
                self.start_call(name, out);
                arguments.chars().for_each(|c| out.arguments(self.calls, c));
                self.end_call(State::PythonNext, out);
            }
        }
    }

    fn python_next(&mut self, c: char, out: &mut Out) {
        const END: &str = "<|python_end|>";
        match c {
            ']' if self.held.trim().is_empty() && !self.marked => self.close(),
            ']' if self.held.trim().is_empty() => self.held = "]".to_owned(),
            ',' if self.held.trim().is_empty() => {
                self.held.push(c);
                self.state = State::PythonName { first: false };
            }
            c => {
                self.held.push(c);
                let rest = self.held.trim_start().strip_prefix(']').map(str::trim_start);
                match rest {
                    Some(END) => self.close(),
                    Some(rest) if END.starts_with(rest) => {}
                    None if c.is_whitespace() => {}
                    // The list is over, and text follows.
                    Some(rest) => {
                        let rest = rest.to_owned();
                        self.close();
                        rest.chars().for_each(|c| self.text(c, out));
                    }
                    None => {
                        self.held.pop();
                        self.fail_before(c, out);
                    }
                }
            }
        }
    }
}

/// Events, neighbours of one kind joined.
#[derive(Default)]
struct Out {
    events: Vec<OutputEvent>,
}

impl Out {
    fn text(&mut self, piece: &str) {
        match self.events.last_mut() {
            _ if piece.is_empty() => {}
            Some(OutputEvent::Text(text)) => text.push_str(piece),
            _ => self.events.push(OutputEvent::Text(piece.to_owned())),
        }
    }

    fn reasoning(&mut self, piece: &str) {
        match self.events.last_mut() {
            _ if piece.is_empty() => {}
            Some(OutputEvent::Reasoning(text)) => text.push_str(piece),
            _ => self.events.push(OutputEvent::Reasoning(piece.to_owned())),
        }
    }

    fn arguments(&mut self, call: u32, c: char) {
        match self.events.last_mut() {
            Some(OutputEvent::CallArguments { index, piece }) if *index == call => piece.push(c),
            _ => self.events.push(OutputEvent::CallArguments { index: call, piece: c.to_string() }),
        }
    }
}

/// Bytes at the end of `text` that begin `marker`, all of it left out.
fn overlap(text: &str, marker: &str) -> usize {
    let mut lengths = (1..marker.len().min(text.len() + 1)).rev();
    lengths.find(|&len| text.ends_with(&marker[..len])).unwrap_or(0)
}

/// SplitMix64 (Steele et al. 2014).
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
