//! The fuzz targets' corpus, and thousands of seeded mutations of it: the readers return a value or an error
//! of one line, and whatever opens can be read to its end.

use djinn_models::gguf::Gguf;
use djinn_models::quantised::QuantisedDir;
use djinn_models::safetensors::SafetensorsDir;
use djinn_models::{Error, TensorFile};
use djinn_srg::DType;
use std::path::{Path, PathBuf};

const MUTATIONS_OF_EACH_SEED: u64 = 4000;

/// xorshift64*, so that a failure is found again by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A few changes of the kinds that break parsers: bits, extreme numbers, lost, doubled and foreign bytes.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        // Headers are at the front: half of the changes go there.
        let end = if random.below(2) == 0 { bytes.len().min(200) } else { bytes.len() };
        let at = random.below(end);
        let until = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at.min(until)..until)),
            4 => {
                let copy = bytes[at.min(until)..until].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let extremes = [0, 1, u64::MAX, 1 << 63, 1 << 62, 1 << 32, u64::from(u32::MAX), 1 << 16];
                let number = extremes[random.below(extremes.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
        }
    }
}

/// Reads everything that opened; returns whether the file opened.
fn exercise<F: TensorFile>(opened: Result<F, Error>) -> bool {
    let one_line = |error: Error| {
        let message = error.to_string();
        assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            one_line(error);
            return false;
        }
    };
    for info in file.tensors() {
        assert_eq!(file.tensor(&info.name), Some(info));
        let elements: u64 = info.shape.iter().product();
        for dtype in [DType::F32, DType::BF16] {
            let mut out = vec![0; (elements * dtype.bytes()) as usize];
            if let Err(error) = file.read(&info.name, 0..elements, dtype, &mut out) {
                one_line(error);
            }
        }
    }
    true
}

fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "{} seeds in {}", paths.len(), dir.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

/// Makes the length at the front of a safetensors file fit the changed header, for every second mutation:
/// most would go no further than that length.
fn fit_header_length(original: &[u8], mutant: &mut [u8], seed: u64) {
    let (Some(length), Some(front)) = (original.first_chunk(), mutant.first_chunk::<8>()) else { return };
    let data = original.len().saturating_sub(8).saturating_sub(u64::from_le_bytes(*length) as usize);
    if seed.is_multiple_of(2) && front == length {
        let header = mutant.len().saturating_sub(8 + data) as u64;
        mutant[..8].copy_from_slice(&header.to_le_bytes());
    }
}

/// Gives a packed file of one matrix its hashes anew, for all but every fourth mutation: the others show that hashes
/// are compared.
fn seal(original: &[u8], mutant: &mut [u8], seed: u64) {
    let number = |at: usize| Some(u64::from_le_bytes(*mutant.get(at..)?.first_chunk()?) as usize);
    let (Some(head), Some(table), Some(end)) = (number(24), number(40), mutant.len().checked_sub(32)) else {
        return;
    };
    if seed.is_multiple_of(4) || mutant.len() != original.len() {
        return;
    }
    let matrix = head.saturating_add(64).checked_next_multiple_of(64).unwrap_or(usize::MAX);
    for (i, range) in [(0, 64..head.saturating_add(64)), (1, matrix..table)] {
        let hash = mutant.get(range).map(blake3::hash);
        let entry = table.saturating_add(i * 72)..table.saturating_add(i * 72 + 32);
        if let (Some(hash), Some(entry)) = (hash, mutant.get_mut(entry)) {
            entry.copy_from_slice(hash.as_bytes());
        }
    }
    if let (Some(prefix), Some(table)) = (mutant.get(..64), mutant.get(table..end)) {
        let hash = blake3::Hasher::new().update(prefix).update(table).finalize();
        mutant[end..].copy_from_slice(hash.as_bytes());
    }
}

/// Runs seeds and mutations; how many of them opened, to show that mutations reach past the header.
fn run(target: &str, repair: impl Fn(&[u8], &mut [u8], u64), open: impl Fn(Vec<u8>) -> bool) -> u64 {
    let mut opened = 0;
    for (path, bytes) in seeds(target) {
        opened += u64::from(open(bytes.clone()));
        for seed in 1..=MUTATIONS_OF_EACH_SEED {
            let mut mutant = bytes.clone();
            mutate(&mut mutant, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            repair(&bytes, &mut mutant, seed);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open(mutant)));
            opened += u64::from(result.unwrap_or_else(|_| panic!("{}, mutation {seed}", path.display())));
        }
    }
    opened
}

#[test]
fn gguf_files_never_panic() {
    let opened = run("gguf", |_, _, _| (), |bytes| exercise(Gguf::from_bytes(bytes)));
    assert!(opened > 2000, "only {opened} mutants opened");
}

#[test]
fn safetensors_files_never_panic() {
    let opened = run("safetensors", fit_header_length, |bytes| exercise(SafetensorsDir::from_bytes(bytes)));
    assert!(opened > 300, "only {opened} mutants opened");
}

#[test]
fn quantised_files_never_panic() {
    let weights = |bytes: &[u8]| bytes.iter().position(|&byte| byte == 0).map_or(bytes.len(), |at| at + 1);
    let repair = |original: &[u8], mutant: &mut [u8], seed| {
        let at = weights(mutant);
        fit_header_length(&original[weights(original)..], &mut mutant[at..], seed);
    };
    let open = |bytes: Vec<u8>| {
        let at = weights(&bytes);
        let config = &bytes[..at.saturating_sub(1)];
        exercise(QuantisedDir::from_bytes(config, bytes[at..].to_vec()))
    };
    let opened = run("quantised", repair, open);
    assert!(opened > 1000, "only {opened} mutants opened");
}

#[test]
fn packed_files_never_panic() {
    let opened = run("packed", seal, |bytes| exercise(SafetensorsDir::from_packed_bytes(bytes)));
    assert!(opened > 2000, "only {opened} mutants opened");
}
