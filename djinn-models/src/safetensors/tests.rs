//! Single files, shards, and files that must be refused.

use super::*;
use crate::StoredType;
use std::fs;

fn fixture() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/safetensors/mixed.safetensors");
    fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

/// A file with one f32 tensor of two elements for each name.
fn file_of(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}"#, i * 8, i * 8 + 8)
        })
        .collect();
    file(&format!("{{{}}}", entries.join(",")), names.len() * 8)
}

#[track_caller]
fn refused(bytes: Vec<u8>, part: &str) {
    let error = SafetensorsDir::from_bytes(bytes).unwrap_err().to_string();
    assert!(error.contains(part), "expected `{part}` in: {error}");
    assert!(!error.contains('\n'), "{error}");
}

fn read_f32(checkpoint: &SafetensorsDir, name: &str, elements: Range<u64>) -> Vec<f32> {
    let mut out = vec![0; (elements.end - elements.start) as usize * 4];
    checkpoint.read(name, elements, DType::F32, &mut out).unwrap();
    out.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn a_file_of_the_reference_writer_is_read() {
    let checkpoint = SafetensorsDir::from_bytes(fixture()).unwrap();
    assert_eq!(checkpoint.tensors().count(), 6);
    let embed = checkpoint.tensor("model.embed.weight").unwrap();
    assert_eq!((embed.shape.as_slice(), embed.stored), ([3, 4].as_slice(), StoredType::F32));
    let expected: Vec<f32> = (4..12).map(|i| i as f32 / 8.0 - 0.5).collect();
    assert_eq!(read_f32(&checkpoint, "model.embed.weight", 4..12), expected);
    assert_eq!(checkpoint.tensor("model.norm.weight").unwrap().stored, StoredType::F16);
    assert_eq!(read_f32(&checkpoint, "model.norm.weight", 0..4), [-0.5, -0.375, -0.25, -0.125]);
    assert_eq!(read_f32(&checkpoint, "model.scale", 0..1), [2.5]);
    assert!(read_f32(&checkpoint, "model.none", 0..0).is_empty());
}

#[test]
fn tensors_that_are_no_weights_are_listed_and_refused_on_reading() {
    let checkpoint = SafetensorsDir::from_bytes(fixture()).unwrap();
    for (name, type_name, elements) in [("model.mask", "BOOL", 4), ("model.positions", "I64", 5)] {
        assert_eq!(checkpoint.tensor(name).unwrap().stored, StoredType::Other(type_name));
        let error =
            checkpoint.read(name, 0..elements as u64, DType::F32, &mut vec![0; elements * 4]).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(type_name)), "{error}");
    }
    let missing = checkpoint.read("none", 0..1, DType::F32, &mut [0; 4]).unwrap_err();
    assert!(matches!(&missing, Error::MissingTensor { name, .. } if name == "none"), "{missing}");
}

#[test]
fn more_tensors_than_a_file_may_have_are_refused() {
    let header = |count: usize| {
        let entry = |at| format!(r#""{at}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#);
        format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","))
    };
    assert_eq!(SafetensorsDir::from_bytes(file(&header(1000), 0)).unwrap().tensors().count(), 1000);
    refused(file(&header(200_001), 0), "more than 200000 tensors");
}

#[test]
fn every_truncation_and_every_surplus_is_refused() {
    let whole = fixture();
    for len in 0..whole.len() {
        refused(whole[..len].to_vec(), "truncated");
    }
    refused([whole.as_slice(), &[0]].concat(), "the file has");
}

#[test]
fn absurd_header_lengths_are_refused() {
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_001, 93] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(100, b' ');
        refused(bytes, &format!("the header claims {length} bytes"));
    }
}

#[test]
fn malformed_headers_are_refused() {
    refused(file("[]", 0), "the header: invalid type: sequence");
    refused(file("{\"a\":", 0), "the header: EOF");
    refused(file("{\"a\":{}}", 0), "missing field `dtype`");
    refused(file("{} x", 0), "trailing characters");
    refused(file(&"[".repeat(100_000), 0), "the header:");
    let one = |entry: &str| file(&format!("{{\"a\":{{{entry}}}}}"), 8);
    refused(one(r#""dtype":"F7","shape":[2],"data_offsets":[0,8]"#), "unknown variant `F7`");
    refused(one(r#""dtype":"F\n7","shape":[2],"data_offsets":[0,8]"#), "unknown variant");
    refused(one(r#""dtype":"F32","shape":[-2],"data_offsets":[0,8]"#), "the header: invalid value");
    refused(one(r#""dtype":"F32","shape":[1e3],"data_offsets":[0,8]"#), "the header: invalid type");
    for entry in [
        r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#,
        r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#,
        r#""dtype":"F32","shape":[1],"data_offsets":[4,8]"#,
        r#""dtype":"F4","shape":[3],"data_offsets":[0,8]"#,
        r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]"#,
        r#""dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]"#,
    ] {
        refused(one(entry), "offsets, shapes and sizes disagree");
    }
    let end = r#""dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]"#;
    refused(one(end), "offsets, shapes and sizes disagree");
    refused(one(r#""dtype":"F32","shape":[4],"data_offsets":[0,16]"#), "truncated or corrupt");
}

#[test]
fn tensors_must_not_share_bytes_or_names() {
    refused(file_of(&["a", "b", "a"]), "`a` occurs twice");
    refused(file_of(&["a\\u0007"]), "control characters");
    let entry = |name: &str, from: u32| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{from},{}]}}"#, from + 8)
    };
    for from in [0, 4, 12] {
        let header = format!("{{{},{}}}", entry("a", 0), entry("b", from));
        refused(file(&header, from as usize + 8), "offsets, shapes and sizes disagree");
    }
}

/// A directory with shards and an index; each pair is a tensor and the file that the index names for it.
fn sharded(shards: &[(&str, &[&str])], weight_map: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, tensors) in shards {
        fs::write(dir.path().join(name), file_of(tensors)).unwrap();
    }
    let map: std::collections::BTreeMap<_, _> = weight_map.iter().copied().collect();
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(dir.path().join(INDEX_FILE), index.to_string()).unwrap();
    dir
}

#[track_caller]
fn dir_refused(dir: &tempfile::TempDir, part: &str) {
    let error = SafetensorsDir::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(part), "expected `{part}` in: {error}");
}

#[test]
fn shards_are_read_through_the_index() {
    let shards: [(&str, &[&str]); 2] = [("1.safetensors", &["a", "b"]), ("2.safetensors", &["c"])];
    let map = [("a", "1.safetensors"), ("b", "1.safetensors"), ("c", "2.safetensors")];
    let dir = sharded(&shards, &map);
    for path in [dir.path().to_owned(), dir.path().join(INDEX_FILE)] {
        let checkpoint = SafetensorsDir::open(path).unwrap();
        let mut names: Vec<&str> = checkpoint.tensors().map(|info| info.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(read_f32(&checkpoint, "c", 0..2), [0.0, 0.0]);
    }
    // One whole file wins over an index, as in Hugging Face's loaders.
    fs::write(dir.path().join(SINGLE_FILE), file_of(&["whole"])).unwrap();
    assert!(SafetensorsDir::open(dir.path()).unwrap().tensor("whole").is_some());
    assert!(SafetensorsDir::open(dir.path().join("2.safetensors")).unwrap().tensor("c").is_some());
}

#[test]
fn an_index_that_its_shards_contradict_is_refused() {
    let one: [(&str, &[&str]); 1] = [("1.safetensors", &["a"])];
    dir_refused(&sharded(&one, &[("a", "2.safetensors")]), "shard 2.safetensors is not there");
    let listed = [("a", "1.safetensors"), ("b", "1.safetensors")];
    dir_refused(&sharded(&one, &listed), "tensor b is not in 1.safetensors");
    let both: [(&str, &[&str]); 2] = [("1.safetensors", &["a", "b"]), ("2.safetensors", &["c", "a"])];
    let map = [("a", "1.safetensors"), ("c", "2.safetensors")];
    dir_refused(&sharded(&both, &map), "tensor a is also in");
    let swapped: [(&str, &[&str]); 2] = [("1.safetensors", &["a"]), ("2.safetensors", &["c"])];
    let map = [("c", "1.safetensors"), ("a", "2.safetensors")];
    dir_refused(&sharded(&swapped, &map), "tensor a is not in 2.safetensors");
    for outside in ["../1.safetensors", "/etc/passwd", "..", "", "x/1.safetensors"] {
        dir_refused(&sharded(&one, &[("a", outside)]), "is no plain file name");
    }
}

#[test]
fn directories_without_a_checkpoint_and_broken_indexes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    dir_refused(&dir, "it has neither model.safetensors nor model.safetensors.index.json");
    fs::write(dir.path().join(INDEX_FILE), "{}").unwrap();
    dir_refused(&dir, "the index: missing field `weight_map`");
    fs::write(dir.path().join(INDEX_FILE), "{\"weight_map\": {\"a\": 1}}").unwrap();
    dir_refused(&dir, "the index: invalid type");
    let entries: Vec<String> = (0..200_001).map(|at| format!("\"{at}\":\"\"")).collect();
    fs::write(dir.path().join(INDEX_FILE), format!("{{\"weight_map\":{{{}}}}}", entries.join(","))).unwrap();
    dir_refused(&dir, "the index: it has more than 200000 tensors");
    assert!(matches!(SafetensorsDir::open(dir.path().join("none")), Err(Error::Io { .. })));
}
