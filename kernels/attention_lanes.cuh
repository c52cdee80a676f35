/*
 * A warp's share of a split of attention, in f32, for any head_dim and type. Each lane multiplies its elements of keys and
 * values in registers. The next keys are loaded while values are weighted, the next values while keys are multiplied.
 */
#ifndef DJINN_ATTENTION_LANES_CUH
#define DJINN_ATTENTION_LANES_CUH

#include "attention_split.cuh"

namespace djinn {

/* Threads that a multiprocessor holds, with 128 registers each. */
constexpr unsigned RESIDENT = 512;
/* Threads of a block. If heads share keys, there are fewer blocks, which take longer: then more warps share a split. */
constexpr unsigned threads_for(unsigned heads) { return heads == 1 ? 128 : 256; }
constexpr unsigned blocks_for(unsigned heads) { return RESIDENT / threads_for(heads); }

/*
 * N elements of T, in words as they were loaded. The compiler would unpack single elements that live across loop iterations,
 * and so wait for them, in the iteration that loads them.
 */
template <typename T, unsigned N> struct Raw {
    uint32_t words[(N * sizeof(T) + 3) / 4];

    __device__ __forceinline__ void load(const T *from) {
        if constexpr (sizeof(T) == 1) {
            static_assert(N == 1, "single integers, which are aligned to nothing");
            words[0] = *reinterpret_cast<const uint8_t *>(from);
        } else if constexpr (N * sizeof(T) < 4) {
            words[0] = *reinterpret_cast<const uint16_t *>(from);
        } else {
            const auto pack = djinn::load<uint32_t, N * sizeof(T) / 4>(reinterpret_cast<const uint32_t *>(from));
#pragma unroll
            for (unsigned i = 0; i < N * sizeof(T) / 4; ++i) {
                words[i] = pack.at[i];
            }
        }
    }

    __device__ __forceinline__ float at(unsigned i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[i]);
        } else if constexpr (sizeof(T) == 1) {
            return static_cast<int8>(words[i]);
        } else {
            const uint32_t word = words[i / 2];
            return i % 2 == 0 ? low(word, T{}) : high(word, T{});
        }
    }

    static __device__ __forceinline__ float low(uint32_t word, f16) { return __low2float(halves(word)); }
    static __device__ __forceinline__ float high(uint32_t word, f16) { return __high2float(halves(word)); }
    static __device__ __forceinline__ float low(uint32_t word, bf16) { return __uint_as_float(word << 16); }
    static __device__ __forceinline__ float high(uint32_t word, bf16) { return __uint_as_float(word & 0xffff0000u); }
    static __device__ __forceinline__ __half2 halves(uint32_t word) {
        return *reinterpret_cast<const __half2 *>(&word);
    }
};

/* `a` or `b`, without a branch. */
__device__ __forceinline__ float select(bool first, float a, float b) {
    float x;
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
        : "=f"(x)
        : "f"(a), "f"(b), "r"(unsigned(first)));
    return x;
}

/*
 * Kernels for rows of up to DIM elements, loaded N at once, and up to HEADS heads that share a key head. LANES lanes share a
 * position, so a warp takes AT_ONCE positions at once.
 */
template <typename T, unsigned N, unsigned MOST, unsigned GROUP> struct Lanes {
    static constexpr unsigned DIM = MOST, HEADS = GROUP, SLOPES = GROUP;
    static constexpr unsigned BLOCKS = blocks_for(GROUP);
    static constexpr unsigned THREADS = threads_for(HEADS), WARPS = THREADS / 32;
    /* Positions of a split that a warp takes. */
    static constexpr unsigned SHARE = SPLIT / WARPS;
    static constexpr unsigned LANES = DIM / N < 32 ? DIM / N : 32, AT_ONCE = 32 / LANES;
    static constexpr unsigned CHUNKS = DIM / (LANES * N);
    /* Registers for a position's elements, and for queries or results. */
    static constexpr unsigned EACH = CHUNKS * (N * sizeof(T) > 4 ? N * sizeof(T) / 4 : 1);
    static constexpr unsigned WIDTH = CHUNKS * N * HEADS;
    /* Positions of a tile for LANES lanes, as registers allow: keys, values and scores beside queries and results. */
    static constexpr bool fits(unsigned unroll) { return 2 * unroll * EACH + 2 * WIDTH + unroll * HEADS <= 88; }
    static constexpr unsigned UNROLL = fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
    static constexpr unsigned TILE = UNROLL * AT_ONCE;
    /* Scores of a tile that LANES lanes compute, and lanes that share one in the end. */
    static constexpr unsigned SCORES = UNROLL * HEADS, SAME = LANES / SCORES;
    static_assert(SHARE % TILE == 0 && SCORES <= LANES);
    /* What divides a head's elements, and where they begin in `part`. */
    static constexpr unsigned ALIGNED = N, PART_ALIGNED = N;
    struct Shared : Scales<T, WARPS, SHARE> {
        const T *key[WARPS][SHARE];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[HEADS], own[HEADS];
        /* What each warp found; the maximum is -INFINITY if it saw no position. */
        float top[WARPS][HEADS], sum[WARPS][HEADS];
        alignas(16) float part[WARPS][HEADS * DIM];
    };

    /* The place of a head's element in `part`. */
    static __device__ __forceinline__ unsigned at_part(unsigned head, unsigned element) { return head * DIM + element; }

    /* Queries are aligned to 16 bytes only, whatever the elements of keys are. */
    static constexpr unsigned PIECE = N < 4 ? N : 4;
    struct Query {
        Pack<float, PIECE> at[HEADS][CHUNKS * N / PIECE];
    };

    /* The lane's elements of a tile of keys or values. */
    struct Tile {
        Raw<T, N> at[UNROLL][CHUNKS];

        /* Loads the positions from key[0] on. Lanes past the end of a row read its start: their queries are zero. */
        __device__ __forceinline__ void load(const T *const *key, unsigned dim, size_t offset) {
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                const T *from = key[u * AT_ONCE + threadIdx.x % 32 / LANES] + offset;
                __builtin_assume(__isGlobal(from));
#pragma unroll
                for (unsigned c = 0; c < CHUNKS; ++c) {
                    const unsigned element = element_of(c);
                    at[u][c].load(from + (element < dim ? element : 0));
                }
            }
        }
    };

    /* The first of the lane's elements of a chunk. */
    static __device__ __forceinline__ unsigned element_of(unsigned chunk) {
        return (threadIdx.x % LANES + LANES * chunk) * N;
    }

    /* Loads the queries of `heads` heads from an address on. Other heads, and elements past a head's end, are zeros. */
    static __device__ __forceinline__ Query load_query(const djinn_attention_args &a, const Shared &,
                                                       const float *queries, unsigned heads) {
        const unsigned dim = a.kv.head_dim;
        Query query;
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned i = 0; i < CHUNKS * N; i += PIECE) {
                const unsigned at = element_of(i / N) + i % N;
                const float *from = queries + size_t(h) * dim + at;
                query.at[h][i / PIECE] = h < heads && at < dim ? load<float, PIECE>(from) : Pack<float, PIECE>{};
            }
        }
        return query;
    }

    /* Nothing is loaded ahead of a share. */
    static constexpr bool GOES_ON = false;
    struct Ahead {};
    static __device__ __forceinline__ void prepare(Shared &) {}
    static __device__ __forceinline__ void admit() {}
    static __device__ __forceinline__ void find(const djinn_attention_args &, Shared &, const Ahead &, const Portion &) {}
    static __device__ __forceinline__ void prefetch(const djinn_attention_args &, const Shared &, const Ahead &,
                                                    const Portion &) {}
    static __device__ __forceinline__ void begin(const djinn_attention_args &, const Part &, Shared &, Ahead &,
                                                 const Portion &) {}

    /* Takes the warp's share of a split. Results are written once all warps are done with the split before. */
    static __device__ __forceinline__ void take(const djinn_attention_args &a, const Part &, Shared &shared,
                                                const Query &query, Ahead &, const Portion &portion, bool,
                                                const Portion &) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.head_dim;
        const unsigned base = portion.base, begin = portion.begin, end = portion.end;
        __syncthreads();
        if (portion.is_empty()) {
            if (lane < HEADS) {
                shared.top[warp][lane] = -INFINITY;
                shared.sum[warp][lane] = 0;
            }
#pragma unroll 1
            for (unsigned i = lane; i < HEADS * DIM; i += 32) {
                shared.part[warp][i] = 0;
            }
            return;
        }
        const T **key = shared.key[warp];
        const size_t value = value_offset<T>(a.kv);
#pragma unroll
        for (unsigned i = lane; i < SHARE; i += 32) {
            const unsigned position = min(max(base + i, begin), end - 1);
            T *at = key_at<T>(a.kv, portion.sequence, position, portion.kv_head);
            key[i] = at;
            if constexpr (IS_INT8<T>) {
                const int8 *from = scale_at(a.kv, at, position);
                shared.key_scale[warp][i] = gather_scale(from);
                shared.value_scale[warp][i] = gather_scale(from + value);
            }
        }
        __syncwarp();
        /* The tile's score that the lane ends up with: for a head, that of its group's `mine`th position. */
        const unsigned score = lane % LANES / SAME, mine = score % UNROLL, my_head = score / UNROLL;
        /*
         * As in `Result`: `top` for the lane's head, `sum` of its scores, `results` of its group of LANES lanes. Scores may
         * be up to MOST_ABOVE above `top`, so that it rarely changes after the first tile.
         */
        float top = -INFINITY, sum = 0, results[HEADS][CHUNKS * N] = {};
        const float scale = __fmul_rn(a.scale, LOG2_E);
        unsigned first = (begin - base) / TILE * TILE;
        const unsigned last = (end - 1 - base) / TILE * TILE;
        Tile keys, values;
        keys.load(key + first, dim, 0);
        values.load(key + first, dim, value);
#pragma unroll 1
        for (; first <= last; first += TILE) {
            float scores[SCORES] = {};
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (unsigned i = 0; i < CHUNKS * N; ++i) {
                    const float x = keys.at[u][i / N].at(i % N);
#pragma unroll
                    for (unsigned h = 0; h < HEADS; ++h) {
                        float &dot = scores[h * UNROLL + u];
                        dot = __fmaf_rn(query.at[h][i / PIECE].at[i % PIECE], x, dot);
                    }
                }
            }
            if (first < last) {
                keys.load(key + first + TILE, dim, 0);
            }
            float weight = sum_of_lanes(scores);
            const unsigned in_share = first + mine * AT_ONCE + lane / LANES, position = base + in_share;
            if constexpr (IS_INT8<T>) {
                weight = __fmul_rn(weight, shared.key_scale[warp][in_share]);
            }
            if (a.alibi != 0) {
                /*
                 * The bias of the row's own position is subtracted from all, so that biases cost no precision where weights
                 * are greatest.
                 */
                weight = __fadd_rn(weight, bias_at(shared.slope[my_head], position) - shared.own[my_head]);
            }
            weight = position >= begin && position < end ? __fmul_rn(weight, scale) : -INFINITY;
            if (__any_sync(0xffffffffu, weight > top + MOST_ABOVE)) {
                float next = fmaxf(top, weight);
#pragma unroll
                for (unsigned step = 16; step > 0; step /= 2) {
                    if (step >= LANES || (step >= SAME && step < SAME * UNROLL)) {
                        next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, step));
                    }
                }
                const float keep = power_of_two(top - next);
                top = next;
                sum = __fmul_rn(sum, keep);
#pragma unroll
                for (unsigned h = 0; h < HEADS; ++h) {
                    const float keep_h = __shfl_sync(0xffffffffu, keep, h * UNROLL * SAME);
#pragma unroll
                    for (unsigned i = 0; i < CHUNKS * N; ++i) {
                        results[h][i] = __fmul_rn(results[h][i], keep_h);
                    }
                }
            }
            weight = power_of_two(weight - top);
            sum = __fadd_rn(sum, weight);
            if constexpr (IS_INT8<T>) {
                weight = __fmul_rn(weight, shared.value_scale[warp][in_share]);
            }
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                float weights[HEADS];
#pragma unroll
                for (unsigned h = 0; h < HEADS; ++h) {
                    weights[h] = __shfl_sync(0xffffffffu, weight, (h * UNROLL + u) * SAME, LANES);
                }
#pragma unroll
                for (unsigned i = 0; i < CHUNKS * N; ++i) {
                    const float x = values.at[u][i / N].at(i % N);
#pragma unroll
                    for (unsigned h = 0; h < HEADS; ++h) {
                        results[h][i] = __fmaf_rn(weights[h], x, results[h][i]);
                    }
                }
            }
            if (first < last) {
                values.load(key + first + TILE, dim, value);
            }
        }
#pragma unroll
        for (unsigned step = SAME; step < SAME * UNROLL; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        sum = sum_of_groups(sum);
        if (lane < LANES && mine == 0) {
            shared.top[warp][my_head] = top;
            shared.sum[warp][my_head] = sum;
        }
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned i = 0; i < CHUNKS * N; ++i) {
                const float x = sum_of_groups(results[h][i]);
                if (lane < LANES) {
                    shared.part[warp][h * DIM + element_of(i / N) + i % N] = x;
                }
            }
        }
    }

    /* Sums each score over LANES lanes. SAME lanes get the first sum, as many the second, and so on. */
    static __device__ __forceinline__ float sum_of_lanes(float (&scores)[SCORES]) {
#pragma unroll
        for (unsigned step = LANES / 2; step > 0; step /= 2) {
            const unsigned rest = SCORES * step / LANES;
            if (rest == 0) {
                scores[0] += __shfl_xor_sync(0xffffffffu, scores[0], step);
                continue;
            }
            const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
            for (unsigned i = 0; i < rest; ++i) {
                const float theirs = select(upper, scores[i], scores[i + rest]);
                scores[i] = select(upper, scores[i + rest], scores[i]) + __shfl_xor_sync(0xffffffffu, theirs, step);
            }
        }
        return scores[0];
    }

    static __device__ __forceinline__ float sum_of_groups(float x) {
#pragma unroll
        for (unsigned step = LANES; step < 32; step *= 2) {
            x += __shfl_xor_sync(0xffffffffu, x, step);
        }
        return x;
    }
};

} // namespace djinn

#endif
