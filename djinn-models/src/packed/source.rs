//! A packed file, read as the safetensors file that it stands for.

use super::bands::Packing;
use super::index::Index;
use crate::Result;
use crate::file::{Input, Source};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Bands that are kept decoded, for reads of a few bytes here and there.
const KEPT: usize = 2;

/// A band's number and its bytes.
type KeptBand = (usize, Vec<u8>);

pub(super) struct PackedSource {
    packed: Input,
    index: Index,
    /// By the band's number modulo [`KEPT`].
    kept: [Mutex<Option<KeptBand>>; KEPT],
}

impl PackedSource {
    pub(super) fn open(packed: Input) -> Result<PackedSource> {
        let index = Index::read(&packed)?;
        Ok(PackedSource { packed, index, kept: Default::default() })
    }

    /// Decodes a whole band, whose hash is checked first.
    fn decode(&self, band: usize, out: &mut [u8]) -> io::Result<()> {
        let (entry, layout) = (&self.index.entries[band], &self.index.bands[band]);
        let corrupt = |detail: String| {
            let detail = format!("band {band} of {} is corrupt: {detail}", self.index.bands.len());
            io::Error::new(io::ErrorKind::InvalidData, detail)
        };
        let bytes = layout.packed_bytes(entry.packing).expect("the index was checked");
        let intact = |packed: &[u8]| match blake3::hash(packed) == entry.packed {
            true => Ok(()),
            false => Err(corrupt("its hash differs".to_owned())),
        };
        if entry.packing == Packing::Plain {
            self.packed.source.read_exact_at(out, self.index.offsets[band])?;
            return intact(out);
        }
        let mut packed = vec![0; bytes];
        self.packed.source.read_exact_at(&mut packed, self.index.offsets[band])?;
        intact(&packed)?;
        layout.decode(entry.packing, &packed, out).map_err(corrupt)
    }

    /// Copies a part of a band, `from` bytes from its start.
    fn copy(&self, band: usize, from: usize, out: &mut [u8]) -> io::Result<()> {
        let mut kept = self.kept[band % KEPT].lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(number, _)| *number != band) {
            let mut bytes = vec![0; self.index.bands[band].bytes];
            self.decode(band, &mut bytes)?;
            *kept = Some((band, bytes));
        }
        let (_, bytes) = kept.as_ref().expect("it was just filled");
        out.copy_from_slice(&bytes[from..from + out.len()]);
        Ok(())
    }
}

impl Source for PackedSource {
    fn len(&self) -> u64 {
        self.index.original_bytes
    }

    fn read_exact_at(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut band = self.index.bands.partition_point(|band| band.start + band.bytes as u64 <= offset);
        while !out.is_empty() {
            let layout = &self.index.bands[band];
            let from = (offset - layout.start) as usize;
            let (part, rest) = out.split_at_mut(out.len().min(layout.bytes - from));
            match part.len() == layout.bytes {
                true => self.decode(band, part)?,
                false => self.copy(band, from, part)?,
            }
            offset += part.len() as u64;
            out = rest;
            band += 1;
        }
        Ok(())
    }
}
