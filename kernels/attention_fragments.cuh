/*
 * A warp's share of a split of attention, on the tensor cores, for 16-bit pages and a head_dim that is a multiple of 8:
 * queries and weights are rounded to the type of the pages. Few instructions are needed, so that memory is the limit.
 *
 * Keys are the rows of the matrices and up to 8 heads that share a key head are the columns; then elements of values
 * are the rows. Sums over elements or positions may take them in any order: so a lane loads 16 bytes at once, and what
 * it has of them is taken as the elements that the matrix units expect of it. The next keys are under way while values
 * are weighted, the next values while keys are multiplied.
 */
#ifndef DJINN_ATTENTION_FRAGMENTS_CUH
#define DJINN_ATTENTION_FRAGMENTS_CUH

#include "attention_split.cuh"

namespace djinn {

/* Columns of a product. */
constexpr unsigned COLUMNS = 8;

/* The transpose of an 8 x 8 matrix of 16-bit elements: each lane has two of the row lane / 4. */
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
    uint32_t to;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
    return to;
}

/* For rows of up to MOST elements, and GROUP heads that share a key head. */
template <typename T, unsigned MOST, unsigned GROUP> struct Fragments {
    static constexpr unsigned DIM = MOST, HEADS = GROUP, THREADS = 128, WARPS = 4;
    /* Blocks of a multiprocessor, as registers allow. */
    static constexpr unsigned BLOCKS = DIM <= 128 ? 3 : 2;
    static constexpr unsigned SHARE = SPLIT / WARPS, TILE = 16;
    /* Columns without a head have a bias as well: whether weights are rescaled depends on all. */
    static constexpr unsigned SLOPES = COLUMNS;
    static_assert(HEADS <= COLUMNS);

    struct Shared {
        const T *key[WARPS][SHARE];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[COLUMNS], own[COLUMNS];
        /* What each warp found; a maximum of -INFINITY if it saw no position. */
        float top[WARPS][HEADS], sum[WARPS][HEADS];
        float part[WARPS][HEADS * DIM];
    };

    /* The lane's part of the queries, scaled: elements of head lane / 4. */
    struct Query {
        uint32_t at[DIM / 16][2];
    };

    static __device__ __forceinline__ Query load_query(const djinn_attention_args &a, const float *queries,
                                                       unsigned heads) {
        const unsigned head = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        const float scale = __fmul_rn(a.scale, LOG2_E);
        Query query = {};
#pragma unroll
        for (unsigned i = 0; i < DIM / 32; ++i) {
            const unsigned at = i * 32 + quad * 8;
            if (head < heads && at < a.kv.head_dim) {
                const float *from = queries + size_t(head) * a.kv.head_dim + at;
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const auto x = load<float, 4>(from + 4 * half);
                    query.at[2 * i + half][0] = pack<T>(x.at[0] * scale, x.at[1] * scale);
                    query.at[2 * i + half][1] = pack<T>(x.at[2] * scale, x.at[3] * scale);
                }
            }
        }
        return query;
    }

    /* Where 16 bytes of a row begin; past the end of a head, the row's start: what they give is not used. */
    static __device__ __forceinline__ unsigned offset_of(const djinn_attention_args &a, unsigned at) {
        return at < a.kv.head_dim ? at : 0;
    }

    /* Of 16 positions: the lane's elements of keys lane / 4 and 8 further. */
    struct Keys {
        uint4 at[DIM / 32][2];

        __device__ __forceinline__ void load(const djinn_attention_args &a, const T *const *key) {
            const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
            const T *const low = key[row], *const high = key[row + 8];
#pragma unroll
            for (unsigned i = 0; i < DIM / 32; ++i) {
                const unsigned offset = offset_of(a, i * 32 + quad * 8);
                at[i][0] = *reinterpret_cast<const uint4 *>(low + offset);
                at[i][1] = *reinterpret_cast<const uint4 *>(high + offset);
            }
        }
    };

    /* Of 16 positions: the lane's elements of values 2 (lane % 4), the next, and both 8 further. */
    struct Values {
        uint4 at[DIM / 64][4];

        __device__ __forceinline__ void load(const djinn_attention_args &a, const T *const *key, size_t value) {
            const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
            for (unsigned k = 0; k < 4; ++k) {
                const T *const from = key[2 * quad + k % 2 + k / 2 * 8] + value;
#pragma unroll
                for (unsigned i = 0; i < DIM / 64; ++i) {
                    at[i][k] = *reinterpret_cast<const uint4 *>(from + offset_of(a, i * 64 + row * 8));
                }
            }
        }
    };

    static __device__ __forceinline__ uint32_t word_of(const uint4 &four, unsigned i) {
        return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
    }

    /* Over the lanes that have the same columns. */
    static __device__ __forceinline__ float max_of_rows(float x) {
#pragma unroll
        for (unsigned step = 4; step < 32; step *= 2) {
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
        }
        return x;
    }
    static __device__ __forceinline__ float sum_of_rows(float x) {
#pragma unroll
        for (unsigned step = 4; step < 32; step *= 2) {
            x += __shfl_xor_sync(0xffffffffu, x, step);
        }
        return x;
    }

    /*
     * The warp's share of a split, from position `base` on. The row sees `begin .. end` of it; none if empty.
     */
    static __device__ __forceinline__ void take(const djinn_attention_args &a, Shared &shared, const Query &query,
                                                unsigned sequence, unsigned kv_head, unsigned base, unsigned begin,
                                                unsigned end) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        float out[DIM / 16][4] = {};
        if (begin < end) {
            const T **key = shared.key[warp];
#pragma unroll
            for (unsigned i = lane; i < SHARE; i += 32) {
                /* Hidden positions of a tile stand for one that is seen, with a weight of zero. */
                key[i] = key_at<T>(a.kv, sequence, min(max(base + i, begin), end - 1), kv_head);
            }
            __syncwarp();
            const size_t value = value_offset(a.kv);
            unsigned first = (begin - base) / TILE * TILE;
            const unsigned last = (end - 1 - base) / TILE * TILE;
            Keys keys;
            Values values;
            keys.load(a, key + first);
            values.load(a, key + first, value);
#pragma unroll 1
            for (; first <= last; first += TILE) {
                float scores[4] = {};
#pragma unroll
                for (unsigned i = 0; i < DIM / 32; ++i) {
                    const uint4 low = keys.at[i][0], high = keys.at[i][1];
                    const uint32_t even[4] = {low.x, high.x, low.y, high.y}, odd[4] = {low.z, high.z, low.w, high.w};
                    multiply<T>(scores, even, query.at[2 * i][0], query.at[2 * i][1]);
                    multiply<T>(scores, odd, query.at[2 * i + 1][0], query.at[2 * i + 1][1]);
                }
                if (first < last) {
                    keys.load(a, key + first + TILE);
                }
                const auto weights = weigh(a, shared, scores, top, sum, out, base + first, begin, end);
#pragma unroll
                for (unsigned i = 0; i < DIM / 16; ++i) {
                    /* Elements of values in pairs of positions. */
                    uint32_t word[4];
#pragma unroll
                    for (unsigned k = 0; k < 4; ++k) {
                        word[k] = word_of(values.at[i / 4][k], i % 4);
                    }
                    const uint32_t pairs[4] = {
                        __byte_perm(word[0], word[1], 0x5410), __byte_perm(word[0], word[1], 0x7632),
                        __byte_perm(word[2], word[3], 0x5410), __byte_perm(word[2], word[3], 0x7632)};
                    multiply<T>(out[i], pairs, weights.x, weights.y);
                }
                if (first < last) {
                    values.load(a, key + first + TILE, value);
                }
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned head = 2 * quad + i;
            const float total = sum_of_rows(sum[i]);
            if (head < HEADS) {
                if (row == 0) {
                    shared.top[warp][head] = top[i];
                    shared.sum[warp][head] = total;
                }
#pragma unroll
                for (unsigned d = 0; d < DIM / 16; ++d) {
                    float *to = &shared.part[warp][head * DIM + d / 4 * 64 + row * 8 + d % 4 * 2];
                    store(to, Pack<float, 2>{out[d][i], out[d][2 + i]});
                }
            }
        }
    }

    /*
     * Turns the scores of a tile into weights, positions in pairs for the lane's head. Scores may be up to MOST_ABOVE
     * above `top`, so that it rarely changes after the first tile.
     */
    static __device__ __forceinline__ uint2 weigh(const djinn_attention_args &a, const Shared &shared,
                                                  float (&scores)[4], float (&top)[2], float (&sum)[2],
                                                  float (&out)[DIM / 16][4], unsigned base, unsigned begin,
                                                  unsigned end) {
        const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        bool above = false;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned position = base + row + i / 2 * 8, head = 2 * quad + i % 2;
            if (a.alibi != 0) {
                const float bias = bias_at(shared.slope[head], position) - shared.own[head];
                scores[i] = __fmaf_rn(bias, __fmul_rn(a.scale, LOG2_E), scores[i]);
            }
            scores[i] = position >= begin && position < end ? scores[i] : -INFINITY;
            above |= scores[i] > top[i % 2] + MOST_ABOVE;
        }
        if (__any_sync(0xffffffffu, above)) {
            float keep[2];
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                const float next = max_of_rows(fmaxf(top[i], fmaxf(scores[i], scores[i + 2])));
                keep[i] = power_of_two(top[i] - next);
                top[i] = next;
                sum[i] = __fmul_rn(sum[i], keep[i]);
            }
#pragma unroll
            for (unsigned d = 0; d < DIM / 16; ++d) {
#pragma unroll
                for (unsigned i = 0; i < 4; ++i) {
                    out[d][i] = __fmul_rn(out[d][i], keep[i % 2]);
                }
            }
        }
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            scores[i] = power_of_two(scores[i] - top[i % 2]);
            sum[i % 2] = __fadd_rn(sum[i % 2], scores[i]);
        }
        return {transpose(pack<T>(scores[0], scores[1])), transpose(pack<T>(scores[2], scores[3]))};
    }
};

} // namespace djinn

#endif
