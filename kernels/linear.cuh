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

#include <cmath>

namespace djinn {

/* Tiles of a weight of n rows. */
__host__ __device__ __forceinline__ unsigned tiles_of(const djinn_linear_args &a) { return (a.n - 1) / a.tile_rows + 1; }

/* Positions in the order of experts' slots, from `first` to `end`. */
struct SlotRange {
    uint32_t first, end;
};

/* Columns of a run, and the number of partial sums. */
constexpr unsigned RUN = 64, PARTIALS = 4;

__device__ __forceinline__ unsigned runs_of(const djinn_linear_args &a, unsigned partial) {
    return (a.k / RUN + PARTIALS - 1 - partial) / PARTIALS;
}

/* The most rows of one launch of linear.cu's kernels. */
constexpr unsigned MOST_ROWS = 16;

/*
 * On Hopper, products over encoded weights take x unrounded for up to this many slots of all experts together, or more that are
 * less than a quarter of the experts, and over blocks of a format that is not common (IS_COMMON) for up to this many rows.
 */
constexpr unsigned FEW_ENCODED = 8;

/* The most rows for which a product over blocks of that encoding takes x unrounded on Hopper; 0 for other encodings. */
unsigned most_unrounded(uint32_t encoding, unsigned k);

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
 * serves_hopper() is true: `run`, and `run_experts` for slots that were gathered in the workspace; whether the former can add a
 * product to out; and the cycles that it should take.
 */
struct EncodedWide {
    int (*run)(const djinn_linear_args &a, void *stream);
    int (*run_experts)(const djinn_expert_linear_args &a, SlotRange range, void *stream);
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

/* Takes slots that were gathered in the workspace: for many of an expert. */
int expert_linear_wide(const djinn_expert_linear_args &a, SlotRange range, void *stream);

/* Rows of x and of out, one after another. */
struct InOrder {
    static constexpr bool ROUTED = false;
    static constexpr unsigned tile = 0, first = 0;
    const djinn_linear_args &a;

    __device__ __forceinline__ const void *const *weights() const { return a.weights; }
    __device__ __forceinline__ unsigned count() const { return a.rows; }
    __device__ __forceinline__ unsigned in(unsigned i) const { return i; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return i; }
};

/* Rows of x and of out for some slots of an expert, whose first tile is `tile`. Gathered, x begins with row `first`. */
struct Routed {
    static constexpr bool ROUTED = true;
    unsigned slot_count;
    const uint32_t *slots;
    unsigned slots_per_row, tile, first;
    const void *const *tiles;

    __device__ __forceinline__ const void *const *weights() const { return tiles; }
    __device__ __forceinline__ unsigned count() const { return slot_count; }
    /* Past the last slot: the row of the last. */
    __device__ __forceinline__ unsigned in(unsigned i) const { return slots[min(i, slot_count - 1)] / slots_per_row; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return slots[i]; }
};

/* Experts of a lane, where each lane of a warp has as many. */
constexpr unsigned LANE_EXPERTS = DJINN_EXPERT_TILES / 32;

/*
 * The slots of experts are settled for kernels after their first product: it lets the next kernel begin only once the work
 * before itself is done, theirs among it. A later product that is told so finds its slots, and copies weights, before it waits.
 */
__device__ __forceinline__ void await_slots(const djinn_expert_linear_args &a, bool early) {
    if (!early || a.settled == 0) {
        await_previous();
    }
    release_next();
}

/* The positions of the expert with that index; none past the last. The slots are known. */
struct ExpertRange {
    unsigned first, end;

    __device__ __forceinline__ ExpertRange(const djinn_expert_linear_args &a, const SlotRange &all, unsigned index)
        : first(all.first), end(all.first) {
        if (index < a.chosen) {
            /* Lanes read different arguments one after another. */
            const uint32_t *const starts = a.starts + (a.chosen == a.experts ? index : a.ids[index]);
            first = min(max(starts[0], all.first), all.end), end = max(first, min(starts[1], all.end));
        }
    }
    __device__ __forceinline__ unsigned count() const { return end - first; }
};

/* The sum of the counts of the experts before the lane's. All lanes call it. */
__device__ __forceinline__ unsigned sum_before(unsigned count, unsigned lane) {
    unsigned past = count;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned before = __shfl_up_sync(~0u, past, step);
        past += lane >= step ? before : 0;
    }
    return past - count;
}

/* The most dynamic shared memory of a block whose kernel calls `slots_of_block`. */
inline unsigned dynamic_shared() {
    constexpr unsigned KEPT = 64;
    static_assert(sizeof(Routed) <= KEPT);
    return all_devices()[current_device()].block_shared - KEPT;
}

/*
 * The slots of a portion: up to `most` successive ones of one expert. The experts' portions follow one another; past the last
 * there are no slots. All lanes call it. Waits for the previous kernel, unless it is called `early` and they are settled.
 */
__device__ __forceinline__ Routed slots_of(const djinn_expert_linear_args &a, unsigned portion, unsigned most, SlotRange range,
                                           bool early = false) {
    await_slots(a, early);
    const unsigned lane = threadIdx.x % 32;
    /* All are loaded before one is used. */
    const ExpertRange ranges[LANE_EXPERTS] = {{a, range, lane}, {a, range, lane + 32}, {a, range, lane + 64}, {a, range, lane + 96}};
    Routed found{0, a.order, a.slots_per_row, 0, 0, a.weights};
    unsigned begin = 0;
#pragma unroll
    for (unsigned i = 0; i < LANE_EXPERTS; ++i) {
        const ExpertRange &mine = ranges[i];
        const unsigned portions = (mine.count() + most - 1) / most, before = begin + sum_before(portions, lane);
        const unsigned owners = __ballot_sync(~0u, before <= portion && portion < before + portions);
        if (owners != 0) {
            const unsigned owner = __ffs(owners) - 1;
            const unsigned at = __shfl_sync(~0u, mine.first + (portion - before) * most, owner);
            found.slot_count = min(__shfl_sync(~0u, mine.end, owner) - at, most);
            found.slots = a.order + at, found.tile = (i * 32 + owner) * tiles_of(a.linear), found.first = at - range.first;
        }
        if ((i + 1) * 32 >= a.chosen) {
            break;
        }
        begin = __shfl_sync(~0u, before + portions, 31);
    }
    return found;
}

/*
 * The same, called by all threads of a block. One warp finds the slots for all: lanes read different arguments one after
 * another, which takes long if many warps do so.
 */
__device__ __forceinline__ Routed slots_of_block(const djinn_expert_linear_args &a, unsigned portion, unsigned most,
                                                 SlotRange range, bool early = false) {
    __shared__ Routed found;
    if (threadIdx.x < 32) {
        const Routed mine = slots_of(a, portion, most, range, early);
        if (threadIdx.x == 0) {
            found = mine;
        }
    } else {
        await_slots(a, early);
    }
    __syncthreads();
    return found;
}

/* Rows of the weight that a block computes: `rows` from `first` on, which are those from `row` on of one tile. */
struct Share {
    const void *weight;
    unsigned first, rows, tile, row;
};

/*
 * The share of a block; blocks past the last share get the last. A tile's last share ends with the tile. It may repeat rows
 * of the share before, with the same bits. `weights`: all tiles. `skipped`: those before the block's weight.
 */
__device__ __forceinline__ Share share_of(const djinn_linear_args &a, const void *const *weights, unsigned share,
                                          unsigned block, size_t row_bytes, unsigned skipped = 0) {
    const unsigned each = (a.tile_rows + share - 1) / share;
    const unsigned tile = min(block / each, (a.n - 1) / a.tile_rows), start = tile * a.tile_rows;
    const unsigned tile_rows = min(a.tile_rows, a.n - start), rows = min(share, tile_rows);
    const unsigned row = min((block - tile * each) * share, tile_rows - rows);
    const void *const weight = weights[tile + skipped];
    return {static_cast<const char *>(weight) + row * row_bytes, start + row, rows, tile + skipped, row};
}

/*
 * A part of a launch's work: a share of a weight, and the rows of x that it is multiplied with, `count` from `first` on. Of
 * experts, also the slots of these.
 */
struct Part {
    Share share;
    unsigned first, count;
    const uint32_t *slots;
};

/* The slots of a part of experts' work, as add_partials() asks about them. */
struct PartRows {
    const Part &of;
    __device__ __forceinline__ unsigned count() const { return of.count; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return of.slots[i]; }
};

/*
 * The work of a launch for up to EXPERTS experts, in shared memory: parts, each of one share of an expert's weight and some of
 * its slots. Those of each expert follow those of the one before. Its slots are those from rows[expert] on, before ends[expert].
 */
template <unsigned EXPERTS> struct RoutedParts {
    static constexpr bool ROUTED = true;
    static constexpr uint32_t bulk = 0;
    uint32_t parts, begins[EXPERTS], rows[EXPERTS], ends[EXPERTS];
    const uint32_t *slots;
    const void *const *weights;

    /*
     * Finds parts of up to `at_once` slots, where each weight has `shares` shares, by all threads of a block. Whether there is
     * a part with that index. Waits for the previous kernel.
     */
    __device__ __forceinline__ bool find(const djinn_expert_linear_args &a, const SlotRange &range, unsigned shares,
                                         unsigned at_once, unsigned index) {
        await_slots(a, false);
        if (const unsigned lane = threadIdx.x; lane < 32) {
            unsigned begin = 0;
#pragma unroll
            for (unsigned i = 0; i < EXPERTS / 32; ++i) {
                const unsigned expert = 32 * i + lane;
                const ExpertRange mine(a, range, expert);
                const unsigned own = (mine.count() + at_once - 1) / at_once * shares, before = begin + sum_before(own, lane);
                begins[expert] = before, rows[expert] = mine.first - range.first, ends[expert] = mine.end - range.first;
                begin = __shfl_sync(~0u, before + own, 31);
            }
            if (lane == 0) {
                parts = begin, slots = a.order + range.first, weights = a.weights;
            }
        }
        __syncthreads();
        return index < parts;
    }

    /* The expert of a part: the last that begins by it, which has slots. */
    __device__ __forceinline__ unsigned expert_of(unsigned part) const {
        unsigned expert = 0;
#pragma unroll
        for (unsigned step = EXPERTS / 2; step > 0; step /= 2) {
            expert += begins[expert + step] <= part ? step : 0;
        }
        return expert;
    }

    /* The part with that index, of up to `at_once` slots and of a share of `share` rows, which have `row_bytes` each. */
    __device__ __forceinline__ Part at(const djinn_linear_args &a, unsigned share, size_t row_bytes, unsigned at_once,
                                       unsigned index) const {
        const unsigned expert = expert_of(index), begin = rows[expert], end = ends[expert], within = index - begins[expert];
        const unsigned portions = (end - begin + at_once - 1) / at_once, outer = within / portions;
        const unsigned first = begin + (within - outer * portions) * at_once;
        return {share_of(a, weights, share, outer, row_bytes, expert * tiles_of(a)), first, min(end - first, at_once),
                slots + first};
    }
};

/* The most portions that `slots` slots of some experts have. */
inline unsigned portions_of(unsigned experts, unsigned slots, unsigned most) {
    const unsigned used = slots < experts ? slots : experts;
    return used + (slots - used) / most;
}

/* The number of shares of `share` rows, or fewer at a tile's end. */
inline unsigned shares_of(const djinn_linear_args &a, unsigned share) {
    const unsigned whole = (a.n - 1) / a.tile_rows, last = a.n - whole * a.tile_rows;
    return whole * ceil_div(a.tile_rows, share) + ceil_div(last, share);
}

/* Whether most slots are those of different experts, if all experts have as many. */
inline bool are_apart(const djinn_expert_linear_args &a) { return uint64_t(a.linear.rows) * 4 <= a.experts; }

/* How many of a launch's experts have slots, if these are at random. 1 for rows in order. */
inline unsigned expected_experts(const djinn_linear_args &) { return 1; }
inline unsigned expected_experts(const djinn_expert_linear_args &a) {
    if (a.order == nullptr) {
        return 1;
    }
    const double idle = std::pow(1 - 1.0 / a.experts, a.linear.rows);
    const unsigned used = unsigned(a.chosen * (1 - idle) + 0.5);
    return used > 0 ? used : 1;
}

/*
 * How many of the `at_once` blocks (or clusters) of a device compute a portion, in shares of up to `most` rows of the weight.
 * If a half, a quarter or an eighth of them can do it in one wave, portions run side by side: blocks with more rows hide more
 * latency.
 */
inline unsigned blocks_of_portion(const djinn_linear_args &, unsigned at_once, unsigned) { return at_once; }
inline unsigned blocks_of_portion(const djinn_expert_linear_args &a, unsigned at_once, unsigned most) {
    const unsigned experts = expected_experts(a);
    unsigned apart = 1;
    while (apart < 8 && 2 * apart <= experts && shares_of(a.linear, most) <= at_once / (2 * apart)) {
        apart *= 2;
    }
    return at_once / apart;
}

/* Calls `run(part)` for some experts at a time, with the weights of these as those of part.linear. */
template <typename Run> int by_experts(const djinn_expert_linear_args &args, const Run &run) {
    const unsigned tiles = tiles_of(args.linear), most = DJINN_LINEAR_TILES / tiles;
    int code = cudaSuccess;
    for (unsigned first = 0; first < args.chosen && code == cudaSuccess; first += most) {
        djinn_expert_linear_args part = args;
        part.chosen = args.chosen - first < most ? args.chosen - first : most;
        for (unsigned i = 0; i < part.chosen; ++i) {
            part.ids[i] = args.ids[first + i];
        }
        for (unsigned i = 0; i < part.chosen * tiles; ++i) {
            part.linear.weights[i] = part.weights[i] = args.weights[first * tiles + i];
        }
        code = run(part);
    }
    return code;
}

/* Calls `encode(tile, rows)` for each tile of some weights, each of n rows, such as experts'; false once it fails. */
template <typename Encode> bool encode_tiles(const djinn_linear_args &a, unsigned weights, const Encode &encode) {
    const unsigned tiles = tiles_of(a), last = a.n - (tiles - 1) * a.tile_rows;
    for (unsigned tile = 0; tile < weights * tiles; ++tile) {
        if (!encode(tile, tile % tiles + 1 < tiles ? a.tile_rows : last)) {
            return false;
        }
    }
    return true;
}

/* How a launch divides the weight: into `blocks` shares of `share` rows, or fewer at a tile's end. */
struct Division {
    unsigned share, blocks;
};

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

/* The same, for a plain weight. */
template <typename T>
__device__ __forceinline__ Share share_of(const djinn_linear_args &a, const void *const *weights, unsigned share,
                                          unsigned block, unsigned skipped = 0) {
    return share_of(a, weights, share, block, sizeof(T) * a.k, skipped);
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
