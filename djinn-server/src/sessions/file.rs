//! A session as a file: safetensors with everything that another server of the same model needs to continue.
//!
//! ```text
//! header │ chunks u64 [n, 2] │ tokens u32 [n] │ kv [pages, elements of a page] │ checksum u8 [32]
//! ```
//!
//! The checksum is BLAKE3 over all bytes before it, including the header, so a session can be written and read as a
//! stream. It detects damage, not forgery.

use crate::ApiError;
use axum::http::StatusCode;
use djinn_device::DType;
use djinn_engine::{KvShape, OpenTurn, SessionImage};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Version of the file's layout.
const VERSION: &str = "2";
/// The longest header: four tensors and a few facts. Biases of a turn take at most half of it.
pub(super) const LONGEST_HEADER: u64 = 64 << 10;
pub(super) const LENGTH_BYTES: usize = 8;
pub(super) const CHECKSUM_BYTES: usize = 32;
const METADATA: &str = "__metadata__";
/// The metadata entry with the unfinished turn, as JSON.
const TURN: &str = "turn";

/// The properties that must be the same at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileKind {
    /// The model's fingerprint.
    pub(super) model: String,
    pub(super) shape: KvShape,
}

impl FileKind {
    fn metadata(&self) -> BTreeMap<&'static str, String> {
        let KvShape { dtype, page_tokens, page_bytes: _, chunk } = self.shape;
        BTreeMap::from([
            ("format", "djinn.session".to_owned()),
            ("version", VERSION.to_owned()),
            ("model", self.model.clone()),
            ("kv_dtype", dtype.to_string()),
            ("page_tokens", page_tokens.to_string()),
            ("prefill_chunk", chunk.to_string()),
        ])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) chunks: u64,
    pub(super) tokens: u64,
    pub(super) context: u64,
    pub(super) computed: u64,
}

impl Sizes {
    pub(super) fn of(image: &SessionImage) -> Self {
        let (chunks, tokens) = (image.chunks.len() as u64, image.tokens.len() as u64);
        Sizes { chunks, tokens, context: image.context, computed: image.computed }
    }

    pub(super) fn pages(&self, shape: &KvShape) -> u64 {
        self.context.div_ceil(shape.page_tokens.into())
    }

    /// Bytes of chunks and tokens.
    pub(super) fn text_bytes(&self) -> u64 {
        16 * self.chunks + 4 * self.tokens
    }

    /// Bytes after the header.
    pub(super) fn bytes(&self, shape: &KvShape) -> u64 {
        self.text_bytes() + self.pages(shape) * shape.page_bytes + CHECKSUM_BYTES as u64
    }

    /// The header's tensors, in order.
    fn tensors(&self, shape: &KvShape) -> Map<String, Value> {
        let (element, dtype) = (shape.dtype.bytes().max(1), dtype_name(shape.dtype));
        let parts = [
            ("chunks", "U64", json!([self.chunks, 2]), 16 * self.chunks),
            ("tokens", "U32", json!([self.tokens]), 4 * self.tokens),
            (
                "kv",
                dtype,
                json!([self.pages(shape), shape.page_bytes / element]),
                self.pages(shape) * shape.page_bytes,
            ),
            ("checksum", "U8", json!([CHECKSUM_BYTES]), CHECKSUM_BYTES as u64),
        ];
        let mut at = 0;
        let tensor = |(name, dtype, shape, bytes): (&str, &str, Value, u64)| {
            let offsets = [at, at + bytes];
            at += bytes;
            (name.to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }))
        };
        parts.into_iter().map(tensor).collect()
    }
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::Int8 => "I8",
        DType::U32 => "U32",
    }
}

/// The file's beginning, before its pages.
pub(super) fn head(kind: &FileKind, image: &SessionImage) -> Vec<u8> {
    let sizes = Sizes::of(image);
    let mut metadata = kind.metadata();
    metadata.insert("context", sizes.context.to_string());
    metadata.insert("computed", sizes.computed.to_string());
    // Serializing numbers and lists of them cannot fail.
    let turn = image.turn.as_ref().and_then(|turn| serde_json::to_string(turn).ok());
    metadata.extend(turn.map(|turn| (TURN, turn)));
    let mut header = sizes.tensors(&kind.shape);
    header.insert(METADATA.to_owned(), json!(metadata));
    let mut header = Value::Object(header).to_string().into_bytes();
    // Data begins at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut header);
    for chunk in &image.chunks {
        bytes.extend(chunk.start.to_le_bytes());
        bytes.extend(chunk.end.to_le_bytes());
    }
    bytes.extend(image.tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes
}

/// Reads a file's header for an engine of `kind` with at most `most` tokens per session. Returns sizes, and the
/// unfinished turn if there is one.
///
/// # Errors
/// 400 for an invalid header, 409 for one of another kind, 413 for one with more tokens.
pub(super) fn sizes(
    header: &[u8],
    kind: &FileKind,
    most: u64,
) -> Result<(Sizes, Option<OpenTurn>), ApiError> {
    let read: Map<String, Value> =
        serde_json::from_slice(header).map_err(|_| malformed("its header is no JSON"))?;
    let told = |name: &str| read.get(METADATA)?.get(name)?.as_str();
    if told("format") != Some("djinn.session") {
        return Err(malformed("it is no exported session"));
    }
    for (name, own) in kind.metadata() {
        match told(name) {
            Some(found) if found == own => {}
            Some(found) => {
                let found: String = found.chars().take(80).collect();
                let message = format!("the session's `{name}` is {found:?}, and this model's is {own:?}");
                return Err(ApiError::conflict(message, "session_mismatch"));
            }
            None => return Err(malformed("its header misses facts")),
        }
    }
    let number = |name: &str| told(name)?.parse::<u64>().ok();
    let count = |name: &str| read.get(name)?.get("shape")?.get(0)?.as_u64();
    let found = (count("chunks"), count("tokens"), number("context"), number("computed"));
    let (Some(chunks), Some(tokens), Some(context), Some(computed)) = found else {
        return Err(malformed("its header misses sizes"));
    };
    // Nothing below overflows, or allocates more than a context needs.
    if tokens > most {
        let message = format!("the session has {tokens} tokens, and this model's context holds {most}");
        return Err(ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    if context > computed || computed > tokens || chunks > tokens {
        return Err(malformed("its sizes contradict each other"));
    }
    let sizes = Sizes { chunks, tokens, context, computed };
    let expected = sizes.tensors(&kind.shape);
    if read.len() != expected.len() + 1
        || expected.iter().any(|(name, tensor)| read.get(name) != Some(tensor))
    {
        return Err(malformed("its tensors are not laid out as a session's"));
    }
    let turn = told(TURN).map(serde_json::from_str).transpose();
    Ok((sizes, turn.map_err(|_| malformed("its turn is none"))?))
}

/// A session without its pages, from the bytes of chunks and tokens.
pub(super) fn image(sizes: &Sizes, turn: Option<OpenTurn>, bytes: &[u8]) -> SessionImage {
    let (chunks, tokens) = bytes.split_at(16 * sizes.chunks as usize);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let chunks = chunks.chunks_exact(16).map(|pair| number(&pair[..8])..number(&pair[8..])).collect();
    let tokens = tokens.chunks_exact(4).map(|token| number(token) as u32).collect();
    SessionImage { tokens, context: sizes.context, computed: sizes.computed, chunks, turn }
}

pub(super) fn malformed(what: &str) -> ApiError {
    let error = ApiError::invalid(format!("the session's file cannot be read: {what}"));
    ApiError { code: Some("session_file"), ..error }
}
