//! Weights from a file in memory whose element `(row, column)` of tensor `t` is a number of its own.

use super::*;
use djinn_srg::BlockFormat;
use half::{bf16, f16};
use proptest::prelude::*;

/// Tensors of f32 numbers, "stored" as any type.
struct Memory(Vec<(TensorInfo, Vec<f32>)>);

impl Memory {
    fn with(mut self, name: &str, shape: &[u64], stored: StoredType, values: Vec<f32>) -> Memory {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        self.0.push((
            TensorInfo { name: name.to_owned(), shape: shape.to_vec(), stored, lossless: false },
            values,
        ));
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

    fn read(&self, name: &str, elements: Range<u64>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let (_, values) = self.0.iter().find(|(info, _)| info.name == name).unwrap();
        let values = &values[elements.start as usize..elements.end as usize];
        out.copy_from_slice(&encode(values, dtype));
        Ok(())
    }

    /// A block's bytes are its first number.
    fn read_stored(&self, name: &str, elements: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (info, values) = self.0.iter().find(|(info, _)| info.name == name).unwrap();
        let (block_elements, block_bytes) = info.stored.block().unwrap();
        let values = &values[elements.start as usize..elements.end as usize];
        for (block, out) in values.chunks(block_elements as usize).zip(out.chunks_mut(block_bytes as usize)) {
            out.fill(block[0] as u8);
        }
        Ok(())
    }
}

impl WeightMap {
    /// The matrix that each recipe makes.
    pub(crate) fn shapes(&self) -> HashMap<String, [u64; 2]> {
        self.recipes.iter().map(|(name, (recipe, _))| (name.clone(), recipe.matrix())).collect()
    }
}

fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// The map of weights made of these recipes.
fn map(file: &Memory, recipes: Vec<(&str, Recipe)>, wanted: Option<DType>) -> WeightMap {
    map_within(file, recipes, &OpenOptions { dtype: wanted, ..OpenOptions::default() })
}

fn map_within(file: &Memory, recipes: Vec<(&str, Recipe)>, options: &OpenOptions) -> WeightMap {
    let mut map = WeightMap::default();
    for (name, recipe) in recipes {
        let storage = recipe.storage(file, options);
        map.insert(name, recipe, storage);
    }
    map
}

fn source(file: Memory, recipes: Vec<(&str, Recipe)>, wanted: Option<DType>) -> CheckpointSource {
    let map = map(&file, recipes, wanted);
    map.check(&file, "Test", "config.json").unwrap();
    CheckpointSource::new(Box::new(file), map)
}

fn one_part(tensor: &str, shape: &[u64]) -> Vec<(&'static str, Recipe)> {
    vec![("w", Recipe::Rows(vec![Part::new(tensor, shape)]))]
}

/// The transpose of a matrix of rows.
fn transpose(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
}

/// Rows of other weights around those of `rows`, in groups of three runs of `run`.
fn grouped(rows: &[Vec<f32>], run: usize, place: usize) -> Vec<Vec<f32>> {
    let other = || vec![vec![-1.0; rows[0].len()]; run];
    let group = |rows: &[Vec<f32>]| {
        let runs: Vec<_> = (0..3).map(|i| if i == place { rows.to_vec() } else { other() }).collect();
        runs.concat()
    };
    rows.chunks(run).flat_map(group).collect()
}

/// How a part of the property is stored.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Plain,
    Pairs(usize),
    /// Rows of a run, and which run of three is the part's.
    Group(usize, usize),
    Transposed,
    /// Which of three matrices of a stack.
    Slab(usize),
}

fn any_stored() -> impl Strategy<Value = Stored> {
    prop_oneof![
        Just(Stored::Plain),
        prop::sample::select(vec![2usize, 4, 6, 16]).prop_map(Stored::Pairs),
        (1usize..5, 0usize..3).prop_map(|(run, place)| Stored::Group(run, place)),
        Just(Stored::Transposed),
        (0usize..3).prop_map(Stored::Slab),
    ]
}

/// The tensor that holds `wanted`, its shape, and the part that reads it.
fn store(name: &str, wanted: &[Vec<f32>], how: Stored) -> (Vec<Vec<f32>>, Vec<u64>, Part) {
    let (rows, columns) = (wanted.len() as u64, wanted[0].len() as u64);
    let shape = vec![rows, columns];
    match how {
        Stored::Plain => (wanted.to_vec(), shape.clone(), Part::new(name, &shape)),
        Stored::Pairs(head_rows) => {
            let order = RowOrder::Interleaved { head_rows: head_rows as u64 };
            (interleave(wanted, head_rows), shape.clone(), Part::new(name, &shape).ordered(order))
        }
        Stored::Group(run, place) => {
            let shape = vec![3 * rows, columns];
            let (run_rows, first) = (run as u64, (run * place) as u64);
            let order = RowOrder::Grouped { group_rows: 3 * run_rows, first, rows: run_rows };
            let part = Part::new(name, &shape).ordered(order).of_rows(rows);
            (grouped(wanted, run, place), shape, part)
        }
        Stored::Transposed => {
            let shape = vec![columns, rows];
            (transpose(wanted), shape.clone(), Part::new(name, &shape).transposed())
        }
        Stored::Slab(index) => {
            let other = vec![vec![-1.0; columns as usize]; rows as usize];
            let stack: Vec<_> =
                (0..3).map(|i| if i == index { wanted.to_vec() } else { other.clone() }).collect();
            let shape = vec![3, rows, columns];
            (stack.concat(), shape.clone(), Part::new(name, &shape).slab(index as u64))
        }
    }
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
        parts in prop::collection::vec((1usize..4, any_stored()), 1..4),
        half in any::<bool>(),
        cuts in (0.0f64..=1.0, 0.0f64..=1.0),
    ) {
        let mut file = Memory(Vec::new());
        let mut recipe = Vec::new();
        let mut naive = Vec::new();
        for (index, &(count, how)) in parts.iter().enumerate() {
            let rows = count * match how {
                Stored::Pairs(head_rows) => head_rows,
                Stored::Group(run, _) => run,
                Stored::Plain | Stored::Transposed | Stored::Slab(_) => 3,
            };
            let start = naive.len();
            let wanted: Vec<Vec<f32>> = (start..start + rows)
                .map(|row| (0..columns).map(|c| (row * columns + c + 1) as f32).collect())
                .collect();
            let name = format!("part{index}");
            let (stored, shape, part) = store(&name, &wanted, how);
            file = file.with(&name, &shape, StoredType::F32, stored.concat());
            recipe.push(part);
            naive.extend(wanted);
        }
        let dtype = if half { DType::F16 } else { DType::F32 };
        let source = source(file, vec![("w", Recipe::Rows(recipe))], Some(dtype));

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
        .with("a", &[2, 2], StoredType::BF16, vec![1.0; 4])
        .with("b", &[2, 2], StoredType::F16, vec![1.0; 4])
        .with("quantised", &[1, 32], StoredType::Blocks(BlockFormat::Q4_0), vec![1.0; 32])
        .with("norm", &[2], StoredType::F32, vec![1.0; 2]);
    let part = |name: &str, shape: &[u64]| Part::new(name, shape);
    let recipes = vec![
        ("mixed", Recipe::Rows(vec![part("a", &[2, 2]), part("b", &[2, 2])])),
        ("same", Recipe::Rows(vec![part("a", &[2, 2]), part("a", &[2, 2])])),
        ("blocks", Recipe::Rows(vec![part("quantised", &[1, 32])])),
        ("norm", Recipe::Rows(vec![part("norm", &[2])])),
        ("constant", Recipe::computed(&[0.5, 0.25])),
    ];
    map(&file, recipes.clone(), None).check(&file, "Test", "config.json").unwrap();
    let dtypes = |wanted| {
        let options = OpenOptions { dtype: wanted, ..OpenOptions::default() };
        recipes.iter().map(|(_, recipe)| recipe.storage(&file, &options).dtype).collect::<Vec<_>>()
    };
    assert_eq!(dtypes(None), [DType::F32, DType::BF16, DType::F16, DType::F32, DType::F32]);
    // Vectors stay as stored.
    let wanted = [DType::BF16, DType::BF16, DType::BF16, DType::F32, DType::F32];
    assert_eq!(dtypes(Some(DType::BF16)), wanted);
}

/// A tensor of `rows` rows of two blocks, whose first numbers count from `first`.
fn blocks(file: Memory, name: &str, shape: &[u64], first: usize) -> Memory {
    let values = shape.iter().product::<u64>() as usize;
    let values = (0..values).map(|i| (first + i / 32) as f32).collect();
    file.with(name, shape, StoredType::Blocks(BlockFormat::Q4_0), values)
}

#[test]
fn blocks_stay_as_stored_where_whole_rows_move() {
    let file = blocks(Memory(Vec::new()), "pairs", &[4, 64], 10);
    let file = blocks(blocks(file, "slabs", &[2, 2, 64], 30), "across", &[64, 2], 50);
    let file = file.with("plain", &[1, 64], StoredType::BF16, vec![2.0; 64]);
    let pairs = Part::new("pairs", &[4, 64]).ordered(RowOrder::Interleaved { head_rows: 4 });
    let parts = vec![pairs, Part::new("slabs", &[2, 2, 64]).slab(1), Part::new("plain", &[1, 64])];
    let recipes = vec![
        ("w", Recipe::Rows(parts)),
        ("across", Recipe::Rows(vec![Part::new("across", &[64, 2]).transposed()])),
    ];
    let allowed = OpenOptions { encodings: &[Encoding::Blocks(BlockFormat::Q4_0)], ..OpenOptions::default() };
    let map = map_within(&file, recipes.clone(), &allowed);
    let storage = &map.recipes["w"].1;
    let q4_0 = Encoding::Blocks(BlockFormat::Q4_0);
    assert_eq!(storage.dtype, DType::BF16);
    let runs: Vec<_> = storage.encodings.runs(0..7).collect();
    assert_eq!(runs, [(0..6, q4_0), (6..7, Encoding::Plain)]);
    // Columns cut blocks, and other devices and other types want plain elements.
    assert_eq!(map.recipes["across"].1, Storage::plain(DType::F16));
    for options in [
        OpenOptions { encodings: &[Encoding::Blocks(BlockFormat::Q4_1)], ..OpenOptions::default() },
        OpenOptions { dtype: Some(DType::F16), ..allowed },
    ] {
        assert!(recipes[0].1.storage(&file, &options).encodings.is_plain(), "{options:?}");
    }

    let source = CheckpointSource::new(Box::new(file), map);
    // Two blocks of 18 bytes, and padding.
    const ROW: usize = 48;
    let mut out = vec![0xaa; 4 * ROW + 128];
    source.read_rows("w", 2..7, &mut out).unwrap();
    let rows: Vec<&[u8]> = out[..4 * ROW].chunks(ROW).collect();
    // Rows 1 and 3 of the pairs, then both of the second slab.
    for (row, [first, second]) in rows.into_iter().zip([[12, 13], [16, 17], [34, 35], [36, 37]]) {
        assert_eq!(row, [vec![first; 18], vec![second; 18], vec![0; 12]].concat());
    }
    assert_eq!(out[4 * ROW..], encode(&[2.0; 64], DType::BF16));
    assert!(source.read_rows("w", 2..7, &mut vec![0; 5 * 128]).is_err());
}

#[test]
fn a_number_beyond_f16_is_refused_and_named() {
    let values = vec![1.0, 2.0, 3.0, -70_000.0];
    let file = || Memory(Vec::new()).with("big", &[2, 2], StoredType::BF16, values.clone());
    let narrow = source(file(), one_part("big", &[2, 2]), Some(DType::F16));
    narrow.read_rows("w", 0..1, &mut [0; 4]).unwrap();
    let error = narrow.read_rows("w", 0..2, &mut [0; 8]).unwrap_err();
    let detail = error.source.to_string();
    assert!(["big", "row 1", "-70000", "`dtype` bf16"].iter().all(|part| detail.contains(part)), "{detail}");

    let wide = source(file(), one_part("big", &[2, 2]), Some(DType::BF16));
    wide.read_rows("w", 0..2, &mut [0; 8]).unwrap();
}

#[test]
fn a_stored_infinity_is_passed_on() {
    for stored in [StoredType::F32, StoredType::F16] {
        let file = Memory(Vec::new()).with("t", &[1, 2], stored, vec![f32::INFINITY, 1.0]);
        let mut out = [0; 4];
        source(file, one_part("t", &[1, 2]), Some(DType::F16)).read_rows("w", 0..1, &mut out).unwrap();
        assert_eq!(out, [0x00, 0x7c, 0x00, 0x3c]);
    }
}

#[test]
fn checks_name_the_tensor() {
    let file = Memory(Vec::new()).with("here", &[2, 3], StoredType::F32, vec![0.0; 6]).with(
        "integers",
        &[1],
        StoredType::Other("I64"),
        vec![0.0],
    );
    let fails = |recipes| map(&file, recipes, None).check(&file, "Test", "config.json").unwrap_err();
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
    let mut map = map(&file, one_part("here", &[2, 3]), None);
    map.ignore("integers".to_owned());
    map.check(&file, "Test", "config.json").unwrap();
}

#[test]
fn a_wrong_request_is_an_error() {
    let recipes = [one_part("t", &[2, 2]), vec![("c", Recipe::computed(&[1.0, 2.0]))]].concat();
    let file = Memory(Vec::new()).with("t", &[2, 2], StoredType::F32, vec![0.0; 4]);
    let source = source(file, recipes, None);
    assert!(source.read_rows("nothing", 0..1, &mut [0; 8]).is_err());
    assert!(source.read_rows("w", 1..3, &mut [0; 16]).is_err());
    assert!(source.read_rows("w", 0..2, &mut [0; 15]).is_err());
    assert!(source.read_rows("c", 0..3, &mut [0; 12]).is_err());
    let mut out = [0; 4];
    source.read_rows("c", 1..2, &mut out).unwrap();
    assert_eq!(f32::from_le_bytes(out), 2.0);
}
