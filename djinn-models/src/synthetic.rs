//! Models with seeded random weights in the exact shapes of known ones: for measuring and testing without a
//! download. Nothing is generated when such a model is opened.
//!
//! A name is one of [`names`], optionally with changes: `tiny?layers=1&seed=3&dtype=f32`. The keys are
//! `layers`, `hidden`, `intermediate`, `heads`, `kv_heads`, `head_dim`, `vocab`, `context`, `window`, `experts`,
//! `chosen`, `tied`, `bias` (`true` or `false`), `seed` and `dtype`; and `distinct`, the number of layers with weights
//! of their own, which the others use in turn: a model whose weights would not fit in the host's memory then runs at
//! its full size, except that layers share the host's bytes.
//!
//! Matrices and biases are N(0, s²) with s = 0.02, or 1.25 / sqrt(hidden) where that is more, so that logits
//! of small models differ; norms are N(1, 0.05²). Elements depend on the seed, the weight's name and their
//! index in the weight alone, and are never 0.
//!
//! Such a model talks, though it says nothing: it has a stand-in tokenizer, of a token for each byte of plain text and a
//! character for each other token, where its vocabulary is 256 or more; and a chat template with tools.

mod normal;
mod shapes;
#[cfg(test)]
mod tests;

use crate::decoder::{self, Decoder};
use crate::weights::{Recipe, Storage, WeightMap, check_request};
use crate::{ChatTemplate, Error, GenerationDefaults, Model, OpenOptions, Result, Tokenizer};
use djinn_srg::{DType, Encoding, Graph};
use djinn_vmu::{SourceError, WeightSource};
use half::{bf16, f16};
use normal::Table;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub use shapes::names;

/// What starts a synthetic model's name on the command line.
pub(crate) const PREFIX: &str = "synthetic:";

const NORM_DEVIATION: f32 = 0.05;

/// Turns as ChatML writes them, and calls as Hermes does.
const CHAT: &str = r#"{% if tools %}
<|im_start|>system
To call a function, write <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>. The functions:
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
<|im_end|>
{% endif %}
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{% endfor %}
<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"#;

/// Opens the synthetic model `name`, given without the prefix.
pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Model> {
    let full_name = format!("{PREFIX}{name}");
    let shapes::Request { decoder, distinct, seed, dtype, chosen } = shapes::parse(name)?;
    let dtype = match (options.dtype, chosen) {
        (Some(option), true) if option != dtype => {
            return Err(Error::Unsupported {
                what: format!("dtype {option} for {full_name}"),
                remedy: "name one dtype".to_owned(),
            });
        }
        (Some(option), _) => option,
        (None, _) => dtype,
    };
    let of_weight = |recipe: &Recipe| match recipe {
        Recipe::Computed(_) => Storage::plain(DType::F32),
        Recipe::Rows(_) => Storage::plain(dtype),
    };
    let (graph, map) = decoder::build(&decoder, &full_name, distinct, &of_weight)?;
    let source = Arc::new(SyntheticSource::new(&graph, &decoder, &map, seed, dtype));
    let tokenizer = Tokenizer::stand_in(graph.vocab)?;
    let chat = tokenizer.is_some().then(|| ChatTemplate::new(CHAT, None, None)).transpose()?;
    Ok(Model {
        name: full_name,
        architecture: decoder.architecture.to_owned(),
        graph,
        source,
        tokenizer,
        chat,
        defaults: GenerationDefaults::default(),
        quantised: Vec::new(),
    })
}

enum Content {
    /// N(0, deviation²).
    Noise { key: u64 },
    /// N(1, [`NORM_DEVIATION`]²).
    Norm { key: u64 },
    /// Bytes of f32.
    Fixed(Vec<u8>),
}

struct Weight {
    rows: u64,
    columns: u64,
    content: Content,
}

struct SyntheticSource {
    weights: HashMap<String, Weight>,
    dtype: DType,
    deviation: f32,
    /// Made at the first read, so that opening costs nothing.
    table: OnceLock<Table>,
}

impl SyntheticSource {
    fn new(graph: &Graph, decoder: &Decoder, map: &WeightMap, seed: u64, dtype: DType) -> Self {
        let weights = graph.weights().map(|(_, value)| {
            let [rows, columns] = value.matrix();
            let key = normal::key(seed, &value.name);
            let norm = value.shape.len() == 1 && value.name.ends_with(".weight");
            let content = match map.vector(&value.name) {
                Some(bytes) => Content::Fixed(bytes.to_vec()),
                None if norm => Content::Norm { key },
                None => Content::Noise { key },
            };
            (value.name.clone(), Weight { rows, columns, content })
        });
        let deviation = (1.25 / (decoder.sizes.hidden as f32).sqrt()).max(0.02);
        SyntheticSource { weights: weights.collect(), dtype, deviation, table: OnceLock::new() }
    }

    fn write_norm(&self, key: u64, rows: Range<u64>, out: &mut [u8]) {
        let value = |row| 1.0 + NORM_DEVIATION * normal::variate(key, row);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.dtype.bytes() as usize)) {
            match self.dtype {
                DType::F16 => out.copy_from_slice(&f16::from_f32(value(row)).to_le_bytes()),
                DType::BF16 => out.copy_from_slice(&bf16::from_f32(value(row)).to_le_bytes()),
                _ => out.copy_from_slice(&value(row).to_le_bytes()),
            }
        }
    }
}

impl WeightSource for SyntheticSource {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let fail = |detail: String| SourceError { name: name.to_owned(), source: detail.into() };
        let weight = self.weights.get(name).ok_or_else(|| fail("the model has no such weight".to_owned()))?;
        let dtype = if matches!(weight.content, Content::Fixed(_)) { DType::F32 } else { self.dtype };
        let bytes = |rows: Range<u64>| {
            Some(Encoding::Plain.tile(dtype, rows.end - rows.start, weight.columns)?.bytes)
        };
        check_request(&rows, weight.rows, bytes, out.len()).map_err(fail)?;
        match &weight.content {
            Content::Noise { key } => {
                let table = self.table.get_or_init(|| Table::new(self.deviation, self.dtype));
                table.fill(*key, rows.start * weight.columns, out);
            }
            Content::Norm { key } => self.write_norm(*key, rows, out),
            Content::Fixed(bytes) => {
                out.copy_from_slice(&bytes[rows.start as usize * 4..rows.end as usize * 4]);
            }
        }
        Ok(())
    }
}
