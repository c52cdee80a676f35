//! The table of operations. The trait [`Ops`], operations as values, the spans that an operation uses, and its checks
//! are generated from it.

use crate::access::{Access, Field};
use crate::args::check::Checks;
use crate::args::{
    self, Add, CopyExpert, CpuExperts, ExpertLinear, Group, KvWrite, Linear, RmsNorm, Rope, Route, SiluMul,
};
use crate::{Device, Result, Span, Stream};

/// Calls the macro `$then` with the tokens `$with` and the table of operations. An entry has the operation's name, the
/// type of its arguments in [`args`](crate::args), and which of their fields it reads and writes. A field `in_place` is
/// read, and may be the output itself; apart from that, outputs share no byte with other fields.
///
/// ```
/// macro_rules! names {
///     ([$first:literal] $($op:ident: $Args:ident $uses:tt,)*) => { [$first, $(stringify!($op)),*] };
/// }
/// let names = djinn_device::for_each_op!(names ["sync"]);
/// assert_eq!(names[..3], ["sync", "embed", "rope_table"]);
/// ```
#[macro_export]
macro_rules! for_each_op {
    ($then:ident $($with:tt)*) => {
        $then! {
            $($with)*
            embed: Embed { reads: [tokens, table], in_place: [], writes: [out] },
            rope_table: RopeTable { reads: [positions, inv_freq], in_place: [], writes: [out] },
            rms_norm: RmsNorm { reads: [weight], in_place: [x], writes: [out] },
            layer_norm: LayerNorm { reads: [weight, bias], in_place: [x], writes: [out] },
            head_norm: HeadNorm { reads: [query, key], in_place: [], writes: [qkv] },
            linear: Linear { reads: [x, weight, bias], in_place: [], writes: [out] },
            rope: Rope { reads: [table], in_place: [], writes: [qkv] },
            kv_write: KvWrite {
                reads: [qkv, row_seq, positions, kv.page_table], in_place: [], writes: [kv.pages]
            },
            attention: Attention {
                reads: [qkv, row_seq, positions, kv.page_table, kv.pages], in_place: [], writes: [out]
            },
            silu_mul: SiluMul { reads: [x], in_place: [], writes: [out] },
            gelu: Gelu { reads: [], in_place: [x], writes: [out] },
            add: Add { reads: [], in_place: [a, b], writes: [out] },
            select_rows: SelectRows { reads: [x, indices], in_place: [], writes: [out] },
            edit_rows: EditRows { reads: [indices, direction, add], in_place: [], writes: [x] },
            route: Route { reads: [logits], in_place: [], writes: [weights, ids] },
            group: Group { reads: [ids], in_place: [], writes: [order, starts] },
            expert_linear: ExpertLinear { reads: [x, weight, order, starts], in_place: [], writes: [out] },
            combine: Combine { reads: [y, weights, ids, cpu_y], in_place: [], writes: [out] },
            copy_expert: CopyExpert { reads: [src, starts], in_place: [], writes: [dst, moved] },
            choose: Choose { reads: [logits, draws, changes, earlier], in_place: [], writes: [drawn] },
            checksum: Checksum { reads: [src], in_place: [], writes: [out] },
        }
    };
}

/// The methods of every operation's arguments.
macro_rules! arguments {
    ($($op:ident: $Args:ident {
        reads: [$($($read:ident).+),*], in_place: [$($in_place:ident),*], writes: [$($($write:ident).+),*]
    },)*) => {$(
        impl args::$Args {
            /// Calls `visit` with every span that the operation uses, and the field's name.
            pub fn each_access(&self, mut visit: impl FnMut(&'static str, Access)) {
                let mut read = |name, field: Option<Span>| {
                    if let Some(span) = field {
                        visit(name, Access::Read(span));
                    }
                };
                $(read(stringify!($($read).+), Field::span(self.$($read).+));)*
                $(read(stringify!($in_place), Field::span(self.$in_place));)*
                $(visit(stringify!($($write).+), Access::Write(self.$($write).+));)*
            }

            /// Checks sizes, alignment and overlap.
            ///
            /// # Panics
            /// If one of them is wrong.
            pub fn check(&self) {
                self.check_sizes(Checks(stringify!($op)));
                let in_place: &[&str] = &[$(stringify!($in_place)),*];
                self.each_access(|name, access| {
                    let Access::Write(out) = access else { return };
                    self.each_access(|other, access| {
                        if !out.overlaps(access.span()) || other == name {
                            return;
                        }
                        let may_equal = in_place.contains(&other);
                        assert!(
                            may_equal && access.span() == out,
                            "{}: the output {name} {out:?} overlaps {}{other} {:?}",
                            stringify!($op),
                            if may_equal { "part of " } else { "" },
                            access.span()
                        );
                    });
                });
            }
        }
    )*};
}

for_each_op!(arguments);

/// Operations as values.
macro_rules! values {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        /// An operation with its arguments, for devices that queue operations on the host, and for comparisons.
        #[derive(Clone, Copy, Debug)]
        pub enum Operation {
            $(
                #[doc = concat!("See [`args::", stringify!($Args), "`].")]
                $Args(args::$Args),
            )*
        }

        $(impl From<args::$Args> for Operation {
            fn from(args: args::$Args) -> Self {
                Operation::$Args(args)
            }
        })*

        impl Operation {
            /// Calls `visit` with every span that the operation uses.
            pub fn each_access(&self, mut visit: impl FnMut(Access)) {
                match self {
                    $(Operation::$Args(args) => args.each_access(|_, access| visit(access))),*
                }
            }

            /// Checks sizes, alignment and overlap.
            ///
            /// # Panics
            /// If one of them is wrong.
            pub fn check(&self) {
                match self {
                    $(Operation::$Args(args) => args.check()),*
                }
            }

            /// Enqueues it; its arguments were checked.
            ///
            /// # Errors
            /// The device's.
            pub fn enqueue<D: Ops>(&self, device: &D, stream: Stream) -> Result<()> {
                match self {
                    $(Operation::$Args(args) => device.$op(stream, args)),*
                }
            }
        }
    };
}

for_each_op!(values);

/// The trait.
macro_rules! operations {
    ($($op:ident: $Args:ident $uses:tt,)*) => {
        /// Decoder operations. Each enqueues on `stream` and returns at once. The scalar
        /// [`reference`](crate::reference) defines the results, up to the tolerance of the conformance suite. The
        /// caller has checked the arguments (`args.check()`); devices only `debug_assert` them.
        ///
        /// Every operation computes each output row from that row's inputs alone, in an order that does not depend on
        /// the number of rows: results are *batch-invariant*. A device may compute `linear` and `attention` of many
        /// rows on other units, in another order. It states the number of rows up to which a row's bits are the same
        /// in every batch ([`DeviceInfo::batch_invariant_rows`](crate::DeviceInfo::batch_invariant_rows)), and whether
        /// some products have no such limit ([`DeviceInfo::wide_products`](crate::DeviceInfo::wide_products)).
        pub trait Ops: Device {
            $(
                #[doc = concat!("See [`args::", stringify!($Args), "`].")]
                fn $op(&self, stream: Stream, args: &args::$Args) -> Result<()>;
            )*

            /// [`add`](Ops::add), then [`rms_norm`](Ops::rms_norm) of the sum, with the same bits; devices may do both
            /// in one launch. `norm.x` is `add.out`; each of `add.out` and `norm.out` is one of `add.a` and `add.b` as
            /// a whole, or shares no byte with them.
            fn add_rms_norm(&self, stream: Stream, add: &Add, norm: &RmsNorm) -> Result<()> {
                self.add(stream, add)?;
                self.rms_norm(stream, norm)
            }

            /// One [`linear`](Ops::linear) after another, with the same bits. Devices may compute successive tiles of
            /// a weight for the same rows in one launch.
            fn linear_tiles(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
                tiles.iter().try_for_each(|tile| self.linear(stream, tile))
            }

            /// [`linear_tiles`](Ops::linear_tiles) whose spans all lie in host memory, computed there by the CPU
            /// if [`DeviceInfo::cpu_products`](crate::DeviceInfo::cpu_products) says that the device has its help. A row's bits
            /// do not depend on the other rows. They may differ from those of a product on the device, by rounding.
            fn linear_on_cpu(&self, stream: Stream, tiles: &[Linear]) -> Result<()> {
                self.linear_tiles(stream, tiles)
            }

            /// One [`expert_linear`](Ops::expert_linear) after another, with the same bits. Devices may compute several in one
            /// launch, in any order. [`ExpertLinear::check_all`], which the caller has called, tells what they have in common.
            fn expert_linears(&self, stream: Stream, products: &[ExpertLinear]) -> Result<()> {
                products.iter().try_for_each(|product| self.expert_linear(stream, product))
            }

            /// The same for [`copy_expert`](Ops::copy_expert) and [`CopyExpert::check_all`].
            fn copy_experts(&self, stream: Stream, copies: &[CopyExpert]) -> Result<()> {
                copies.iter().try_for_each(|copy| self.copy_expert(stream, copy))
            }

            /// Begins the work of [`CpuExperts`] on the CPU, with what lies in host memory when the stream comes
            /// to it. Later work on the stream does not wait for it, and uses none of its memory before
            /// [`await_cpu`](Ops::await_cpu) on the same stream, nor has the CPU do anything else. A row's bits do not
            /// depend on the other rows.
            fn experts_on_cpu(&self, stream: Stream, experts: &CpuExperts) -> Result<()> {
                self.expert_linears(stream, &experts.up)?;
                self.silu_mul(stream, &experts.act)?;
                self.expert_linears(stream, &experts.down)
            }

            /// Lets later work on the stream wait for the work that [`experts_on_cpu`](Ops::experts_on_cpu) began last.
            fn await_cpu(&self, _stream: Stream) -> Result<()> {
                Ok(())
            }

            /// [`linear_tiles`](Ops::linear_tiles) with all tiles of a weight, then [`silu_mul`](Ops::silu_mul) of the
            /// result, with the same bits. Devices may do both in one launch. Nothing else may read the products'
            /// output, which a device may leave unwritten. `act.out` may share bytes with the products' `x`.
            fn linear_silu_mul(&self, stream: Stream, tiles: &[Linear], act: &SiluMul) -> Result<()> {
                self.linear_tiles(stream, tiles)?;
                self.silu_mul(stream, act)
            }

            /// [`linear_tiles`](Ops::linear_tiles) with all tiles of a weight. A device that can also do the addition of
            /// the result in the same launch, with the same bits, does so and returns true. It may then leave the
            /// products' output unwritten, which only `add` reads. No term of `add` shares bytes with the products' `x`.
            fn linear_add(&self, stream: Stream, tiles: &[Linear], add: &Add) -> Result<bool> {
                if cfg!(debug_assertions) {
                    add.check();
                }
                self.linear_tiles(stream, tiles)?;
                Ok(false)
            }

            /// [`route`](Ops::route), then [`group`](Ops::group) of its choice, with the same bits; devices may do both in one
            /// launch. `group.ids` is `route.ids`; what `group` writes may share bytes with `route.logits`.
            fn route_group(&self, stream: Stream, route: &Route, group: &Group) -> Result<()> {
                self.route(stream, route)?;
                self.group(stream, group)
            }

            /// [`rope`](Ops::rope), then [`kv_write`](Ops::kv_write) of the same `qkv`, with the same bits; devices
            /// may do both in one launch.
            fn rope_kv_write(&self, stream: Stream, rope: &Rope, write: &KvWrite) -> Result<()> {
                self.rope(stream, rope)?;
                self.kv_write(stream, write)
            }
        }
    };
}

for_each_op!(operations);
