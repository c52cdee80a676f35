/*
 * The row-by-row path of attention: how the partial results of a row's units are merged, in order of position and with the
 * arithmetic of a block that has them all.
 */
#ifndef DJINN_ATTENTION_SPLIT_MERGE_CUH
#define DJINN_ATTENTION_SPLIT_MERGE_CUH

#include "attention_deal.cuh"

namespace djinn {

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
 * How a head's unit is merged: the factors of what its span has so far and of the unit, then the same for spans. A thread
 * then does only products and sums for each of its elements.
 */
struct Factors {
    float keep, take, keep_span, take_span;
};

/*
 * The factors and sums of COUNT units of each of HEADS heads, computed by WARPS warps. Numbers count from the start of the
 * first unit's span, which is `lead` units before it.
 */
template <unsigned HEADS, unsigned COUNT, unsigned WARPS> struct Folds {
    static_assert(COUNT > 0 && COUNT % 32 == 0);
    /* Heads of a warp, and the maxima of their units so far. */
    static constexpr unsigned EACH = (HEADS + WARPS - 1) / WARPS;
    /* How many times 32 facts are loaded at once. With several heads no registers are left for more. */
    static constexpr unsigned LOADS = HEADS > 1 ? 1 : COUNT % 128 == 0 ? 4 : COUNT / 32 < 4 ? COUNT / 32 : 1;
    using Tops = float[EACH];

    Factors fold[HEADS][COUNT];
    float sum[HEADS][COUNT];

    /* Computes those of `heads` heads from `head` on, from number `first` on, which is less than `count`. */
    __device__ __forceinline__ void compute(const Slots &slots, const Cut &cut, unsigned slot, unsigned head, unsigned heads,
                                            unsigned first, unsigned count, unsigned lead, Tops &tops) {
        const unsigned lane = threadIdx.x % 32;
        const unsigned width = cut.shift == 0 ? SPAN : 1;
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            const unsigned own = threadIdx.x / 32 + i * WARPS;
            float2 facts[LOADS];
#pragma unroll(LOADS)
            for (unsigned at = 0; at < COUNT; at += 32) {
                if (first + at >= count || own >= heads) {
                    break;
                }
                if (at / 32 % LOADS == 0) {
#pragma unroll
                    for (unsigned load = 0; load < LOADS; ++load) {
                        const unsigned number = first + at + load * 32 + lane;
                        const bool is = number >= lead && number < count;
                        const float2 none = {-INFINITY, 0};
                        facts[load] = is ? __ldcg(slots.facts + slots.at(slot + number - lead, head + own)) : none;
                    }
                }
                const float2 fact = facts[at / 32 % LOADS];
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
                fold[own][at + lane] = {power_of_two(before - both), power_of_two(fact.x - both),
                                        power_of_two(spans - both_spans), power_of_two(span - both_spans)};
                sum[own][at + lane] = fact.y;
            }
        }
    }
};

/*
 * Which of HEADS heads' up to DIM elements each of THREADS threads has: COUNT elements of one head. ALIGNED divides a head's
 * elements; WIDTH successive elements are loaded and stored at once.
 */
template <unsigned HEADS, unsigned DIM, unsigned THREADS, unsigned ALIGNED> struct Elements {
    static constexpr unsigned COUNT = (HEADS * DIM + THREADS - 1) / THREADS, WIDTH = COUNT < ALIGNED ? COUNT : ALIGNED;
    /* Threads of a head. */
    static constexpr unsigned THREADS_OF_HEAD = DIM / COUNT;
    static_assert(DIM % COUNT == 0 && COUNT % WIDTH == 0);

    /* The thread's head, past the last for a thread that has none. */
    static __device__ __forceinline__ unsigned head() { return threadIdx.x / THREADS_OF_HEAD; }
    /* Which element of the head is the thread's `i`th. */
    static __device__ __forceinline__ unsigned at(unsigned i) {
        return (i / WIDTH * THREADS_OF_HEAD + threadIdx.x % THREADS_OF_HEAD) * WIDTH + i % WIDTH;
    }
    /* Calls `work(i, at(i))` for the first of each WIDTH elements that a head of `dim` elements has. */
    template <typename Work> static __device__ __forceinline__ void each(unsigned dim, Work work) {
#pragma unroll
        for (unsigned i = 0; i < COUNT; i += WIDTH) {
            if (at(i) < dim) {
                work(i, at(i));
            }
        }
    }
    /* WIDTH of the thread's elements. */
    static __device__ __forceinline__ Pack<float, WIDTH> pack(const float (&x)[COUNT], unsigned first) {
        Pack<float, WIDTH> of;
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) {
            of.at[i] = x[first + i];
        }
        return of;
    }
};

/* Loads elements past L1, which may have something older than what other multiprocessors wrote. */
template <unsigned N> __device__ __forceinline__ Pack<float, N> load_fresh(const float *from) {
    if constexpr (N == 4) {
        const float4 x = __ldcg(reinterpret_cast<const float4 *>(from));
        return {x.x, x.y, x.z, x.w};
    } else if constexpr (N == 2) {
        const float2 x = __ldcg(reinterpret_cast<const float2 *>(from));
        return {x.x, x.y};
    } else {
        static_assert(N == 1);
        return {__ldcg(from)};
    }
}

/*
 * Merges the elements of COUNT heads by a block of THREADS threads, with BYTES bytes of shared memory. The vectors of AT_ONCE
 * units are loaded at once.
 */
template <unsigned COUNT, typename Elements, unsigned THREADS, unsigned AT_ONCE, unsigned BYTES> struct Merge {
    static constexpr unsigned WARPS = THREADS / 32, OUTPUTS = Elements::COUNT, WIDTH = Elements::WIDTH;
    /* Units whose factors and sums are in shared memory at once. */
    static constexpr unsigned FOLDS = BYTES / (sizeof(Factors) + sizeof(float)) / COUNT / 32 * 32;
    using Folds = djinn::Folds<COUNT, FOLDS, WARPS>;
    static_assert(FOLDS % AT_ONCE == 0 && sizeof(Folds) <= BYTES);

    /*
     * Merges the partial results of `units` units of a row, in the order in which one block alone would. `start` is its first
     * unit. Each thread gets the weighted sums of its elements and their head's sum of weights.
     */
    static __device__ __forceinline__ void run(const Slots &slots, const Cut &cut, void *room, unsigned slot, unsigned heads,
                                               unsigned start, unsigned units, float (&whole)[OUTPUTS], float &sum) {
        Folds &folds = *static_cast<Folds *>(room);
        const unsigned lead = cut.shift == 0 ? start % SPAN : 0, count = lead + units;
        typename Folds::Tops tops;
#pragma unroll
        for (float &top : tops) {
            top = -INFINITY;
        }
        const unsigned h = min(Elements::head(), heads - 1);
        float span[OUTPUTS] = {}, span_sum = 0;
#pragma unroll 1
        for (unsigned first = 0; first < count; first += AT_ONCE) {
            /* All loads start before any is used. */
            Pack<float, WIDTH> next[AT_ONCE][OUTPUTS / WIDTH];
#pragma unroll
            for (unsigned s = 0; s < AT_ONCE; ++s) {
                const unsigned unit = min(max(first + s, lead), count - 1) - lead;
                const float *const from = slots.vector(slots.at(slot + unit, h));
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; o += WIDTH) {
                    next[s][o / WIDTH] = load_fresh<WIDTH>(from + min(Elements::at(o), slots.dim - WIDTH));
                }
            }
            if (first % FOLDS == 0) {
                __syncthreads();
                folds.compute(slots, cut, slot, 0, heads, first, count, lead, tops);
                __syncthreads();
            }
            const auto add = [&](unsigned s, bool ends_span) {
                const unsigned at = (first + s) % FOLDS;
                const Factors fold = folds.fold[h][at];
                span_sum = __fmaf_rn(span_sum, fold.keep, __fmul_rn(folds.sum[h][at], fold.take));
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    span[o] = __fmaf_rn(span[o], fold.keep, __fmul_rn(next[s][o / WIDTH].at[o % WIDTH], fold.take));
                }
                if (ends_span) {
                    sum = __fmaf_rn(sum, fold.keep_span, __fmul_rn(span_sum, fold.take_span));
                    span_sum = 0;
#pragma unroll
                    for (unsigned o = 0; o < OUTPUTS; ++o) {
                        whole[o] = __fmaf_rn(whole[o], fold.keep_span, __fmul_rn(span[o], fold.take_span));
                        span[o] = 0;
                    }
                }
            };
#pragma unroll
            for (unsigned s = 0; s < AT_ONCE; ++s) {
                const unsigned number = first + s;
                if (number - lead < units) {
                    add(s, cut.shift != 0 || number + 1 == count || number % SPAN == SPAN - 1);
                }
            }
        }
    }
};

/*
 * Merges part of a head by a block of WARPS warps, with the arithmetic of `Merge`. Warps take 32 elements each, and as many
 * units at once as there are warps for; their spans are merged in order afterwards.
 */
template <unsigned WARPS> struct MergePart {
    /* Units that a warp loads at once. Twice as many take registers that the rest of the kernel has no room for. */
    static constexpr unsigned UNITS = 16;

    struct Shared {
        djinn::Folds<1, UNITS * WARPS, WARPS> folds;
        /* Results of spans, for the elements of the part; and their sums of weights. */
        float spans[UNITS * WARPS * 32], sums[UNITS * WARPS];
    };

    /*
     * `part` is which 32 `wide` elements of the head. `wide` divides WARPS. The first `wide` warps get the weighted sum of
     * an element in each lane, and the sum of weights.
     */
    static __device__ __forceinline__ void run(const Slots &slots, const Cut &cut, Shared &shared, unsigned slot,
                                               unsigned head, unsigned part, unsigned wide, unsigned start, unsigned units,
                                               float &whole, float &sum) {
        const unsigned warp = threadIdx.x / 32, turn = warp / wide, at_once = WARPS / wide * UNITS;
        const unsigned mine = warp % wide * 32 + threadIdx.x % 32, element = min(part * wide * 32 + mine, slots.dim - 1);
        const unsigned width = cut.shift == 0 ? SPAN : 1;
        const unsigned lead = cut.shift == 0 ? start % SPAN : 0, count = lead + units;
        float tops[1] = {-INFINITY};
#pragma unroll 1
        for (unsigned first = 0; first < count; first += at_once) {
            const unsigned begin = first + turn * UNITS, end = min(count, first + at_once);
            float next[UNITS];
#pragma unroll
            for (unsigned s = 0; s < UNITS; ++s) {
                const unsigned unit = min(max(begin + s, lead), count - 1) - lead;
                next[s] = __ldcg(slots.vector(slots.at(slot + unit, head)) + element);
            }
            __syncthreads();
            shared.folds.compute(slots, cut, slot, head, 1, first, end, lead, tops);
            __syncthreads();
            float span = 0, span_sum = 0;
#pragma unroll
            for (unsigned s = 0; s < UNITS; ++s) {
                const unsigned number = begin + s, at = turn * UNITS + s;
                if (number - lead < units) {
                    const Factors fold = shared.folds.fold[0][at];
                    span = __fmaf_rn(span, fold.keep, __fmul_rn(next[s], fold.take));
                    span_sum = __fmaf_rn(span_sum, fold.keep, __fmul_rn(shared.folds.sum[0][at], fold.take));
                    if (width == 1 || s % SPAN == SPAN - 1 || number + 1 == count) {
                        shared.spans[at / width * wide * 32 + mine] = span;
                        shared.sums[at / width] = span_sum;
                        span = span_sum = 0;
                    }
                }
            }
            __syncthreads();
#pragma unroll 8
            for (unsigned at = 0; at < (end - first + width - 1) / width && warp < wide; ++at) {
                const Factors fold = shared.folds.fold[0][at * width];
                whole = __fmaf_rn(whole, fold.keep_span, __fmul_rn(shared.spans[at * wide * 32 + mine], fold.take_span));
                sum = __fmaf_rn(sum, fold.keep_span, __fmul_rn(shared.sums[at], fold.take_span));
            }
        }
    }
};

} // namespace djinn

#endif
