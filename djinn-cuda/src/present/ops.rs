//! The operations: which kernel or library computes each.

use crate::experts::Experts;
use crate::present::device::{CudaDevice, Prepared};
use crate::present::launch::{
    COPIES, EXPERT_TILES, Launch, Rounding, TILES, can_add, can_gate, decoded_dtype, decodes_meanwhile,
    rows_read_directly, takes_rounded, type_read, wants_rounded,
};
use crate::present::matmul::Shape;
use crate::present::memory::Place;
use crate::present::on_cpu::Work;
use crate::present::tiles::{PIECE, decoded_pieces, rows_of, tiles_of_one_launch, whole};
use djinn_device::args::{self, Linear, ReadBy, SiluMul};
use djinn_device::{DType, Encoding, Ops, Result, Span, Stream};
use std::ops::Range;

/// Up to this many rows, one of Djinn's kernels computes a product, and a row's bits do not depend on the others.
/// Beyond, cuBLASLt computes it, unless one of Djinn's kernels takes any number of rows. This is for cards on which the
/// kernel reads the weight once for every 16 rows.
const BATCH_INVARIANT_ROWS: u32 = 64;

impl CudaDevice {
    /// Like [`BATCH_INVARIANT_ROWS`], for this card: at least the rows for which the weight is read once.
    pub(crate) fn batch_invariant_rows(&self) -> u32 {
        self.rows_at_once.max(BATCH_INVARIANT_ROWS)
    }
}

/// What was kept rounded for the next product is gone.
const OTHER: &str = "another product follows than an operation was told";

/// Whether only the next product reads an operation's output, and takes it rounded whether its weight is read as stored
/// or decoded. Tiles of a weight in blocks may be of any formats.
fn is_read_rounded((rows, k): (u32, u32), next: ReadBy) -> bool {
    let read = type_read(next.dtype, next.encoding);
    let takes = |of| takes_rounded(rows, k, read, of);
    let is_block = |of: &Encoding| matches!(of, Encoding::Blocks(_));
    next.alone
        && [next.encoding, Encoding::Plain].into_iter().all(takes)
        && (!is_block(&next.encoding) || Encoding::ENCODED.into_iter().filter(is_block).all(takes))
}

/// The most bytes of rounded activations, or of decoded rows of a weight, that cuBLASLt takes at once. Its results depend
/// on the number of rows, which must not depend on the size of a workspace, since the budget decides on that.
const LIBRARY_BYTES: u64 = 64 << 20;

impl CudaDevice {
    /// Bytes of a workspace for one launch of a product.
    pub(crate) fn room(&self, workspace: Place, args: &Linear) -> u64 {
        workspace.len().min(if self.is_own(args) { u64::MAX } else { LIBRARY_BYTES })
    }

    /// Rounds the activations of a product to the weight's type in the workspace, in pieces that fit it. Calls `work`
    /// with the rows and the place of each, until a call fails or returns that it could not do it. `known` is what the
    /// workspace holds already: the tiles of a weight follow one another, and share their activations.
    fn in_pieces(
        &self,
        launch: Launch<'_>,
        args: &Linear,
        known: Option<Prepared>,
        mut work: impl FnMut(Range<u32>, Place) -> crate::Result<bool>,
    ) -> crate::Result<bool> {
        let row = u64::from(args.k) * 2;
        let fit = self.room(self.scratch.activations(), args) / row;
        let step = match fit {
            _ if fit >= args.rows.into() => args.rows,
            PIECE.. => (fit - fit % PIECE) as u32,
            _ => fit as u32,
        };
        if step == 0 {
            return Ok(false);
        }
        for first in (0..args.rows).step_by(step as usize) {
            let rows = first..args.rows.min(first + step);
            let bytes = rows.len() as u64 * row;
            let known = known.filter(|known| step == args.rows && known.is(args));
            let rounded = self.scratch.activations().slice(known.map_or(0, |known| known.at), bytes);
            if known.is_none() {
                let x = launch.memory.resolve(args.x).slice(u64::from(first) * row * 2, bytes * 2);
                launch.convert(x, rounded, decoded_dtype(args.weight))?;
            }
            if !work(rows, rounded)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Computes a product by cuBLASLt, and returns whether it could. The weight is plain, or lies `decoded` in the
    /// workspace.
    fn large_linear(
        &self,
        launch: Launch<'_>,
        args: &Linear,
        known: Option<Prepared>,
        decoded: Option<Place>,
    ) -> crate::Result<bool> {
        let (x, out) = (launch.memory.resolve(args.x), launch.memory.resolve(args.out));
        let weight = decoded.unwrap_or_else(|| launch.memory.resolve(args.weight.span));
        let dtype = decoded_dtype(args.weight);
        let product = |rows: Range<u32>, x: Place| {
            let row = u64::from(args.out_width) * 4;
            let out = out.slice(u64::from(rows.start) * row, rows.len() as u64 * row);
            let shape = Shape {
                rows: rows.len() as u32,
                k: args.k,
                n: args.n,
                out_width: args.out_width,
                out_column: args.out_column,
                dtype,
            };
            self.matmul.product(launch.stream, shape, [x, weight, out, self.scratch.cublas()])
        };
        let done = match dtype {
            DType::F32 => product(0..args.rows, x)?,
            _ => self.in_pieces(launch, args, known, product)?,
        };
        if done {
            launch.add_bias(args)?;
        }
        Ok(done)
    }

    /// Whether one of Djinn's kernels computes a product. A row's bits then do not depend on the number of the weight's
    /// rows.
    fn is_own(&self, args: &Linear) -> bool {
        args.rows <= self.batch_invariant_rows() || wants_rounded(args.rows, args.k, args.weight, true)
    }

    /// Whether products of any tiles like this one read their weight as it is stored.
    pub(crate) fn reads_directly(&self, args: &Linear) -> bool {
        args.weight.encoding == Encoding::Plain
            || args.rows <= rows_read_directly(args.weight, args.k, args.n)
    }

    /// Whether a launch for all these tiles reads their weight as it is stored.
    pub(crate) fn reads_as_stored(&self, tiles: &[Linear]) -> bool {
        self.reads_directly(&tiles[0])
            || (tiles_of_one_launch(tiles) == tiles.len() && decodes_meanwhile(tiles))
    }

    /// A product of tiles that are computed [together](CudaDevice::together).
    fn product(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
        if self.reads_as_stored(tiles) {
            return self.product_of(stream, tiles, None);
        }
        let all = whole(tiles);
        let room = self.room(self.scratch.decoded(), &all);
        for rows in decoded_pieces(room, all.n, all.k)? {
            self.product_of(stream, tiles, Some(rows))?;
        }
        Ok(())
    }

    /// How many of the leading tiles are computed together: by one launch, or decoded for it.
    fn together(&self, tiles: &[Linear]) -> usize {
        let launched = tiles_of_one_launch(tiles);
        match (self.is_own(&tiles[0]), self.reads_as_stored(&tiles[..launched])) {
            (false, _) => 1,
            (true, true) => launched,
            (true, false) => self.decoded_together(tiles),
        }
    }

    /// The same for weights that are read as they are stored, or for some `decoded` rows of all tiles.
    fn product_of(&self, stream: Stream, tiles: &[Linear], decoded: Option<Range<u32>>) -> Result<()> {
        let piece = decoded.as_ref().map(|rows| rows_of(&whole(tiles), rows));
        let read = piece.as_ref().map_or(tiles, std::slice::from_ref);
        let (args, dtype) = (&read[0], decoded_dtype(tiles[0].weight));
        let rounded = wants_rounded(args.rows, args.k, args.weight, decoded.is_some());
        let own = self.is_own(args);
        let known = self.prepared.take().filter(|known| known.stream == stream);
        assert!(known.is_none_or(|known| known.allows(args, rounded)), "{OTHER}");
        if own && !rounded && decoded.is_none() {
            return self.launch(stream, |launch| launch.linear(read, 0..args.rows, None, None, None));
        }
        self.claim_scratch(stream)?;
        self.launch(stream, |launch| {
            let decoded = decoded.map(|rows| self.decode(launch, tiles, rows)).transpose()?;
            let done = if !own {
                self.large_linear(launch, args, known, decoded)?
            } else if rounded {
                self.in_pieces(launch, args, known, |rows, x| {
                    launch.linear(read, rows, Some(x), decoded, None).map(|()| true)
                })?
            } else {
                false
            };
            if done { Ok(()) } else { launch.linear(read, 0..args.rows, None, decoded, None) }
        })?;
        // Nothing is kept if the workspace holds only a part, or if the output overwrites the activations.
        let room = self.room(self.scratch.activations(), args);
        let fits = u64::from(args.rows) * u64::from(args.k) * 2 <= room;
        let holds = dtype != DType::F32 && (rounded || !own) && fits && !args.x.overlaps(args.out);
        let known = known.filter(|known| known.is(args));
        let kept = known.unwrap_or_else(|| Prepared::new(stream, args, 0));
        self.prepared.set(holds.then_some(kept));
        Ok(())
    }

    /// Computes a product with all tiles of a weight, and its activation function, in one launch, and returns whether
    /// it could. The workspace then holds the rounded result, behind the product's own activations.
    fn try_gated(&self, stream: Stream, tiles: &[Linear], act: &SiluMul) -> Result<bool> {
        let Some(of) = self.as_one_launch(tiles) else { return Ok(false) };
        let (args, dtype) = (&tiles[0], decoded_dtype(tiles[0].weight));
        let at = (u64::from(args.rows) * u64::from(args.k) * 2).next_multiple_of(256);
        let bytes = u64::from(act.rows) * u64::from(act.width) * 2;
        let all = self.scratch.activations();
        if at + bytes > all.len() || !can_gate(&of) {
            return Ok(false);
        }
        let known = self.prepared.take().filter(|known| known.stream == stream && known.at == 0);
        assert!(known.is_none_or(|known| known.allows(args, true)), "{OTHER}");
        // The next product's weight may be of another type.
        let alone = act.read_by.is_some_and(|next| {
            type_read(next.dtype, next.encoding) == dtype && is_read_rounded((act.rows, act.width), next)
        });
        self.claim_scratch(stream)?;
        self.launch(stream, |launch| {
            let out = (!alone).then(|| launch.memory.resolve(act.out));
            let out = (out, all.slice(at, bytes));
            let decoded = self.decode_all(launch, tiles)?;
            self.in_pieces(launch, args, known, |rows, x| {
                launch.linear(&of, rows, Some(x), decoded, Some(out)).map(|()| true)
            })?;
            Ok(())
        })?;
        self.prepared.set(Some(Prepared::of(stream, (act.out, act.rows), dtype, at).kept_alone(alone)));
        Ok(true)
    }

    /// Adds a product with all tiles of a weight to a term of `add`, in place and in one launch, and returns whether it
    /// could.
    fn try_add(&self, stream: Stream, tiles: &[Linear], add: &args::Add) -> Result<bool> {
        let Some(of) = self.as_one_launch(tiles) else { return Ok(false) };
        let args = &tiles[0];
        let in_place = [[add.a, add.b], [add.b, add.a]].contains(&[add.out, args.out]);
        let decoded = !self.reads_as_stored(tiles);
        let fits = u64::from(args.rows) * u64::from(args.k) * 2 <= self.scratch.activations().len();
        if !in_place || !fits || !wants_rounded(args.rows, args.k, args.weight, decoded) {
            return Ok(false);
        }
        let sum = self.memory.resolve(add.out);
        if !can_add(&of, decoded, sum) {
            return Ok(false);
        }
        let known = self.prepared.take().filter(|known| known.stream == stream);
        assert!(known.is_none_or(|known| known.allows(args, true)), "{OTHER}");
        self.claim_scratch(stream)?;
        self.launch(stream, |launch| {
            let decoded = self.decode_all(launch, tiles)?;
            let add = |_, x| launch.linear_add(&of, x, decoded, sum).map(|()| true);
            self.in_pieces(launch, args, known, add)?;
            Ok(())
        })?;
        Ok(true)
    }

    /// Launches an operation that writes rows of `out`. If the product that reads them next takes them rounded, the
    /// operation stores them so in the workspace as well, or only there if nothing else reads them.
    fn rounding(
        &self,
        stream: Stream,
        (out, rows): (Span, u32),
        read_by: Option<ReadBy>,
        work: impl FnOnce(Launch<'_>) -> crate::Result<()>,
    ) -> Result<()> {
        self.enter()?;
        let k = (out.len() / 4 / u64::from(rows.max(1))) as u32;
        let all = self.scratch.activations();
        let wanted = |next: &ReadBy| {
            let read = type_read(next.dtype, next.encoding);
            let own = takes_rounded(rows, k, read, next.encoding);
            // Attention needs the rest of the workspace, and takes another path with none.
            let fits = out.len() <= all.len();
            read != DType::F32 && fits && (own || rows > self.batch_invariant_rows())
        };
        let Some(next) = read_by.filter(wanted) else { return self.launch(stream, work) };
        self.claim_scratch(stream)?;
        let (dtype, alone) = (type_read(next.dtype, next.encoding), is_read_rounded((rows, k), next));
        let rounded = Some(Rounding { at: all.slice(0, out.len() / 2), dtype, alone });
        self.launch(stream, |launch| work(Launch { rounded, ..launch }))?;
        self.prepared.set(Some(Prepared::of(stream, (out, rows), dtype, 0).kept_alone(alone)));
        Ok(())
    }

    /// `linear` by cuBLASLt, for any number of rows. Returns whether it has an algorithm. For measurements: rows of
    /// small batches do not get the bits that `linear` gives.
    ///
    /// # Errors
    /// As for any operation.
    pub fn library_linear(&self, stream: Stream, args: &Linear) -> Result<bool> {
        if cfg!(debug_assertions) {
            args.check();
        }
        self.claim_scratch(stream)?;
        let mut done = false;
        self.launch(stream, |launch| {
            done = self.large_linear(launch, args, None, None)?;
            Ok(())
        })?;
        Ok(done)
    }
}

/// Defines an operation. Those by name take more than one launch, or a workspace.
macro_rules! operation {
    (linear $Args:ident) => {
        fn linear(&self, stream: Stream, args: &Linear) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.linear_tiles(stream, std::slice::from_ref(args))
        }
    };
    (expert_linear $Args:ident) => {
        fn expert_linear(&self, stream: Stream, args: &args::ExpertLinear) -> Result<()> {
            self.expert_linears(stream, std::slice::from_ref(args))
        }
    };
    (copy_expert $Args:ident) => {
        fn copy_expert(&self, stream: Stream, args: &args::CopyExpert) -> Result<()> {
            self.copy_experts(stream, std::slice::from_ref(args))
        }
    };
    (group $Args:ident) => {
        fn group(&self, stream: Stream, args: &args::Group) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.settled.set(None);
            self.launch(stream, |launch| launch.group(args))
        }
    };
    (attention $Args:ident) => {
        fn attention(&self, stream: Stream, args: &args::Attention) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.claim_scratch(stream)?;
            self.rounding(stream, (args.out, args.rows), args.read_by, |launch| {
                let all = self.scratch.activations();
                let rounded = launch.rounded.map_or(0, |to| to.at.len().next_multiple_of(256).min(all.len()));
                let workspace = all.slice(rounded, all.len() - rounded);
                launch.attention(args, workspace, self.scratch.counters())
            })
        }
    };
    (rms_norm $Args:ident) => {
        fn rms_norm(&self, stream: Stream, args: &args::RmsNorm) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.rounding(stream, (args.out, args.rows), args.read_by, |launch| launch.rms_norm(args))
        }
    };
    (silu_mul $Args:ident) => {
        fn silu_mul(&self, stream: Stream, args: &SiluMul) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.rounding(stream, (args.out, args.rows), args.read_by, |launch| launch.silu_mul(args))
        }
    };
    ($op:ident $Args:ident) => {
        fn $op(&self, stream: Stream, args: &args::$Args) -> Result<()> {
            if cfg!(debug_assertions) {
                args.check();
            }
            self.launch(stream, |launch| launch.$op(args))
        }
    };
}

/// Defines every operation of the table.
macro_rules! operations {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        $(operation!($op $Args);)*
    };
}

impl Ops for CudaDevice {
    djinn_device::for_each_op!(operations);

    fn add_rms_norm(&self, stream: Stream, add: &args::Add, norm: &args::RmsNorm) -> Result<()> {
        if cfg!(debug_assertions) {
            add.check();
            norm.check();
        }
        self.rounding(stream, (norm.out, norm.rows), norm.read_by, |launch| launch.add_rms_norm(add, norm))
    }

    fn linear_on_cpu(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
        if cfg!(debug_assertions) {
            tiles.iter().for_each(Linear::check);
        }
        self.request_on_cpu(stream, |memory| Work::products(memory, tiles))?;
        self.wait_for_cpu(stream)
    }

    fn experts_on_cpu(&self, stream: Stream, experts: &args::CpuExperts) -> Result<()> {
        if cfg!(debug_assertions) {
            experts.check();
        }
        self.request_on_cpu(stream, |memory| Work::experts(memory, experts))
    }

    fn await_cpu(&self, stream: Stream) -> Result<()> {
        self.wait_for_cpu(stream)
    }

    fn linear_silu_mul(&self, stream: Stream, tiles: &[Linear], act: &SiluMul) -> Result<()> {
        if cfg!(debug_assertions) {
            act.check();
        }
        self.enter()?;
        if self.try_gated(stream, tiles, act)? {
            return Ok(());
        }
        self.linear_tiles(stream, tiles)?;
        self.silu_mul(stream, act)
    }

    fn linear_add(&self, stream: Stream, tiles: &[Linear], add: &args::Add) -> Result<bool> {
        if cfg!(debug_assertions) {
            add.check();
        }
        self.enter()?;
        let added = self.try_add(stream, tiles, add)?;
        if !added {
            self.linear_tiles(stream, tiles)?;
        }
        Ok(added)
    }

    fn rope_kv_write(&self, stream: Stream, rope: &args::Rope, write: &args::KvWrite) -> Result<()> {
        if cfg!(debug_assertions) {
            rope.check();
            write.check();
        }
        self.launch(stream, |launch| launch.rope_kv_write(rope, write))
    }

    fn route_group(&self, stream: Stream, route: &args::Route, group: &args::Group) -> Result<()> {
        if cfg!(debug_assertions) {
            route.check();
            group.check();
        }
        self.settled.set(None);
        self.launch(stream, |launch| launch.route_group(route, group))
    }

    fn expert_linears(&self, stream: Stream, products: &[args::ExpertLinear]) -> Result<()> {
        if cfg!(debug_assertions) {
            args::ExpertLinear::check_all(products);
        }
        self.enter()?;
        let mut left = products.to_vec();
        while let Some(&first) = left.first() {
            let is_plain = first.weight.encoding == Encoding::Plain;
            if !is_plain && rows_read_directly(first.weight, first.k, first.n) == 0 {
                self.decoded_expert_linear(stream, &first)?;
                left.remove(0);
                continue;
            }
            let together = Experts::take(&mut left, TILES, EXPERT_TILES);
            let workspace =
                wants_rounded(first.slots, first.k, first.weight, false).then(|| self.scratch.activations());
            if workspace.is_some() {
                self.claim_scratch(stream)?;
            }
            let slots = Some((stream, first.order, first.starts));
            let settled = self.settled.get() == slots;
            self.launch(stream, |launch| launch.expert_linear(&together, workspace, None, settled))?;
            self.settled.set(slots);
        }
        Ok(())
    }

    fn copy_experts(&self, stream: Stream, copies: &[args::CopyExpert]) -> Result<()> {
        if cfg!(debug_assertions) {
            args::CopyExpert::check_all(copies);
        }
        self.enter()?;
        copies.chunks(COPIES).try_for_each(|some| self.launch(stream, |launch| launch.copy_experts(some)))
    }

    fn linear_tiles(&self, stream: Stream, mut tiles: &[Linear]) -> Result<()> {
        self.enter()?;
        while !tiles.is_empty() {
            let (run, rest) = tiles.split_at(self.together(tiles));
            if cfg!(debug_assertions) {
                run.iter().for_each(Linear::check);
            }
            self.product(stream, run)?;
            tiles = rest;
        }
        // All tiles that needed them have read them.
        self.prepared.set(self.prepared.take().map(|known| known.kept_alone(false)));
        Ok(())
    }
}
