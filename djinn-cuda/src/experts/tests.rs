//! Launches of random products of experts.

use super::Experts;
use djinn_device::args::{ExpertLinear, Weight};
use djinn_device::{Buffer, DType, Encoding, Space, Span};
use proptest::prelude::*;

const MOST_OF_ONE: usize = 4;
const MOST: usize = 8;

fn span(id: u32) -> Span {
    Buffer::from_raw(id, Space::Device, 1 << 20).span()
}

fn product(id: u32, expert: u32, out_column: u32, n: u32, kind: usize) -> ExpertLinear {
    let weight = match kind {
        0 => Weight::plain(span(100 + id), DType::BF16),
        1 => Weight::plain(span(100 + id), DType::F16),
        _ => Weight { span: span(100 + id), dtype: DType::BF16, encoding: Encoding::Lossless },
    };
    let [x, order, starts, out] = [0, 1, 2, 3].map(span);
    let (k, out_width, slots_per_row, slots) = (64, 1000, 1, 5);
    ExpertLinear { x, weight, order, starts, out, k, n, out_width, out_column, expert, slots_per_row, slots }
}

/// For each expert the gaps before its tiles, their rows and kinds. Most experts have the same.
fn experts() -> impl Strategy<Value = Vec<ExpertLinear>> {
    let tile =
        (prop_oneof![4 => Just(0u32), 1 => Just(3)], prop_oneof![4 => Just(7u32), 1 => 1u32..9], 0usize..3);
    let tiles = proptest::collection::vec(tile, 1..6);
    let several = proptest::collection::vec((tiles.clone(), 0u8..4), 1..20);
    (tiles, several).prop_map(|(usual, several)| {
        let mut products = Vec::new();
        for (expert, (own, kind)) in several.into_iter().enumerate() {
            let mut column = 0;
            for (gap, n, kind) in if kind == 0 { &own } else { &usual } {
                products.push(product(products.len() as u32, 2 * expert as u32, column + gap, *n, *kind));
                column += gap + n;
            }
        }
        products
    })
}

proptest! {
    /// Each product is computed once, and a launch has what the kernels take: the same successive tiles of each expert.
    #[test]
    fn launches_have_the_same_tiles_of_each_expert(products in experts()) {
        let (mut left, mut launched) = (products.clone(), Vec::new());
        while !left.is_empty() {
            let before = left.len();
            let Experts { products, tiles } = Experts::take(&mut left, MOST_OF_ONE, MOST);
            prop_assert!(!products.is_empty() && products.len() <= MOST && tiles <= MOST_OF_ONE && products.len() + left.len() == before);
            let (first, of_one) = (products[0], &products[..tiles]);
            for pair in of_one.windows(2) {
                prop_assert!(pair[0].n == first.n && pair[1].n <= first.n);
                prop_assert_eq!(pair[1].out_column, pair[0].out_column + pair[0].n);
            }
            prop_assert_eq!(products.len() % tiles, 0);
            for chunk in products.chunks(tiles) {
                for (tile, of_first) in chunk.iter().zip(of_one) {
                    prop_assert_eq!(tile.expert, chunk[0].expert);
                    prop_assert_eq!((tile.n, tile.out_column), (of_first.n, of_first.out_column));
                    prop_assert_eq!((tile.weight.dtype, tile.weight.encoding), (first.weight.dtype, first.weight.encoding));
                }
            }
            launched.extend(products);
        }
        launched.sort_by_key(|product| product.weight.span.buffer().id());
        prop_assert_eq!(launched, products);
    }
}

#[test]
fn as_many_experts_as_fit_are_launched_together() {
    let all = |experts: u32, tiles: u32| -> Vec<ExpertLinear> {
        let tile = |i| product(i, i / tiles, i % tiles * 7, if (i + 1) % tiles == 0 { 5 } else { 7 }, 0);
        (0..experts * tiles).map(tile).collect()
    };
    for (experts, tiles, launches) in
        [(1, 1, vec![1]), (8, 1, vec![8]), (20, 1, vec![8, 8, 4]), (4, 3, vec![6, 6])]
    {
        let mut left = all(experts, tiles);
        let taken: Vec<usize> = std::iter::from_fn(|| {
            (!left.is_empty()).then(|| Experts::take(&mut left, MOST_OF_ONE, MOST).products.len())
        })
        .collect();
        assert_eq!(taken, launches, "{experts} experts of {tiles} tiles");
    }
    // Of an expert with other tiles, nothing is taken with the rest.
    let mut left = all(3, 2);
    left[3].n = 4;
    assert_eq!(Experts::take(&mut left, MOST_OF_ONE, MOST).products.len(), 4);
    assert_eq!(left.iter().map(|product| product.expert).collect::<Vec<_>>(), [1, 1]);
}
