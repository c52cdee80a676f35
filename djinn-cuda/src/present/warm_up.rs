//! A small launch of everything, so that the driver loads the code before the memory that it takes is
//! measured: CUDA loads kernels when they are first used.

use djinn_device::args::{
    Add, Attention, Checksum, Choose, Combine, CopyExpert, CpuSlots, EditRows, Embed, ExpertLinear, Gelu,
    Group, HeadNorm, KvPages, KvWrite, LayerNorm, Linear, RmsNorm, Rope, RopeTable, Route, SelectRows,
    SiluMul, Weight,
};
use djinn_device::{Buffer, DType, Draw, Drawn, Encoding, Ops, Result, RopeStyle, Space, Span, Stream};

/// Bytes of each of the three regions: inputs, which are zero and so are valid indices; weights, zero as well;
/// and outputs.
const REGION: u64 = 4 << 20;

/// Rows, and slots of an expert, of one launch of the kernels that read x as it is.
const MOST_SLOTS: u32 = 16;

/// Launches every operation on zeros, in every type and path, and waits.
///
/// # Errors
/// The device's; it is lost then.
pub(crate) fn run(device: &impl Ops) -> crate::Result<()> {
    let failed = |error: djinn_device::Error| crate::Error::WarmUp { reason: error.to_string() };
    let buffer = device.alloc(Space::Device, 3 * REGION).map_err(failed)?;
    let outcome = Work { device, buffer }.all();
    device.free(buffer);
    outcome.map_err(failed)
}

struct Work<'a, D> {
    device: &'a D,
    buffer: Buffer,
}

impl<D: Ops> Work<'_, D> {
    fn all(&self) -> Result<()> {
        let stream = self.device.stream()?;
        self.device.fill(stream, self.buffer.span(), 0)?;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            self.by_type(stream, dtype)?;
        }
        for dtype in KvPages::DTYPES {
            self.attention_by_type(stream, dtype)?;
        }
        for &encoding in self.device.info().encodings {
            let kept: &[DType] =
                if encoding == Encoding::Lossless { &[DType::F16, DType::BF16] } else { &[DType::F32] };
            for &dtype in kept {
                self.encoded(stream, encoding, dtype)?;
            }
        }
        self.untyped(stream)?;
        self.routing(stream)?;
        self.device.sync(stream)
    }

    fn input(&self, bytes: u64) -> Span {
        self.buffer.slice(0, bytes)
    }

    fn weight(&self, elements: u64, dtype: DType) -> Weight {
        Weight::plain(self.buffer.slice(REGION, elements * dtype.bytes()), dtype)
    }

    fn output(&self, bytes: u64) -> Span {
        self.buffer.slice(2 * REGION, bytes)
    }

    fn by_type(&self, stream: Stream, dtype: DType) -> Result<()> {
        let (tokens, out) = (self.input(4), self.output(4 * 64));
        let table = self.weight(64, dtype);
        let (first_row, table_rows, width, rows) = (0, 1, 64, 1);
        self.device.embed(stream, &Embed { tokens, table, first_row, table_rows, width, out, rows })?;
        let (x, weight, eps) = (self.input(4 * 64), self.weight(64, dtype), 1.0);
        self.device.rms_norm(stream, &RmsNorm { x, weight, out, eps, width, rows, read_by: None })?;
        let (query, key, qkv) = (self.weight(64, dtype), self.weight(64, dtype), self.output(4 * 3 * 64));
        let (heads, kv_heads, head_dim) = (1, 1, 64);
        self.device.head_norm(stream, &HeadNorm { qkv, query, key, eps, heads, kv_heads, head_dim, rows })?;
        for rows in (1..=MOST_SLOTS).chain([64, 128, 256, 512]) {
            for k in [256, 255] {
                self.linear(stream, dtype, rows, 128, k)?;
            }
        }
        // Kernels for more rows of the weight, as large cards divide them: between blocks, and between clusters.
        for units in 2..=6 {
            for rows in [1, MOST_SLOTS] {
                self.linear(stream, dtype, rows, units * 8 * 132, 64)?;
                self.expert_linear(stream, dtype, rows, units * 8 * 132, 64)?;
            }
        }
        if dtype != DType::F32 {
            for (rows, most) in [(17, 4), (33, 4), (65, 4), (129, 2)] {
                for tiles in 1..=most {
                    self.linear(stream, dtype, rows, tiles * 64 * 30, 64)?;
                }
            }
            // Of several experts each has few slots; of one, many.
            for experts in [8, 3, 2, 1] {
                for tiles in 1..=4 {
                    let (n, k) = (tiles * 64 * 30, 64);
                    let weight = self.weight(u64::from(n * k), dtype);
                    self.expert_linear_by(stream, weight, [17, experts], n, k)?;
                }
            }
            self.expert_linear(stream, dtype, 65, 128, 64)?;
        }
        if dtype != DType::F32 {
            // Few rows of many columns, and gated products.
            for (rows, k) in [(8, 2048), (MOST_SLOTS, 1024), (17, 64), (33, 64)] {
                for tiles in 1..=4 {
                    self.tiles(stream, dtype, rows, tiles * 64 * 30, k)?;
                }
            }
        }
        for slots in [1, 2, 4, 8, MOST_SLOTS] {
            for k in [256, 255] {
                self.expert_linear(stream, dtype, slots, 128, k)?;
            }
        }
        Ok(())
    }

    /// Attention over keys and values of a type.
    fn attention_by_type(&self, stream: Stream, dtype: DType) -> Result<()> {
        // In int8, heads of 24 elements are not aligned to 16 bytes.
        for head_dim in [24, 32, 64, 96, 128, 256] {
            for rows in [1, 17, 65] {
                self.attention(stream, dtype, [2, head_dim], rows)?;
            }
            for heads in [1, 4] {
                self.attention(stream, dtype, [heads, head_dim], 1)?;
            }
        }
        Ok(())
    }

    /// Products that read the weight as it is, and products that decode it: with many rows, or with a number of columns
    /// that the former do not serve.
    fn encoded(&self, stream: Stream, encoding: Encoding, dtype: DType) -> Result<()> {
        let (n, k) = (128, 256);
        let weight = |n: u32, k: u32| {
            let bytes = encoding.tile(dtype, n.into(), k.into()).map(|tile| tile.bytes);
            bytes.map(|bytes| Weight { span: self.buffer.slice(REGION, bytes), dtype, encoding })
        };
        for (k, table) in [k, 200].into_iter().filter_map(|k| Some((k, weight(n, k)?))) {
            let (tokens, out) = (self.input(4), self.output(4 * u64::from(k)));
            let (first_row, table_rows, width, rows) = (0, n, k, 1);
            self.device.embed(stream, &Embed { tokens, table, first_row, table_rows, width, out, rows })?;
            for rows in [1, 8, MOST_SLOTS, 32, 64, 128, 300] {
                self.linear_by(stream, table, dtype, rows, n, k)?;
                self.expert_linear_by(stream, table, [rows, 1], n, k)?;
            }
        }
        // Few rows of x, where each block has more rows of the weight.
        let n = 64 * 132;
        if let Some(weight) = weight(n, k) {
            for rows in [1, 8, MOST_SLOTS] {
                self.linear_by(stream, weight, dtype, rows, n, k)?;
                self.expert_linear_by(stream, weight, [rows, 1], n, k)?;
            }
        }
        if encoding == Encoding::Lossless {
            // Shares of one tile of 64 rows of the weight for each cluster of two blocks, and larger ones.
            for (rows, share) in [(17, 64), (17, 72), (33, 64), (33, 72), (65, 64)] {
                let n = share * 66;
                let weight = weight(n, k).expect("rows of whole runs have the encoding");
                self.linear_by(stream, weight, dtype, rows, n, k)?;
            }
        }
        Ok(())
    }

    fn linear(&self, stream: Stream, dtype: DType, rows: u32, n: u32, k: u32) -> Result<()> {
        self.linear_by(stream, self.weight(u64::from(n * k), dtype), dtype, rows, n, k)
    }

    fn linear_by(
        &self,
        stream: Stream,
        weight: Weight,
        bias: DType,
        rows: u32,
        n: u32,
        k: u32,
    ) -> Result<()> {
        let args = Linear {
            x: self.input(u64::from(rows * k) * 4),
            weight,
            bias: Some(self.weight(n.into(), bias)),
            out: self.output(u64::from(rows * n) * 4),
            k,
            n,
            out_width: n,
            out_column: 0,
            rows,
        };
        self.device.linear(stream, &args)
    }

    /// A product of `n` rows of a weight, in tiles that are all in the same memory; alone and gated.
    fn tiles(&self, stream: Stream, dtype: DType, rows: u32, n: u32, k: u32) -> Result<()> {
        const TILES: u32 = 8;
        let each = n / TILES;
        let (x, weight) = (self.input(u64::from(rows * k) * 4), self.weight(u64::from(each * k), dtype));
        let out = self.output(u64::from(rows * n) * 4);
        let args = (0..TILES).map(|tile| Linear {
            x,
            weight,
            bias: None,
            out,
            k,
            n: each,
            out_width: n,
            out_column: tile * each,
            rows,
        });
        let args: Vec<Linear> = args.collect();
        self.device.linear_tiles(stream, &args)?;
        let act = self.buffer.slice(5 * REGION / 2, out.len() / 2);
        let gated = SiluMul { x: out, out: act, width: n / 2, rows, read_by: None };
        self.device.linear_silu_mul(stream, &args, &gated)
    }

    /// The product of an expert without slots: zeros stand for its part of the order.
    fn expert_linear(&self, stream: Stream, dtype: DType, slots: u32, n: u32, k: u32) -> Result<()> {
        self.expert_linear_by(stream, self.weight(u64::from(n * k), dtype), [slots, 1], n, k)
    }

    fn expert_linear_by(
        &self,
        stream: Stream,
        weight: Weight,
        [slots, experts]: [u32; 2],
        n: u32,
        k: u32,
    ) -> Result<()> {
        let args = ExpertLinear {
            x: self.input(u64::from(slots * k) * 4),
            weight,
            order: self.input(u64::from(slots) * 4),
            starts: self.input((u64::from(experts) + 1) * 4),
            out: self.output(u64::from(slots * n) * 4),
            k,
            n,
            out_width: n,
            out_column: 0,
            expert: 0,
            slots_per_row: 1,
            slots,
        };
        self.device.expert_linear(stream, &args)
    }

    fn routing(&self, stream: Stream) -> Result<()> {
        let high = |bytes: u64| self.buffer.slice(5 * REGION / 2, bytes);
        let (cpu, of_cpu) = (CpuSlots::NONE, false);
        for experts in [32, 64, 128, 256, Route::MOST_EXPERTS] {
            let (logits, weights, ids) = (self.input(u64::from(experts) * 4), self.output(8), high(8));
            let (top_k, renormalise, rows) = (2, true, 1);
            let args = Route { logits, weights, ids, experts, top_k, renormalise, rows };
            self.device.route(stream, &args)?;
            let after = |at: u64, bytes: u64| self.buffer.slice(5 * REGION / 2 + at, bytes);
            let (order, starts) = (after(64, 8), after(128, (u64::from(experts) + 1) * 4));
            let group = Group { ids, order, starts, experts, slots: top_k * rows, cpu, of_cpu };
            self.device.route_group(stream, &args, &group)?;
        }
        let (ids, order, starts) = (self.input(8), self.output(8), high(8));
        self.device.group(stream, &Group { ids, order, starts, experts: 1, slots: 2, cpu, of_cpu })?;
        let (src, dst, starts, moved) = (self.input(16), self.output(16), self.input(8), high(4));
        let copy = CopyExpert { src, dst, starts, moved, expert: 0, experts: 1 };
        self.device.copy_expert(stream, &copy)?;
        self.device.copy_promptly(stream, self.input(16), self.output(16))?;
        let (y, weights, out) = (self.input(4 * 128), self.input(8), self.output(4 * 64));
        let (top_k, width, rows) = (2, 64, 1);
        let combine = Combine { y, weights, out, top_k, width, rows, cpu, ids: None, cpu_y: None };
        self.device.combine(stream, &combine)
    }

    /// Attention of `heads` heads that share a key head; their number chooses the kernel.
    fn attention(&self, stream: Stream, dtype: DType, [heads, head_dim]: [u32; 2], rows: u32) -> Result<()> {
        let (kv_heads, page_tokens) = (1, 32);
        let zeros = |elements: u32| self.input(u64::from(elements) * 4);
        let page_bytes = u64::from(2 * kv_heads * page_tokens) * dtype.vector_bytes(head_dim.into());
        let kv = |pages: Span| KvPages {
            pages,
            dtype,
            page_bytes,
            page_tokens,
            offset: 0,
            kv_heads,
            head_dim,
            page_table: zeros(4),
            table_width: 4,
        };
        let (qkv, indices) = (zeros(rows * (heads + 2 * kv_heads) * head_dim), zeros(rows));
        let cache = self.buffer.slice(REGION, page_bytes);
        let out = self.output(u64::from(rows * heads * head_dim) * 4);
        let (row_seq, positions, scale) = (indices, indices, 1.0);
        let (window, alibi, read_by) = (None, false, None);
        let args = Attention {
            qkv,
            kv: kv(cache),
            row_seq,
            positions,
            out,
            heads,
            scale,
            window,
            alibi,
            rows,
            short_runs: false,
            read_by,
        };
        self.device.attention(stream, &args)?;
        let kv = kv(self.output(cache.len()));
        self.device.kv_write(stream, &KvWrite { qkv, kv, row_seq, positions, heads, rows })?;
        let (qkv, rows) = (self.output(u64::from((heads + 2 * kv_heads) * head_dim) * 4), 1);
        let (row_seq, positions) = (zeros(rows), zeros(rows));
        let kv = KvPages { pages: self.buffer.slice(5 * REGION / 2, page_bytes), ..kv };
        let (table, rotary_dim, style) = (zeros(head_dim), head_dim, RopeStyle::Half);
        let rope = Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style, rows };
        self.device.rope_kv_write(stream, &rope, &KvWrite { qkv, kv, row_seq, positions, heads, rows })
    }

    fn untyped(&self, stream: Stream) -> Result<()> {
        let (rows, width, half) = (1, 64, 32);
        let (small, x) = (self.input(4 * 64), self.input(4 * 128));
        let (positions, inv_freq) = (self.input(4), self.input(4 * 32));
        let out = self.output(4 * 64);
        self.device.rope_table(stream, &RopeTable { positions, inv_freq, out, half, scale: 1.0, rows })?;
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let qkv = self.output(4 * 3 * 64);
            let (heads, kv_heads, head_dim, rotary_dim) = (1, 1, 64, 64);
            let table = self.input(4 * 64);
            let args = Rope { qkv, table, heads, kv_heads, head_dim, rotary_dim, style, rows };
            self.device.rope(stream, &args)?;
        }
        self.device.silu_mul(stream, &SiluMul { x, out, width, rows, read_by: None })?;
        for form in [djinn_device::GeluForm::Erf, djinn_device::GeluForm::Tanh] {
            self.device.gelu(stream, &Gelu { x: small, out, form, len: 64 })?;
        }
        let (weight, bias) = (self.weight(64, DType::F16), self.weight(64, DType::F32));
        self.device.layer_norm(stream, &LayerNorm { x: small, weight, bias, out, eps: 1.0, width, rows })?;
        self.device.add(stream, &Add { a: small, b: small, out, len: 64 })?;
        let indices = self.input(4);
        let (add, eps) = (Add { a: small, b: small, out, len: 64 }, 1.0);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let norm = RmsNorm {
                x: out,
                weight: self.weight(64, dtype),
                out: self.buffer.slice(5 * REGION / 2, 4 * 64),
                eps,
                width,
                rows,
                read_by: None,
            };
            self.device.add_rms_norm(stream, &add, &norm)?;
        }
        self.device.select_rows(stream, &SelectRows { x: small, indices, out, width, rows })?;
        let (low, high, column, x_width) = (-1.0, 1.0, 0, width);
        let (direction, add, scale, along) = (small, small, 1.0, -1.0);
        let edit = EditRows {
            x: out,
            indices,
            direction,
            add,
            scale,
            along,
            low,
            high,
            column,
            width,
            x_width,
            rows,
            add_rows: rows,
        };
        self.device.edit_rows(stream, &edit)?;
        // Rows of zeros choose nothing: all code is loaded nevertheless.
        let (draws, drawn) = (self.input(4 * Draw::WORDS as u64), self.output(4 * Drawn::WORDS as u64));
        let (changes, earlier) = (self.input(16), self.input(4));
        self.device
            .choose(stream, &Choose { logits: small, draws, changes, earlier, drawn, vocab: 64, rows })?;
        self.device.checksum(stream, &Checksum { src: small, out: self.output(8) })
    }
}
