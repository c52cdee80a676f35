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
 * Merges COUNT heads of up to DIM elements by a block of THREADS threads, with BYTES bytes of shared memory. The vectors of
 * AT_ONCE units are loaded at once. If units are MANY, their facts are as well, and there is no branch for each unit.
 */
template <unsigned COUNT, unsigned DIM, unsigned THREADS, unsigned AT_ONCE, unsigned BYTES, bool MANY> struct Merge {
    static constexpr unsigned WARPS = THREADS / 32, OUTPUTS = (COUNT * DIM + THREADS - 1) / THREADS;

    /*
     * How a head's units are merged: the factors of what their span has so far and of the unit, then the same for spans. A
     * thread then does only products and sums for each of its elements.
     */
    struct Fold {
        float keep, take, keep_span, take_span;
    };
    /* Units whose factors and sums are in shared memory at once. */
    static constexpr unsigned ROOM = BYTES / (sizeof(Fold) + sizeof(float)) / COUNT / 32 * 32;
    static constexpr unsigned FOLDS = MANY && ROOM > 256 ? 256 : ROOM;
    struct Folds {
        Fold fold[COUNT][FOLDS];
        float sum[COUNT][FOLDS];
    };
    static_assert(FOLDS > 0 && FOLDS % AT_ONCE == 0 && (!MANY || AT_ONCE % SPAN == 0) && sizeof(Folds) <= BYTES);

    /*
     * Computes the factors of FOLDS units of each of `heads` heads from `head` on, from number `first` on, which is less than
     * `count`. Numbers count from the start of the first unit's span, which is `lead` units before it. `tops` are the maxima
     * of a warp's heads so far.
     */
    static __device__ __forceinline__ void fold_units(const Slots &slots, const Cut &cut, Folds &folds, unsigned slot,
                                                      unsigned head, unsigned heads, unsigned first, unsigned count,
                                                      unsigned lead, float (&tops)[(COUNT + WARPS - 1) / WARPS]) {
        const unsigned lane = threadIdx.x % 32;
        const unsigned width = cut.shift == 0 ? SPAN : 1;
#pragma unroll
        for (unsigned i = 0; i < (COUNT + WARPS - 1) / WARPS; ++i) {
            const unsigned own = threadIdx.x / 32 + i * WARPS;
            const auto fact_of = [&](unsigned at) {
                const unsigned number = first + at + lane;
                const bool is = number >= lead && number < count;
                const float2 none = {-INFINITY, 0};
                return is ? __ldcg(slots.facts + slots.at(slot + number - lead, head + own)) : none;
            };
            float2 facts[MANY ? FOLDS / 32 : 1];
#pragma unroll
            for (unsigned at = 0; MANY && at < FOLDS && own < heads; at += 32) {
                facts[at / 32] = fact_of(at);
            }
#pragma unroll(MANY ? FOLDS / 32 : 1)
            for (unsigned at = 0; at < FOLDS; at += 32) {
                if (first + at >= count || own >= heads) {
                    break;
                }
                const float2 fact = MANY ? facts[at / 32] : fact_of(at);
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
                folds.fold[own][at + lane] = {power_of_two(before - both), power_of_two(fact.x - both),
                                              power_of_two(spans - both_spans), power_of_two(span - both_spans)};
                folds.sum[own][at + lane] = fact.y;
            }
        }
    }

    /*
     * Merges the partial results of `units` units of a row, in the order in which one block alone would. `start` is its first
     * unit. Thread i gets the weighted sum and the sum of weights of every THREADSth output from i on.
     */
    static __device__ __forceinline__ void run(const Slots &slots, const Cut &cut, void *room, unsigned slot, unsigned head,
                                               unsigned heads, unsigned start, unsigned units, float (&whole)[OUTPUTS],
                                               float (&sum)[OUTPUTS]) {
        Folds &folds = *static_cast<Folds *>(room);
        const unsigned lead = cut.shift == 0 ? start % SPAN : 0, count = lead + units;
        float tops[(COUNT + WARPS - 1) / WARPS];
#pragma unroll
        for (float &top : tops) {
            top = -INFINITY;
        }
        float span[OUTPUTS] = {}, span_sum[OUTPUTS] = {};
#pragma unroll 1
        for (unsigned first = 0; first < count; first += AT_ONCE) {
            /* All loads start before any is used. They bypass L1, since other multiprocessors wrote what they read. */
            float next[AT_ONCE][OUTPUTS];
#pragma unroll
            for (unsigned s = 0; s < AT_ONCE; ++s) {
                const unsigned unit = min(max(first + s, lead), count - 1) - lead;
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    const unsigned i = o * THREADS + threadIdx.x, h = min(i / DIM, heads - 1);
                    next[s][o] = __ldcg(slots.vector(slots.at(slot + unit, head + h)) + min(i % DIM, slots.dim - 1));
                }
            }
            if (first % FOLDS == 0) {
                __syncthreads();
                fold_units(slots, cut, folds, slot, head, heads, first, count, lead, tops);
                __syncthreads();
            }
            const auto add = [&](unsigned s, bool ends_span) {
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; ++o) {
                    const unsigned h = min((o * THREADS + threadIdx.x) / DIM, heads - 1), at = (first + s) % FOLDS;
                    const Fold fold = folds.fold[h][at];
                    span[o] = __fmaf_rn(span[o], fold.keep, __fmul_rn(next[s][o], fold.take));
                    span_sum[o] = __fmaf_rn(span_sum[o], fold.keep, __fmul_rn(folds.sum[h][at], fold.take));
                    if (ends_span) {
                        whole[o] = __fmaf_rn(whole[o], fold.keep_span, __fmul_rn(span[o], fold.take_span));
                        sum[o] = __fmaf_rn(sum[o], fold.keep_span, __fmul_rn(span_sum[o], fold.take_span));
                        span[o] = span_sum[o] = 0;
                    }
                }
            };
            if (MANY && first >= lead && first + AT_ONCE <= count) {
#pragma unroll
                for (unsigned s = 0; s < AT_ONCE; ++s) {
                    add(s, cut.shift != 0 || s % SPAN == SPAN - 1);
                }
                continue;
            }
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

} // namespace djinn

#endif
