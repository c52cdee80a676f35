//! Added tokens: spellings that are cut out of a text before any other step.
//!
//! Some are searched in the original text, some in the normalised text. Of those that begin at one place the longest
//! counts. Control tokens are not recognised in literal content. These are the special ones, and those that look like
//! markup (`<think>`, `[TOOL_CALLS]`) even if their file calls them ordinary: they have a meaning for the model that a
//! user must not be able to forge. Other added tokens (runs of spaces, names) are ordinary text and are found
//! everywhere.

use super::normal::{Marked, Normalizer};
use super::pattern::CharSet;
use super::work::Work;
use crate::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

/// The most added tokens; audio and image models have 65,000.
const MAX_TOKENS: usize = 1 << 18;

/// The most bytes of an added token, and of all together.
const MAX_BYTES: usize = 1 << 10;
const MAX_TOTAL: usize = 4 << 20;

/// Characters next to which `single_word` tokens are not found.
static WORD: LazyLock<Option<CharSet>> = LazyLock::new(|| CharSet::from_syntax(r"\w", false).ok());

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
    /// Searched in the normalised text, by its normalised spelling.
    pub(super) normalized: bool,
    /// Not found next to a letter or a digit.
    pub(super) single_word: bool,
    /// Includes the white space before it, or after it.
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
}

impl Added {
    fn is_control(&self) -> bool {
        let text = self.content.trim();
        let markup =
            [('<', '>'), ('[', ']')].iter().any(|ends| text.starts_with(ends.0) && text.ends_with(ends.1));
        self.special || (markup && text.contains(char::is_alphabetic))
    }
}

#[derive(Debug, Default)]
pub(super) struct AddedTokens {
    tokens: Vec<Added>,
    /// Places in `tokens`.
    by_content: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
    /// A token's normalised spelling, if it differs from its content.
    spellings: HashMap<u32, String>,
    in_text: Trie,
    in_normalized: Trie,
}

/// A part of a text: an added token, or other text.
pub(super) type Part = (Range<usize>, Option<u32>);

impl AddedTokens {
    /// Reads `added_tokens` of `tokenizer.json`.
    pub(super) fn read(json: &Value) -> Result<Vec<Added>> {
        let list = json.as_array().map_or(&[][..], Vec::as_slice);
        let token = |token: &Value| {
            let flag = |key: &str| token[key].as_bool();
            Some(Added {
                id: u32::try_from(token["id"].as_u64()?).ok()?,
                content: token["content"].as_str()?.to_owned(),
                special: flag("special")?,
                normalized: flag("normalized")?,
                single_word: flag("single_word")?,
                lstrip: flag("lstrip")?,
                rstrip: flag("rstrip")?,
            })
        };
        let malformed = |at| Error::Tokenizer(format!("added token {at} is malformed"));
        list.iter().enumerate().map(|(at, json)| token(json).ok_or_else(|| malformed(at))).collect()
    }

    /// # Errors
    /// [`Error::Tokenizer`] for too many or too long tokens, and for one that the normalizer makes too much of.
    pub(super) fn new(tokens: Vec<Added>, normalizer: &Normalizer) -> Result<Self> {
        let total: usize = tokens.iter().map(|token| token.content.len()).sum();
        if tokens.len() > MAX_TOKENS || total > MAX_TOTAL {
            let detail = format!("{} added tokens of {total} bytes are more than are read", tokens.len());
            return Err(Error::Tokenizer(detail));
        }
        let mut added = Self::default();
        let mut work = Work::new(total);
        for token in tokens.into_iter().filter(|token| !token.content.is_empty()) {
            if token.content.len() > MAX_BYTES {
                let detail =
                    format!("an added token of {} bytes; {MAX_BYTES} are the most", token.content.len());
                return Err(Error::Tokenizer(detail));
            }
            // One content may occur twice; the second entry counts.
            let at = *added.by_content.entry(token.content.clone()).or_insert(added.tokens.len());
            added.by_id.insert(token.id, at);
            match added.tokens.get_mut(at) {
                Some(known) => *known = token,
                None => added.tokens.push(token),
            }
        }
        for (at, token) in added.tokens.iter().enumerate() {
            if !token.normalized {
                added.in_text.insert(token.content.as_bytes(), at);
                continue;
            }
            let text = Marked { text: token.content.clone(), literal: Vec::new() };
            let spelling = normalizer.apply(text, &mut work)?.text;
            work.grow(spelling.len())?;
            added.in_normalized.insert(spelling.as_bytes(), at);
            if spelling != token.content {
                added.spellings.insert(token.id, spelling);
            }
            if added.in_normalized.nodes.len() > MAX_TOTAL {
                return Err(Error::Tokenizer("the normalizer makes too much of the added tokens".into()));
            }
        }
        Ok(added)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|token| token.id)
    }

    pub(super) fn id(&self, content: &str) -> Option<u32> {
        self.by_content.get(content).map(|at| self.tokens[*at].id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&Added> {
        self.by_id.get(&id).map(|at| &self.tokens[*at]).filter(|token| token.id == id)
    }

    /// A token's decoded spelling: the normalised one, for a token that is searched in normalised text.
    pub(super) fn spelling(&self, id: u32) -> Option<&str> {
        let content = self.get(id)?.content.as_str();
        Some(self.spellings.get(&id).map_or(content, String::as_str))
    }

    /// Divides a text at the tokens that are searched in the original text.
    pub(super) fn divide(&self, text: &str, literal: &[Range<usize>], work: &mut Work) -> Result<Vec<Part>> {
        // The end of the last literal byte of a range, if it has one.
        let touched = |range: &Range<usize>| {
            let before = literal.partition_point(|literal| literal.start < range.end);
            let last = before.checked_sub(1).map(|at| &literal[at])?;
            (last.end > range.start && !last.is_empty()).then_some(last.end.min(range.end))
        };
        self.divide_with(&self.in_text, text, touched, work)
    }

    /// Divides a normalised text at the tokens that are searched in it.
    pub(super) fn divide_normalized(&self, text: &Marked, work: &mut Work) -> Result<Vec<Part>> {
        let touched = |range: &Range<usize>| {
            let flags = text.literal.get(range.clone())?;
            flags.iter().rposition(|flag| *flag).map(|at| range.start + at + 1)
        };
        self.divide_with(&self.in_normalized, &text.text, touched, work)
    }

    /// Divides `text` at the tokens of a trie. `touched` returns the end of a range's last literal byte, if it has
    /// one.
    fn divide_with(
        &self,
        trie: &Trie,
        text: &str,
        touched: impl Fn(&Range<usize>) -> Option<usize>,
        work: &mut Work,
    ) -> Result<Vec<Part>> {
        let (mut parts, mut taken, mut from) = (Vec::new(), 0, 0);
        while let Some((mut range, at)) = trie.find(text, from, work)? {
            let token = &self.tokens[at];
            if token.is_control()
                && let Some(end) = touched(&range)
            {
                // A token may begin after the literal bytes.
                from = if text.is_char_boundary(end) { end } else { range.end };
                continue;
            }
            from = range.end;
            if token.single_word && !is_single(text, &range) {
                continue;
            }
            let found = range.clone();
            if token.lstrip {
                let from = taken.min(range.start);
                range.start = (from + text[from..range.start].trim_end().len()).max(taken);
            }
            if token.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
            }
            work.step((found.start.saturating_sub(range.start) + range.end - found.end) as u64)?;
            if taken < range.start {
                parts.push((taken..range.start, None));
            }
            taken = range.end;
            if !range.is_empty() {
                parts.push((range, Some(token.id)));
            }
        }
        if taken < text.len() {
            parts.push((taken..text.len(), None));
        }
        Ok(parts)
    }
}

/// Whether a range has no letter or digit next to it.
fn is_single(text: &str, range: &Range<usize>) -> bool {
    let is_word = |c: char| WORD.as_ref().is_some_and(|word| word.contains(c));
    !text[..range.start].ends_with(is_word) && !text[range.end..].starts_with(is_word)
}

/// Spellings by their bytes.
#[derive(Debug, Default)]
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// Ordered by byte.
    children: Vec<(u8, u32)>,
    token: Option<u32>,
}

impl Trie {
    fn insert(&mut self, spelling: &[u8], token: usize) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for byte in spelling {
            let next = self.nodes.len() as u32;
            let children = &mut self.nodes[node].children;
            match children.binary_search_by_key(byte, |(byte, _)| *byte) {
                Ok(at) => node = children[at].1 as usize,
                Err(at) => {
                    children.insert(at, (*byte, next));
                    self.nodes.push(Node::default());
                    node = next as usize;
                }
            }
        }
        self.nodes[node].token = Some(token as u32);
    }

    /// The leftmost spelling in `text` from `from` on, the longest at that place, and its token.
    fn find(&self, text: &str, from: usize, work: &mut Work) -> Result<Option<(Range<usize>, usize)>> {
        let Some(root) = self.nodes.first() else { return Ok(None) };
        let bytes = text.as_bytes();
        for start in from..bytes.len() {
            let (mut node, mut longest) = (root, None);
            for (at, byte) in bytes.iter().enumerate().skip(start) {
                let Ok(child) = node.children.binary_search_by_key(byte, |(byte, _)| *byte) else { break };
                node = &self.nodes[node.children[child].1 as usize];
                if let Some(token) = node.token {
                    longest = Some((at + 1, token as usize));
                }
                work.step(1)?;
            }
            if let Some((end, token)) = longest {
                return Ok(Some((start..end, token)));
            }
        }
        Ok(None)
    }
}
