//! The operations' arguments as slices. Shapes and meanings are those of [`djinn_device::args`].

use super::element::{Cache, CacheMut, Elements, Matrix};
use super::view::View;
use djinn_device::{RopeStyle, args};

/// Defines an operation's arguments: their fields, and how each comes from the arguments that name spans.
macro_rules! bound {
    ($(#[$doc:meta])* $Args:ident($view:ident, $args:ident) {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $from:expr,)*
    }) => {
        $(#[$doc])*
        pub(crate) struct $Args<'a> {
            $($(#[$field_doc])* pub(crate) $field: $type,)*
        }

        impl<'a> $Args<'a> {
            pub(super) fn new($view: View<'a>, $args: &args::$Args) -> Self {
                $Args { $($field: $from),* }
            }
        }
    };
}

bound! {
    /// See [`args::Embed`]; rows are `tokens.len()`.
    Embed(view, args) {
        tokens: &'a [u32] = view.indices(args.tokens),
        table: Matrix<'a> = view.matrix(args.table, args.width),
        first_row: u32 = args.first_row,
        table_rows: u32 = args.table_rows,
        width: usize = args.width as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

impl Embed<'_> {
    /// The table's row for a token, if it has it.
    pub(crate) fn row_of(&self, token: u32) -> Option<usize> {
        let row = token.checked_sub(self.first_row)?;
        (row < self.table_rows).then_some(row as usize)
    }
}

bound! {
    /// See [`args::RopeTable`]; rows are `positions.len()`.
    RopeTable(view, args) {
        positions: &'a [u32] = view.indices(args.positions),
        inv_freq: &'a [f32] = view.floats(args.inv_freq),
        scale: f32 = args.scale,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::RmsNorm`]; the width is `weight`'s length.
    RmsNorm(view, args) {
        /// `None` where `out` holds the input.
        x: Option<&'a [f32]> = view.unless_output(args.x, args.out),
        weight: Elements<'a> = view.weight(args.weight),
        eps: f32 = args.eps,
        width: usize = args.width as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::LayerNorm`].
    LayerNorm(view, args) {
        /// `None` where `out` holds the input.
        x: Option<&'a [f32]> = view.unless_output(args.x, args.out),
        weight: Elements<'a> = view.weight(args.weight),
        bias: Elements<'a> = view.weight(args.bias),
        eps: f32 = args.eps,
        width: usize = args.width as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::HeadNorm`].
    HeadNorm(view, args) {
        qkv: &'a mut [f32] = view.output(args.qkv),
        query: Elements<'a> = view.weight(args.query),
        key: Elements<'a> = view.weight(args.key),
        eps: f32 = args.eps,
        heads: usize = args.heads as usize,
        kv_heads: usize = args.kv_heads as usize,
        head_dim: usize = args.head_dim as usize,
    }
}

bound! {
    /// See [`args::Linear`]; rows are `x.len() / k`.
    Linear(view, args) {
        x: &'a [f32] = view.floats(args.x),
        weight: Matrix<'a> = view.matrix(args.weight, args.k),
        bias: Option<Elements<'a>> = args.bias.map(|bias| view.weight(bias)),
        k: usize = args.k as usize,
        n: usize = args.n as usize,
        out_width: usize = args.out_width as usize,
        out_column: usize = args.out_column as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::Rope`]; rows are `table.len() / rotary_dim`.
    Rope(view, args) {
        qkv: &'a mut [f32] = view.output(args.qkv),
        table: &'a [f32] = view.floats(args.table),
        heads: usize = args.heads as usize,
        kv_heads: usize = args.kv_heads as usize,
        head_dim: usize = args.head_dim as usize,
        rotary_dim: usize = args.rotary_dim as usize,
        style: RopeStyle = args.style,
    }
}

/// Where a layer's keys and values lie in the pages, in elements.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout<'a> {
    pub(crate) page_elements: usize,
    pub(crate) page_tokens: usize,
    /// Of a page, the layer's first.
    pub(crate) first: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Of the keys or values of a head in a page, with scales.
    pub(crate) plane_elements: usize,
    pub(crate) page_table: &'a [u32],
    pub(crate) table_width: usize,
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
}

impl<'a> KvLayout<'a> {
    fn new(view: View<'a>, kv: &args::KvPages) -> Self {
        KvLayout {
            page_elements: (kv.page_bytes / kv.dtype.bytes()) as usize,
            page_tokens: kv.page_tokens as usize,
            first: (kv.offset / kv.dtype.bytes()) as usize,
            kv_heads: kv.kv_heads as usize,
            head_dim: kv.head_dim as usize,
            plane_elements: (kv.plane_bytes() / kv.dtype.bytes()) as usize,
            page_table: view.indices(kv.page_table),
            table_width: kv.table_width as usize,
        }
    }

    /// The first element of a head's vector at a position of a sequence. Those of the positions that follow
    /// in the same page follow each other, `head_dim` apart.
    ///
    /// # Panics
    /// If the page table has no such entry.
    #[inline]
    pub(crate) fn offset(&self, sequence: usize, position: usize, part: Part, head: usize) -> usize {
        let (column, slot) = (position / self.page_tokens, position % self.page_tokens);
        assert!(
            column < self.table_width,
            "position {position} lies past {} pages of {} tokens",
            self.table_width,
            self.page_tokens
        );
        let page = self.page_table[sequence * self.table_width + column] as usize;
        let plane = usize::from(part == Part::Values) * self.kv_heads + head;
        page * self.page_elements + self.first + plane * self.plane_elements + slot * self.head_dim
    }

    /// The first byte of the int8 scale of a position's vector, whose first element is at `offset`.
    #[inline]
    pub(crate) fn scale(&self, offset: usize, position: usize) -> usize {
        let slot = position % self.page_tokens;
        offset + (self.page_tokens - slot) * self.head_dim + slot * size_of::<f32>()
    }
}

bound! {
    /// See [`args::KvWrite`]; rows are `positions.len()`.
    KvWrite(view, args) {
        qkv: &'a [f32] = view.floats(args.qkv),
        pages: CacheMut<'a> = view.cache_mut(args.kv.pages, args.kv.dtype),
        layout: KvLayout<'a> = KvLayout::new(view, &args.kv),
        row_seq: &'a [u32] = view.indices(args.row_seq),
        positions: &'a [u32] = view.indices(args.positions),
        heads: usize = args.heads as usize,
    }
}

bound! {
    /// See [`args::Attention`]; rows are `positions.len()`.
    Attention(view, args) {
        qkv: &'a [f32] = view.floats(args.qkv),
        pages: Cache<'a> = view.cache(args.kv.pages, args.kv.dtype),
        layout: KvLayout<'a> = KvLayout::new(view, &args.kv),
        row_seq: &'a [u32] = view.indices(args.row_seq),
        positions: &'a [u32] = view.indices(args.positions),
        heads: usize = args.heads as usize,
        scale: f32 = args.scale,
        window: Option<usize> = args.window.map(|window| window as usize),
        alibi: bool = args.alibi,
        out: &'a mut [f32] = view.output(args.out),
    }
}

/// The first position that a row at `position` sees.
pub(crate) fn first_seen(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

bound! {
    /// See [`args::SiluMul`]; rows are `out.len() / width`.
    SiluMul(view, args) {
        x: &'a [f32] = view.floats(args.x),
        width: usize = args.width as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::Gelu`].
    Gelu(view, args) {
        /// `None` where `out` holds it.
        x: Option<&'a [f32]> = view.unless_output(args.x, args.out),
        form: djinn_device::GeluForm = args.form,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::Add`].
    Add(view, args) {
        /// `None` where `out` holds it.
        a: Option<&'a [f32]> = view.unless_output(args.a, args.out),
        /// `None` where `out` holds it.
        b: Option<&'a [f32]> = view.unless_output(args.b, args.out),
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::SelectRows`]; rows are `indices.len()`.
    SelectRows(view, args) {
        x: &'a [f32] = view.floats(args.x),
        indices: &'a [u32] = view.indices(args.indices),
        width: usize = args.width as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

bound! {
    /// See [`args::EditRows`]; rows are `indices.len()`.
    EditRows(view, args) {
        x: &'a mut [f32] = view.output(args.x),
        indices: &'a [u32] = view.indices(args.indices),
        direction: &'a [f32] = view.floats(args.direction),
        add: &'a [f32] = view.floats(args.add),
        args: args::EditRows = *args,
    }
}

bound! {
    /// See [`args::Route`]; rows are `logits.len() / experts`.
    Route(view, args) {
        logits: &'a [f32] = view.floats(args.logits),
        experts: usize = args.experts as usize,
        top_k: usize = args.top_k as usize,
        renormalise: bool = args.renormalise,
        weights: &'a mut [f32] = view.output(args.weights),
        ids: &'a mut [u32] = view.output_indices(args.ids),
    }
}

impl Route<'_> {
    /// A logit as it is compared.
    pub(crate) fn rank(logit: f32) -> f32 {
        if logit.is_nan() { f32::NEG_INFINITY } else { logit }
    }
}

bound! {
    /// See [`args::Group`]; experts are `starts.len() - 1`.
    Group(view, args) {
        ids: &'a [u32] = view.indices(args.ids),
        order: &'a mut [u32] = view.output_indices(args.order),
        starts: &'a mut [u32] = view.output_indices(args.starts),
        cpu: args::CpuSlots = args.cpu,
        of_cpu: bool = args.of_cpu,
    }
}

bound! {
    /// See [`args::ExpertLinear`].
    ExpertLinear(view, args) {
        x: &'a [f32] = view.floats(args.x),
        weight: Matrix<'a> = view.matrix(args.weight, args.k),
        /// The expert's.
        slots: &'a [u32] = slots(view, args),
        slots_per_row: usize = args.slots_per_row as usize,
        k: usize = args.k as usize,
        n: usize = args.n as usize,
        out_width: usize = args.out_width as usize,
        out_column: usize = args.out_column as usize,
        out: &'a mut [f32] = view.output(args.out),
    }
}

/// The expert's part of the order.
fn slots<'a>(view: View<'a>, args: &args::ExpertLinear) -> &'a [u32] {
    let (starts, expert) = (view.indices(args.starts), args.expert as usize);
    &view.indices(args.order)[starts[expert] as usize..starts[expert + 1] as usize]
}

impl<'a> ExpertLinear<'a> {
    /// The row of `x` that a slot reads.
    pub(crate) fn row(&self, slot: u32) -> &'a [f32] {
        &self.x[slot as usize / self.slots_per_row * self.k..][..self.k]
    }

    /// The columns of `out` that a slot writes.
    pub(crate) fn columns(&mut self, slot: u32) -> &mut [f32] {
        &mut self.out[slot as usize * self.out_width + self.out_column..][..self.n]
    }
}

bound! {
    /// See [`args::CopyExpert`].
    CopyExpert(view, args) {
        src: &'a [u8] = view.bytes(args.src),
        dst: &'a mut [u8] = view.output_bytes(args.dst),
        /// Where the expert's slots begin and end.
        starts: &'a [u32] = &view.indices(args.starts)[args.expert as usize..][..2],
        moved: &'a mut u32 = &mut view.output_indices(args.moved)[0],
    }
}

bound! {
    /// See [`args::Choose`]; rows are `drawn.len() / Drawn::WORDS`.
    Choose(view, args) {
        logits: &'a [f32] = view.floats(args.logits),
        draws: &'a [u32] = view.indices(args.draws),
        changes: &'a [u32] = view.indices(args.changes),
        earlier: &'a [u32] = view.indices(args.earlier),
        vocab: usize = args.vocab as usize,
        drawn: &'a mut [u32] = view.output_indices(args.drawn),
    }
}

bound! {
    /// See [`args::Checksum`].
    Checksum(view, args) {
        src: &'a [u8] = view.bytes(args.src),
        /// Little-endian.
        out: &'a mut [u8] = view.output_bytes(args.out),
    }
}

bound! {
    /// See [`args::Combine`]; rows are `out.len() / width`.
    Combine(view, args) {
        y: &'a [f32] = view.floats(args.y),
        weights: &'a [f32] = view.floats(args.weights),
        top_k: usize = args.top_k as usize,
        width: usize = args.width as usize,
        cpu: args::CpuSlots = args.cpu,
        /// With slots of the CPU: their experts, and its results.
        of_cpu: Option<(&'a [u32], &'a [f32])> =
            args.ids.zip(args.cpu_y).map(|(ids, y)| (view.indices(ids), view.floats(y))),
        out: &'a mut [f32] = view.output(args.out),
    }
}
