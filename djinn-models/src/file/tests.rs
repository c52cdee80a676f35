//! Reading elements: ranges, runs longer than the scratch, truncation after opening, several threads.

use super::*;
use crate::{StoredType, TensorFile};
use djinn_srg::BlockFormat;
use std::io::Write;

fn stored(name: &str, shape: &[u64], stored: StoredType, offset: u64) -> Stored {
    Stored { info: TensorInfo { name: name.into(), shape: shape.to_vec(), stored, lossless: false }, offset }
}

fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn elements_of_every_rank_are_counted_in_row_major_order() {
    let input = Input::from_bytes("x", f32_bytes((0..25).map(|i| i as f32)));
    let read = |shape: &[u64], run: Range<u64>| {
        let mut out = vec![0; (run.end - run.start) as usize * 4];
        read(&input, &stored("t", shape, StoredType::F32, 4), run, DType::F32, &mut out).unwrap();
        out
    };
    let values = |range: Range<i32>| f32_bytes(range.map(|i| i as f32));
    assert_eq!(read(&[24], 2..5), values(3..6));
    assert_eq!(read(&[6, 4], 3..13), values(4..14));
    assert_eq!(read(&[2, 3, 4], 12..24), values(13..25));
    assert_eq!(read(&[], 0..1), values(1..2));
    assert_eq!(read(&[6, 4], 24..24), values(0..0));
    assert_eq!(read(&[0, 4], 0..0), values(0..0));
    assert_eq!(read(&[1 << 60, 0], 0..0), values(0..0));
}

#[test]
fn conversion_continues_across_runs() {
    let elements = RUN_ELEMENTS + 300;
    let values = (0..elements).map(|i| (i as f32 - 1000.0) / 64.0);
    let input = Input::from_bytes("x", f32_bytes(values.clone()));
    let tensor = stored("t", &[elements], StoredType::F32, 0);
    let mut out = vec![0; (elements - 1) as usize * 2];
    read(&input, &tensor, 1..elements, DType::BF16, &mut out).unwrap();
    let expected: Vec<u8> =
        values.skip(1).flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect();
    assert!(out == expected);
}

#[test]
fn reads_that_cannot_be_are_refused_by_name() {
    let input = Input::from_bytes("x", vec![0; 64]);
    let read = |tensor: &Stored, run: Range<u64>, dtype, bytes| {
        read(&input, tensor, run, dtype, &mut vec![0; bytes]).unwrap_err().to_string()
    };
    let integers = read(&stored("w", &[8], StoredType::F32, 0), 0..8, DType::U32, 32);
    assert!(integers.contains("tensor w as u32"), "{integers}");
    let other = read(&stored("w", &[8], StoredType::Other("IQ1_S"), 0), 0..8, DType::F32, 32);
    assert!(other.contains("IQ1_S of tensor w"), "{other}");
    let inside = read(&stored("w", &[32], StoredType::Blocks(BlockFormat::Q8_0), 0), 0..8, DType::F32, 32);
    assert!(inside.contains("inside a block of Q8_0"), "{inside}");
}

#[test]
#[should_panic(expected = "elements 4..7 of w, which has 6")]
fn elements_past_the_end_are_a_bug() {
    let input = Input::from_bytes("x", vec![0; 64]);
    let _ = read(&input, &stored("w", &[3, 2], StoredType::F32, 0), 4..7, DType::F32, &mut [0; 12]);
}

#[test]
#[should_panic(expected = "bytes of output for 4 elements of w as f16")]
fn an_output_of_another_length_is_a_bug() {
    let input = Input::from_bytes("x", vec![0; 64]);
    let _ = read(&input, &stored("w", &[3, 2], StoredType::F32, 0), 0..4, DType::F16, &mut [0; 16]);
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&f32_bytes([1.0, 2.0, 3.0])).unwrap();
    let input = Input::open(file.path()).unwrap();
    let tensor = stored("w", &[3], StoredType::F32, 0);
    read(&input, &tensor, 0..3, DType::F32, &mut [0; 12]).unwrap();
    file.as_file().set_len(11).unwrap();
    for (dtype, bytes) in [(DType::F32, 12), (DType::F16, 6)] {
        let error = read(&input, &tensor, 0..3, dtype, &mut vec![0; bytes]).unwrap_err().to_string();
        assert!(error.contains("tensor w: the file ends before byte 12"), "{error}");
    }
}

#[test]
fn only_regular_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Input::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    let missing = Input::open(&dir.path().join("missing")).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
}

#[cfg(unix)]
#[test]
fn files_that_are_no_files_are_neither_waited_for_nor_read() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [&fifo, dir.path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
        let whole = read_bounded(path, 10).unwrap_err().to_string();
        assert!(whole.contains("not a regular file"), "{whole}");
        assert_eq!(Input::open(path).unwrap_err().to_string(), whole);
        assert!(read_if_present(path, 10).is_err());
    }
    assert!(read_if_present(&socket, 10).is_err());
    // Nor are they written to, nor what links lead to.
    let (link, target) = (dir.path().join("link"), dir.path().join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for path in [&fifo, &link] {
        assert!(regular::open_to_write(path).is_err(), "{}", path.display());
    }
    assert!(!target.exists() && regular::open_to_write(&target).is_ok());
}

#[test]
fn small_files_are_read_up_to_a_bound() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"0123456789").unwrap();
    assert_eq!(read_bounded(file.path(), 10).unwrap(), b"0123456789");
    assert!(read_bounded(file.path(), 9).unwrap_err().to_string().contains("more than the 9 bytes"));
    // Its length is 0 by its metadata, and it has contents all the same.
    #[cfg(target_os = "linux")]
    assert!(read_bounded("/proc/self/status", 9).is_err());
    let missing = file.path().with_extension("missing");
    assert!(read_if_present(&missing, 10).unwrap().is_none());
    assert!(matches!(read_bounded(&missing, 10), Err(Error::Io { .. })));
}

#[test]
fn errors_stay_on_one_line_whatever_the_file_says() {
    let error = Input::from_bytes("x", Vec::new()).malformed("name `a\nb\u{1b}[31m`".into()).to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
}

#[test]
fn threads_read_one_file_at_once() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf/all_types.gguf");
    let gguf = crate::gguf::Gguf::open(path).unwrap();
    let names = ["matrix.q4_k", "matrix.q6_k", "matrix.q2_k", "matrix.q3_k"];
    let read = |name: &str, row: u64| {
        let mut out = vec![0; 256 * 4];
        gguf.read(name, row * 256..(row + 1) * 256, DType::F32, &mut out).unwrap();
        out
    };
    let expected: Vec<_> = names.iter().map(|name| [read(name, 0), read(name, 1)]).collect();
    std::thread::scope(|scope| {
        for (name, expected) in names.iter().zip(&expected) {
            scope.spawn(move || {
                for i in 0..500 {
                    assert!(read(name, i % 2) == expected[(i % 2) as usize], "{name}, read {i}");
                }
            });
        }
    });
}
