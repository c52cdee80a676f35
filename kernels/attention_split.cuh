/*
 * The row-by-row path of attention: what blocks do with the splits that they take, and how results are merged.
 */
#ifndef DJINN_ATTENTION_SPLIT_CUH
#define DJINN_ATTENTION_SPLIT_CUH

#include "attention_deal.cuh"

#include <type_traits>

namespace djinn {

/* Units of each group that were handed over. It is zero between launches, which take turns. */
__device__ unsigned ended[MOST_GROUPS];

/* Partial results of units: first the maximum and sum of each head, then the vector of each. */
struct Slots {
    float2 *facts;
    float *vectors;
    unsigned heads, dim;

    /* Bytes of a unit of `heads` heads. */
    static __host__ __device__ __forceinline__ unsigned bytes(unsigned heads, unsigned dim) {
        return heads * (dim + 2) * sizeof(float);
    }
    __device__ __forceinline__ Slots(const djinn_attention_args &a, const Part &part, unsigned heads)
        : heads(heads), dim(a.kv.head_dim) {
        /* Vectors begin at a multiple of 32 bytes. */
        const size_t count = (size_t(part.slots) * heads + 3) / 4 * 4;
        facts = reinterpret_cast<float2 *>(a.workspace);
        vectors = a.workspace + 2 * count;
    }
    __device__ __forceinline__ size_t at(unsigned unit, unsigned head) const { return size_t(unit) * heads + head; }
    __device__ __forceinline__ float *vector(size_t at) const { return vectors + at * dim; }
};

/*
 * The sum of weights, and the weighted sum of an element, over some positions; none at first. A score of `top` has weight
 * one. Scores are logarithms to base 2.
 */
struct Result {
    float top = -INFINITY, sum = 0, x = 0;

    /* Adds the positions that follow, of which there is at least one. */
    __device__ __forceinline__ void merge(const Result &next) {
        const float both = fmaxf(top, next.top);
        const float keep = power_of_two(top - both), take = power_of_two(next.top - both);
        sum = __fmaf_rn(sum, keep, __fmul_rn(next.sum, take));
        x = __fmaf_rn(x, keep, __fmul_rn(next.x, take));
        top = both;
    }
};

/* A warp's part of a split: positions `begin .. end` of those from `base` on, for a key head. None if empty. */
struct Portion {
    unsigned sequence, kv_head, base, begin, end;

    __device__ __forceinline__ bool is_empty() const { return begin >= end; }
};

/* The work of blocks. `Share` takes a warp's share of a split. */
template <typename Share> struct Splits {
    static constexpr unsigned THREADS = Share::THREADS, WARPS = THREADS / 32, HEADS = Share::HEADS, DIM = Share::DIM;
    static constexpr unsigned OUTPUTS = (HEADS * DIM + THREADS - 1) / THREADS;
    /* Partial results that are loaded at once in the final merge: little code if a thread has only one element. */
    static constexpr unsigned AT_END = OUTPUTS == 1 ? 4 : OUTPUTS == 2 ? 16 : 32 / OUTPUTS;

    struct Shared {
        typename Share::Shared share;
        /* The current step and the next, for each warp. All warps have the same, but here they take no registers. */
        Step steps[2][WARPS];
    };

    /* Results of the current span, and of all spans before. Thread i holds every THREADSth from i on. */
    struct Results {
        Result span[OUTPUTS], whole[OUTPUTS];
    };

    static __device__ __forceinline__ void run(const djinn_attention_args &a, const Part &part) {
        extern __shared__ __align__(16) unsigned char bytes[];
        Shared &shared = *reinterpret_cast<Shared *>(bytes);
        Step *here = &shared.steps[0][threadIdx.x / 32], *next = &shared.steps[1][threadIdx.x / 32];
        typename Share::Ahead ahead;
        Share::prepare(shared.share);
        Cut cut = {};
        /*
         * Positions, sequences and page tables were put there by `djinn_copy`: they may be read before the kernel before is
         * done.
         */
        bool some = !part.skip_runs || !is_one_run(a);
        if (some) {
            cut = cut_of(a, part);
            some = cut.in_turn == 0 ? begin_range<HEADS>(a, part, cut, *here)
                                    : find<HEADS>(a, part, cut, blockIdx.x, *here);
        }
        if (some) {
            Share::find(a, shared.share, ahead, portion_of(a, *here));
            Share::prefetch(a, shared.share, ahead, portion_of(a, *here));
        }
        await_previous();
        if (!some) {
            return;
        }
        Share::admit();
        Share::begin(a, shared.share, ahead, portion_of(a, *here));
        typename Share::Query query;
        Results results;
#pragma unroll 1
        while (true) {
            if (here->split == here->first) {
                query = begin_stretch(a, shared, *here);
                results = {};
            }
            const bool more = follow<HEADS>(a, part, cut, *here, *next), goes_on = Share::GOES_ON && more;
            Share::take(a, shared.share, query, ahead, portion_of(a, *here), goes_on, portion_of(a, *next));
            __syncthreads();
            add_split(a, part, cut, shared, *here, results);
            if (here->split + 1 == here->end && (!here->is_part() || is_merged(a, part, cut, shared, *here, results))) {
                store_whole(a, *here, results);
            }
            if (!more) {
                return;
            }
            if (!goes_on) {
                Share::find(a, shared.share, ahead, portion_of(a, *next));
                Share::begin(a, shared.share, ahead, portion_of(a, *next));
            }
            Step *const before = here;
            here = next;
            next = before;
        }
    }

    /* Whether all rows are of one sequence, and more than DJINN_PREFILL_RUN. */
    static __device__ __forceinline__ bool is_one_run(const djinn_attention_args &a) {
        bool one = a.rows > DJINN_PREFILL_RUN;
        for (unsigned row = threadIdx.x; row < a.rows; row += THREADS) {
            one &= a.row_seq[row] == a.row_seq[0];
        }
        return __syncthreads_and(one);
    }

    static __device__ __forceinline__ Portion portion_of(const djinn_attention_args &a, const Step &step) {
        const unsigned from = step.split * SPLIT + threadIdx.x / 32 * Share::SHARE;
        return {step.sequence, step.kv_head, from, max(from, first_seen(a, step.length - 1)),
                min(from + Share::SHARE, step.length)};
    }

    /* Calls `work(output, head of the group, element)` for the outputs that the thread holds. */
    template <typename Work>
    static __device__ __forceinline__ void each_output(const djinn_attention_args &a, unsigned heads, Work work) {
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; ++o) {
            const unsigned i = o * THREADS + threadIdx.x, h = i / DIM, at = i % DIM;
            if (i < HEADS * DIM && h < heads && at < a.kv.head_dim) {
                work(o, h, at);
            }
        }
    }

    static __device__ __forceinline__ typename Share::Query begin_stretch(const djinn_attention_args &a, Shared &shared,
                                                                          const Step &step) {
        const unsigned head = step.head, heads = step.heads;
        const size_t at = size_t(step.row) * (a.heads + 2 * a.kv.kv_heads) + head;
        const auto query = Share::load_query(a, shared.share, a.qkv + at * a.kv.head_dim, heads);
        if (a.alibi != 0) {
            if (threadIdx.x < Share::SLOPES) {
                /* Heads past the last have queries of zero, so any slope will do. */
                const float slope = slope_of(min(head + threadIdx.x, a.heads - 1), a.heads);
                shared.share.slope[threadIdx.x] = slope;
                shared.share.own[threadIdx.x] = bias_at(slope, step.length - 1);
            }
            __syncthreads();
        }
        return query;
    }

    /*
     * Merges what the warps found in a split with what was found before. If other stretches have units of the row, a unit's
     * result goes to its slot.
     */
    static __device__ __forceinline__ void add_split(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                                     const Shared &shared, const Step &step, Results &results) {
        const unsigned next = step.split + 1;
        const bool hands_over = step.is_part() && (next == step.end || (next & ((1u << cut.shift) - 1)) == 0);
        const bool ends_span = hands_over || next == step.end || next % SPAN == 0;
        const unsigned unit = (step.split >> cut.shift) - first_unit(a, cut, step.length - 1);
        const Slots slots(a, part, HEADS);
        each_output(a, step.heads, [&](unsigned o, unsigned h, unsigned at) {
            Result &of_span = results.span[o], &whole = results.whole[o];
            of_span.merge(split_of(shared.share, h, at));
            if (ends_span) {
                whole.merge(of_span);
                of_span = Result{};
            }
            if (hands_over) {
                const size_t to = slots.at(step.slot + unit, h);
                slots.vector(to)[at] = whole.x;
                if (at == 0) {
                    slots.facts[to] = {whole.top, whole.sum};
                }
                whole = Result{};
            }
        });
    }

    /* Whether a stretch is the last one of a row and group to be handed over. If so, merges all. */
    static __device__ __forceinline__ bool is_merged(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                                     Shared &shared, const Step &step, Results &results) {
        if (!is_last(ended[step.row * part.per_row + step.which], step.to - step.from, step.units)) {
            return false;
        }
        const Slots slots(a, part, HEADS);
        merge_units(slots, cut, shared, step.slot, step.heads, first_unit(a, cut, step.length - 1), step.units, results);
        return true;
    }

    static __device__ __forceinline__ void store_whole(const djinn_attention_args &a, const Step &step,
                                                       const Results &results) {
        each_output(a, step.heads, [&](unsigned o, unsigned h, unsigned at) {
            const Pack<float, 1> x{__fdiv_rn(results.whole[o].x, results.whole[o].sum)};
            const size_t to = (size_t(step.row) * a.heads + step.head + h) * a.kv.head_dim + at;
            store_output(a.out, a.rounded, to, x);
        });
    }

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

    /*
     * How a head's units are merged: the factors of what their span has so far and of the unit, then the same for spans. A
     * thread then does only products and sums for each of its elements.
     */
    struct Fold {
        float keep, take, keep_span, take_span;
    };
    /* Units whose factors and sums are in shared memory at once. */
    static constexpr unsigned FOLDS = sizeof(Share::Shared::part) / (sizeof(Fold) + sizeof(float)) / HEADS / 32 * 32;
    struct Folds {
        Fold fold[HEADS][FOLDS];
        float sum[HEADS][FOLDS];
    };

    /*
     * Computes the factors of FOLDS units of each head from number `first` on, which is less than `count`. Numbers count
     * from the start of the first unit's span, which is `lead` units before it. `tops` are the maxima of a warp's heads so
     * far.
     */
    static __device__ __forceinline__ void fold_units(const Slots &slots, const Cut &cut, Folds &folds, unsigned slot,
                                                      unsigned heads, unsigned first, unsigned count, unsigned lead,
                                                      float (&tops)[(HEADS + WARPS - 1) / WARPS]) {
        const unsigned lane = threadIdx.x % 32;
        const unsigned width = cut.shift == 0 ? SPAN : 1;
#pragma unroll
        for (unsigned i = 0; i < (HEADS + WARPS - 1) / WARPS; ++i) {
            const unsigned head = threadIdx.x / 32 + i * WARPS;
#pragma unroll 1
            for (unsigned at = 0; at < FOLDS && first + at < count && head < heads; at += 32) {
                const unsigned number = first + at + lane;
                const bool is = number >= lead && number < count;
                const float2 none = {-INFINITY, 0};
                const float2 fact = is ? __ldcg(slots.facts + slots.at(slot + number - lead, head)) : none;
                float before = -INFINITY, span = fact.x;
                if (width == SPAN) {
#pragma unroll
                    for (unsigned by = 1; by < SPAN; ++by) {
                        const float other = __shfl_up_sync(0xffffffffu, fact.x, by);
                        before = lane % SPAN >= by ? fmaxf(before, other) : before;
                    }
#pragma unroll
                    for (unsigned by = 1; by < SPAN; by *= 2) {
                        span = fmaxf(span, __shfl_xor_sync(0xffffffffu, span, by));
                    }
                }
                float all = span;
                for (unsigned by = width; by < 32; by *= 2) {
                    const float other = __shfl_up_sync(0xffffffffu, all, by);
                    all = lane >= by ? fmaxf(all, other) : all;
                }
                float spans = __shfl_up_sync(0xffffffffu, all, width);
                spans = fmaxf(lane >= width ? spans : -INFINITY, tops[i]);
                tops[i] = fmaxf(tops[i], __shfl_sync(0xffffffffu, all, 31));
                const float both = fmaxf(before, fact.x), both_spans = fmaxf(spans, span);
                folds.fold[head][at + lane] = {power_of_two(before - both), power_of_two(fact.x - both),
                                               power_of_two(spans - both_spans), power_of_two(span - both_spans)};
                folds.sum[head][at + lane] = fact.y;
            }
        }
    }

    /* Merges the partial results of a row, in the order in which one block alone would. `start` is its first unit. */
    static __device__ __forceinline__ void merge_units(const Slots &slots, const Cut &cut, Shared &shared, unsigned slot,
                                                       unsigned heads, unsigned start, unsigned units, Results &results) {
        Folds &folds = *reinterpret_cast<Folds *>(shared.share.part);
        static_assert(FOLDS > 0 && FOLDS % AT_END == 0 && sizeof(Folds) <= sizeof(shared.share.part));
        const unsigned lead = cut.shift == 0 ? start % SPAN : 0, count = lead + units;
        float tops[(HEADS + WARPS - 1) / WARPS];
#pragma unroll
        for (float &top : tops) {
            top = -INFINITY;
        }
        float span[OUTPUTS] = {}, span_sum[OUTPUTS] = {}, whole[OUTPUTS] = {}, sum[OUTPUTS] = {};
#pragma unroll 1
        for (unsigned first = 0; first < count; first += AT_END) {
            /* All loads start before any is used. They bypass L1, since other multiprocessors wrote what they read. */
            float next[AT_END][OUTPUTS];
#pragma unroll
            for (unsigned s = 0; s < AT_END; ++s) {
                const unsigned unit = min(max(first + s, lead), count - 1) - lead;
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    const unsigned i = o * THREADS + threadIdx.x, h = min(i / DIM, heads - 1);
                    next[s][o] = __ldcg(slots.vector(slots.at(slot + unit, h)) + min(i % DIM, slots.dim - 1));
                }
            }
            if (first % FOLDS == 0) {
                __syncthreads();
                fold_units(slots, cut, folds, slot, heads, first, count, lead, tops);
                __syncthreads();
            }
#pragma unroll
            for (unsigned s = 0; s < AT_END; ++s) {
                const unsigned number = first + s;
                if (number - lead >= units) {
                    continue;
                }
                const bool ends_span = cut.shift != 0 || number + 1 == count || number % SPAN == SPAN - 1;
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    const unsigned h = min((o * THREADS + threadIdx.x) / DIM, heads - 1);
                    const Fold fold = folds.fold[h][number % FOLDS];
                    span[o] = __fmaf_rn(span[o], fold.keep, __fmul_rn(next[s][o], fold.take));
                    span_sum[o] = __fmaf_rn(span_sum[o], fold.keep, __fmul_rn(folds.sum[h][number % FOLDS], fold.take));
                    if (ends_span) {
                        whole[o] = __fmaf_rn(whole[o], fold.keep_span, __fmul_rn(span[o], fold.take_span));
                        sum[o] = __fmaf_rn(sum[o], fold.keep_span, __fmul_rn(span_sum[o], fold.take_span));
                        span[o] = span_sum[o] = 0;
                    }
                }
            }
        }
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; ++o) {
            results.whole[o].sum = sum[o], results.whole[o].x = whole[o];
        }
    }

    /*
     * Counts `units` more that the block stored, and returns whether all of `all` are there; the block then sees what others
     * stored. The barriers order its threads' stores and loads around the release and acquire of one thread.
     */
    static __device__ __forceinline__ bool is_last(unsigned &count, unsigned units, unsigned all) {
        __shared__ bool last;
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned before;
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                         : "=r"(before)
                         : "l"(&count), "r"(units)
                         : "memory");
            last = before + units == all;
            if (last) {
                count = 0;
            }
        }
        __syncthreads();
        return last;
    }
};

} // namespace djinn

#endif
