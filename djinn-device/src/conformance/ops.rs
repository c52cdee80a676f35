//! The suite for [`Ops`]: every operation against the scalar reference, over seeded random shapes and all
//! element types, with outputs that start as NaN, and with no byte changed beside them; and each row's bits against
//! those of the same row in other batches.

mod attention;
mod choice;
mod encoded;
mod linear;
mod on_cpu;
mod rig;
mod routing;
mod rows;

use crate::{DType, Encoding, Ops};
use rig::Rig;

/// The greatest error allowed by the type of the weights or the cache: the norm of the difference to the
/// reference over the norm of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// For f32, and for operations without weights.
    pub f32: f64,
    /// For f16, and for int8, whose products may be of f16.
    pub f16: f64,
    /// For bf16.
    pub bf16: f64,
    /// For blocks.
    pub blocks: f64,
}

impl Tolerance {
    /// For devices that round activations to the weights' type, and blocks to f16.
    pub const ROUNDING: Tolerance = Tolerance { f32: 1e-5, f16: 2e-3, bf16: 1e-2, blocks: 1e-3 };

    /// For devices that widen weights and compute in f32.
    pub const WIDENING: Tolerance = Tolerance { f32: 1e-5, f16: 1e-5, bf16: 1e-5, blocks: 1e-5 };

    /// The entry for a matrix's encoding, and the type that it keeps.
    fn of(self, Stored(encoding, dtype): Stored) -> f64 {
        match (encoding, dtype) {
            (Encoding::Blocks(_), _) => self.blocks,
            (_, DType::F16 | DType::Int8) => self.f16,
            (_, DType::BF16) => self.bf16,
            (_, DType::F32 | DType::U32) => self.f32,
        }
    }
}

/// What results are within a tolerance for: a matrix's encoding and type. Plain for a type alone.
#[derive(Clone, Copy)]
struct Stored(Encoding, DType);

impl From<DType> for Stored {
    fn from(dtype: DType) -> Self {
        Stored(Encoding::Plain, dtype)
    }
}

/// A check and its name.
type Check<D> = (&'static str, fn(&mut Rig<D>));

/// Runs every check on a device of its own. The device must have 64 MiB in each space.
///
/// # Panics
/// If the device does not conform.
pub fn ops<D: Ops>(make: impl Fn() -> D, tolerance: Tolerance) {
    each_op(&make, tolerance, &mut |_, check| check());
}

/// Hands every check, with its name, to `run`.
pub(super) fn each_op<D: Ops>(
    make: &dyn Fn() -> D,
    tolerance: Tolerance,
    run: &mut dyn FnMut(&'static str, &dyn Fn()),
) {
    let checks: [Check<D>; 81] = named![
        linear::matches_the_reference,
        linear::divides_large_weights,
        linear::leaves_other_columns_alone,
        linear::is_batch_invariant,
        linear::computes_batch_invariant_rows,
        linear::takes_tiles_at_once,
        linear::activates_at_once,
        linear::adds_at_once,
        linear::reads_the_latest,
        linear::serves_unusual_widths,
        on_cpu::matches_the_reference,
        on_cpu::is_batch_invariant,
        on_cpu::is_replayed,
        on_cpu::experts_match_the_reference,
        encoded::products_match_the_reference,
        encoded::products_are_batch_invariant,
        encoded::lossless_products_have_the_bits_of_plain_ones,
        encoded::wide_products_have_the_bits_of_few,
        encoded::takes_tiles_at_once,
        encoded::goes_on_at_once,
        encoded::goes_on_over_two_formats_at_once,
        encoded::embeds_rows_exactly,
        encoded::experts_match_the_reference,
        encoded::experts_are_computed_at_once,
        encoded::experts_follow_one_another,
        attention::matches_the_reference,
        attention::is_batch_invariant,
        attention::keeps_sequences_apart,
        attention::divides_long_runs,
        attention::takes_long_contexts,
        attention::reads_what_copies_put_there,
        attention::is_read_by_a_product_alone,
        attention::windows_match_the_reference,
        attention::windows_that_hide_nothing_change_nothing,
        attention::windows_are_batch_invariant,
        attention::biases_match_the_reference,
        attention::biases_are_batch_invariant,
        attention::serves_unusual_heads,
        attention::writes_the_cache_exactly,
        attention::rotates_and_writes_at_once,
        rows::embeds_the_rows_of_its_tile,
        rows::tabulates_rotations,
        rows::normalises,
        rows::norms_are_batch_invariant,
        rows::adds_and_normalises_at_once,
        rows::centres_and_normalises,
        rows::centred_norms_are_batch_invariant,
        rows::normalises_heads,
        rows::head_norms_are_batch_invariant,
        rows::rotates,
        rows::rotations_are_batch_invariant,
        rows::activates,
        rows::activations_are_batch_invariant,
        rows::has_two_forms_of_gelu,
        rows::gelu_is_batch_invariant,
        rows::adds,
        rows::selects_rows,
        rows::edits_rows,
        rows::edits_are_batch_invariant,
        rows::sums_bytes,
        choice::chooses_as_the_reference,
        choice::chooses_from_changed_logits,
        choice::changes_stay_within_numbers,
        choice::chooses_among_equals,
        choice::chooses_from_sound_rows_alone,
        choice::choices_are_batch_invariant,
        routing::routes_to_the_greatest,
        routing::routes_without_numbers,
        routing::routes_are_batch_invariant,
        routing::groups_slots_by_expert,
        routing::groups_leave_slots_to_the_cpu,
        routing::routes_and_groups_at_once,
        routing::experts_match_the_reference,
        routing::experts_divide_large_weights,
        routing::experts_are_computed_at_once,
        routing::combines,
        routing::combines_slots_of_the_cpu,
        routing::mixes_experts,
        routing::copies_experts_in_use,
        routing::copies_many_experts_at_once,
        routing::copies_wherever_bytes_begin,
    ];
    for (name, check) in checks {
        run(name, &|| check(&mut Rig::new(make(), tolerance)));
    }
}
