//! The parts of a packed file around its bands: a prefix of fixed length, and the table of bands at the end.

use super::bands::{self, BAND_BYTES, Band, Packing};
use crate::file::{Input, Source, Stored};
use crate::safetensors::{self, MAX_TENSORS};
use crate::{Error, Result};
use std::io;

pub(super) const MAGIC: [u8; 8] = *b"DJNPACK\n";
/// The only version that is written and read.
pub(super) const VERSION: u32 = 2;
pub(super) const PREFIX_BYTES: u64 = 64;
/// Bands begin at multiples of this.
const ALIGN: u64 = 64;
pub(super) const ENTRY_BYTES: usize = 72;
const HASH_BYTES: u64 = 32;

/// A band as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Of its bytes in the packed file.
    pub(super) packed: blake3::Hash,
    /// Of its bytes in the safetensors file.
    pub(super) original: blake3::Hash,
    pub(super) packing: Packing,
}

impl Entry {
    pub(super) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..32].copy_from_slice(self.packed.as_bytes());
        bytes[32..64].copy_from_slice(self.original.as_bytes());
        bytes[64] = match self.packing {
            Packing::Plain => 0,
            Packing::Lossless => 1,
        };
        bytes
    }

    /// `None` for an unknown packing.
    pub(super) fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Entry> {
        let hash = |at: usize| blake3::Hash::from_slice(&bytes[at..at + 32]).ok();
        let packing = match bytes[64..] {
            [0, 0, 0, 0, 0, 0, 0, 0] => Packing::Plain,
            [1, 0, 0, 0, 0, 0, 0, 0] => Packing::Lossless,
            _ => return None,
        };
        Some(Entry { packed: hash(0)?, original: hash(32)?, packing })
    }
}

/// The first [`PREFIX_BYTES`] of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) original_bytes: u64,
    /// Those before the first tensor.
    pub(super) head_bytes: u64,
    pub(super) bands: u64,
    /// Where the table begins.
    pub(super) table: u64,
}

impl Prefix {
    pub(super) fn to_bytes(self) -> [u8; PREFIX_BYTES as usize] {
        let mut bytes = [0; PREFIX_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let numbers = [self.original_bytes, self.head_bytes, self.bands, self.table];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[16 + at * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn read(input: &Input) -> Result<(Prefix, [u8; PREFIX_BYTES as usize])> {
        let mut bytes = [0; PREFIX_BYTES as usize];
        input.read(&mut bytes, 0, format_args!("the prefix"))?;
        if bytes[..8] != MAGIC {
            return Err(input.malformed("it is no packed file: its first bytes are others".to_owned()));
        }
        let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if version != VERSION {
            return Err(Error::Unsupported {
                what: format!("version {version} of the packed format, in {},", input.path.display()),
                remedy: format!(
                    "this build reads version {VERSION}; pack the model again, or use a newer build"
                ),
            });
        }
        let number = |at: usize| {
            let bytes = bytes[16 + at * 8..].first_chunk().expect("the prefix has room for 6 numbers");
            u64::from_le_bytes(*bytes)
        };
        let prefix =
            Prefix { original_bytes: number(0), head_bytes: number(1), bands: number(2), table: number(3) };
        Ok((prefix, bytes))
    }

    /// Refuses sizes that no packed file has, before memory is allocated for them.
    fn check(&self, input: &Input) -> Result<()> {
        let Prefix { original_bytes, bands, .. } = *self;
        let file_bytes = input.source.len();
        // Packed rows have three quarters of their bytes at least.
        if original_bytes / 2 > file_bytes {
            return Err(input.malformed(format!(
                "the prefix describes a file of {original_bytes} bytes, which cannot be packed in {file_bytes}"
            )));
        }
        // Header and tensors have whole bands, and a last one.
        let most = original_bytes / bands::MIN_BAND_BYTES + MAX_TENSORS as u64 + 1;
        if bands > most {
            return Err(input.malformed(format!("the prefix describes {bands} bands, more than {most}")));
        }
        Ok(())
    }
}

/// The hash at the end of a packed file.
pub(super) fn root(prefix: &[u8], table: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update(prefix).update(table).finalize()
}

/// Where the band after one at `offset` with `bytes` begins.
pub(super) fn after(offset: u64, bytes: usize) -> Option<u64> {
    offset.checked_add(bytes as u64)?.checked_next_multiple_of(ALIGN)
}

/// The places of everything in a packed file.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) original_bytes: u64,
    pub(super) bands: Vec<Band>,
    pub(super) entries: Vec<Entry>,
    /// Offset of each band in the packed file.
    pub(super) offsets: Vec<u64>,
}

impl Index {
    /// Reads and checks prefix, table and the safetensors file's header.
    ///
    /// # Errors
    /// A file that is not a packed file, truncated, corrupt or of another version.
    pub(super) fn read(input: &Input) -> Result<Index> {
        let (prefix, prefix_bytes) = Prefix::read(input)?;
        let file_bytes = input.source.len();
        let table_bytes = prefix.bands.checked_mul(ENTRY_BYTES as u64);
        let end = table_bytes.and_then(|bytes| prefix.table.checked_add(bytes)?.checked_add(HASH_BYTES));
        let (Some(table_bytes), true) = (table_bytes, end == Some(file_bytes)) else {
            let claimed = end.map_or("more than 2^64".to_owned(), |end| end.to_string());
            return Err(input.malformed(format!(
                "the prefix describes {claimed} bytes, the file has {file_bytes}; it is truncated or corrupt"
            )));
        };
        prefix.check(input)?;
        let mut table = vec![0; table_bytes as usize];
        input.read(&mut table, prefix.table, format_args!("the table of bands"))?;
        let mut hash = [0; HASH_BYTES as usize];
        input.read(&mut hash, prefix.table + table_bytes, format_args!("the table's hash"))?;
        if root(&prefix_bytes, &table) != blake3::Hash::from_bytes(hash) {
            return Err(input.malformed("prefix and table do not have their hash; it is corrupt".to_owned()));
        }
        let entries: Option<Vec<Entry>> = table.as_chunks().0.iter().map(Entry::from_bytes).collect();
        let entries =
            entries.ok_or_else(|| input.malformed("a band is packed in an unknown way".to_owned()))?;
        let head = head(input, &prefix, &entries)?;
        let tensors = tensors(input, head, prefix.original_bytes)?;
        let cut = bands::cut(&tensors, prefix.original_bytes, prefix.bands);
        let offsets = cut.as_ref().and_then(|bands| offsets(bands, &entries, prefix.table));
        match (cut, offsets) {
            (Some(bands), Some(offsets)) => {
                Ok(Index { original_bytes: prefix.original_bytes, bands, entries, offsets })
            }
            _ => Err(input.malformed("the tensors and the table of bands disagree".to_owned())),
        }
    }
}

/// The safetensors file's header, whose bands are plain and contiguous.
fn head(input: &Input, prefix: &Prefix, entries: &[Entry]) -> Result<Vec<u8>> {
    let room = prefix.table.saturating_sub(PREFIX_BYTES).min(safetensors::MAX_HEADER_BYTES + 8);
    if prefix.head_bytes > room.min(prefix.original_bytes) {
        return Err(input.malformed(format!("its header of {} bytes has no room", prefix.head_bytes)));
    }
    let mut head = vec![0; prefix.head_bytes as usize];
    input.read(&mut head, PREFIX_BYTES, format_args!("the header"))?;
    let bands = head.chunks(BAND_BYTES as usize);
    let listed = bands.len() <= entries.len();
    let intact = |(band, entry): (&[u8], &Entry)| {
        entry.packing == Packing::Plain && blake3::hash(band) == entry.packed
    };
    if listed && bands.zip(entries).all(intact) {
        Ok(head)
    } else {
        Err(input.malformed("the header does not have its hash; it is corrupt".to_owned()))
    }
}

/// The first bytes of a file, with its length.
struct Head(Vec<u8>, u64);

impl Source for Head {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }
}

/// The tensors of a safetensors file that begins with `head` and has `total` bytes.
fn tensors(input: &Input, head: Vec<u8>, total: u64) -> Result<Vec<Stored>> {
    let head_bytes = head.len() as u64;
    let file = Input { path: input.path.clone(), source: Box::new(Head(head, total)) };
    let tensors = safetensors::tensors_of(&file)?;
    if tensors.first().map_or(total, |first| first.offset) == head_bytes {
        Ok(tensors)
    } else {
        Err(input.malformed("its header ends elsewhere than the prefix says".to_owned()))
    }
}

/// The offset of each band; `None` if they do not end at the table.
fn offsets(bands: &[Band], entries: &[Entry], table: u64) -> Option<Vec<u64>> {
    if bands.len() != entries.len() {
        return None;
    }
    let mut next = PREFIX_BYTES;
    let mut offsets = Vec::with_capacity(bands.len());
    for (band, entry) in bands.iter().zip(entries) {
        offsets.push(next);
        next = after(next, band.packed_bytes(entry.packing)?)?;
    }
    (next == table).then_some(offsets)
}
