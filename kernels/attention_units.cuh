/*
 * The tiled path of attention on Hopper: units of work.
 */
#ifndef DJINN_ATTENTION_UNITS_CUH
#define DJINN_ATTENTION_UNITS_CUH

#include "attention.cuh"

namespace djinn {

/* Positions of a split. */
constexpr unsigned TILED_SPLIT = 4096;
/* The most tiles of rows that are put in order. */
constexpr unsigned MOST_ORDERED = 256;

/* What one launch covers. */
struct Tiling {
    unsigned first_row, rows;
    /* Heads that a block takes at once, and the groups of these for each key head. */
    unsigned heads, groups;
    /* Query rows of a block, and the number of such tiles of rows. */
    unsigned rows_at_once, tiles;
    /* Splits of the longest context, and splits that a row may see. */
    unsigned all_splits, splits;
    /* Positions that TMA copies at once; 0 if pages do not suit it. */
    unsigned box;
    /* Whether units have all splits of their rows. */
    bool whole;
};

/*
 * The order in which units that have all splits take tiles of rows: those that see most come first, so that blocks end at
 * about the same time. There is no order if each block takes one unit, or if tiles are many. Called by a whole block.
 */
struct Order {
    uint16_t tile[MOST_ORDERED];
    unsigned seen[MOST_ORDERED];
    bool given;

    __device__ __forceinline__ void find(const djinn_attention_args &a, const Tiling &part, unsigned units) {
        const bool wanted = part.whole && units > gridDim.x && part.tiles <= MOST_ORDERED;
        given = wanted;
        if (!wanted) {
            __syncthreads();
            return;
        }
        for (unsigned i = threadIdx.x; i < part.tiles; i += blockDim.x) {
            const unsigned end = min((i + 1) * part.rows_at_once, part.rows);
            const unsigned position = a.positions[part.first_row + end - 1];
            seen[i] = position + 1 - first_seen(a, position);
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < part.tiles; i += blockDim.x) {
            unsigned before = 0;
            for (unsigned other = 0; other < part.tiles; ++other) {
                before += seen[other] > seen[i] || (seen[other] == seen[i] && other < i);
            }
            tile[before] = i;
        }
        __syncthreads();
    }
};

/* A unit of work: rows, heads, and one split or all. */
struct Unit {
    unsigned first, end, kv_head, head, heads, from, to;

    __device__ __forceinline__ Unit(const djinn_attention_args &a, const Tiling &part, const Order &order, unsigned index) {
        const unsigned all_groups = a.kv.kv_heads * part.groups;
        const unsigned tile = order.given ? order.tile[index / all_groups] : index % part.tiles;
        const unsigned group = order.given ? index % all_groups : index / part.tiles % all_groups;
        const unsigned shared_by = a.heads / a.kv.kv_heads, in_group = group % part.groups * part.heads;
        first = part.first_row + tile * part.rows_at_once;
        end = min(first + part.rows_at_once, part.first_row + part.rows);
        kv_head = group / part.groups;
        head = kv_head * shared_by + in_group;
        heads = min(part.heads, shared_by - in_group);
        from = part.whole ? 0 : index / part.tiles / all_groups * TILED_SPLIT;
        to = part.whole ? ~0u : from + TILED_SPLIT;
    }

    /* Whether any row may be in a long run; cheaper than `each_run`. Called by whole warps. */
    __device__ __forceinline__ bool has_runs(const djinn_attention_args &a) const {
        bool found = false;
        for (unsigned i = max(first, unsigned(DJINN_PREFILL_RUN)) - DJINN_PREFILL_RUN + threadIdx.x % 32; i < end; i += 32) {
            found |= i + DJINN_PREFILL_RUN < a.rows && a.row_seq[i] == a.row_seq[i + DJINN_PREFILL_RUN];
        }
        return __any_sync(0xffffffffu, found);
    }

    /* Calls `work(run)` for each long run of rows that sees some of the split. Called by whole warps. */
    template <typename Work> __device__ __forceinline__ void each_run(const djinn_attention_args &a, Work work) const;
};

/* Rows of a sequence, and the unit's positions from the first that any of them sees. */
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

} // namespace djinn

#endif
