//! Models with seeded random weights in the exact shapes of known ones: for measuring and testing without a
//! download. Nothing is generated when such a model is opened.
//!
//! A name is one of [`names`], optionally with changes: `tiny?layers=1&seed=3&dtype=f32`. The keys are
//! `layers`, `hidden`, `intermediate`, `heads`, `kv_heads`, `head_dim`, `vocab`, `context`, `window`, `experts`,
//! `chosen`, `tied`, `bias` (`true` or `false`), `seed` and `dtype`; `encoding`, a GGML format in which matrices are, or
//! `q4_k_m` for the mix of them that llama.cpp makes of Llama and Mixtral; and `distinct`, the number of layers with weights
//! of their own, which the others use in turn: a model whose weights would not fit in the host's memory then runs at
//! its full size, except that layers share the host's bytes.
//!
//! Matrices and biases are N(0, s²) with s = 0.02, or 1.25 / sqrt(hidden) where that is more, so that logits
//! of small models differ; norms are N(1, 0.05²). Elements depend on the seed, the weight's name and their
//! index in the weight alone, and are never 0. Blocks are random bytes, with scales that give the same deviation.
//!
//! Such a model talks, though it says nothing: it has a stand-in tokenizer, of a token for each byte of plain text and a
//! character for each other token, where its vocabulary is 256 or more; and a chat template with tools.

mod blocks;
mod normal;
mod shapes;
#[cfg(test)]
mod tests;

use crate::decoder::{self, Decoder};
use crate::weights::{Recipe, Storage, Tally, WeightMap, check_request};
use crate::{ChatTemplate, Error, GenerationDefaults, Location, Model, OpenOptions, Result, Tokenizer};
use blocks::RandomBlocks;
use djinn_srg::{BlockFormat, DType, Encoding, Graph, RowEncodings, Value};
use djinn_vmu::{SourceError, WeightSource};
use half::{bf16, f16};
use normal::Table;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub use shapes::names;

/// The prefix of a synthetic model's name on the command line.
pub(crate) const PREFIX: &str = "synthetic:";

const NORM_DEVIATION: f32 = 0.05;

/// Turns in ChatML's format, and calls in Hermes'.
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
    let shapes::Request { decoder, distinct, seed, dtype, chosen, mix } = shapes::parse(name)?;
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
    let stored = |recipe: &Recipe| match (recipe, mix) {
        (Recipe::Computed(_), _) => Storage::plain(DType::F32),
        (Recipe::Rows(_), None) => Storage::plain(dtype),
        (Recipe::Rows(_), Some(mix)) => {
            recipe.in_blocks(|tensor| mix.format(tensor, &decoder, distinct)).unwrap_or(Storage::plain(dtype))
        }
    };
    let (mut graph, map) = decoder::build(&decoder, &full_name, distinct, &stored)?;
    let mut source = SyntheticSource::new(&graph, &decoder, &map, seed, dtype);
    let mut encoded = Tally::default();
    for value in graph.values.iter_mut().filter(|value| !value.encodings.is_plain()) {
        let weight = source.weights.get_mut(&value.name).expect("the source has every weight");
        weight.open(value, dtype, options, &mut encoded);
    }
    let source = Arc::new(source);
    let tokenizer = Tokenizer::stand_in(graph.vocab)?;
    let chat = tokenizer.is_some().then(|| ChatTemplate::new(CHAT, None, None)).transpose()?;
    Ok(Model {
        name: full_name,
        architecture: decoder.architecture.to_owned(),
        location: Location::Synthetic(name.to_owned()),
        graph,
        source,
        tokenizer,
        chat,
        defaults: GenerationDefaults::default(),
        encoded: encoded.into_weights(),
    })
}

enum Content {
    /// N(0, deviation²).
    Noise { key: u64 },
    /// N(1, [`NORM_DEVIATION`]²).
    Norm { key: u64 },
    /// Blocks, by the format of each row.
    Blocks { key: u64, formats: RowEncodings },
    /// Bytes of f32.
    Fixed(Vec<u8>),
}

struct Weight {
    rows: u64,
    columns: u64,
    content: Content,
    /// Whether blocks are decoded when they are read.
    decoded: bool,
}

impl Weight {
    /// Keeps the blocks of `value` if `options` allow it, and otherwise makes them plain elements of `dtype`.
    fn open(&mut self, value: &mut Value, dtype: DType, options: &OpenOptions, tally: &mut Tally) {
        let [rows, columns] = value.matrix();
        let runs: Vec<(Range<u64>, Encoding)> = value.encodings.runs(0..rows).collect();
        let served = runs.iter().all(|(_, encoding)| options.encodings.contains(encoding));
        let why = match options.dtype {
            Some(_) => Some("another type was asked for"),
            None if served => None,
            None => Some("the device does not compute from it"),
        };
        self.decoded = why.is_some();
        for (run, stored) in runs {
            let encoding = if self.decoded { Encoding::Plain } else { stored };
            let in_memory = if self.decoded { dtype.name() } else { encoding.name() };
            let bytes = encoding.tile(dtype, run.end - run.start, columns).expect("the graph has it").bytes;
            tally.add(stored.name(), in_memory, why, bytes);
        }
        if self.decoded {
            (value.dtype, value.encodings) = (Some(dtype), RowEncodings::default());
        }
    }
}

struct SyntheticSource {
    weights: HashMap<String, Weight>,
    dtype: DType,
    deviation: f32,
    /// Made at the first read, so that opening costs nothing.
    table: OnceLock<Table>,
    /// For the formats of the weights.
    blocks: OnceLock<Vec<RandomBlocks>>,
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
                None if !value.encodings.is_plain() => {
                    Content::Blocks { key, formats: value.encodings.clone() }
                }
                None => Content::Noise { key },
            };
            (value.name.clone(), Weight { rows, columns, content, decoded: false })
        });
        let deviation = (1.25 / (decoder.sizes.hidden as f32).sqrt()).max(0.02);
        let (table, blocks) = (OnceLock::new(), OnceLock::new());
        SyntheticSource { weights: weights.collect(), dtype, deviation, table, blocks }
    }

    /// Writes rows in blocks, or their decoded elements.
    fn write_blocks(
        &self,
        weight: &Weight,
        key: u64,
        formats: &RowEncodings,
        rows: Range<u64>,
        out: &mut [u8],
    ) {
        let all = self
            .blocks
            .get_or_init(|| BlockFormat::ALL.map(|format| RandomBlocks::new(format, self.deviation)).into());
        let mut rest = out;
        for row in rows {
            let encoding = formats.at(row);
            let Encoding::Blocks(format) = encoding else { unreachable!("all rows are in blocks") };
            let blocks = all.iter().find(|blocks| blocks.format() == format).expect("there is one of each");
            let count = weight.columns / format.elements();
            let bytes = (count * format.bytes()) as usize;
            let range = row * count..(row + 1) * count;
            if !weight.decoded {
                let padded = encoding.row_bytes(self.dtype, weight.columns).expect("the graph has it");
                let (out, tail) = std::mem::take(&mut rest).split_at_mut(padded as usize);
                let (out, padding) = out.split_at_mut(bytes);
                blocks.fill(key, range, out);
                padding.fill(0);
                rest = tail;
                continue;
            }
            let (mut stored, mut values) = (vec![0; bytes], vec![0.0; weight.columns as usize]);
            blocks.fill(key, range, &mut stored);
            format.decode(&stored, &mut values);
            let size = self.dtype.bytes() as usize;
            let (out, tail) = std::mem::take(&mut rest).split_at_mut(values.len() * size);
            out.chunks_exact_mut(size).zip(values).for_each(|(out, value)| self.write(value, out));
            rest = tail;
        }
    }

    /// Writes an element.
    fn write(&self, value: f32, out: &mut [u8]) {
        match self.dtype {
            DType::F16 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            DType::BF16 => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            _ => out.copy_from_slice(&value.to_le_bytes()),
        }
    }

    fn write_norm(&self, key: u64, rows: Range<u64>, out: &mut [u8]) {
        let value = |row| 1.0 + NORM_DEVIATION * normal::variate(key, row);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.dtype.bytes() as usize)) {
            self.write(value(row), out);
        }
    }
}

impl WeightSource for SyntheticSource {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let fail = |detail: String| SourceError { name: name.to_owned(), source: detail.into() };
        let weight = self.weights.get(name).ok_or_else(|| fail("the model has no such weight".to_owned()))?;
        let dtype = if matches!(weight.content, Content::Fixed(_)) { DType::F32 } else { self.dtype };
        let plain = RowEncodings::default();
        let encodings = match &weight.content {
            Content::Blocks { formats, .. } if !weight.decoded => formats,
            _ => &plain,
        };
        let bytes = |rows: Range<u64>| encodings.bytes(dtype, weight.columns, rows);
        check_request(&rows, weight.rows, bytes, out.len()).map_err(fail)?;
        match &weight.content {
            Content::Noise { key } => {
                let table = self.table.get_or_init(|| Table::new(self.deviation, self.dtype));
                table.fill(*key, rows.start * weight.columns, out);
            }
            Content::Blocks { key, formats } => self.write_blocks(weight, *key, formats, rows, out),
            Content::Norm { key } => self.write_norm(*key, rows, out),
            Content::Fixed(bytes) => {
                out.copy_from_slice(&bytes[rows.start as usize * 4..rows.end as usize * 4]);
            }
        }
        Ok(())
    }
}
