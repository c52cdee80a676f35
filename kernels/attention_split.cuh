/*
 * The row-by-row path of attention: which splits of a row's context a block takes, and how their results are merged.
 */
#ifndef DJINN_ATTENTION_SPLIT_CUH
#define DJINN_ATTENTION_SPLIT_CUH

#include "attention.cuh"

#include <type_traits>

namespace djinn {

/* Positions of a split, and splits of a span. */
constexpr unsigned SPLIT = 256, SPAN = 4;

/* Blocks that share rows may have in common: rows times groups of heads. */
constexpr unsigned MOST_GROUPS = 1 << 14;

/* How many blocks of each group have ended; zero between launches, which take turns. */
__device__ unsigned ended[MOST_GROUPS];

/* What one launch covers. */
struct Part {
    unsigned first_row, rows;
    /* Heads that share a key head, in groups of the kernel's HEADS. */
    unsigned groups;
    /* Splits that a row may see. */
    unsigned splits;
    /* Partial results that the workspace holds of a row and head: one for each split, or each span, or none. */
    unsigned partials;
    /* Fewer units than these would leave much of the device idle. */
    unsigned enough;
    /* Leave rows in long runs to the tiled path. */
    bool skip_runs;
};

/*
 * Some positions' sum of weights and weighted element, where a score of `top` has a weight of one; of none at first.
 * Scores are logarithms to base 2.
 */
struct Result {
    float top = -INFINITY, sum = 0, x = 0;

    /* Adds the positions that follow, which are some. */
    __device__ __forceinline__ void merge(const Result &next) {
        const float both = fmaxf(top, next.top);
        const float keep = power_of_two(top - both), take = power_of_two(next.top - both);
        sum = __fmaf_rn(sum, keep, __fmul_rn(next.sum, take));
        x = __fmaf_rn(x, keep, __fmul_rn(next.x, take));
        top = both;
    }
};

/* The work of blocks; of each, `Share` takes a warp's share of a split. */
template <typename Share> struct Splits {
    static constexpr unsigned THREADS = Share::THREADS, WARPS = THREADS / 32, HEADS = Share::HEADS, DIM = Share::DIM;
    static constexpr unsigned OUTPUTS = (HEADS * DIM + THREADS - 1) / THREADS;
    /* Partial results that are loaded at once in the end. */
    static constexpr unsigned AT_END = OUTPUTS <= 2 ? 16 : 32 / OUTPUTS;

    struct Shared {
        typename Share::Shared share;
        /* Of the present span, and of all spans before; thread i holds every THREADSth from i on. */
        Result span[HEADS * DIM], whole[HEADS * DIM];
    };

    static __device__ __forceinline__ void run(const djinn_attention_args &a, const Part &part) {
        extern __shared__ __align__(16) unsigned char bytes[];
        Shared &shared = *reinterpret_cast<Shared *>(bytes);
        if (part.skip_runs && is_one_run(a)) {
            return;
        }
        const unsigned per_row = a.kv.kv_heads * part.groups;
        const Cut cut = cut_of(a, part, per_row);
        for (unsigned unit = blockIdx.x; unit < part.rows * per_row * cut.most; unit += gridDim.x) {
            const unsigned row = part.first_row + unit / per_row % part.rows;
            take(a, part, shared, row, unit % per_row, cut.at_once, unit / per_row / part.rows);
        }
    }

    /* Splits of a unit, and units of the row that has most. */
    struct Cut {
        unsigned at_once, most;
    };

    /* All splits without a workspace, else a span, or one split where there are few spans. */
    static __device__ __forceinline__ Cut cut_of(const djinn_attention_args &a, const Part &part, unsigned per_row) {
        if (part.partials == 0) {
            return {UINT32_MAX, 1};
        }
        /* The page table may have room for far longer contexts. */
        unsigned spans = 0, most_spans = 0, most_splits = 0;
        for (unsigned i = threadIdx.x % 32; i < part.rows; i += 32) {
            const unsigned position = a.positions[part.first_row + i], first = first_seen(a, position);
            const unsigned mine = position / (SPLIT * SPAN) - first / (SPLIT * SPAN) + 1;
            spans += mine;
            most_spans = max(most_spans, mine);
            most_splits = max(most_splits, position / SPLIT - first / SPLIT + 1);
        }
        const bool few = __reduce_add_sync(0xffffffffu, spans) * per_row < part.enough;
        const bool one = part.partials >= part.splits && few;
        return {one ? 1 : SPAN, __reduce_max_sync(0xffffffffu, one ? most_splits : most_spans)};
    }

    /* Whether all rows are of one sequence, more than DJINN_PREFILL_RUN. */
    static __device__ __forceinline__ bool is_one_run(const djinn_attention_args &a) {
        bool one = a.rows > DJINN_PREFILL_RUN;
        for (unsigned row = threadIdx.x; row < a.rows; row += THREADS) {
            one &= a.row_seq[row] == a.row_seq[0];
        }
        return __syncthreads_and(one);
    }

    /* A unit of a row's splits, for a group of heads. */
    static __device__ __forceinline__ void take(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                unsigned row, unsigned which, unsigned at_once, unsigned unit) {
        const unsigned dim = a.kv.head_dim;
        const unsigned shared_by = a.heads / a.kv.kv_heads, kv_head = which / part.groups;
        const unsigned in_group = which % part.groups * HEADS, head = kv_head * shared_by + in_group;
        const unsigned heads = min(HEADS, shared_by - in_group);
        const unsigned length = a.positions[row] + 1, sequence = a.row_seq[row];
        const unsigned visible = first_seen(a, length - 1), start = visible / SPLIT;
        const unsigned splits = (length + SPLIT - 1) / SPLIT;
        /* Units start at multiples of their size. */
        const unsigned base = start / at_once + unit;
        const unsigned units = (splits - 1) / at_once - start / at_once + 1;
        if (unit >= units || (part.skip_runs && is_long(a, sequence, row, 1))) {
            return;
        }
        const unsigned first = max(start, base * at_once), left = splits - base * at_once;
        const unsigned end = base * at_once + min(left, at_once);
        const auto query =
            Share::load_query(a, a.qkv + (size_t(row) * (a.heads + 2 * a.kv.kv_heads) + head) * dim, heads);
        if (a.alibi != 0 && threadIdx.x < Share::SLOPES) {
            /* Heads past the last have queries of zero, and any slope. */
            const float slope = slope_of(min(head + threadIdx.x, a.heads - 1), a.heads);
            shared.share.slope[threadIdx.x] = slope;
            shared.share.own[threadIdx.x] = bias_at(slope, length - 1);
        }
        /* `work(output, head of the group, element)` for the outputs that the thread holds. */
        const auto each_output = [&](auto work) {
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; ++o) {
                const unsigned i = o * THREADS + threadIdx.x, h = i / DIM, at = i % DIM;
                if (i < HEADS * DIM && h < heads && at < dim) {
                    work(o, h, at);
                }
            }
        };
        Result *const span = shared.span + threadIdx.x, *const whole = shared.whole + threadIdx.x;
        each_output([&](unsigned o, unsigned, unsigned) { span[o * THREADS] = whole[o * THREADS] = Result{}; });
#pragma unroll 1
        for (unsigned split = first; split < end; ++split) {
            const unsigned from = split * SPLIT + threadIdx.x / 32 * Share::SHARE;
            /* The split or row before is done with the shared memory. */
            __syncthreads();
            Share::take(a, shared.share, query, sequence, kv_head, from, max(from, visible),
                        min(from + Share::SHARE, length));
            __syncthreads();
            const bool ends_span = split + 1 == end || split % SPAN == SPAN - 1;
            each_output([&](unsigned o, unsigned h, unsigned at) {
                Result &of_span = span[o * THREADS];
                of_span.merge(split_of(shared.share, h, at));
                if (ends_span) {
                    whole[o * THREADS].merge(of_span);
                    of_span = Result{};
                }
            });
        }
        if (units > 1) {
            const Partials partials(a, part.rows, part.partials);
            each_output([&](unsigned o, unsigned h, unsigned at) {
                const Result result = whole[o * THREADS];
                const size_t to = partials.at(row - part.first_row, head + h, unit);
                partials.vector(to)[at] = result.x;
                if (at == 0) {
                    partials.facts[to] = {result.top, result.sum};
                }
            });
            if (!is_last(ended[(row - part.first_row) * a.kv.kv_heads * part.groups + which], units)) {
                return;
            }
            merge_units(partials, at_once, shared, row - part.first_row, head, heads, start, units);
        }
        each_output([&](unsigned o, unsigned h, unsigned at) {
            const Result result = whole[o * THREADS];
            const Pack<float, 1> x{__fdiv_rn(result.x, result.sum)};
            const size_t to = (size_t(row) * a.heads + head + h) * dim + at;
            store_output(a.out, a.rounded, to, x);
        });
    }

    /* What the warps found in a split. */
    static __device__ __forceinline__ Result split_of(const typename Share::Shared &share, unsigned h, unsigned at) {
        Result whole;
#pragma unroll
        for (unsigned warp = 0; warp < WARPS; ++warp) {
            whole.top = fmaxf(whole.top, share.top[warp][h]);
        }
#pragma unroll
        for (unsigned warp = 0; warp < WARPS; ++warp) {
            const float take = power_of_two(share.top[warp][h] - whole.top);
            whole.sum = __fmaf_rn(share.sum[warp][h], take, whole.sum);
            whole.x = __fmaf_rn(share.part[warp][Share::at_part(h, at)], take, whole.x);
        }
        return whole;
    }

    /* Merges the partial results of a row, in the order that a block alone would. */
    static __device__ __forceinline__ void merge_units(const Partials &partials, unsigned at_once, Shared &shared,
                                                       unsigned row, unsigned head, unsigned heads, unsigned start,
                                                       unsigned units) {
        /* Maxima and sums that are kept in shared memory at once. */
        constexpr unsigned FACTS = sizeof(shared.share.part) / sizeof(float2) / HEADS / AT_END * AT_END;
        static_assert(FACTS > 0);
        float2 *const facts = reinterpret_cast<float2 *>(shared.share.part);
        Result span[OUTPUTS], whole[OUTPUTS];
        for (unsigned unit = 0; unit < units; unit += AT_END) {
            /* Loads are past the first-level cache: other multiprocessors wrote what they read. */
            if (unit % FACTS == 0) {
                __syncthreads();
                for (unsigned i = threadIdx.x; i < FACTS * heads; i += THREADS) {
                    const size_t at = partials.at(row, head + i / FACTS, min(unit + i % FACTS, units - 1));
                    facts[i] = __ldcg(partials.facts + at);
                }
                __syncthreads();
            }
            /* All loads start before any is used. */
            float next[AT_END][OUTPUTS];
#pragma unroll
            for (unsigned s = 0; s < AT_END; ++s) {
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    const unsigned i = o * THREADS + threadIdx.x, h = min(i / DIM, heads - 1);
                    const size_t at = partials.at(row, head + h, min(unit + s, units - 1));
                    next[s][o] = __ldcg(partials.vector(at) + min(i % DIM, partials.dim - 1));
                }
            }
#pragma unroll
            for (unsigned s = 0; s < AT_END; ++s) {
                const bool ends_span =
                    at_once != 1 || unit + s + 1 == units || (start + unit + s) % SPAN == SPAN - 1;
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS && unit + s < units; ++o) {
                    const unsigned h = min((o * THREADS + threadIdx.x) / DIM, heads - 1);
                    const float2 fact = facts[h * FACTS + (unit + s) % FACTS];
                    span[o].merge({fact.x, fact.y, next[s][o]});
                    if (ends_span) {
                        whole[o].merge(span[o]);
                        span[o] = Result{};
                    }
                }
            }
        }
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; ++o) {
            if (o * THREADS + threadIdx.x < HEADS * DIM) {
                shared.whole[o * THREADS + threadIdx.x] = whole[o];
            }
        }
    }

    /* Whether this is the last of `blocks` blocks to come here; it then sees what the others wrote before. */
    static __device__ __forceinline__ bool is_last(unsigned &count, unsigned blocks) {
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(&count, 1) + 1 == blocks;
            if (last) {
                count = 0;
            }
        }
        __syncthreads();
        __threadfence();
        return last;
    }
};

} // namespace djinn

#endif
