//! Synthetic models of every kind of block.

/// Blocks in sequence and side by side, rotated, learned and no positions, experts, windows, norms of heads.
pub(crate) const FAMILIES: [&str; 11] = [
    "tiny-gqa",
    "tiny-window",
    "tiny-qwen3",
    "tiny-mixtral",
    "tiny-qwen3-moe",
    "tiny-gpt2",
    "tiny-gptj",
    "tiny-gpt-neox",
    "tiny-falcon",
    "tiny-falcon-rw",
    "tiny",
];
