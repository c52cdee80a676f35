//! A file from GGML's own writer, and files that must be refused.

use super::*;
use crate::StoredType;

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/gguf/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A header written by hand.
#[derive(Clone)]
struct Writer(Vec<u8>);

impl Writer {
    fn new(version: u32, tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(keys)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, n: u32) -> Self {
        self.raw(&n.to_le_bytes())
    }

    fn u64(self, n: u64) -> Self {
        self.raw(&n.to_le_bytes())
    }

    fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).raw(s.as_bytes())
    }

    /// Dimensions innermost first, as in the file.
    fn tensor(self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let entry = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(entry, |w, &dim| w.u64(dim)).u32(type_id).u64(offset)
    }

    fn data(mut self, bytes: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self
    }

    #[track_caller]
    fn refused(self, part: &str) {
        let error = Gguf::from_bytes(self.0).unwrap_err().to_string();
        assert!(error.contains(part), "expected `{part}` in: {error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[track_caller]
    fn opens(self) -> Gguf {
        Gguf::from_bytes(self.0).unwrap()
    }
}

#[test]
fn metadata_of_every_type_is_read() {
    let gguf = Gguf::from_bytes(fixture("all_types.gguf")).unwrap();
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.metadata().len(), 20);
    assert_eq!(gguf.get("test.u8"), Some(&Value::U8(200)));
    assert_eq!(gguf.get("test.i8"), Some(&Value::I8(-100)));
    assert_eq!(gguf.get("test.u16"), Some(&Value::U16(60000)));
    assert_eq!(gguf.get("test.i16"), Some(&Value::I16(-30000)));
    assert_eq!(gguf.get("test.u32"), Some(&Value::U32(4_000_000_000)));
    assert_eq!(gguf.get("test.i32"), Some(&Value::I32(-2_000_000_000)));
    assert_eq!(gguf.get("test.u64"), Some(&Value::U64(1 << 63)));
    assert_eq!(gguf.get("test.i64"), Some(&Value::I64(-(1 << 62))));
    assert_eq!(gguf.get("test.f32"), Some(&Value::F32(1.5)));
    assert_eq!(gguf.get("test.f64"), Some(&Value::F64(0.1)));
    assert_eq!(gguf.get("test.true"), Some(&Value::Bool(true)));
    assert_eq!(gguf.get("test.false"), Some(&Value::Bool(false)));
    assert_eq!(gguf.get("test.bools"), Some(&Value::Array(Array::Bool(vec![true, false]))));
    assert_eq!(gguf.get("test.bytes"), Some(&Value::Array(Array::U8(vec![0, 127, 255]))));
    assert_eq!(gguf.get("test.u16s"), Some(&Value::Array(Array::U16(vec![1, 65535]))));
}

#[test]
fn accessors_convert_and_name_the_key_when_they_cannot() {
    let gguf = Gguf::from_bytes(fixture("all_types.gguf")).unwrap();
    assert_eq!(gguf.get_str("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.get_str("test.string").unwrap(), "Dschinn – جِنّ");
    assert_eq!(gguf.get_array_str("test.strings").unwrap(), ["<s>", "", "▁the"]);
    assert_eq!(gguf.get_array_f32("test.floats").unwrap(), [0.0, -1.5, 3.25]);
    assert_eq!(gguf.get_array_int("test.ints").unwrap(), [1, -2, 3]);
    assert_eq!(gguf.get_array_int("test.u16s").unwrap(), [1, 65535]);
    assert_eq!(gguf.get_u32("test.u8").unwrap(), 200);
    assert_eq!(gguf.get_u64("test.u64").unwrap(), 1 << 63);
    assert_eq!(gguf.get_f32("test.f64").unwrap(), 0.1);
    assert!(gguf.get_bool("test.true").unwrap());
    assert_eq!(gguf.optional("test.u8", Gguf::get_u32).unwrap(), Some(200));
    assert_eq!(gguf.optional("test.none", Gguf::get_u32).unwrap(), None);
    assert!(gguf.optional("test.string", Gguf::get_u32).is_err());

    let message = |result: Result<u32>| result.unwrap_err().to_string();
    let missing = message(gguf.get_u32("test.none"));
    assert!(missing.contains("`test.none`: is missing; an integer"), "{missing}");
    let negative = message(gguf.get_u32("test.i8"));
    assert!(negative.contains("`test.i8`: is -100, not an integer"), "{negative}");
    let large = message(gguf.get_u32("test.u64"));
    assert!(large.contains("is 9223372036854775808, not an integer from 0"), "{large}");
    let text = message(gguf.get_u32("test.string"));
    assert!(text.contains("is the text `Dschinn"), "{text}");
    let array = gguf.get_str("test.strings").unwrap_err().to_string();
    assert!(array.contains("is an array of 3 strings, not a string"), "{array}");
}

#[test]
fn tensors_of_every_type_decode_to_what_the_reference_reads() {
    let gguf = Gguf::from_bytes(fixture("all_types.gguf")).unwrap();
    let mut infos: Vec<&TensorInfo> = gguf.tensors().collect();
    infos.sort_by_key(|info| &info.name);
    assert_eq!(infos.len(), 21);
    let mut decoded = Vec::new();
    for info in infos.iter().filter(|info| !matches!(info.stored, StoredType::Other(_))) {
        let elements: u64 = info.shape.iter().product();
        let mut values = vec![0; elements as usize * 4];
        gguf.read(&info.name, 0..elements, DType::F32, &mut values).unwrap();
        decoded.extend(values);
    }
    assert!(decoded == fixture("all_types.f32"));

    let shape = |name: &str| gguf.tensor(name).unwrap().shape.clone();
    assert_eq!(shape("vector.f32"), [64]);
    assert_eq!(shape("matrix.f16"), [2, 64]);
    assert_eq!(shape("matrix.q4_k"), [2, 256]);
    assert_eq!(shape("cube.f32"), [2, 3, 4]);
    assert!(gguf.tensor("none").is_none());
}

#[test]
fn tensors_without_a_decoder_are_listed_and_refused_on_reading() {
    let gguf = Gguf::from_bytes(fixture("all_types.gguf")).unwrap();
    for (name, type_name, elements) in [("other.iq2_s", "IQ2_S", 256), ("indices.i32", "I32", 8)] {
        let info = gguf.tensor(name).unwrap();
        assert_eq!(info.stored, StoredType::Other(type_name));
        let error = gguf.read(name, 0..elements as u64, DType::F32, &mut vec![0; elements * 4]).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains(type_name)), "{error}");
    }
    let missing = gguf.read("none", 0..1, DType::F32, &mut [0; 4]).unwrap_err();
    assert!(matches!(&missing, Error::MissingTensor { name, .. } if name == "none"), "{missing}");
}

#[test]
fn every_truncation_is_refused() {
    let whole = fixture("all_types.gguf");
    for len in 0..whole.len() {
        let error = Gguf::from_bytes(whole[..len].to_vec()).expect_err("a prefix must not open").to_string();
        assert!(error.contains("truncated") || error.contains("do not fit"), "{len} bytes: {error}");
    }
}

#[test]
fn a_file_without_tensors_opens() {
    assert_eq!(Writer::new(2, 0, 0).opens().tensors().count(), 0);
    let gguf = Writer::new(3, 1, 0).tensor("empty", &[4, 0], 0, 0).opens();
    assert_eq!(gguf.tensor("empty").unwrap().shape, [0, 4]);
}

#[test]
fn other_kinds_of_file_are_refused_by_name() {
    Writer(b"GGJT".to_vec()).u32(3).refused("is no GGUF file");
    Writer::new(1, 0, 0).refused("GGUF version 1 is not supported");
    Writer::new(4, 0, 0).refused("GGUF version 4 is not supported");
    Writer::new(3u32.swap_bytes(), 0, 0).refused("a big-endian GGUF file");
    let split = Writer::new(3, 0, 1).str("split.count").u32(2).raw(&3u16.to_le_bytes());
    split.refused("split into 3 files is not supported; join them first");
    Writer::new(3, 0, 1).str("split.count").u32(2).raw(&1u16.to_le_bytes()).opens();
    Writer::new(3, 1, 0).tensor("t", &[32], 4, 0).data(64).refused("GGML type 4 of tensor t");
}

#[test]
fn absurd_counts_and_lengths_are_refused_before_allocating() {
    Writer::new(3, u64::MAX, 0).refused("tensors: 18446744073709551615");
    Writer::new(3, 0, u64::MAX / 13).refused("metadata keys");
    Writer::new(3, 0, 2).str("a").u32(0).raw(&[1]).refused("metadata keys: 2");
    Writer::new(3, 0, 1).u64(u64::MAX).data(64).refused("a metadata key: 18446744073709551615 at byte 32");
    Writer::new(3, 0, 1)
        .str("k")
        .u32(8)
        .u64(1 << 60)
        .data(64)
        .refused("metadata key `k`: 1152921504606846976");
    for (type_id, count) in
        [(0, 1u64 << 62), (12, 1 << 61), (12, 1 << 63), (8, 1 << 61), (9, 1 << 61), (7, 99)]
    {
        let array = Writer::new(3, 0, 1).str("k").u32(9).u32(type_id).u64(count).data(64);
        array.refused(&format!("metadata key `k`: {count}"));
    }
}

#[test]
fn more_tensors_than_any_model_has_are_refused() {
    let many = |count: usize| Writer::new(3, count as u64, 0).raw(&vec![0; count * 24]);
    many(MAX_TENSORS).refused("ends at byte");
    many(MAX_TENSORS + 1).refused("it has 200001 tensors, more than 200000");
}

#[test]
fn more_keys_than_any_model_has_are_refused() {
    let many = |count: u64| {
        (0..count).fold(Writer::new(3, 0, count), |file, key| file.str(&key.to_string()).u32(0).raw(&[0]))
    };
    assert_eq!(many(1000).opens().metadata().len(), 1000);
    many((1 << 16) + 1).refused("it has 65537 metadata keys, more than 65536");
}

#[test]
fn malformed_metadata_is_refused() {
    Writer::new(3, 0, 1).str("k").u32(13).data(64).refused("metadata key `k` has the unknown type 13");
    Writer::new(3, 0, 1).str("k").u32(9).u32(13).u64(0).refused("an array of the unknown type 13");
    Writer::new(3, 0, 1).str("k").u32(7).raw(&[2]).refused("a boolean is 2");
    Writer::new(3, 0, 1).str("k").u32(8).u64(3).raw(b"a\xffb").refused("not UTF-8 at byte 46");
    let twice = Writer::new(3, 0, 2).str("k\n").u32(0).raw(&[1]).str("k\n").u32(0).raw(&[1]);
    twice.refused("metadata key `k\\n` occurs twice");
    for (alignment, good) in [(0u32, false), (24, false), (1, true), (64, true), (1 << 31, false)] {
        let file = Writer::new(3, 0, 1).str("general.alignment").u32(4).u32(alignment);
        if good {
            file.opens();
        } else {
            file.refused(&format!("`general.alignment`: is {alignment}, not a power of two"));
        }
    }
}

#[test]
fn arrays_nest_up_to_a_limit() {
    let nested = |depth: u32| {
        let open = Writer::new(3, 0, 1).str("k").u32(9);
        (1..depth).fold(open, |w, _| w.u32(9).u64(1)).u32(4).u64(1).u32(7)
    };
    let gguf = nested(2).opens();
    assert_eq!(gguf.get("k"), Some(&Value::Array(Array::Array(vec![Array::U32(vec![7])]))));
    nested(4).opens();
    nested(5).refused("arrays nest deeper than 4");
    nested(100_000).refused("arrays nest deeper than 4");
}

#[test]
fn malformed_tensors_are_refused() {
    let one =
        |dims: &[u64], type_id, offset| Writer::new(3, 1, 0).tensor("t", dims, type_id, offset).data(64);
    one(&[16], 0, 0).opens();
    one(&[17], 0, 0).refused("tensor t ends at byte");
    one(&[8], 0, 32).opens();
    one(&[9], 0, 32).refused("tensor t ends at byte");
    one(&[8], 0, 16).refused("no multiple of the alignment 32");
    one(&[8], 0, u64::MAX - 31).refused("tensor t ends at byte 18446744073709551615");
    one(&[1, 1, 1, 1, 1], 0, 0).refused("tensor t has 5 dimensions");
    one(&[], u32::MAX, 0).refused("GGML type 4294967295");
    one(&[1 << 32, 1 << 32], 0, 0).refused("too large");
    one(&[1 << 62], 0, 0).refused("too large");
    one(&[33], 8, 0).refused("no whole number of Q8_0 blocks");
    one(&[16, 2], 8, 0).refused("no whole number of Q8_0 blocks");
    one(&[128, 2], 12, 0).refused("no whole number of Q4_K blocks");
    Writer::new(3, 1, 0).tensor("a\u{7}", &[1], 0, 0).data(64).refused("control characters");
}

#[test]
fn tensors_must_not_share_bytes_or_names() {
    let two = |a: (&str, u64), b: (&str, u64)| {
        Writer::new(3, 2, 0).tensor(a.0, &[9], 0, a.1).tensor(b.0, &[8], 0, b.1).data(96)
    };
    two(("a", 0), ("b", 64)).opens();
    two(("a", 0), ("b", 32)).refused("tensors a and b overlap");
    two(("b", 32), ("a", 0)).opens();
    two(("a", 0), ("b", 0)).refused("overlap");
    two(("a", 0), ("a", 64)).refused("tensor a is listed twice");
}

#[test]
fn a_header_longer_than_the_window_is_read() {
    let text: String = (0..200_000u32).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    let gguf = Writer::new(3, 0, 3)
        .str("odd")
        .u32(0)
        .raw(&[1])
        .str("long")
        .u32(8)
        .str(&text)
        .str("after")
        .u32(4)
        .u32(7)
        .opens();
    assert_eq!(gguf.get_str("long").unwrap(), text);
    assert_eq!(gguf.get_u32("after").unwrap(), 7);
}
