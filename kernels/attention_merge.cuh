/*
 * The tiled path of attention on Hopper: merges what rows found in the splits of their contexts. A kernel does it for units
 * of one split, and the block itself for a unit of all splits: in order of position, with the same arithmetic.
 */
#ifndef DJINN_ATTENTION_MERGE_CUH
#define DJINN_ATTENTION_MERGE_CUH

#include "attention_units.cuh"

namespace djinn {

/* Threads of a block that merges. */
constexpr unsigned MERGING = 128;

/* The maximum after a merge, and the factors of what was before and of what is added. */
struct Fold {
    float top, keep, take;

    __device__ __forceinline__ Fold(float before, float added) : top(fmaxf(before, added)) {
        keep = power_of_two(before - top);
        take = power_of_two(added - top);
    }
    __device__ __forceinline__ float operator()(float before, float added) const {
        return __fmaf_rn(before, keep, __fmul_rn(added, take));
    }
};

__device__ __forceinline__ void merge(const djinn_attention_args &a, const Tiling &part) {
    constexpr unsigned PAIRS = 4, AT_ONCE = 4;
    const unsigned row = part.first_row + blockIdx.x, head = blockIdx.y * (MERGING / 32) + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32, dim = a.kv.head_dim;
    const unsigned position = a.positions[row], start = first_seen(a, position) / TILED_SPLIT;
    const unsigned splits = position / TILED_SPLIT - start + 1;
    if (splits == 1 || head >= a.heads || !is_long(a, a.row_seq[row], row, 1)) {
        return;
    }
    const Partials partials(a, part.rows, part.splits);
    float top = -INFINITY, sum = 0;
    float2 out[PAIRS] = {};
    for (unsigned first = 0; first < splits; first += AT_ONCE) {
        /* All loads start before any is used. */
        float2 facts[AT_ONCE], next[AT_ONCE][PAIRS];
#pragma unroll
        for (unsigned s = 0; s < AT_ONCE; ++s) {
            const size_t at = partials.at(blockIdx.x, head, min(first + s, splits - 1));
            const float2 *from = reinterpret_cast<const float2 *>(partials.vector(at));
            facts[s] = partials.facts[at];
#pragma unroll
            for (unsigned i = 0; i < PAIRS; ++i) {
                next[s][i] = 2 * lane + 64 * i < dim ? from[lane + 32 * i] : float2{};
            }
        }
#pragma unroll
        for (unsigned s = 0; s < AT_ONCE && first + s < splits; ++s) {
            const Fold fold(top, facts[s].x);
            sum = fold(sum, facts[s].y);
            top = fold.top;
#pragma unroll
            for (unsigned i = 0; i < PAIRS; ++i) {
                out[i] = {fold(out[i].x, next[s][i].x), fold(out[i].y, next[s][i].y)};
            }
        }
    }
    const float part_of_sum = 1 / sum;
#pragma unroll
    for (unsigned i = 0; i < PAIRS; ++i) {
        const unsigned at = 2 * lane + 64 * i;
        if (at < dim) {
            const Pack<float, 2> x{out[i].x * part_of_sum, out[i].y * part_of_sum};
            const size_t to = (size_t(row) * a.heads + head) * dim + at;
            store_output(a.out, a.rounded, to, x);
        }
    }
}

/* A thread's two rows of a tile, 8 apart, for heads of up to DIM elements, and what they found in a split. */
template <unsigned DIM> struct FoundRows {
    float out[DIM / 2];
    /* What weights are relative to, -INFINITY before the row saw a position; and the sum of weights. */
    float top[2], sum[2];
    /* The positions of the current run that each row sees: from `from` on and before `sees`; none if that is 0. */
    unsigned from[2], sees[2];
    /* With biases: the head's slope, and the bias of the row's own position. */
    float slope[2], own[2];
};

/* Hands over what a thread's rows find, split by split. */
template <unsigned DIM> struct HandOver {
    /* Pairs of elements of a row, and how many of them are in registers at once. */
    static constexpr unsigned PAIRS = DIM / 8, AT_ONCE = PAIRS <= 16 ? PAIRS : 8;

    const djinn_attention_args &a;
    const Tiling &part;
    /* The rows, their heads (from `head` on), and what the splits so far found. */
    const unsigned (&rows)[2], (&heads)[2];
    unsigned head;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    /*
     * Where the current split goes: to the partial results or, if the unit has all that the row sees, to the output. The
     * output then holds what the splits so far found. Null if the row sees nothing of the split.
     */
    float *vectors[2];
    float2 *facts[2];
    bool adds[2], ends[2];
    Pack<float, 2> before[2][AT_ONCE];

    __device__ __forceinline__ HandOver(const djinn_attention_args &a, const Tiling &part, const unsigned (&rows)[2],
                                        const unsigned (&heads)[2], unsigned head)
        : a(a), part(part), rows(rows), heads(heads), head(head) {}

    /* Begins to load what the splits before this found. */
    __device__ __forceinline__ void begin(const FoundRows<DIM> &r, unsigned split) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned start = r.from[i] / TILED_SPLIT, last = (r.sees[i] - 1) / TILED_SPLIT;
            const bool sees = r.sees[i] != 0 && split >= start && split <= last, alone = part.whole || start == last;
            vectors[i] = sees ? a.out + (size_t(rows[i]) * a.heads + head + heads[i]) * a.kv.head_dim : nullptr;
            facts[i] = nullptr;
            adds[i] = sees && alone && split != start;
            ends[i] = sees && alone && split == last;
            if (sees && !alone) {
                const Partials partials(a, part.rows, part.splits);
                const size_t at = partials.at(rows[i] - part.first_row, head + heads[i], split - start);
                vectors[i] = partials.vector(at);
                facts[i] = partials.facts + at;
            }
        }
        load_before(0);
    }

    __device__ __forceinline__ void load_before(unsigned first) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
#pragma unroll
            for (unsigned d = 0; d < AT_ONCE; ++d) {
                const unsigned at = (first + d) * 8;
                const float *const from = vectors[i] + at + threadIdx.x % 4 * 2;
                before[i][d] = adds[i] && at < a.kv.head_dim ? load<float, 2>(from) : Pack<float, 2>{};
            }
        }
    }

    /* Merges the split with those before it. */
    __device__ __forceinline__ void end(const FoundRows<DIM> &r) {
        const Fold folds[2] = {Fold(top[0], r.top[0]), Fold(top[1], r.top[1])};
        float part_of_sum[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const float found = quad_sum(r.sum[i]);
            if (vectors[i] != nullptr) {
                top[i] = folds[i].top;
                sum[i] = folds[i](sum[i], found);
            }
            if (facts[i] != nullptr && threadIdx.x % 4 == 0) {
                *facts[i] = {r.top[i], found};
            }
            part_of_sum[i] = ends[i] ? 1 / sum[i] : 1;
        }
#pragma unroll
        for (unsigned first = 0; first < PAIRS; first += AT_ONCE) {
            if (first != 0) {
                load_before(first);
            }
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
#pragma unroll
                for (unsigned d = 0; d < AT_ONCE; ++d) {
                    const unsigned at = (first + d) * 8, of = (first + d) * 4 + 2 * i;
                    const float low = folds[i](before[i][d].at[0], r.out[of]);
                    const float high = folds[i](before[i][d].at[1], r.out[of + 1]);
                    if (vectors[i] != nullptr && at < a.kv.head_dim) {
                        float *const to = vectors[i] + at + threadIdx.x % 4 * 2;
                        const Pack<float, 2> x{low * part_of_sum[i], high * part_of_sum[i]};
                        if (ends[i]) {
                            store_output(a.out, a.rounded, to - a.out, x);
                        } else {
                            store(to, x);
                        }
                    }
                }
            }
        }
    }
};

} // namespace djinn

#endif
