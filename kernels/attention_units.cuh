/*
 * The tiled path of attention on Hopper: units of work, and how the results of splits are merged.
 */
#ifndef DJINN_ATTENTION_UNITS_CUH
#define DJINN_ATTENTION_UNITS_CUH

#include "attention.cuh"

namespace djinn {

/* Positions of a split. */
constexpr unsigned TILED_SPLIT = 4096;
/* Threads of a block that merges. */
constexpr unsigned MERGING = 128;

/* What one launch covers. */
struct Tiling {
    unsigned first_row, rows;
    /* Heads that a block takes at once, and groups of them for each key head. */
    unsigned heads, groups;
    /* Query rows of a block, and blocks of them. */
    unsigned rows_at_once, tiles;
    /* Splits of the longest context, and those that a row may see. */
    unsigned all_splits, splits;
    /* Positions that the copy engine copies at once; 0 if pages do not suit it. */
    unsigned box;
};

/* Rows, heads and a split. */
struct Unit {
    unsigned first, end, kv_head, head, heads, from, to;

    __device__ __forceinline__ Unit(const djinn_attention_args &a, const Tiling &part, unsigned index) {
        const unsigned tile = index % part.tiles, group = index / part.tiles % (a.kv.kv_heads * part.groups);
        const unsigned shared_by = a.heads / a.kv.kv_heads, in_group = group % part.groups * part.heads;
        first = part.first_row + tile * part.rows_at_once;
        end = min(first + part.rows_at_once, part.first_row + part.rows);
        kv_head = group / part.groups;
        head = kv_head * shared_by + in_group;
        heads = min(part.heads, shared_by - in_group);
        from = index / part.tiles / (a.kv.kv_heads * part.groups) * TILED_SPLIT;
        to = from + TILED_SPLIT;
    }

    /* Whether any row may be in a long run; cheaper to ask than `each_run`. For whole warps. */
    __device__ __forceinline__ bool has_runs(const djinn_attention_args &a) const {
        bool found = false;
        for (unsigned i = max(first, unsigned(DJINN_PREFILL_RUN)) - DJINN_PREFILL_RUN + threadIdx.x % 32; i < end; i += 32) {
            found |= i + DJINN_PREFILL_RUN < a.rows && a.row_seq[i] == a.row_seq[i + DJINN_PREFILL_RUN];
        }
        return __any_sync(0xffffffffu, found);
    }

    /* `work(run)` for each long run of rows that sees some of the split. For whole warps. */
    template <typename Work> __device__ __forceinline__ void each_run(const djinn_attention_args &a, Work work) const;
};

/* Rows of a sequence, and the positions of the split from the first that any of them sees. */
struct Run {
    unsigned sequence, first, end, lowest, length;
};

template <typename Work>
__device__ __forceinline__ void Unit::each_run(const djinn_attention_args &a, Work work) const {
    for (unsigned at = has_runs(a) ? first : end; at < end;) {
        const unsigned sequence = a.row_seq[at];
        unsigned stop = at, more;
        do {
            more = rows_of(a, sequence, stop, 1);
            stop += more;
        } while (more == 32 && stop < end);
        stop = min(stop, end);
        const unsigned length = a.positions[stop - 1] + 1;
        if (length > from && is_long(a, sequence, at, stop - at)) {
            const unsigned lowest = first_seen(a, a.positions[at]);
            const Run run{sequence, at, stop, max(lowest, from), min(length, to)};
            if (run.lowest < run.length) {
                work(run);
            }
        }
        at = stop;
    }
}

/* Merges the splits of a row and a head, by a warp. */
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
            const float both = fmaxf(top, facts[s].x);
            const float keep = power_of_two(top - both), take = power_of_two(facts[s].x - both);
            sum = __fmaf_rn(sum, keep, __fmul_rn(facts[s].y, take));
            top = both;
#pragma unroll
            for (unsigned i = 0; i < PAIRS; ++i) {
                out[i].x = __fmaf_rn(out[i].x, keep, __fmul_rn(next[s][i].x, take));
                out[i].y = __fmaf_rn(out[i].y, keep, __fmul_rn(next[s][i].y, take));
            }
        }
    }
#pragma unroll
    for (unsigned i = 0; i < PAIRS; ++i) {
        const unsigned at = 2 * lane + 64 * i;
        if (at < dim) {
            store(a.out + (size_t(row) * a.heads + head) * dim + at, Pack<float, 2>{out[i].x / sum, out[i].y / sum});
        }
    }
}

} // namespace djinn

#endif
