//! Reads a packed file as the safetensors file that it represents.

use super::bands::Packing;
use super::index::Index;
use crate::Result;
use crate::file::{Input, Source};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bands kept in memory, for small scattered reads.
const KEPT: usize = 2;

/// Which bytes of a band are read: those of the safetensors file, or of the packed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Decoded,
    Stored,
}

/// A band's number, what is kept of it, and its bytes.
type KeptBand = (usize, Form, Vec<u8>);

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

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// Compares the stored bytes of a band with their hash.
    pub(super) fn check(&self, band: usize) -> io::Result<()> {
        self.fetch(band, &mut vec![0; self.bytes(band, Form::Stored)])
    }

    /// The stored bytes of a whole band, after a check of their hash.
    fn fetch(&self, band: usize, out: &mut [u8]) -> io::Result<()> {
        self.packed.source.read_exact_at(out, self.index.offsets[band])?;
        match blake3::hash(out) == self.index.entries[band].packed {
            true => Ok(()),
            false => Err(self.corrupt(band, "its hash differs")),
        }
    }

    fn corrupt(&self, band: usize, detail: &str) -> io::Error {
        let detail = format!("band {band} of {} is corrupt: {detail}", self.index.bands.len());
        io::Error::new(io::ErrorKind::InvalidData, detail)
    }

    /// Reads a whole band in some form.
    fn read(&self, band: usize, form: Form, out: &mut [u8]) -> io::Result<()> {
        let (packing, layout) = (self.index.entries[band].packing, &self.index.bands[band]);
        if form == Form::Decoded && packing == Packing::Lossless {
            let mut packed = vec![0; self.bytes(band, Form::Stored)];
            self.fetch(band, &mut packed)?;
            return layout.decode(packing, &packed, out).map_err(|detail| self.corrupt(band, &detail));
        }
        self.fetch(band, out)?;
        match packing {
            Packing::Plain => Ok(()),
            Packing::Lossless => layout.check_rows(out).map_err(|detail| self.corrupt(band, &detail)),
        }
    }

    fn bytes(&self, band: usize, form: Form) -> usize {
        let layout = &self.index.bands[band];
        match form {
            Form::Decoded => layout.bytes,
            Form::Stored => {
                layout.packed_bytes(self.index.entries[band].packing).expect("the index was checked")
            }
        }
    }

    /// Fills `out` with bands in some form, from the byte `from` of the first of them on.
    fn read_bands(&self, mut band: usize, mut from: usize, form: Form, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            let bytes = self.bytes(band, form);
            let (part, rest) = out.split_at_mut(out.len().min(bytes - from));
            match part.len() == bytes {
                true => self.read(band, form, part)?,
                false => self.copy(band, from, form, part)?,
            }
            (band, from, out) = (band + 1, 0, rest);
        }
        Ok(())
    }

    /// Copies a part of a band, `from` bytes from its start.
    fn copy(&self, band: usize, from: usize, form: Form, out: &mut [u8]) -> io::Result<()> {
        let mut kept = self.kept[band % KEPT].lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(number, as_form, _)| (*number, *as_form) != (band, form)) {
            let mut bytes = vec![0; self.bytes(band, form)];
            self.read(band, form, &mut bytes)?;
            *kept = Some((band, form, bytes));
        }
        let (.., bytes) = kept.as_ref().expect("it was just filled");
        out.copy_from_slice(&bytes[from..from + out.len()]);
        Ok(())
    }

    /// The band that holds a byte of the safetensors file.
    fn band_at(&self, offset: u64) -> usize {
        self.index.bands.partition_point(|band| band.start + band.bytes as u64 <= offset)
    }
}

impl Source for PackedSource {
    fn len(&self) -> u64 {
        self.index.original_bytes
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let band = self.band_at(offset);
        let from = self.index.bands.get(band).map_or(0, |layout| offset - layout.start);
        self.read_bands(band, from as usize, Form::Decoded, out)
    }

    fn keeps_rows(&self, bytes: Range<u64>) -> bool {
        let bands = self.band_at(bytes.start)..self.band_at(bytes.end.saturating_sub(1)) + 1;
        !bytes.is_empty() && self.index.entries[bands].iter().all(|entry| entry.packing == Packing::Lossless)
    }

    fn read_rows_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let band = self.band_at(offset);
        let layout = &self.index.bands[band];
        let Some(row) = layout.row() else { return Err(io::ErrorKind::Unsupported.into()) };
        let first = (offset - layout.start) as usize / (row.columns() * 2);
        self.read_bands(band, first * row.bytes(), Form::Stored, out)
    }
}
