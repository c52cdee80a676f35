//! Packs one file, resuming an earlier attempt, and unpacks it.

use super::bands::{self, Band, Packing};
use super::index::{self, ENTRY_BYTES, Entry, Index, PREFIX_BYTES, Prefix};
use super::parallel::in_order;
use super::partial::{Partial, remove};
use super::source::PackedSource;
use super::suffixed;
use crate::file::{Input, Source, read_if_present, regular};
use crate::{Error, Result, safetensors};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The suffix of the name of an incomplete file's journal.
pub(super) const JOURNAL: &str = "journal";
const JOURNAL_MAGIC: [u8; 8] = *b"DJNJRNL\n";
/// Magic, length, time of the last change, hash of the header.
const JOURNAL_HEAD: usize = 56;

/// Called for each finished run of the safetensors file's bytes.
pub(super) type Tick<'a> = &'a mut dyn FnMut(u64);

/// What a packed file holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) original: u64,
    pub(super) packed: u64,
    /// Bytes of the safetensors file that are stored in 12 bits a value.
    pub(super) lossless: u64,
}

impl Packed {
    fn of(index: &Index, packed: u64) -> Packed {
        let lossless = index.bands.iter().zip(&index.entries);
        let lossless = lossless.filter(|(_, entry)| entry.packing == Packing::Lossless);
        let lossless = lossless.map(|(band, _)| band.bytes as u64).sum();
        Packed { original: index.original_bytes, packed, lossless }
    }
}

/// A safetensors file that is being packed.
struct Work {
    input: Input,
    bands: Vec<Band>,
    head_bytes: u64,
}

/// Packs the safetensors file `from` into `to`. An existing `to` is kept if it is `from`'s and intact.
pub(super) fn pack(from: &Path, to: &Path, threads: usize, tick: Tick<'_>) -> Result<Packed> {
    let journal = suffixed(to, JOURNAL);
    let Some(partial) = Partial::open(to)? else {
        let packed = PackedSource::open(Input::open(to)?)?;
        refuse_others(packed.index(), from, to, Some(&packed), threads, tick)?;
        remove(&journal)?;
        return Ok(Packed::of(packed.index(), length(to)?));
    };
    let input = Input::open(from)?;
    let tensors = safetensors::tensors_of(&input)?;
    let total = input.source.len();
    let head_bytes = tensors.first().map_or(total, |first| first.offset);
    let bands = bands::cut(&tensors, total, u64::MAX).expect("any number of bands may be");
    let work = Work { input, bands, head_bytes };
    let mut attempt = Attempt::open(&work, from, partial, &journal, tick)?;
    let first = attempt.entries.len();
    in_order(
        threads,
        first..work.bands.len(),
        |band| work.pack(band),
        |band, (entry, bytes)| {
            attempt.append(entry, &bytes)?;
            tick(work.bands[band].bytes as u64);
            Ok(())
        },
    )?;
    attempt.finish(&work)?;
    remove(&journal)?;
    let index = Index::read(&Input::open(to)?)?;
    Ok(Packed::of(&index, length(to)?))
}

impl Work {
    fn pack(&self, band: usize) -> Result<(Entry, Vec<u8>)> {
        let layout = &self.bands[band];
        let mut plain = vec![0; layout.bytes];
        self.input.read(&mut plain, layout.start, format_args!("band {band}"))?;
        let original = blake3::hash(&plain);
        let Some(packed) = layout.encode(&plain) else {
            return Ok((Entry { packed: original, original, packing: Packing::Plain }, plain));
        };
        let mut back = vec![0; plain.len()];
        let decoded = layout.decode(Packing::Lossless, &packed, &mut back);
        assert!(decoded.is_ok() && back == plain, "band {band} of {:?} does not come back", self.input);
        let entry = Entry { packed: blake3::hash(&packed), original, packing: Packing::Lossless };
        Ok((entry, packed))
    }
}

/// An incomplete packed file, and the journal of its bands.
struct Attempt {
    partial: Partial,
    journal: File,
    journal_path: PathBuf,
    entries: Vec<Entry>,
    /// Offset of the next band.
    next: u64,
}

impl Attempt {
    /// Continues after the bands that an earlier attempt wrote from the same file and that match their hashes.
    fn open(work: &Work, from: &Path, partial: Partial, journal: &Path, tick: Tick<'_>) -> Result<Attempt> {
        let head = work.journal_head(from)?;
        let most = (JOURNAL_HEAD + work.bands.len() * ENTRY_BYTES) as u64;
        let written = read_if_present(journal, most).ok().flatten().unwrap_or_default();
        let (mut entries, mut next) = (Vec::new(), PREFIX_BYTES);
        if let Some(listed) = written.strip_prefix(&head) {
            let stored = Input::open(partial.path())?;
            for (bytes, band) in listed.as_chunks().0.iter().zip(&work.bands) {
                let Some((entry, following)) = is_stored(&stored, next, bytes, band) else { break };
                entries.push(entry);
                next = following;
                tick(band.bytes as u64);
            }
        }
        partial.set_len(next)?;
        let file = regular::open_to_write(journal)?;
        file.set_len(0).map_err(|source| Error::Io { path: journal.to_owned(), source })?;
        let mut attempt = Attempt { partial, journal: file, journal_path: journal.to_owned(), entries, next };
        let listed: Vec<u8> = attempt.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        attempt.note(&[&head[..], &listed].concat())?;
        Ok(attempt)
    }

    fn append(&mut self, entry: Entry, bytes: &[u8]) -> Result<()> {
        let next = index::after(self.next, bytes.len()).expect("files are shorter than 2^64 bytes");
        self.partial.write_at(self.next, bytes)?;
        self.note(&entry.to_bytes())?;
        self.entries.push(entry);
        self.next = next;
        Ok(())
    }

    /// Appends to the journal.
    fn note(&mut self, bytes: &[u8]) -> Result<()> {
        let noted = self.journal.write_all(bytes);
        noted.map_err(|source| Error::Io { path: self.journal_path.clone(), source })
    }

    /// Writes table and prefix, and gives the file its name.
    fn finish(mut self, work: &Work) -> Result<()> {
        let prefix = Prefix {
            original_bytes: work.input.source.len(),
            head_bytes: work.head_bytes,
            bands: self.entries.len() as u64,
            table: self.next,
        };
        let prefix = prefix.to_bytes();
        let table: Vec<u8> = self.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        self.partial.write_at(self.next, &table)?;
        self.partial.write_at(self.next + table.len() as u64, index::root(&prefix, &table).as_bytes())?;
        self.partial.write_at(0, &prefix)?;
        self.partial.finish()
    }
}

/// The entry of a band at `offset` and the offset after it, if its bytes are there.
fn is_stored(stored: &Input, offset: u64, entry: &[u8; ENTRY_BYTES], band: &Band) -> Option<(Entry, u64)> {
    let entry = Entry::from_bytes(entry)?;
    let mut bytes = vec![0; band.packed_bytes(entry.packing)?];
    stored.source.read_exact_at(&mut bytes, offset).ok()?;
    let next = index::after(offset, bytes.len())?;
    (blake3::hash(&bytes) == entry.packed).then_some((entry, next))
}

impl Work {
    /// The beginning of this file's journal. Another length, time or header means another file.
    fn journal_head(&self, from: &Path) -> Result<[u8; JOURNAL_HEAD]> {
        let meta = fs::metadata(from).map_err(|source| Error::Io { path: from.to_owned(), source })?;
        let since = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since.map_or(0, |time| time.as_nanos() as u64);
        let mut header = vec![0; self.head_bytes as usize];
        self.input.read(&mut header, 0, format_args!("the header"))?;
        let mut head = [0; JOURNAL_HEAD];
        head[..8].copy_from_slice(&JOURNAL_MAGIC);
        head[8..16].copy_from_slice(&meta.len().to_le_bytes());
        head[16..24].copy_from_slice(&modified.to_le_bytes());
        head[24..].copy_from_slice(blake3::hash(&header).as_bytes());
        Ok(head)
    }
}

/// Unpacks `from` into the safetensors file `to`, and compares every band with its hash.
pub(super) fn unpack(from: &Path, to: &Path, threads: usize, tick: Tick<'_>) -> Result<Packed> {
    let packed = Input::open(from)?;
    let bytes = packed.source.len();
    let source = PackedSource::open(packed)?;
    let index = source.index();
    let report = Packed::of(index, bytes);
    let Some(mut partial) = Partial::open(to)? else {
        refuse_others(index, to, to, None, threads, tick)?;
        return Ok(report);
    };
    partial.set_len(0)?;
    in_order(
        threads,
        0..index.bands.len(),
        |band| {
            let layout = &index.bands[band];
            let mut plain = vec![0; layout.bytes];
            let read = source.read_exact_at(&mut plain, layout.start);
            read.map_err(|source| Error::Io { path: from.to_owned(), source })?;
            match blake3::hash(&plain) == index.entries[band].original {
                true => Ok(plain),
                false => Err(Error::Malformed {
                    path: from.to_owned(),
                    detail: format!("band {band} does not unpack to what was packed"),
                }),
            }
        },
        |band, plain| {
            partial.write_at(index.bands[band].start, &plain)?;
            tick(plain.len() as u64);
            Ok(())
        },
    )?;
    partial.finish()?;
    Ok(report)
}

/// Compares a safetensors file with the packed one, whose own bytes are compared with their hashes if `packed` is
/// given. If the two differ, the error names `there`.
fn refuse_others(
    index: &Index,
    file: &Path,
    there: &Path,
    packed: Option<&PackedSource>,
    threads: usize,
    tick: Tick<'_>,
) -> Result<()> {
    let others = || Error::Malformed {
        path: there.to_owned(),
        detail: "holds other weights; remove it, or choose another directory".to_owned(),
    };
    let input = Input::open(file)?;
    if input.source.len() != index.original_bytes {
        return Err(others());
    }
    in_order(
        threads,
        0..index.bands.len(),
        |band| {
            let layout = &index.bands[band];
            let mut plain = vec![0; layout.bytes];
            input.read(&mut plain, layout.start, format_args!("band {band}"))?;
            if blake3::hash(&plain) != index.entries[band].original {
                return Err(others());
            }
            let intact = packed.map_or(Ok(()), |packed| packed.check(band));
            intact.map_err(|source| Error::Io { path: there.to_owned(), source })
        },
        |band, ()| {
            tick(index.bands[band].bytes as u64);
            Ok(())
        },
    )
}

fn length(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), source })?.len())
}
