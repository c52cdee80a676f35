//! Packed files give back what was packed, go on after an end at any point, and are refused when they are not whole.

use djinn_models::packed::{PackReport, pack, unpack};
use djinn_models::safetensors::SafetensorsDir;
use djinn_models::{Location, Model, OpenOptions, Result, TensorFile};
use djinn_srg::{DType, lossless_row};
use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Pseudo-random 16-bit numbers.
fn noise(count: usize, seed: u64) -> impl Iterator<Item = u16> {
    let mut state = seed;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u16
    })
}

/// Weights between -2 and 2 with the exponents of bf16, here and there a zero or an infinity.
fn weights(count: usize, seed: u64) -> Vec<u16> {
    let value = |(i, bits): (usize, u16)| match i % 1021 {
        0 => 0,
        1 if i % 2 == 0 => 0x7f80,
        _ => bits & 0x83ff | 0x3c00,
    };
    noise(count, seed).enumerate().map(value).collect()
}

fn bytes(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_le_bytes).collect()
}

struct Made {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn made(name: &'static str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Made {
    Made { name, dtype, shape: shape.to_owned(), bytes }
}

/// Matrices of several bands, of f16 that was bf16, of values that do not pack, and things that are no matrices.
fn tensors() -> Vec<Made> {
    let short = noise(20 * 256, 2).map(|bits| bits & 0x87f8 | 0x3000);
    vec![
        made("large", Dtype::BF16, &[2, 600, 1024], bytes(weights(2 * 600 * 1024, 1))),
        made("converted", Dtype::F16, &[20, 256], bytes(short)),
        made("any", Dtype::BF16, &[40, 128], bytes(noise(40 * 128, 3))),
        made("narrow", Dtype::BF16, &[8, 20], bytes(weights(160, 4))),
        made("vector", Dtype::BF16, &[999], bytes(weights(999, 5))),
        made("wide", Dtype::F32, &[3, 128], bytes(noise(768, 6))),
        made("none", Dtype::BF16, &[0, 128], Vec::new()),
    ]
}

fn write(path: &Path, tensors: &[Made]) {
    let views = tensors.iter().map(|t| {
        (t.name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).expect("shapes and bytes agree"))
    });
    fs::write(path, safetensors::serialize(views, None).expect("it can be written")).unwrap();
}

/// A folder with a directory `model` of these tensors.
fn folder(tensors: &[Made]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir_all(model.join("original")).unwrap();
    fs::write(model.join("config.json"), "{}").unwrap();
    fs::write(model.join("pytorch_model.bin"), "others").unwrap();
    write(&model.join("model.safetensors"), tensors);
    folder
}

fn pack_model(folder: &TempDir) -> Result<PackReport> {
    let location = Location::Directory(folder.path().join("model"));
    pack(&location, &folder.path().join("packed"), 2, &mut |_, _| ())
}

fn packed_file(folder: &TempDir) -> PathBuf {
    folder.path().join("packed/model.safetensors.packed")
}

#[test]
fn encoded_rows_are_read_as_they_are_stored() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    let file = SafetensorsDir::open(packed_file(&folder)).unwrap();
    let mut lossless: Vec<&str> =
        file.tensors().filter(|info| info.lossless).map(|info| info.name.as_str()).collect();
    lossless.sort();
    assert_eq!(lossless, ["converted", "large"]);
    let (form, row) = lossless_row(DType::BF16, 1024).unwrap();
    // A band has 512 rows.
    for rows in [0..1200_usize, 3..4, 509..515, 1023..1025, 512..1024] {
        let elements = rows.start as u64 * 1024..rows.end as u64 * 1024;
        let (mut plain, mut expected) = (vec![0; rows.len() * 2048], vec![0; rows.len() * row.bytes()]);
        file.read("large", elements.clone(), DType::BF16, &mut plain).unwrap();
        for (plain, expected) in plain.chunks(2048).zip(expected.chunks_mut(row.bytes())) {
            assert!(row.encode(form, plain, expected));
        }
        let mut stored = vec![0; expected.len()];
        file.read_stored("large", elements, &mut stored).unwrap();
        assert!(stored == expected, "rows {rows:?}");
    }
}

fn read_all(file: &SafetensorsDir) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for info in file.tensors() {
        let Some(dtype) = info.stored.dtype() else { continue };
        let elements = info.shape.iter().product::<u64>();
        let mut out = vec![0; (elements * dtype.bytes()) as usize];
        file.read(&info.name, 0..elements, dtype, &mut out)?;
        all.push((info.name.clone(), out));
    }
    all.sort();
    Ok(all)
}

#[test]
fn a_packed_directory_is_read_like_the_one_that_it_was_made_from() {
    let folder = folder(&tensors());
    let mut seen = Vec::new();
    let location = Location::Directory(folder.path().join("model"));
    let packed = folder.path().join("packed");
    let report = pack(&location, &packed, 3, &mut |done, total| seen.push((done, total))).unwrap();
    let original = fs::read(folder.path().join("model/model.safetensors")).unwrap();
    assert_eq!(report.left_out, ["original", "pytorch_model.bin"]);
    assert_eq!((report.files, report.original_bytes), (1, original.len() as u64));
    // `large` and `converted`, in 12 bits and the lists of escapes.
    assert_eq!(report.lossless_bytes, 2 * 600 * 1024 * 2 + 20 * 256 * 2);
    let share = report.packed_bytes as f64 / report.original_bytes as f64;
    assert!((0.76..0.79).contains(&share), "{share}");
    assert!(seen.is_sorted() && seen.last() == Some(&(original.len() as u64, original.len() as u64)));
    assert_eq!(fs::read(packed.join("config.json")).unwrap(), b"{}");
    let names: Vec<_> = fs::read_dir(&packed).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing is left behind: {names:?}");

    let plain = SafetensorsDir::open(folder.path().join("model")).unwrap();
    for place in [&packed, &packed_file(&folder)] {
        assert_eq!(read_all(&SafetensorsDir::open(place).unwrap()).unwrap(), read_all(&plain).unwrap());
    }
    let back = folder.path().join("back");
    let unpacked = unpack(&packed, &back, 2, &mut |_, _| ()).unwrap();
    assert_eq!(fs::read(back.join("model.safetensors")).unwrap(), original);
    assert_eq!(fs::read(back.join("config.json")).unwrap(), b"{}");
    assert_eq!(PackReport { left_out: report.left_out.clone(), ..unpacked }, report);
    // Both again, on what is there.
    assert_eq!(pack_model(&folder).unwrap(), report);
    unpack(&packed, &back, 2, &mut |_, _| ()).unwrap();
}

/// Elements of `large`.
fn read_large(place: &Path, elements: Range<u64>) -> Vec<u8> {
    let mut out = vec![0; (elements.end - elements.start) as usize * 2];
    SafetensorsDir::open(place).unwrap().read("large", elements, DType::BF16, &mut out).unwrap();
    out
}

#[test]
fn any_run_of_elements_may_be_read() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    let plain = &tensors()[0].bytes;
    let len = plain.len() as u64 / 2;
    proptest!(ProptestConfig::with_cases(32), |(a in 0..=len, b in 0..=len)| {
        let (start, end) = (a.min(b), a.max(b));
        let read = read_large(&packed_file(&folder), start..end);
        prop_assert!(read == plain[start as usize * 2..end as usize * 2]);
    });
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}.{suffix}", path.display()))
}

/// Packs until some bands are done and ends there, as a kill would.
fn interrupted(folder: &TempDir) {
    let location = Location::Directory(folder.path().join("model"));
    let out = folder.path().join("packed");
    let mut stop = |done, _| assert!(done < 1 << 20, "the end of this attempt");
    let ended = catch_unwind(AssertUnwindSafe(|| pack(&location, &out, 1, &mut stop)));
    assert!(ended.is_err() && !packed_file(folder).exists());
}

/// Changes the first matrix of the model, at the same time by the file's clock or a later one.
fn change(folder: &TempDir, later: bool) {
    let path = folder.path().join("model/model.safetensors");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let mut changed = tensors();
    changed[0].bytes.rotate_left(2);
    write(&path, &changed);
    let time = time + std::time::Duration::from_secs(u64::from(later));
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
}

#[test]
fn an_attempt_that_was_ended_goes_on_where_it_was() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    let whole = fs::read(packed_file(&folder)).unwrap();
    for lost in [0, 1000] {
        fs::remove_file(packed_file(&folder)).unwrap();
        interrupted(&folder);
        // What a crash of the machine loses.
        let partial = suffixed(&packed_file(&folder), "partial");
        let bytes = fs::read(&partial).unwrap();
        fs::write(&partial, &bytes[..bytes.len() - lost]).unwrap();
        pack_model(&folder).unwrap();
        assert!(fs::read(packed_file(&folder)).unwrap() == whole);
        assert!(!partial.exists() && !suffixed(&packed_file(&folder), "journal").exists());
    }
}

#[test]
fn bands_of_an_earlier_attempt_are_kept_only_if_the_file_is_the_same() {
    for (later, kept) in [(false, true), (true, false)] {
        let folder = folder(&tensors());
        interrupted(&folder);
        change(&folder, later);
        pack_model(&folder).unwrap();
        // The time shows a change. Where it shows none, the first band is that of before.
        let first = read_large(&packed_file(&folder), 0..4096);
        assert_eq!(first == tensors()[0].bytes[..8192], kept);
    }
}

#[test]
fn other_files_are_not_overwritten() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    change(&folder, true);
    let error = pack_model(&folder).unwrap_err().to_string();
    assert!(error.contains("holds other weights"), "{error}");
    fs::write(folder.path().join("packed/config.json"), "[]").unwrap();
    let error = pack_model(&folder).unwrap_err().to_string();
    assert!(error.contains("config.json: is another file than the model's"), "{error}");
    let model = folder.path().join("model");
    let error = pack(&Location::Directory(model.clone()), &model, 1, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("where the model is"), "{error}");
}

#[test]
fn what_is_no_plain_checkpoint_is_not_packed() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    let packed = folder.path().join("packed");
    let out = folder.path().join("out");
    for (location, expected) in [
        (Location::Directory(packed), "which is packed, is not supported; djinn unpack"),
        (Location::Gguf("x.gguf".into()), "packing x.gguf is not supported; a directory"),
        (Location::Synthetic("tiny".into()), "packing synthetic:tiny is not supported"),
    ] {
        let error = pack(&location, &out, 1, &mut |_, _| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = unpack(&folder.path().join("model"), &out, 1, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("it has no .packed file"), "{error}");
}

/// A packed file of one small matrix, and the matrix.
fn small() -> (Vec<u8>, Vec<u8>) {
    let plain = bytes(weights(4 * 128, 7));
    let folder = folder(&[made("w", Dtype::BF16, &[4, 128], plain.clone())]);
    pack_model(&folder).unwrap();
    (fs::read(packed_file(&folder)).unwrap(), plain)
}

fn read_small(packed: Vec<u8>) -> Result<Vec<u8>> {
    let file = SafetensorsDir::from_packed_bytes(packed)?;
    let mut out = vec![0; 4 * 128 * 2];
    file.read("w", 0..4 * 128, DType::BF16, &mut out)?;
    Ok(out)
}

#[track_caller]
fn refused(packed: Vec<u8>, part: &str) {
    let error = read_small(packed).unwrap_err().to_string();
    assert!(error.contains(part), "expected `{part}` in: {error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn every_cut_and_every_changed_byte_is_found() {
    let (packed, plain) = small();
    for len in 0..packed.len() {
        refused(packed[..len].to_vec(), "truncated");
    }
    refused([packed.as_slice(), &[0]].concat(), "truncated or corrupt");
    let mut unread = 0;
    for at in 0..packed.len() {
        let mut changed = packed.clone();
        changed[at] ^= 0x40;
        match read_small(changed) {
            Ok(read) => {
                assert!(read == plain, "byte {at}");
                unread += 1;
            }
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
    // Between the header and the matrix.
    assert!(unread < 64, "{unread} bytes are not protected");
}

#[test]
fn other_versions_and_other_files_are_named() {
    let (mut packed, _) = small();
    packed[8] = 1;
    refused(packed.clone(), "version 1 of the packed format, in packed file in memory, is not supported");
    packed[0] = b'X';
    refused(packed, "it is no packed file");
}

#[test]
fn rows_that_no_encoder_writes_are_refused_though_their_hashes_hold() {
    let (packed, _) = small();
    // As docs/packed-format.md says: two bands, the header and the matrix.
    let number = |at: usize| u64::from_le_bytes(packed[at..at + 8].try_into().unwrap()) as usize;
    let (head, bands, table) = (number(24), number(32), number(40));
    assert_eq!((bands, table + 2 * 72 + 32), (2, packed.len()));
    let matrix = (64 + head).next_multiple_of(64)..table;
    assert_eq!(matrix.len(), 4 * 224);
    let seal = |mut packed: Vec<u8>| {
        let hash = blake3::hash(&packed[matrix.clone()]);
        packed[table + 72..table + 104].copy_from_slice(hash.as_bytes());
        let end = packed.len() - 32;
        let hash = blake3::hash(&[&packed[..64], &packed[table..end]].concat());
        packed[end..].copy_from_slice(hash.as_bytes());
        packed
    };
    assert_eq!(seal(packed.clone()), packed);
    let changed = |at: usize, byte: u8| {
        let mut changed = packed.clone();
        changed[at] = byte;
        seal(changed)
    };
    // The first value of the second row becomes an escape that is in no list.
    refused(changed(matrix.start + 224 + 128, 15), "band 1 of 2 is corrupt: row 1: the row has");
    refused(changed(matrix.start + 224 + 192, 255), "row 1: the row's base is 255, at most 241 may be");
    refused(changed(table + 64, 1), "the header does not have its hash");
    refused(changed(table + 72 + 64, 2), "a band is packed in an unknown way");
    refused(changed(table + 72 + 64, 0), "the tensors and the table of bands disagree");
    refused(changed(24, 8), "the header does not have its hash");
    refused(changed(16, packed[16] ^ 1), "the header describes");
    refused(changed(23, 255), "which cannot be packed in");
}

#[test]
fn more_bands_than_a_file_can_have_are_refused() {
    let bands = 300_000_u64;
    let mut prefix = [0; 64];
    prefix[..8].copy_from_slice(b"DJNPACK\n");
    for (at, number) in [(8, 2), (16, 8), (24, 8), (32, bands), (40, 64)] {
        prefix[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let table = vec![0; bands as usize * 72];
    let root = blake3::hash(&[&prefix[..], &table].concat());
    refused([&prefix[..], &table, root.as_bytes()].concat(), "the prefix describes 300000 bands");
}

#[test]
fn what_another_process_writes_is_left_alone() {
    let folder = folder(&tensors());
    pack_model(&folder).unwrap();
    let (packed, back) = (folder.path().join("packed"), folder.path().join("back"));
    fs::create_dir(&back).unwrap();
    for name in ["config.json", "model.safetensors"] {
        let partial = back.join(format!("{name}.partial"));
        fs::write(&partial, "half").unwrap();
        let file = fs::File::open(&partial).unwrap();
        file.lock().unwrap();
        let error = unpack(&packed, &back, 2, &mut |_, _| ()).unwrap_err().to_string();
        assert!(error.contains("another process is writing it"), "{error}");
        assert_eq!(fs::read(&partial).unwrap(), b"half");
        drop(file);
        fs::remove_file(&partial).unwrap();
    }
    unpack(&packed, &back, 2, &mut |_, _| ()).unwrap();
}

#[test]
fn several_runs_at_once_write_whole_files() {
    let folder = folder(&tensors());
    let original = fs::read(folder.path().join("model/model.safetensors")).unwrap();
    pack_model(&folder).unwrap();
    let whole = fs::read(packed_file(&folder)).unwrap();
    let race = |run: &(dyn Fn() -> Result<PackReport> + Sync)| {
        let all =
            || std::thread::scope(|scope| [(); 4].map(|()| scope.spawn(run)).map(|run| run.join().unwrap()));
        for outcome in all() {
            if let Err(error) = outcome {
                assert!(error.to_string().contains("another process is writing it"), "{error}");
            }
        }
    };
    for round in 0..10 {
        let (packed, back) = (format!("packed-{round}"), format!("back-{round}"));
        let [packed, back] = [packed, back].map(|name| folder.path().join(name));
        let location = Location::Directory(folder.path().join("model"));
        race(&|| pack(&location, &packed, 1, &mut |_, _| ()));
        assert!(fs::read(packed.join("model.safetensors.packed")).unwrap() == whole);
        race(&|| unpack(&packed, &back, 1, &mut |_, _| ()));
        assert!(fs::read(back.join("model.safetensors")).unwrap() == original);
    }
}

#[test]
fn an_incomplete_directory_is_not_unpacked() {
    let folder = folder(&tensors());
    let (packed, back) = (folder.path().join("packed"), folder.path().join("back"));
    let refused = |part: &str| {
        let error = unpack(&packed, &back, 2, &mut |_, _| ()).unwrap_err().to_string();
        assert!(error.contains(part) && !back.exists(), "{error}");
    };
    interrupted(&folder);
    refused("model.safetensors.packed.partial, which is not complete, is not supported; djinn pack");
    let (partial, other) =
        (suffixed(&packed_file(&folder), "partial"), packed.join("2.safetensors.packed.partial"));
    fs::rename(partial, &other).unwrap();
    pack_model(&folder).unwrap();
    refused("2.safetensors.packed.partial, which is not complete");
    // One that ended between two shards.
    fs::remove_file(other).unwrap();
    fs::rename(packed_file(&folder), packed.join("1.safetensors.packed")).unwrap();
    let index = r#"{"weight_map": {"large": "1.safetensors", "more": "2.safetensors"}}"#;
    fs::write(packed.join("model.safetensors.index.json"), index).unwrap();
    refused("shard 2.safetensors is not there");
}

#[test]
fn leftovers_are_not_copied_and_a_damaged_packed_file_is_not_kept() {
    let folder = folder(&tensors());
    let model = folder.path().join("model");
    fs::write(model.join("config.json.partial"), "half").unwrap();
    fs::write(model.join("x.safetensors.packed.journal"), "half").unwrap();
    let report = pack_model(&folder).unwrap();
    let left_out = ["config.json.partial", "original", "pytorch_model.bin", "x.safetensors.packed.journal"];
    assert_eq!(report.left_out, left_out);
    let mut bytes = fs::read(packed_file(&folder)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(packed_file(&folder), bytes).unwrap();
    let error = pack_model(&folder).unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(format!("{error}: {source}").contains("is corrupt: its hash differs"), "{error}: {source}");
}

#[test]
fn small_files_are_copied_with_their_folder() {
    let folder = folder(&tensors());
    let model = folder.path().join("model");
    let template = "additional_chat_templates/tool_use.jinja";
    fs::create_dir(model.join("additional_chat_templates")).unwrap();
    fs::write(model.join(template), "t").unwrap();
    fs::write(model.join("notes.txt"), "private").unwrap();
    assert_eq!(pack_model(&folder).unwrap().left_out, ["original", "pytorch_model.bin"]);
    let [packed, back, alone] = ["packed", "back", "alone"].map(|name| folder.path().join(name));
    unpack(&packed, &back, 1, &mut |_, _| ()).unwrap();
    // Of what lies beside a single file, only what the model is opened from.
    let file = Location::Safetensors(model.join("model.safetensors"));
    assert!(pack(&file, &alone, 1, &mut |_, _| ()).unwrap().left_out.is_empty());
    for (place, has_notes) in [(packed, true), (back, true), (alone, false)] {
        assert_eq!(fs::read(place.join(template)).unwrap(), b"t");
        assert!(place.join("config.json").exists());
        assert_eq!(place.join("notes.txt").exists(), has_notes, "{}", place.display());
    }
}

#[test]
fn every_family_has_the_same_weights_packed() {
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let mut found = 0;
    for entry in fs::read_dir(checkpoints).unwrap() {
        let plain = Location::Directory(entry.unwrap().path());
        let folder = tempfile::tempdir().unwrap();
        pack(&plain, folder.path(), 2, &mut |_, _| ()).unwrap();
        let packed = Location::Directory(folder.path().to_owned());
        let [plain, packed] =
            [plain, packed].map(|place| djinn_models::open(&place, &OpenOptions::default()).unwrap());
        for (_, value) in plain.graph.weights() {
            let rows = value.matrix()[0];
            let read = |model: &Model| {
                let mut out = vec![0; value.stored_bytes(0..rows) as usize];
                model.source.read_rows(&value.name, 0..rows, &mut out).unwrap();
                out
            };
            assert!(read(&plain) == read(&packed), "{} of {}", value.name, plain.name);
        }
        found += 1;
    }
    assert!(found > 30, "{found} checkpoints");
}
