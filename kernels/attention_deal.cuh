/*
 * The row-by-row path of attention: how the splits of rows' contexts are dealt to blocks.
 */
#ifndef DJINN_ATTENTION_DEAL_CUH
#define DJINN_ATTENTION_DEAL_CUH

#include "attention.cuh"
#include "wgmma.cuh"

namespace djinn {

/* Positions of a split, and splits of a span. */
constexpr unsigned SPLIT = 256, SPAN = 4;

/* Rows of up to this many splits hand them over one by one: the block that merges them then has little to do. */
constexpr unsigned FEW_SPLITS = 16;

/*
 * Splits of longer rows are handed over one by one if blocks then have fewer splits to take, beside what merging takes: where
 * different blocks merge the heads of a group, and blocks have up to this many splits; or where they have up to this many
 * splits in spans, and a row has up to this many. Blocks with many units are never done all at once.
 */
constexpr unsigned MANY_SPLITS = 6, MOST_IN_SPANS = 32, MOST_MERGED = 128;

/* The most groups (rows times groups of heads) whose ended units can be counted. */
constexpr unsigned MOST_GROUPS = DJINN_ATTENTION_COUNTERS;

/* What is the same for all blocks of a launch. */
struct Part {
    /* Query heads that share a key head; the groups of HEADS that they form; and groups of a row. */
    unsigned shared_by, groups, per_row;
    /* Units whose partial results fit the workspace. */
    unsigned slots;
    /* The multiprocessors: with fewer spans than this, much of the device would be idle. */
    unsigned enough;
    /* The most blocks that may wait for others. The device runs as many at once, so one that has not begun finds room. */
    unsigned most_waiting;
    /* Whether rows in long runs are left to the tiled path. */
    bool skip_runs;
    /* Describes the pages to TMA, for kernels that copy tiles with it. */
    CUtensorMap pages;
};

/* How contexts are cut into units. */
struct Cut {
    /* The base-2 logarithm of a unit's splits. */
    unsigned shift;
    /* If blocks take units in turn: the units of the row that has most. 0 if each block takes an equal part of all units. */
    unsigned in_turn;
    /* Units of all rows. */
    unsigned units;
    /* If different blocks merge the heads of groups with more than FEW_SPLITS units: how many blocks merge a head. */
    unsigned by_head;

    __device__ __forceinline__ bool is_by_head(unsigned units_of_row) const {
        return by_head != 0 && units_of_row > FEW_SPLITS;
    }
};

/* A split of a block's stretch. A stretch is successive units of a row and a group. */
struct Step {
    unsigned row, which, sequence, length;
    /* The group's key head, the first of its heads, and how many they are. */
    unsigned kv_head, head, heads;
    /* The row's units, and the stretch's: `from .. to`. */
    unsigned units, from, to;
    /* Where the partial results of the row and group begin. */
    unsigned slot;
    /* The block's units after the stretch; or, if they are taken in turn, the number of this one. */
    unsigned rest;
    /* The stretch's splits, `first .. end`, and the current one. */
    unsigned first, split, end;

    /* Whether other stretches have units of the row and group, or other blocks merge them. */
    __device__ __forceinline__ bool is_part(const Cut &cut) const { return to - from != units || cut.is_by_head(units); }
};

/*
 * Chooses the units: one split each if rows have few splits, there are few spans, or blocks then have fewer splits to take,
 * else a span. Or all that a row sees, if blocks then have about as much to do, or if the workspace has no room for parts. A
 * head may be merged by FEWEST to MOST blocks.
 */
template <unsigned HEADS, unsigned FEWEST, unsigned MOST>
__device__ __forceinline__ Cut cut_of(const djinn_attention_args &a, const Part &part) {
    unsigned spans = 0, most_spans = 0, splits = 0, most_splits = 0;
    for (unsigned row = threadIdx.x % 32; row < a.rows; row += 32) {
        const unsigned position = a.positions[row], first = first_seen(a, position);
        const unsigned mine = position / (SPLIT * SPAN) - first / (SPLIT * SPAN) + 1;
        const unsigned my_splits = position / SPLIT - first / SPLIT + 1;
        spans += mine;
        most_spans = max(most_spans, mine);
        splits += my_splits;
        most_splits = max(most_splits, my_splits);
    }
    spans = __reduce_add_sync(0xffffffffu, spans);
    splits = __reduce_add_sync(0xffffffffu, splits);
    most_spans = __reduce_max_sync(0xffffffffu, most_spans);
    most_splits = __reduce_max_sync(0xffffffffu, most_splits);
    /* Beside long runs, every row counts as many units; those of rows in the runs are skipped. */
    const auto fits = [&](unsigned all, unsigned most) {
        const uint64_t units = part.skip_runs ? uint64_t(a.rows) * most : all;
        return units * part.per_row <= part.slots;
    };
    const bool few = uint64_t(spans) * part.per_row < part.enough;
    const Cut whole = {31, part.skip_runs ? 1u : 0u, a.rows, 0};
    if (!part.skip_runs && splits * part.per_row > gridDim.x && a.rows * part.per_row <= gridDim.x) {
        /* At most, a block then has all of a row; handing over parts takes about as long as a split. */
        if (most_splits <= (splits * part.per_row + gridDim.x - 1) / gridDim.x + 1) {
            return whole;
        }
    }
    /* One head is merged at once anyway. */
    const unsigned merges = a.rows * part.per_row * HEADS;
    const bool by_head = MOST > 0 && !part.skip_runs && most_splits > FEW_SPLITS && merges * FEWEST <= part.most_waiting &&
                         merges * FEWEST <= min(gridDim.x, spans * part.per_row);
    const auto cut_in = [&](unsigned shift, unsigned units, unsigned most_units) {
        unsigned blocks = by_head ? FEWEST : 0;
        const unsigned most = min(part.most_waiting, min(gridDim.x, units * part.per_row));
        while (blocks != 0 && 2 * blocks <= MOST && 2 * blocks * merges <= most) {
            blocks *= 2;
        }
        return Cut{shift, part.skip_runs ? most_units : 0, units, blocks};
    };
    /* What the block that takes most takes, in splits, if units are spans or splits. */
    const unsigned in_spans = (spans * part.per_row + gridDim.x - 1) / gridDim.x * SPAN;
    const unsigned in_splits = (splits * part.per_row + gridDim.x - 1) / gridDim.x;
    const bool pays = by_head && in_splits <= MANY_SPLITS ? in_splits < in_spans
                                                          : in_spans <= MOST_IN_SPANS && most_splits <= MOST_MERGED &&
                                                                in_splits + 1 + most_splits / 32 < in_spans;
    const bool handed_over = most_splits <= FEW_SPLITS || pays;
    if (fits(splits, most_splits) && (few || (!part.skip_runs && handed_over))) {
        return cut_in(0, splits, most_splits);
    }
    return fits(spans, most_spans) ? cut_in(2, spans, most_spans) : whole;
}

/* The first unit of a row at `position`, and the number of its units. */
__device__ __forceinline__ unsigned first_unit(const djinn_attention_args &a, const Cut &cut, unsigned position) {
    return first_seen(a, position) / SPLIT >> cut.shift;
}
__device__ __forceinline__ unsigned units_of(const djinn_attention_args &a, const Cut &cut, unsigned position) {
    return (position / SPLIT >> cut.shift) - first_unit(a, cut, position) + 1;
}

/* Sets a step to units `from .. to` of a row and a group. */
template <unsigned HEADS>
__device__ __forceinline__ void set(const djinn_attention_args &a, const Part &part, const Cut &cut, Step &step,
                                    unsigned row, unsigned which, unsigned from, unsigned to, unsigned slot,
                                    unsigned rest) {
    const unsigned kv_head = part.groups == 1 ? which : which / part.groups;
    const unsigned in_key = (which - kv_head * part.groups) * HEADS, heads = min(HEADS, part.shared_by - in_key);
    const unsigned position = a.positions[row], sequence = a.row_seq[row], unit = first_unit(a, cut, position);
    const unsigned first = max(first_seen(a, position) / SPLIT, (unit + from) << cut.shift);
    const unsigned units = (position / SPLIT >> cut.shift) - unit + 1;
    const unsigned end = to == units ? position / SPLIT + 1 : (unit + to) << cut.shift;
    __syncwarp();
    const unsigned head = kv_head * part.shared_by + in_key;
    step = {row,  which, sequence, position + 1, kv_head, head,  heads, units,
            from, to,    slot,     rest,         first,   first, end};
    __syncwarp();
}

/* If units are taken in turn: finds the block's first existing unit from `unit` on. */
template <unsigned HEADS>
__device__ __forceinline__ bool find(const djinn_attention_args &a, const Part &part, const Cut &cut, unsigned unit,
                                     Step &step) {
    const unsigned groups = a.rows * part.per_row;
    for (; unit < groups * cut.in_turn; unit += gridDim.x) {
        const unsigned group = unit % groups, index = unit / groups, row = group / part.per_row;
        if (index < units_of(a, cut, a.positions[row]) && !(part.skip_runs && is_long(a, a.row_seq[row], row, 1))) {
            set<HEADS>(a, part, cut, step, row, group % part.per_row, index, index + 1, group * cut.in_turn, unit);
            return true;
        }
    }
    return false;
}

/* Finds the first stretch of the block's equal part of all units, which are ordered by row, group and position. */
template <unsigned HEADS>
__device__ __forceinline__ bool begin_range(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                            Step &step) {
    const unsigned all = cut.units * part.per_row, each = all < gridDim.x ? 0 : all / gridDim.x;
    const unsigned more = all - each * gridDim.x;
    const unsigned from = blockIdx.x * each + min(blockIdx.x, more), mine = each + (blockIdx.x < more);
    unsigned before = 0, row = 0;
    if (mine == 0) {
        return false;
    }
    while (a.rows > 1) {
        const unsigned at = row + threadIdx.x % 32;
        const unsigned units = at < a.rows ? units_of(a, cut, a.positions[at]) * part.per_row : 0;
        unsigned sum = units;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, by);
            sum += threadIdx.x % 32 >= by ? other : 0;
        }
        const unsigned beyond = __ballot_sync(0xffffffffu, before + sum > from);
        if (beyond != 0) {
            const unsigned lane = __ffs(beyond) - 1;
            before += __shfl_sync(0xffffffffu, sum - units, lane);
            row += lane;
            break;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
        row += 32;
    }
    const unsigned units = units_of(a, cut, a.positions[row]), group = (from - before) / units;
    const unsigned unit = from - before - group * units, end = min(units, unit + mine);
    set<HEADS>(a, part, cut, step, row, group, unit, end, before + group * units, mine - (end - unit));
    return true;
}

/* Finds the block's split after `step`, if there is one. */
template <unsigned HEADS>
__device__ __forceinline__ bool follow(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                       const Step &step, Step &next) {
    if (step.split + 1 != step.end) {
        __syncwarp();
        next = step;
        next.split = step.split + 1;
        __syncwarp();
        return true;
    }
    if (cut.in_turn != 0) {
        return find<HEADS>(a, part, cut, step.rest + gridDim.x, next);
    }
    if (step.rest == 0) {
        return false;
    }
    const unsigned which = step.which + 1 == part.per_row ? 0 : step.which + 1, row = step.row + (which == 0);
    const unsigned units = min(step.rest, units_of(a, cut, a.positions[row]));
    set<HEADS>(a, part, cut, next, row, which, 0, units, step.slot + step.units, step.rest - units);
    return true;
}

} // namespace djinn

#endif
