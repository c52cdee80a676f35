/*
 * What the kernels of `linear` share: the order in which a row's sum is formed. All kernels on the tensor cores keep that
 * order, so that a row has the same bits in each of them.
 *
 * x is rounded to the weight's type. Columns are divided into runs, which are dealt to the partial sums in turn. A partial
 * sum takes its runs in order, and in a run the products of 16 columns in order. The partial sums are added in order.
 */
#ifndef DJINN_LINEAR_CUH
#define DJINN_LINEAR_CUH

#include "element.cuh"

namespace djinn {

/* Columns of a run, and the number of partial sums. */
constexpr unsigned RUN = 64, PARTIALS = 4;

__device__ __forceinline__ unsigned runs_of(const djinn_linear_args &a, unsigned partial) {
    return (a.k / RUN + PARTIALS - 1 - partial) / PARTIALS;
}

/* The most rows of one launch of linear.cu's kernels. */
constexpr unsigned MOST_ROWS = 16;

/*
 * Where linear_tiles.cuh serves: the most slots of an expert, and rows over formats that are not common, for which a product
 * over blocks takes x unrounded.
 */
constexpr unsigned FEW_ENCODED = 8;

/* The most rows for which a product over blocks of that encoding takes x unrounded on Hopper; 0 for other encodings. */
unsigned most_unrounded(uint32_t encoding);

/* Whether linear_hopper.cu serves such a product on the current device. */
bool serves_hopper(uint32_t k, uint32_t weight_dtype);

/* The most rows, or slots of an expert, that linear_hopper.cu takes at once. The workspace holds as many. */
constexpr unsigned MOST_GROUP = 128;

int linear_hopper(const djinn_linear_args &a, void *stream);

/*
 * Whether linear_hopper.cu leaves such a product to linear_wide.cu: past MOST_GROUP rows, and large products of many rows.
 */
bool is_wide(uint32_t rows, uint32_t n);

int linear_wide(const djinn_linear_args &a, void *stream);

/* The cycles that linear_wide.cu should take for a plain product. */
uint64_t wide_product_cycles(const djinn_linear_args &a);

/* Takes any number of rows, not gated, after `allow_split` for the dtype. `split_cycles`: the cycles that it should take. */
int linear_split(const djinn_linear_args &a, void *stream);
int allow_split(uint32_t dtype);
uint64_t split_cycles(const djinn_linear_args &a);

/* How many clusters of PARTIALS blocks the current device runs at once; 0 if it has no code for them. */
unsigned clusters_at_once();

/* Takes up to djinn_linear_direct() rows of an encoded weight. */
int linear_encoded(const djinn_linear_args &a, void *stream);

/*
 * What computes products of any number of rounded rows of x over an encoded weight and decodes it meanwhile, where
 * serves_hopper() is true: `run`; whether that can add a product to out; and the cycles that it should take.
 */
struct EncodedWide {
    int (*run)(const djinn_linear_args &a, void *stream);
    bool (*adds)(const djinn_linear_args &a);
    uint64_t (*cycles)(const djinn_linear_args &a);
};

/* Null for types and formats that are decoded before. The second is for all encodings. */
const EncodedWide *lossless_wide(uint32_t dtype);
const EncodedWide *blocks_wide(uint32_t encoding);
const EncodedWide *encoded_wide(uint32_t encoding, uint32_t dtype);

/* Takes any number of slots, with or without the workspace. */
int expert_linear_encoded(const djinn_expert_linear_args &a, void *stream);

/* Takes any number of slots, with the workspace. */
int expert_linear_hopper(const djinn_expert_linear_args &a, void *stream);

/* Rows of x and of out, one after another. */
struct InOrder {
    static constexpr bool ROUTED = false;
    const djinn_linear_args &a;

    __device__ __forceinline__ unsigned count() const { return a.rows; }
    __device__ __forceinline__ unsigned in(unsigned i) const { return i; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return i; }
};

/* Rows of x and of out for some slots of an expert. */
struct Routed {
    static constexpr bool ROUTED = true;
    unsigned slot_count;
    const uint32_t *slots;
    unsigned slots_per_row;

    __device__ __forceinline__ unsigned count() const { return slot_count; }
    /* Past the last slot: the row of the last. */
    __device__ __forceinline__ unsigned in(unsigned i) const { return slots[min(i, slot_count - 1)] / slots_per_row; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return slots[i]; }
};

/* Up to `most` of the expert's slots from its `first` on, perhaps none. Waits for the previous kernel. */
__device__ __forceinline__ Routed slots_of(const djinn_expert_linear_args &a, unsigned first, unsigned most) {
    enter();
    const unsigned from = a.starts[a.expert] + first, end = a.starts[a.expert + 1];
    return {from < end ? min(end - from, most) : 0, a.order + from, a.slots_per_row};
}

/* Rows of the weight that a block computes: `rows` from `first` on, which are those from `row` on of one tile. */
struct Share {
    const void *weight;
    unsigned first, rows, tile, row;
};

/* How a launch divides the weight: into `blocks` shares of `share` rows, or fewer at a tile's end. */
struct Division {
    unsigned share, blocks;
};

/* The number of shares of `share` rows, or fewer at a tile's end. */
inline unsigned shares_of(const djinn_linear_args &a, unsigned share) {
    const unsigned whole = (a.n - 1) / a.tile_rows, last = a.n - whole * a.tile_rows;
    return whole * ceil_div(a.tile_rows, share) + ceil_div(last, share);
}

/* Gate's half of a gated product's arguments. Up's tiles follow gate's; a tile that has both is divided. */
inline djinn_linear_args gate_of(djinn_linear_args a) {
    a.n /= 2;
    if (a.tile_rows > a.n) {
        const size_t row = a.encoding == DJINN_PLAIN ? size_t(a.k) * 2 : a.row_bytes;
        a.weights[1] = static_cast<const char *>(a.weights[0]) + a.n * row;
        a.tile_rows = a.n;
    }
    return a;
}

/* Divides into equal shares of up to `most` rows, in whole waves of `at_once` blocks if possible. */
inline Division divide(const djinn_linear_args &a, unsigned at_once, unsigned most) {
    for (unsigned waves = ceil_div(a.n, uint64_t(at_once) * most);; ++waves) {
        for (unsigned share = ceil_div(a.n, uint64_t(at_once) * waves); share <= most; ++share) {
            const unsigned blocks = shares_of(a, share);
            if (blocks <= at_once * waves) {
                return {share, blocks};
            }
        }
    }
}

/*
 * The share of a block; blocks past the last share get the last. A tile's last share ends with the tile. It may repeat rows
 * of the share before, with the same bits.
 */
__device__ __forceinline__ Share share_of(const djinn_linear_args &a, unsigned share, unsigned block, size_t row_bytes) {
    const unsigned each = (a.tile_rows + share - 1) / share;
    const unsigned tile = min(block / each, (a.n - 1) / a.tile_rows), start = tile * a.tile_rows;
    const unsigned tile_rows = min(a.tile_rows, a.n - start), rows = min(share, tile_rows);
    const unsigned row = min((block - tile * each) * share, tile_rows - rows);
    return {static_cast<const char *>(a.weights[tile]) + row * row_bytes, start + row, rows, tile, row};
}

/* The same, for a plain weight. */
template <typename T>
__device__ __forceinline__ Share share_of(const djinn_linear_args &a, unsigned share, unsigned block) {
    return share_of(a, share, block, sizeof(T) * a.k);
}

__device__ __forceinline__ float bias_of(const djinn_linear_args &a, unsigned j) {
    if (a.bias == nullptr) {
        return 0;
    }
    switch (a.bias_dtype) {
    case DJINN_F32: return static_cast<const f32 *>(a.bias)[j];
    case DJINN_F16: return widen(static_cast<const f16 *>(a.bias)[j]);
    default: return widen(static_cast<const bf16 *>(a.bias)[j]);
    }
}

} // namespace djinn

#endif
