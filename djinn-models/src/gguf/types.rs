//! GGML's tensor types: their numbers in files, and the size of their blocks.

use crate::StoredType;
use djinn_srg::BlockFormat;

/// A tensor's type, with the elements and bytes of a block.
type SizedType = (StoredType, (u64, u64));

/// The type with GGML's number `id` (`enum ggml_type`); `None` for unused, withdrawn and newer numbers.
pub(super) fn by_id(id: u32) -> Option<SizedType> {
    use BlockFormat::*;
    let stored = match id {
        0 => StoredType::F32,
        1 => StoredType::F16,
        2 => StoredType::Blocks(Q4_0),
        3 => StoredType::Blocks(Q4_1),
        6 => StoredType::Blocks(Q5_0),
        7 => StoredType::Blocks(Q5_1),
        8 => StoredType::Blocks(Q8_0),
        10 => StoredType::Blocks(Q2_K),
        11 => StoredType::Blocks(Q3_K),
        12 => StoredType::Blocks(Q4_K),
        13 => StoredType::Blocks(Q5_K),
        14 => StoredType::Blocks(Q6_K),
        20 => StoredType::Blocks(IQ4_NL),
        23 => StoredType::Blocks(IQ4_XS),
        30 => StoredType::BF16,
        39 => StoredType::Blocks(MXFP4),
        _ => return listed_only(id),
    };
    Some((stored, stored.block()?))
}

/// Types that are known but not decoded. Their sizes serve to check the file.
fn listed_only(id: u32) -> Option<SizedType> {
    let (name, elements, bytes) = match id {
        9 => ("Q8_1", 32, 40),
        15 => ("Q8_K", 256, 292),
        16 => ("IQ2_XXS", 256, 66),
        17 => ("IQ2_XS", 256, 74),
        18 => ("IQ3_XXS", 256, 98),
        19 => ("IQ1_S", 256, 50),
        21 => ("IQ3_S", 256, 110),
        22 => ("IQ2_S", 256, 82),
        24 => ("I8", 1, 1),
        25 => ("I16", 1, 2),
        26 => ("I32", 1, 4),
        27 => ("I64", 1, 8),
        28 => ("F64", 1, 8),
        29 => ("IQ1_M", 256, 56),
        34 => ("TQ1_0", 256, 54),
        35 => ("TQ2_0", 256, 66),
        40 => ("NVFP4", 64, 36),
        41 => ("Q1_0", 128, 18),
        _ => return None,
    };
    Some((StoredType::Other(name), (elements, bytes)))
}
