//! Each operation's launch: spans become slices, and the chosen arithmetic runs on them.
#![allow(unsafe_code, reason = "slices of shared memory")]

mod routing;

use super::element::{Elements, ElementsMut};
use super::{Kernels, Path, data, reference};
use crate::cpu::memory::Memory;
use crate::{DType, Span, args};

/// Memory during one operation, which is the only user of the bytes that it writes, and whose inputs nothing
/// writes meanwhile: the device runs an operation only after all that its stream and events put before it.
struct View<'a>(&'a Memory);

impl<'a> View<'a> {
    fn floats(&self, span: Span) -> &'a [f32] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    fn indices(&self, span: Span) -> &'a [u32] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    fn bytes(&self, span: Span) -> &'a [u8] {
        // SAFETY: an input of the operation, see `View`.
        unsafe { self.0.slice(span) }
    }

    fn output(&self, span: Span) -> &'a mut [f32] {
        // SAFETY: an output of the operation, see `View`; taken once, and inputs that lie in it are not
        // taken.
        unsafe { self.0.slice_mut(span) }
    }

    fn output_indices(&self, span: Span) -> &'a mut [u32] {
        // SAFETY: an output of the operation, see `View`; taken once.
        unsafe { self.0.slice_mut(span) }
    }

    fn output_bytes(&self, span: Span) -> &'a mut [u8] {
        // SAFETY: the output of the operation, see `View`; taken once.
        unsafe { self.0.slice_mut(span) }
    }

    fn elements(&self, span: Span, dtype: DType) -> Elements<'a> {
        match dtype {
            DType::F32 => Elements::F32(self.floats(span)),
            // SAFETY: an input of the operation, see `View`.
            DType::F16 => Elements::F16(unsafe { self.0.slice(span) }),
            // SAFETY: an input of the operation, see `View`.
            DType::BF16 => Elements::BF16(unsafe { self.0.slice(span) }),
            DType::U32 => panic!("u32 is no type of weights or caches"),
        }
    }

    fn elements_mut(&self, span: Span, dtype: DType) -> ElementsMut<'a> {
        match dtype {
            DType::F32 => ElementsMut::F32(self.output(span)),
            // SAFETY: the output of the operation, see `View`.
            DType::F16 => ElementsMut::F16(unsafe { self.0.slice_mut(span) }),
            // SAFETY: the output of the operation, see `View`.
            DType::BF16 => ElementsMut::BF16(unsafe { self.0.slice_mut(span) }),
            DType::U32 => panic!("u32 is no type of weights or caches"),
        }
    }

    fn weight(&self, weight: args::Weight) -> Elements<'a> {
        self.elements(weight.span, weight.dtype)
    }

    fn layout(&self, kv: &args::KvPages) -> data::KvLayout<'a> {
        data::KvLayout {
            page_elements: (kv.page_bytes / kv.dtype.bytes()) as usize,
            page_tokens: kv.page_tokens as usize,
            layer: kv.layer as usize,
            kv_heads: kv.kv_heads as usize,
            head_dim: kv.head_dim as usize,
            page_table: self.indices(kv.page_table),
            table_width: kv.table_width as usize,
        }
    }

    /// The input, unless it is the output's own memory.
    fn unless_output(&self, input: Span, output: Span) -> Option<&'a [f32]> {
        (input != output).then(|| self.floats(input))
    }
}

impl Kernels {
    /// See [`args::Embed`].
    pub(crate) fn embed(&self, memory: &Memory, args: &args::Embed) {
        let view = View(memory);
        let op = data::Embed {
            tokens: view.indices(args.tokens),
            table: view.weight(args.table),
            first_row: args.first_row,
            table_rows: args.table_rows,
            width: args.width as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::embed(op),
            Path::Fast(fast) => fast.embed(op),
        }
    }

    /// See [`args::RopeTable`].
    pub(crate) fn rope_table(&self, memory: &Memory, args: &args::RopeTable) {
        let view = View(memory);
        let op = data::RopeTable {
            positions: view.indices(args.positions),
            inv_freq: view.floats(args.inv_freq),
            scale: args.scale,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::rope_table(op),
            Path::Fast(fast) => fast.rope_table(op),
        }
    }

    /// See [`args::RmsNorm`].
    pub(crate) fn rms_norm(&self, memory: &Memory, args: &args::RmsNorm) {
        let view = View(memory);
        let op = data::RmsNorm {
            x: view.unless_output(args.x, args.out),
            weight: view.weight(args.weight),
            eps: args.eps,
            width: args.width as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::rms_norm(op),
            Path::Fast(fast) => fast.rms_norm(op),
        }
    }

    /// See [`args::LayerNorm`].
    pub(crate) fn layer_norm(&self, memory: &Memory, args: &args::LayerNorm) {
        let view = View(memory);
        let op = data::LayerNorm {
            x: view.unless_output(args.x, args.out),
            weight: view.weight(args.weight),
            bias: view.weight(args.bias),
            eps: args.eps,
            width: args.width as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::layer_norm(op),
            Path::Fast(fast) => fast.layer_norm(op),
        }
    }

    /// See [`args::HeadNorm`].
    pub(crate) fn head_norm(&self, memory: &Memory, args: &args::HeadNorm) {
        let view = View(memory);
        let op = data::HeadNorm {
            qkv: view.output(args.qkv),
            query: view.weight(args.query),
            key: view.weight(args.key),
            eps: args.eps,
            heads: args.heads as usize,
            kv_heads: args.kv_heads as usize,
            head_dim: args.head_dim as usize,
        };
        match &self.path {
            Path::Reference => reference::head_norm(op),
            Path::Fast(fast) => fast.head_norm(op),
        }
    }

    /// See [`args::Linear`].
    pub(crate) fn linear(&self, memory: &Memory, args: &args::Linear) {
        let view = View(memory);
        let op = data::Linear {
            x: view.floats(args.x),
            weight: view.weight(args.weight),
            bias: args.bias.map(|bias| view.weight(bias)),
            k: args.k as usize,
            n: args.n as usize,
            out_width: args.out_width as usize,
            out_column: args.out_column as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::linear(op),
            Path::Fast(fast) => fast.linear(op),
        }
    }

    /// See [`args::Rope`].
    pub(crate) fn rope(&self, memory: &Memory, args: &args::Rope) {
        let view = View(memory);
        let op = data::Rope {
            qkv: view.output(args.qkv),
            table: view.floats(args.table),
            heads: args.heads as usize,
            kv_heads: args.kv_heads as usize,
            head_dim: args.head_dim as usize,
            rotary_dim: args.rotary_dim as usize,
            style: args.style,
        };
        match &self.path {
            Path::Reference => reference::rope(op),
            Path::Fast(fast) => fast.rope(op),
        }
    }

    /// See [`args::KvWrite`].
    pub(crate) fn kv_write(&self, memory: &Memory, args: &args::KvWrite) {
        let view = View(memory);
        let op = data::KvWrite {
            qkv: view.floats(args.qkv),
            pages: view.elements_mut(args.kv.pages, args.kv.dtype),
            layout: view.layout(&args.kv),
            row_seq: view.indices(args.row_seq),
            positions: view.indices(args.positions),
            heads: args.heads as usize,
        };
        match &self.path {
            Path::Reference => reference::kv_write(op),
            Path::Fast(fast) => fast.kv_write(op),
        }
    }

    /// See [`args::Attention`].
    pub(crate) fn attention(&self, memory: &Memory, args: &args::Attention) {
        let view = View(memory);
        let op = data::Attention {
            qkv: view.floats(args.qkv),
            pages: view.elements(args.kv.pages, args.kv.dtype),
            layout: view.layout(&args.kv),
            row_seq: view.indices(args.row_seq),
            positions: view.indices(args.positions),
            heads: args.heads as usize,
            scale: args.scale,
            window: args.window.map(|window| window as usize),
            alibi: args.alibi,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::attention(op),
            Path::Fast(fast) => fast.attention(op),
        }
    }

    /// See [`args::SiluMul`].
    pub(crate) fn silu_mul(&self, memory: &Memory, args: &args::SiluMul) {
        let view = View(memory);
        let op =
            data::SiluMul { x: view.floats(args.x), width: args.width as usize, out: view.output(args.out) };
        match &self.path {
            Path::Reference => reference::silu_mul(op),
            Path::Fast(fast) => fast.silu_mul(op),
        }
    }

    /// See [`args::Gelu`].
    pub(crate) fn gelu(&self, memory: &Memory, args: &args::Gelu) {
        let view = View(memory);
        let x = view.unless_output(args.x, args.out);
        let op = data::Gelu { x, form: args.form, out: view.output(args.out) };
        match &self.path {
            Path::Reference => reference::gelu(op),
            Path::Fast(fast) => fast.gelu(op),
        }
    }

    /// See [`args::Add`].
    pub(crate) fn add(&self, memory: &Memory, args: &args::Add) {
        let view = View(memory);
        let op = data::Add {
            a: view.unless_output(args.a, args.out),
            b: view.unless_output(args.b, args.out),
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::add(op),
            Path::Fast(fast) => fast.add(op),
        }
    }

    /// See [`args::SelectRows`].
    pub(crate) fn select_rows(&self, memory: &Memory, args: &args::SelectRows) {
        let view = View(memory);
        let op = data::SelectRows {
            x: view.floats(args.x),
            indices: view.indices(args.indices),
            width: args.width as usize,
            out: view.output(args.out),
        };
        match &self.path {
            Path::Reference => reference::select_rows(op),
            Path::Fast(fast) => fast.select_rows(op),
        }
    }

    /// See [`args::Argmax`].
    pub(crate) fn argmax(&self, memory: &Memory, args: &args::Argmax) {
        let view = View(memory);
        let op = data::Argmax {
            x: view.floats(args.x),
            width: args.width as usize,
            out: view.output_indices(args.out),
        };
        match &self.path {
            Path::Reference => reference::argmax(op),
            Path::Fast(fast) => fast.argmax(op),
        }
    }

    /// See [`args::CopyPages`].
    pub(crate) fn copy_pages(&self, memory: &Memory, args: &args::CopyPages) {
        let view = View(memory);
        let op = data::CopyPages {
            src: view.bytes(args.src),
            dst: view.output_bytes(args.dst),
            src_pages: args.src_pages.map(|list| view.indices(list)),
            dst_pages: args.dst_pages.map(|list| view.indices(list)),
            page_bytes: args.page_bytes as usize,
            count: args.count as usize,
        };
        match &self.path {
            Path::Reference => reference::copy_pages(op),
            Path::Fast(fast) => fast.copy_pages(op),
        }
    }

    /// See [`args::Checksum`].
    pub(crate) fn checksum(&self, memory: &Memory, args: &args::Checksum) {
        let view = View(memory);
        let bytes = view.bytes(args.src);
        let sum = match &self.path {
            Path::Reference => reference::checksum(bytes),
            Path::Fast(fast) => fast.checksum(bytes),
        };
        // SAFETY: the output of the operation, see `View`.
        let out = unsafe { memory.slice_mut::<u8>(args.out) };
        out.copy_from_slice(&sum.to_le_bytes());
    }
}
