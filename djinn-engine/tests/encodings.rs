//! Encoded weights: the bits of the same weights decoded, wherever they are kept.

use djinn_cpu::{CpuConfig, CpuDevice, Math, SimConfig, SimDevice};
use djinn_device::Ops;
use djinn_engine::{Budget, Engine, Error, Options};
use djinn_models::{Location, Model, OpenOptions, Packing, open};
use djinn_srg::{BlockFormat, DType, Encoding, Graph, RowEncodings, Value};
use djinn_vmu::{SourceError, WeightSource};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

const DENSE: &str =
    "tiny?layers=2&hidden=256&intermediate=512&heads=4&kv_heads=2&head_dim=64&vocab=600&tied=true&dtype=f32";
const EXPERTS: &str =
    "tiny-mixtral?layers=2&hidden=256&intermediate=256&heads=4&kv_heads=2&head_dim=64&vocab=300&dtype=f32";

/// How a model's matrices are stored.
#[derive(Clone, Copy, PartialEq)]
enum Stored {
    /// Halves of their rows in one format and in the next; a table's in one.
    Blocks,
    /// Halves of their rows in blocks, and as f32, in turns; tables in blocks.
    Mixed,
    /// What blocks stand for, as f32.
    Decoded,
}

/// The encodings of matrix number `index`, and the formats of its blocks.
fn encodings(index: usize, rows: u64, is_table: bool, stored: Stored) -> [RowEncodings; 2] {
    let format = |i: usize| Encoding::Blocks(BlockFormat::ALL[i % BlockFormat::ALL.len()]);
    let mut all = [RowEncodings::default(), RowEncodings::default()];
    for (half, count) in [rows / 2, rows - rows / 2].into_iter().enumerate() {
        let format = format(index + half * usize::from(!is_table));
        let plain = match stored {
            Stored::Blocks => false,
            Stored::Mixed => !is_table && (index + half).is_multiple_of(2),
            Stored::Decoded => true,
        };
        all[0].push(count, if plain { Encoding::Plain } else { format });
        all[1].push(count, format);
    }
    all
}

/// Matrices of blocks of bytes that look random, or of what they stand for; vectors of the model below.
struct Blocks {
    model: Model,
    matrices: HashMap<String, (u64, [RowEncodings; 2])>,
}

/// A row's blocks and its padding, which depend on the weight's name and the row alone.
fn row(name: &str, row: u64, columns: u64, format: BlockFormat) -> Vec<u8> {
    let seed = name.bytes().fold(row + 1, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut bytes: Vec<u8> = (0..format.blocks_bytes(columns).unwrap()).map(|_| next() as u8).collect();
    for block in bytes.chunks_mut(format.bytes() as usize) {
        format.set_scales(block, || (1.0 + (next() % 0x400) as f32 / 256.0) * 1e-4);
    }
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes
}

impl WeightSource for Blocks {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let Some((columns, [encodings, formats])) = self.matrices.get(name) else {
            return self.model.source.read_rows(name, rows, out);
        };
        let mut bytes = Vec::new();
        for index in rows {
            let Encoding::Blocks(format) = formats.at(index) else {
                unreachable!("all rows have a format of blocks")
            };
            let blocks = row(name, index, *columns, format);
            if encodings.at(index) == Encoding::Plain {
                let mut values = vec![0.0; *columns as usize];
                format.decode(&blocks[..format.blocks_bytes(*columns).unwrap() as usize], &mut values);
                bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
            } else {
                bytes.extend(blocks);
            }
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }
}

/// A model whose matrices are in blocks, or are what these stand for.
fn model(shape: &str, stored: Stored) -> Blocks {
    let mut model = open(&Location::Synthetic(shape.into()), &OpenOptions::default()).expect("a known shape");
    let mut matrices = HashMap::new();
    let is_matrix = |value: &Value| value.shape.len() == 2 && value.dtype == Some(DType::F32);
    let weights: Vec<_> = model.graph.weights().map(|(id, _)| id).collect();
    for (index, id) in weights.into_iter().enumerate() {
        let value = &mut model.graph.values[id.0 as usize];
        if is_matrix(value) {
            let [rows, columns] = value.matrix();
            let all = encodings(index, rows, value.name == "embed.weight", stored);
            if stored != Stored::Decoded {
                value.encodings = all[0].clone();
            }
            matrices.insert(value.name.clone(), (columns, all));
        }
    }
    Blocks { model, matrices }
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + 11) % 300).collect()
}

/// The bits of the logits of a long prompt and of one token, and the bytes that a pass streams.
fn bits<D: Ops>(device: D, blocks: &Blocks, options: &Options) -> (Vec<u32>, u64) {
    bits_of(device, &blocks.model.graph, blocks, options)
}

fn bits_of<D: Ops>(
    device: D,
    graph: &Graph,
    source: &dyn WeightSource,
    options: &Options,
) -> (Vec<u32>, u64) {
    let mut keep = |_, _| ControlFlow::Continue(());
    let mut engine = Engine::load(device, graph.clone(), source, options, &mut keep).expect("it loads");
    let (mut pages, mut bits) = (engine.free_pages(), Vec::new());
    for len in [64, 1] {
        let logits = engine.logits(&mut pages, &prompt(len)).expect("it runs");
        assert!(logits.iter().all(|logit| logit.is_finite()));
        let spread = logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        assert!(spread > 1e-3, "the logits are {spread} at most: nothing is compared");
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
    }
    (bits, engine.plan().placement.streamed_bytes())
}

fn options(budget: Budget) -> Options {
    Options { budget, context: 80, logit_rows: 64, ..Options::default() }
}

fn cpu() -> CpuDevice {
    CpuDevice::new(CpuConfig { threads: 2, ..CpuConfig::default() }).expect("threads")
}

#[test]
fn blocks_give_the_bits_of_decoded_weights() {
    for shape in [DENSE, EXPERTS] {
        let [stored, decoded] = [Stored::Blocks, Stored::Decoded].map(|stored| model(shape, stored));
        let [less, more] = [&stored, &decoded].map(|blocks| blocks.model.graph.text_bytes());
        assert!(less * 3 < more, "{less} bytes instead of {more}");
        let [stored, decoded] =
            [&stored, &decoded].map(|blocks| bits(cpu(), blocks, &options(Budget::default())).0);
        assert!(stored == decoded, "{shape}");
    }
}

#[test]
fn blocks_stream_and_stay_alike() {
    for shape in [DENSE, EXPERTS] {
        let model = model(shape, Stored::Blocks);
        let (expected, _) = bits(cpu(), &model, &options(Budget::default()));
        for (seed, fraction, chunk, rings) in [(1, 0.0, 90_000, 1), (2, 0.4, 150_000, 2), (3, 0.7, 90_000, 5)]
        {
            let budget = Budget {
                resident_fraction: Some(fraction),
                chunk: Some(chunk),
                ring: Some(rings * chunk),
                stream_check: seed == 1,
                ..Budget::default()
            };
            for cpu_share in [0.0, 0.5] {
                let device = SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() });
                let options = options(Budget { cpu_share, ..budget });
                let (found, streamed) = bits(device.expect("a device"), &model, &options);
                assert!(streamed > 0 && found == expected, "{shape}, {:?}, seed {seed}", options.budget);
            }
        }
    }
}

/// A product whose weight has blocks beside plain rows: its activations are not rounded for the blocks alone, and rows do
/// not depend on the batch.
#[test]
fn blocks_beside_plain_rows_give_the_bits_of_decoded_weights() {
    for (seed, wide, resident) in [(1, true, 1.0), (2, true, 0.5), (3, false, 1.0)] {
        let [mixed, decoded] = [Stored::Mixed, Stored::Decoded].map(|stored| model(DENSE, stored));
        let budget = Budget { resident_fraction: Some(resident), ..Budget::default() };
        let sim = || {
            let config = SimConfig { seed, math: Math::Fast, ..SimConfig::default() };
            SimDevice::new(SimConfig { wide_products: wide, ..config }).expect("a device")
        };
        let [found, expected] = [&mixed, &decoded].map(|blocks| bits(sim(), blocks, &options(budget)).0);
        assert!(found == expected, "seed {seed}, {resident} resident");
    }
}

/// A model whose 16-bit matrices are encoded while they load, or not.
fn opened(shape: &str, packing: Packing) -> Model {
    let options = OpenOptions { encodings: djinn_cpu::ENCODINGS, packing, ..OpenOptions::default() };
    open(&Location::Synthetic(shape.into()), &options).expect("a known shape")
}

#[test]
fn lossless_weights_give_the_bits_of_plain_ones() {
    let families = ["tied", "bias", "qwen3", "mixtral", "gpt2", "gptj", "gpt-neox", "falcon"];
    for (seed, family) in (0..).zip(families) {
        let shape = format!("tiny-{family}?hidden=128&vocab=300");
        let [plain, lossless] = [Packing::Never, Packing::Fitting].map(|packing| opened(&shape, packing));
        let [less, more] = [&lossless, &plain].map(|model| model.graph.text_bytes());
        assert!(less * 100 < more * 92, "{family}: {less} bytes instead of {more}");
        assert_eq!(opened(&shape, Packing::Assumed).graph.text_bytes(), less);
        let bits =
            |device, model: &Model, budget| bits_of(device, &model.graph, &*model.source, &options(budget));
        let sim = |seed| {
            SimDevice::new(SimConfig { seed, math: Math::Fast, ..SimConfig::default() }).expect("a device")
        };
        let (expected, _) = bits(sim(seed), &plain, Budget::default());
        let fraction = seed as f64 / families.len() as f64;
        let budget = Budget {
            resident_fraction: Some(fraction),
            chunk: Some(70_000),
            ring: Some((1 + seed % 3) * 70_000),
            stream_check: seed == 1,
            ..Budget::default()
        };
        let (found, streamed) = bits(sim(seed), &lossless, budget);
        assert!(streamed > 0 && found == expected, "{family}, {fraction} resident");
        let (found, _) = bits(sim(seed), &lossless, Budget::default());
        assert!(found == expected, "{family}, all resident");
    }
}

#[test]
fn what_does_not_fit_stays_plain_and_is_named() {
    let shape = "tiny?hidden=128&dtype=f16";
    let [plain, looked] = [Packing::Never, Packing::Fitting].map(|packing| opened(shape, packing));
    assert_eq!(plain.graph.text_bytes(), looked.graph.text_bytes());
    let [of] = looked.encoded[..] else { panic!("{:?}", looked.encoded) };
    assert_eq!((of.stored, of.in_memory, of.why.is_some()), ("f16", "f16", true));
}

#[test]
fn blocks_that_the_device_cannot_read_are_refused_by_name() {
    let device = SimDevice::new(SimConfig { encodings: &[], ..SimConfig::default() }).expect("a device");
    let model = model(DENSE, Stored::Blocks);
    let options = options(Budget::default());
    let mut keep = |_, _| ControlFlow::Continue(());
    let loaded = Engine::load(device, model.model.graph.clone(), &model, &options, &mut keep);
    let Err(error @ Error::Encoding { .. }) = loaded.map(|_| ()) else { panic!("blocks are not refused") };
    let text = error.to_string();
    assert!(text.contains("embed.weight") && text.contains("Q4_0") && text.contains("sim"), "{text}");
}
