//! Models with seeded random weights in the exact shapes of known ones: for measuring and testing without a
//! download. Nothing is generated when such a model is opened.
//!
//! A name is one of [`names`], optionally with changes: `tiny?layers=1&seed=3&dtype=f32`. The keys are
//! `layers`, `hidden`, `intermediate`, `heads`, `kv_heads`, `head_dim`, `vocab`, `context`, `tied`, `bias`
//! (`true` or `false`), `seed` and `dtype`.
//!
//! Matrices and biases are N(0, s²) with s = 0.02, or 1.25 / sqrt(hidden) where that is more, so that logits
//! of small models differ; norms are N(1, 0.05²). Elements depend on the seed, the weight's name and their
//! index in the weight alone, and are never 0.

mod normal;
mod shapes;
#[cfg(test)]
mod tests;

use crate::llama::{self, Config};
use crate::weights::check_request;
use crate::{Error, GenerationDefaults, Model, OpenOptions, Result};
use djinn_srg::{DType, Graph};
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

/// Opens the synthetic model `name`, given without the prefix.
pub(crate) fn open(name: &str, options: &OpenOptions) -> Result<Model> {
    let full_name = format!("{PREFIX}{name}");
    let shapes::Request { config, seed, dtype, chosen } = shapes::parse(name)?;
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
    let of_weight = |weight: &str| if weight == INV_FREQ { DType::F32 } else { dtype };
    let graph = llama::graph(&config, &full_name, &of_weight)?;
    let source = Arc::new(SyntheticSource::new(&graph, &config, seed, dtype));
    Ok(Model {
        name: full_name,
        architecture: config.architecture.name().to_owned(),
        graph,
        source,
        tokenizer: None,
        chat: None,
        defaults: GenerationDefaults::default(),
    })
}

const INV_FREQ: &str = "rope.inv_freq";

enum Content {
    /// N(0, deviation²).
    Noise { key: u64 },
    /// N(1, [`NORM_DEVIATION`]²).
    Norm { key: u64 },
    /// f32.
    Fixed(Vec<f32>),
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
    fn new(graph: &Graph, config: &Config, seed: u64, dtype: DType) -> Self {
        let weights = graph.weights().map(|(_, value)| {
            let [rows, columns] = value.matrix();
            let key = normal::key(seed, &value.name);
            let content = match value.name.as_str() {
                INV_FREQ => Content::Fixed(llama::inverse_frequencies(config)),
                name if value.shape.len() == 1 && name.ends_with(".weight") => Content::Norm { key },
                _ => Content::Noise { key },
            };
            (value.name.clone(), Weight { rows, columns, content })
        });
        let deviation = (1.25 / (config.hidden_size as f32).sqrt()).max(0.02);
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
        check_request(&rows, weight.rows, weight.columns * dtype.bytes(), out.len()).map_err(fail)?;
        match &weight.content {
            Content::Noise { key } => {
                let table = self.table.get_or_init(|| Table::new(self.deviation, self.dtype));
                table.fill(*key, rows.start * weight.columns, out);
            }
            Content::Norm { key } => self.write_norm(*key, rows, out),
            Content::Fixed(values) => {
                let values = &values[rows.start as usize..rows.end as usize];
                for (out, value) in out.chunks_exact_mut(4).zip(values) {
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        Ok(())
    }
}
