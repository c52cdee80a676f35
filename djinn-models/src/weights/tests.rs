//! Weights from a file in memory whose element `(row, column)` of tensor `t` is a number of its own.

use super::*;
use half::{bf16, f16};
use proptest::prelude::*;

/// Tensors of f32 numbers, "stored" in any encoding.
struct Memory(Vec<(TensorInfo, Vec<f32>)>);

impl Memory {
    fn with(mut self, name: &str, shape: &[u64], encoding: Encoding, values: Vec<f32>) -> Memory {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        self.0.push((TensorInfo { name: name.to_owned(), shape: shape.to_vec(), encoding }, values));
        self
    }
}

impl TensorFile for Memory {
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors().find(|info| info.name == name)
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.0.iter().map(|(info, _)| info))
    }

    fn read_rows(&self, name: &str, rows: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let (info, values) = self.0.iter().find(|(info, _)| info.name == name).unwrap();
        let columns = info.shape[1..].iter().product::<u64>();
        let values = &values[(rows.start * columns) as usize..(rows.end * columns) as usize];
        out.copy_from_slice(&encode(values, dtype));
        Ok(())
    }
}

impl WeightMap {
    /// The matrix that each recipe makes.
    pub(crate) fn shapes(&self) -> HashMap<String, [u64; 2]> {
        let shape = |recipe: &Recipe| match recipe {
            Recipe::Rows(parts) => [parts.iter().map(Part::rows).sum(), parts[0].columns()],
            Recipe::Computed(bytes) => [bytes.len() as u64 / 4, 1],
        };
        self.recipes.iter().map(|(name, recipe)| (name.clone(), shape(recipe))).collect()
    }
}

fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn source(file: Memory, map: WeightMap, wanted: Option<DType>) -> CheckpointSource {
    map.check(&file, "Test").unwrap();
    let dtypes = map.dtypes(&file, wanted);
    CheckpointSource::new(Box::new(file), map, dtypes)
}

fn one_part(tensor: &str, shape: &[u64]) -> WeightMap {
    let mut map = WeightMap::default();
    map.rows("w", vec![Part::new(tensor, shape)]);
    map
}

/// GGUF's order as llama.cpp's converter makes it: `[head, 2, half, columns]` with the middle axes swapped.
fn interleave(rows: &[Vec<f32>], head_rows: usize) -> Vec<Vec<f32>> {
    let half = head_rows / 2;
    let mut stored = Vec::new();
    for head in rows.chunks(head_rows) {
        for pair in 0..half {
            for side in 0..2 {
                stored.push(head[side * half + pair].clone());
            }
        }
    }
    stored
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_rows_of_any_concatenation_equal_the_naive_one(
        columns in 1usize..5,
        // Heads, rows of a head (0: as stored), for each part.
        parts in prop::collection::vec((1usize..4, prop::sample::select(vec![0usize, 2, 4, 6, 16])), 1..4),
        half in any::<bool>(),
        cuts in (0.0f64..=1.0, 0.0f64..=1.0),
    ) {
        let mut file = Memory(Vec::new());
        let mut recipe = Vec::new();
        let mut naive = Vec::new();
        for (index, &(heads, head_rows)) in parts.iter().enumerate() {
            let rows = heads * if head_rows == 0 { 3 } else { head_rows };
            let start = naive.len();
            let wanted: Vec<Vec<f32>> = (start..start + rows)
                .map(|row| (0..columns).map(|c| (row * columns + c + 1) as f32).collect())
                .collect();
            let (stored, order) = match head_rows {
                0 => (wanted.clone(), RowOrder::AsStored),
                n => (interleave(&wanted, n), RowOrder::Interleaved { head_rows: n as u64 }),
            };
            let (name, shape) = (format!("part{index}"), [rows as u64, columns as u64]);
            file = file.with(&name, &shape, Encoding::F32, stored.concat());
            recipe.push(Part::new(&name, &shape).ordered(order));
            naive.extend(wanted);
        }
        let mut map = WeightMap::default();
        map.rows("w", recipe);
        let dtype = if half { DType::F16 } else { DType::F32 };
        let source = source(file, map, Some(dtype));

        let total = naive.len();
        let ends = [cuts.0, cuts.1].map(|cut| (cut * total as f64) as usize);
        let rows = ends[0].min(ends[1])..ends[0].max(ends[1]);
        let expected = encode(&naive[rows.clone()].concat(), dtype);
        let mut out = vec![0xaa; expected.len()];
        source.read_rows("w", rows.start as u64..rows.end as u64, &mut out).unwrap();
        prop_assert_eq!(out, expected);
    }
}

#[test]
fn unequal_parts_become_f32_and_equal_ones_keep_their_type() {
    let file = Memory(Vec::new())
        .with("a", &[2, 2], Encoding::BF16, vec![1.0; 4])
        .with("b", &[2, 2], Encoding::F16, vec![1.0; 4])
        .with("quantised", &[1, 32], Encoding::Q4_0, vec![1.0; 32])
        .with("norm", &[2], Encoding::F32, vec![1.0; 2]);
    let mut map = WeightMap::default();
    map.rows("mixed", vec![Part::new("a", &[2, 2]), Part::new("b", &[2, 2])]);
    map.rows("same", vec![Part::new("a", &[2, 2]), Part::new("a", &[2, 2])]);
    map.rows("blocks", vec![Part::new("quantised", &[1, 32])]);
    map.rows("norm", vec![Part::new("norm", &[2])]);
    map.computed("constant", &[0.5, 0.25]);
    map.check(&file, "Test").unwrap();
    let stored = map.dtypes(&file, None);
    let expected = [
        ("mixed", DType::F32),
        ("same", DType::BF16),
        ("blocks", DType::F16),
        ("norm", DType::F32),
        ("constant", DType::F32),
    ];
    for (name, dtype) in expected {
        assert_eq!(stored[name], dtype, "{name}");
    }
    let wanted = map.dtypes(&file, Some(DType::BF16));
    assert_eq!(["mixed", "blocks"].map(|n| wanted[n]), [DType::BF16; 2]);
    assert_eq!(["norm", "constant"].map(|n| wanted[n]), [DType::F32; 2], "vectors stay as stored");
}

#[test]
fn a_number_beyond_f16_is_refused_and_named() {
    let values = vec![1.0, 2.0, 3.0, -70_000.0];
    let file = || Memory(Vec::new()).with("big", &[2, 2], Encoding::BF16, values.clone());
    let narrow = source(file(), one_part("big", &[2, 2]), Some(DType::F16));
    narrow.read_rows("w", 0..1, &mut [0; 4]).unwrap();
    let error = narrow.read_rows("w", 0..2, &mut [0; 8]).unwrap_err();
    let detail = error.source.to_string();
    assert!(["big", "row 1", "-70000", "--dtype bf16"].iter().all(|part| detail.contains(part)), "{detail}");

    let wide = source(file(), one_part("big", &[2, 2]), Some(DType::BF16));
    wide.read_rows("w", 0..2, &mut [0; 8]).unwrap();
}

#[test]
fn a_stored_infinity_is_passed_on() {
    for encoding in [Encoding::F32, Encoding::F16] {
        let file = Memory(Vec::new()).with("t", &[1, 2], encoding, vec![f32::INFINITY, 1.0]);
        let mut out = [0; 4];
        source(file, one_part("t", &[1, 2]), Some(DType::F16)).read_rows("w", 0..1, &mut out).unwrap();
        assert_eq!(out, [0x00, 0x7c, 0x00, 0x3c]);
    }
}

#[test]
fn checks_name_the_tensor() {
    let file = Memory(Vec::new()).with("here", &[2, 3], Encoding::F32, vec![0.0; 6]).with(
        "integers",
        &[1],
        Encoding::Other("I64"),
        vec![0.0],
    );
    let fails = |map: WeightMap| map.check(&file, "Test").unwrap_err();
    match fails(one_part("gone", &[2, 3])) {
        Error::MissingTensor { name, architecture } => assert_eq!((&*name, &*architecture), ("gone", "Test")),
        other => panic!("{other}"),
    }
    match fails(one_part("here", &[3, 2])) {
        Error::WrongShape { name, found, expected } => {
            assert_eq!((&*name, found, expected), ("here", vec![2, 3], vec![3, 2]));
        }
        other => panic!("{other}"),
    }
    let left_over = fails(one_part("here", &[2, 3])).to_string();
    assert!(left_over.contains("tensor integers"), "{left_over}");
    let undecodable = fails(one_part("integers", &[1])).to_string();
    assert!(undecodable.contains("I64") && undecodable.contains("integers"), "{undecodable}");
    let mut map = one_part("here", &[2, 3]);
    map.ignore("integers");
    map.check(&file, "Test").unwrap();
}

#[test]
fn a_wrong_request_is_an_error() {
    let mut map = one_part("t", &[2, 2]);
    map.computed("c", &[1.0, 2.0]);
    let file = Memory(Vec::new()).with("t", &[2, 2], Encoding::F32, vec![0.0; 4]);
    let source = source(file, map, None);
    assert!(source.read_rows("nothing", 0..1, &mut [0; 8]).is_err());
    assert!(source.read_rows("w", 1..3, &mut [0; 16]).is_err());
    assert!(source.read_rows("w", 0..2, &mut [0; 15]).is_err());
    assert!(source.read_rows("c", 0..3, &mut [0; 12]).is_err());
    let mut out = [0; 4];
    source.read_rows("c", 1..2, &mut out).unwrap();
    assert_eq!(f32::from_le_bytes(out), 2.0);
}
