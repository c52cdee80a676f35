//! Lossless encoding during loading: plain 16-bit matrices become 12 bits an element in memory.

use crate::weights::Tally;
use crate::{Error, Model, OpenOptions, Packing, Result};
use djinn_lossless::{LosslessRow, SixteenBit};
use djinn_srg::{DType, Encoding, RowEncodings, Value, lossless_row};
use djinn_vmu::{SourceError, WeightSource};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows are checked in pieces of about this many bytes.
const PIECE: usize = 1 << 20;

/// A matrix that may be encoded.
struct Candidate {
    name: String,
    dtype: DType,
    rows: u64,
    form: SixteenBit,
    row: LosslessRow,
    /// Whether every row so far can be encoded.
    fits: AtomicBool,
}

impl Candidate {
    /// A plain matrix of 16-bit elements, if an encoded row is smaller.
    fn new(value: &Value) -> Option<Candidate> {
        let [rows, columns] = value.matrix();
        let dtype = value.dtype();
        let plain = value.shape.len() == 2 && value.encodings.is_plain();
        let (form, row) = lossless_row(dtype, columns).filter(|(_, row)| plain && row.pays())?;
        let (name, fits) = (value.name.clone(), AtomicBool::new(true));
        Some(Candidate { name, dtype, rows, form, row, fits })
    }

    fn fits(&self) -> bool {
        self.fits.load(Ordering::Relaxed)
    }

    fn bytes(&self, encoding: Encoding) -> u64 {
        let tile = encoding.tile(self.dtype, self.rows, self.row.columns() as u64);
        tile.expect("the graph has it").bytes
    }
}

/// Encodes what `options` request of an open model: changes its graph and its source.
pub(crate) fn pack(model: &mut Model, options: &OpenOptions) -> Result<()> {
    if options.packing == Packing::Never {
        return Ok(());
    }
    if !options.encodings.contains(&Encoding::Lossless) {
        return Err(Error::Unsupported {
            what: "weights in 12 bits on this device".to_owned(),
            remedy: "leave `encoding` out".to_owned(),
        });
    }
    let candidates: Vec<Candidate> =
        model.graph.weights().filter_map(|(_, value)| Candidate::new(value)).collect();
    match options.packing {
        Packing::Fitting => look(&candidates, &*model.source)?,
        _ => candidates.iter().for_each(|of| of.fits.store(of.dtype == DType::BF16, Ordering::Relaxed)),
    }
    let mut tally = Tally::default();
    for of in &candidates {
        let (encoding, why) = match of.fits() {
            true => (Encoding::Lossless, None),
            false => (Encoding::Plain, Some("too many elements do not fit 12 bits")),
        };
        let in_memory = if of.fits() { encoding.name() } else { of.dtype.name() };
        tally.add(of.dtype.name(), in_memory, why, of.bytes(encoding));
    }
    model.encoded.extend(tally.into_weights());
    let packed: HashMap<String, Candidate> =
        candidates.into_iter().filter(Candidate::fits).map(|of| (of.name.clone(), of)).collect();
    for value in &mut model.graph.values {
        if let Some(of) = packed.get(&value.name) {
            let mut encodings = RowEncodings::default();
            encodings.push(of.rows, Encoding::Lossless);
            value.encodings = encodings;
        }
    }
    model.source = Arc::new(PackingSource { plain: Arc::clone(&model.source), packed });
    Ok(())
}

/// Determines which candidates fit, on all cores. The first row that does not fit ends its matrix.
fn look(candidates: &[Candidate], source: &dyn WeightSource) -> Result<()> {
    let pieces: Vec<(&Candidate, Range<u64>)> = candidates
        .iter()
        .flat_map(|of| {
            let step = (PIECE / (of.row.columns() * 2)).max(1) as u64;
            (0..of.rows).step_by(step as usize).map(move |first| (of, first..of.rows.min(first + step)))
        })
        .collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        let (mut plain, mut encoded) = (Vec::new(), Vec::new());
        while let Some((of, rows)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !of.fits() {
                continue;
            }
            encoded.resize((rows.end - rows.start) as usize * of.row.bytes(), 0);
            match encode(of, source, rows.clone(), &mut plain, &mut encoded) {
                Ok(None) => {}
                Ok(Some(_)) => of.fits.store(false, Ordering::Relaxed),
                Err(error) => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    next.store(pieces.len(), Ordering::Relaxed);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(pieces.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(error) => Err(Error::Weight(error)),
    }
}

/// Reads rows into `plain` and encodes them to `out`. Returns the first row that does not fit.
fn encode(
    of: &Candidate,
    source: &dyn WeightSource,
    rows: Range<u64>,
    plain: &mut Vec<u8>,
    out: &mut [u8],
) -> Result<Option<u64>, SourceError> {
    let row_bytes = of.row.columns() * 2;
    plain.resize((rows.end - rows.start) as usize * row_bytes, 0);
    source.read_rows(&of.name, rows.clone(), plain)?;
    for (row, (plain, out)) in
        rows.zip(plain.chunks_exact(row_bytes).zip(out.chunks_exact_mut(of.row.bytes())))
    {
        if !of.row.encode(of.form, plain, out) {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// Weights of another source, some of them encoded.
struct PackingSource {
    plain: Arc<dyn WeightSource>,
    packed: HashMap<String, Candidate>,
}

impl WeightSource for PackingSource {
    fn read_rows(&self, name: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let Some(of) = self.packed.get(name) else { return self.plain.read_rows(name, rows, out) };
        let fail = |detail: String| SourceError { name: name.to_owned(), source: detail.into() };
        let bytes = |rows: Range<u64>| Some((rows.end - rows.start) * of.row.bytes() as u64);
        crate::weights::check_request(&rows, of.rows, bytes, out.len()).map_err(fail)?;
        match encode(of, &*self.plain, rows, &mut Vec::new(), out)? {
            None => Ok(()),
            Some(row) => Err(fail(format!("too many elements of row {row} do not fit 12 bits"))),
        }
    }
}
