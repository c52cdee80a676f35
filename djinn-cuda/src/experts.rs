//! Products of experts, cut into those that one launch computes.

#[cfg(test)]
mod tests;

use djinn_device::args::{ExpertLinear, Weight};

/// The products of experts that one launch of Djinn's kernels computes.
#[derive(Debug)]
pub(crate) struct Experts {
    /// Tiles of one expert after those of another.
    pub(crate) products: Vec<ExpertLinear>,
    /// Tiles of each expert.
    pub(crate) tiles: usize,
}

impl Experts {
    /// Takes products of `left`, which is not empty and in the order of [`expert_linears`](djinn_device::Ops::expert_linears),
    /// for a launch that computes up to `most`, and up to `most_of_one` of an expert: successive tiles of the first expert, of
    /// equal numbers of rows except for a smaller last one, and the same tiles of the other experts that have them.
    pub(crate) fn take(left: &mut Vec<ExpertLinear>, most_of_one: usize, most: usize) -> Experts {
        let first = left[0];
        let follows = |(a, b): (&ExpertLinear, &ExpertLinear)| {
            let next = ExpertLinear { n: b.n, out_column: a.out_column + a.n, ..first };
            a.n == first.n && b.n <= first.n && *b == with_weight_of(b, &next)
        };
        let tiles =
            1 + left.iter().zip(&left[1..]).take(most_of_one - 1).take_while(|&pair| follows(pair)).count();
        let shape = left[..tiles].to_vec();
        let (mut products, mut rest) = (Vec::new(), Vec::new());
        for of_one in left.chunk_by(|a, b| a.expert == b.expert) {
            let alike = of_one.iter().zip(&shape).filter(|&(product, tile)| {
                *product == ExpertLinear { expert: product.expert, ..with_weight_of(product, tile) }
            });
            let joins = alike.count() == tiles && products.len() + tiles <= most;
            let (taken, others) = of_one.split_at(if joins { tiles } else { 0 });
            products.extend(taken);
            rest.extend(others);
        }
        *left = rest;
        Experts { products, tiles }
    }
}

/// `product` with the weight where that of `other` is.
fn with_weight_of(other: &ExpertLinear, product: &ExpertLinear) -> ExpertLinear {
    let weight = Weight { span: other.weight.span, ..product.weight };
    ExpertLinear { weight, ..*product }
}
