/*
 * The row-by-row path of attention: what blocks do with the splits that they take, and how results are merged.
 */
#ifndef DJINN_ATTENTION_SPLIT_CUH
#define DJINN_ATTENTION_SPLIT_CUH

#include "attention_split_merge.cuh"

#include <type_traits>

namespace djinn {

/*
 * Counts units of a group that were handed over, and above them the parts of its heads that different blocks merged, for
 * each group. A launch leaves zeros.
 */
constexpr unsigned MERGED = 1u << 24;
__device__ __forceinline__ unsigned &ended_of(const djinn_attention_args &a, unsigned group) { return a.counters[group]; }

/*
 * The sum of a head's weights, and the weighted sums of N elements, over some positions; none at first. A score of `top` has
 * weight one. Scores are logarithms to base 2.
 */
template <unsigned N> struct Result {
    float top = -INFINITY, sum = 0, x[N] = {};

    /* Adds the positions that follow, of which there is at least one. */
    __device__ __forceinline__ void merge(const Result &next) {
        const float both = fmaxf(top, next.top);
        const float keep = power_of_two(top - both), take = power_of_two(next.top - both);
        sum = __fmaf_rn(sum, keep, __fmul_rn(next.sum, take));
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            x[i] = __fmaf_rn(x[i], keep, __fmul_rn(next.x[i], take));
        }
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
    using Elements = djinn::Elements<HEADS, DIM, THREADS, Share::ALIGNED>;
    static constexpr unsigned OUTPUTS = Elements::COUNT;
    /* Partial results that are loaded at once in the final merge: little code if a thread has only one element. */
    static constexpr unsigned AT_END = OUTPUTS == 1 ? 4 : OUTPUTS == 2 ? 16 : 32 / OUTPUTS;

    /* A head's parts are merged by different blocks, if there is room in what a share takes. */
    using MergePart = djinn::MergePart<WARPS>;
    static constexpr unsigned MOST_PARTS =
        HEADS > 1 && sizeof(typename MergePart::Shared) <= sizeof(typename Share::Shared) ? DIM / 32 : 0;
    static constexpr unsigned FEWEST_PARTS = (DIM / 32 + WARPS - 1) / WARPS;

    struct Shared {
        typename Share::Shared share;
        /* The current step and the next, for each warp. All warps have the same, but here they take no registers. */
        Step steps[2][WARPS];
    };

    /* What the thread's elements have of the current span, and of all spans before. */
    using Result = djinn::Result<OUTPUTS>;
    struct Results {
        Result span, whole;
    };

    static __device__ __forceinline__ void run(const djinn_attention_args &a, const Part &part) {
        extern __shared__ __align__(16) unsigned char bytes[];
        /* The padding that the size counts on. */
        unsigned char *const aligned = bytes + (alignof(Shared) - shared_address(bytes) % alignof(Shared)) % alignof(Shared);
        Shared &shared = *reinterpret_cast<Shared *>(aligned);
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
            cut = cut_of<HEADS, FEWEST_PARTS, MOST_PARTS>(a, part);
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
        Share::begin(a, part, shared.share, ahead, portion_of(a, *here));
        typename Share::Query query;
        Results results;
#pragma unroll 1
        while (true) {
            if (here->split == here->first) {
                query = begin_stretch(a, shared, *here);
                results = {};
            }
            const bool more = follow<HEADS>(a, part, cut, *here, *next), goes_on = Share::GOES_ON && more;
            Share::take(a, part, shared.share, query, ahead, portion_of(a, *here), goes_on, portion_of(a, *next));
            __syncthreads();
            add_split(a, part, cut, shared, *here, results);
            if (here->split + 1 == here->end && (!here->is_part(cut) || is_merged(a, part, cut, shared, *here, results))) {
                store_whole(a, *here, results);
            }
            if (!more) {
                break;
            }
            if (!goes_on) {
                Share::find(a, shared.share, ahead, portion_of(a, *next));
                Share::begin(a, part, shared.share, ahead, portion_of(a, *next));
            }
            Step *const before = here;
            here = next;
            next = before;
        }
        if constexpr (MOST_PARTS > 0) {
            if (cut.by_head != 0) {
                merge_part(a, part, cut, shared);
            }
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
        const bool hands_over = step.is_part(cut) && (next == step.end || (next & ((1u << cut.shift) - 1)) == 0);
        const bool ends_span = hands_over || next == step.end || next % SPAN == 0;
        const unsigned unit = (step.split >> cut.shift) - first_unit(a, cut, step.length - 1);
        const unsigned h = Elements::head();
        if (h >= step.heads) {
            return;
        }
        results.span.merge(split_of(shared.share, h));
        if (ends_span) {
            results.whole.merge(results.span);
            results.span = Result{};
        }
        if (hands_over) {
            const Slots slots(a, part, HEADS);
            const size_t to = slots.at(step.slot + unit, h);
            Elements::each(a.kv.head_dim, [&](unsigned first, unsigned at) {
                store(slots.vector(to) + at, Elements::pack(results.whole.x, first));
            });
            if (Elements::at(0) == 0) {
                slots.facts[to] = {results.whole.top, results.whole.sum};
            }
            results.whole = Result{};
        }
    }

    /* Whether a stretch is the last one of a row and group to be handed over. If so, merges all, unless others do. */
    static __device__ __forceinline__ bool is_merged(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                                     Shared &shared, const Step &step, Results &results) {
        using Merge = djinn::Merge<HEADS, Elements, THREADS, AT_END, sizeof(Share::Shared::part)>;
        const bool by_head = MOST_PARTS > 0 && cut.is_by_head(step.units);
        if (!is_last(ended_of(a, step.row * part.per_row + step.which), step.to - step.from, by_head ? ~0u : step.units)) {
            return false;
        }
        const Slots slots(a, part, HEADS);
        results.whole = Result{};
        Merge::run(slots, cut, shared.share.part, step.slot, step.heads, first_unit(a, cut, step.length - 1), step.units,
                   results.whole.x, results.whole.sum);
        return true;
    }

    /*
     * Called by a block that took all its units. The last blocks, which have fewest, merge a part of a head each, and wait
     * until all units of the head's group are there. The device runs all blocks at once, so others end meanwhile.
     */
    static __device__ __forceinline__ void merge_part(const djinn_attention_args &a, const Part &part, const Cut &cut,
                                                      Shared &shared) {
        const unsigned of_group = HEADS * cut.by_head, parts = a.rows * part.per_row * of_group;
        const unsigned blocks = min(gridDim.x, cut.units * part.per_row);
        if (blockIdx.x + parts < blocks) {
            return;
        }
        const unsigned number = blockIdx.x + parts - blocks;
        const unsigned group = number / of_group, in_group = number - group * of_group, row = group / part.per_row;
        const unsigned units = units_of(a, cut, a.positions[row]), which = group - row * part.per_row;
        if (!cut.is_by_head(units)) {
            return;
        }
        const unsigned h = in_group / cut.by_head, in_head = in_group - h * cut.by_head;
        const unsigned kv_head = which / part.groups, in_key = (which - kv_head * part.groups) * HEADS + h;
        unsigned &ended = ended_of(a, group);
        if (in_key < part.shared_by) {
            if (threadIdx.x == 0) {
                unsigned found;
                do {
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(&ended) : "memory");
                } while (found % MERGED < units);
            }
            __syncthreads();
            unsigned slot = 0;
            for (unsigned before = 0; before < row; ++before) {
                slot += units_of(a, cut, a.positions[before]);
            }
            const unsigned wide = DIM / 32 / cut.by_head, element = in_head * wide * 32 + threadIdx.x;
            float whole = 0, sum = 0;
            MergePart::run(Slots(a, part, HEADS), cut, *reinterpret_cast<typename MergePart::Shared *>(&shared.share),
                           slot * part.per_row + which * units, h, in_head, wide, first_unit(a, cut, a.positions[row]),
                           units, whole, sum);
            if (threadIdx.x < wide * 32 && element < a.kv.head_dim) {
                const size_t head = size_t(row) * a.heads + kv_head * part.shared_by + in_key;
                store_output(a.out, a.rounded, head * a.kv.head_dim + element, Pack<float, 1>{__fdiv_rn(whole, sum)});
            }
            __syncthreads();
        }
        if (threadIdx.x == 0 && atomicAdd(&ended, MERGED) / MERGED + 1 == of_group) {
            ended = 0;
        }
    }

    static __device__ __forceinline__ void store_whole(const djinn_attention_args &a, const Step &step,
                                                       const Results &results) {
        const unsigned h = Elements::head();
        if (h >= step.heads) {
            return;
        }
        const size_t to = (size_t(step.row) * a.heads + step.head + h) * a.kv.head_dim;
        Elements::each(a.kv.head_dim, [&](unsigned first, unsigned at) {
            auto x = Elements::pack(results.whole.x, first);
#pragma unroll
            for (float &element : x.at) {
                element = __fdiv_rn(element, results.whole.sum);
            }
            store_output(a.out, a.rounded, to + at, x);
        });
    }

    /* What the warps found in a split, for the thread's elements. */
    static __device__ __forceinline__ Result split_of(const typename Share::Shared &share, unsigned h) {
        Result whole;
        float top[WARPS];
#pragma unroll
        for (unsigned warp = 0; warp < WARPS; ++warp) {
            top[warp] = share.top[warp][h];
            whole.top = fmaxf(whole.top, top[warp]);
        }
#pragma unroll
        for (unsigned warp = 0; warp < WARPS; ++warp) {
            const float take = power_of_two(top[warp] - whole.top);
            whole.sum = __fmaf_rn(share.sum[warp][h], take, whole.sum);
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; o += Share::PART_ALIGNED) {
                constexpr unsigned N = Share::PART_ALIGNED < OUTPUTS ? Share::PART_ALIGNED : OUTPUTS;
                const auto x = load<float, N>(&share.part[warp][Share::at_part(h, Elements::at(o))]);
#pragma unroll
                for (unsigned i = 0; i < N; ++i) {
                    whole.x[o + i] = __fmaf_rn(x.at[i], take, whole.x[o + i]);
                }
            }
        }
        return whole;
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
