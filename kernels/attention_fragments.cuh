/*
 * A warp's share of a split of attention, on the tensor cores, for 16-bit pages and a head_dim that is a multiple of 8:
 * queries and weights are rounded to the type of the pages. Few instructions are needed, so that memory is the limit.
 * Integers of aligned int8 pages are widened to f16 in registers. Scores are multiplied with the keys' scales, and weights
 * with the values', divided by a power of two that brings the greatest of the warp's to less than 2: scales may be of any
 * size.
 *
 * Keys are the rows of the matrices and up to 8 heads that share a key head are the columns; then elements of values
 * are the rows. Sums over elements or positions may take them in any order: so a lane loads 16 bytes at once, and what
 * it has of them is taken as the elements that the matrix units expect of it. The next keys are under way while values
 * are weighted, the next values while keys are multiplied; those of the next share while this is merged.
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

/*
 * 16 bytes of keys or values. Each is loaded once: the first-level cache keeps none. Other lanes load those beside, so memory
 * may give 256 at once.
 */
__device__ __forceinline__ uint4 load_once(const void *from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

/* For rows of up to MOST elements, and GROUP heads that share a key head. */
template <typename T, unsigned MOST, unsigned GROUP> struct Fragments {
    static constexpr unsigned DIM = MOST, HEADS = GROUP, THREADS = 128, WARPS = 4;
    /* Blocks of a multiprocessor, as registers allow. */
    static constexpr unsigned BLOCKS = DIM > 128 ? 2 : IS_INT8<T> && HEADS < 8 ? 4 : 3;
    static constexpr unsigned SHARE = SPLIT / WARPS, TILE = 16;
    /* Columns without a head have a bias as well: whether weights are rescaled depends on all. */
    static constexpr unsigned SLOPES = COLUMNS;
    static_assert(HEADS <= COLUMNS);
    /* Whether registers hold the first tile of a share while the one before is merged. */
    static constexpr bool GOES_ON = true;
    /* What is multiplied. */
    using M = Product<T>;
    /* Elements that a lane loads at once, of keys and of values: eight lanes share a row of those. */
    static constexpr unsigned PIECE = PER_16_BYTES<T>, VALUE_PIECE = PIECE < DIM / 8 ? PIECE : DIM / 8;
    static_assert(DIM % (4 * PIECE) == 0 && DIM % (8 * VALUE_PIECE) == 0);
    /* Elements of a head in shared memory: of int8 with gaps, so that lanes that store two each meet no bank twice. */
    static constexpr unsigned GAP = IS_INT8<T> ? 2 : 0, PADDED = DIM + DIM / VALUE_PIECE * GAP;
    static constexpr unsigned PITCH = IS_INT8<T> ? PADDED + (20 - PADDED % 16) % 16 : DIM;

    struct Shared : Scales<T, 2 * WARPS, SHARE> {
        /* Of the present share, and of the next. */
        const T *key[2][WARPS][SHARE];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[COLUMNS], own[COLUMNS];
        /* What each warp found; a maximum of -INFINITY if it saw no position. */
        float top[WARPS][HEADS], sum[WARPS][HEADS];
        /* Each lane's part of the queries, scaled: elements of head lane / 4 for two steps of the product. */
        uint4 query[WARPS][DIM / 32][32];
        float part[WARPS][HEADS * PITCH];
    };

    /* Where an element of a head lies in `part`. */
    static __device__ __forceinline__ unsigned at_part(unsigned head, unsigned element) {
        return head * PITCH + element + element / VALUE_PIECE * GAP;
    }

    /* Queries are in shared memory. */
    struct Query {};

    static __device__ __forceinline__ Query load_query(const djinn_attention_args &a, Shared &shared,
                                                       const float *queries, unsigned heads) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4, quad = lane % 4;
        const float scale = __fmul_rn(a.scale, LOG2_E);
        uint32_t query[DIM / 16][2] = {};
#pragma unroll
        for (unsigned i = 0; i < DIM / 4 / PIECE; ++i) {
            const unsigned at = (i * 4 + quad) * PIECE;
            if (head < heads && at < a.kv.head_dim) {
                const float *from = queries + size_t(head) * a.kv.head_dim + at;
#pragma unroll
                for (unsigned part = 0; part < PIECE / 4; ++part) {
                    const auto x = load<float, 4>(from + 4 * part);
                    query[i * (PIECE / 4) + part][0] = pack<M>(x.at[0] * scale, x.at[1] * scale);
                    query[i * (PIECE / 4) + part][1] = pack<M>(x.at[2] * scale, x.at[3] * scale);
                }
            }
        }
#pragma unroll
        for (unsigned i = 0; i < DIM / 16; i += 2) {
            shared.query[warp][i / 2][lane] = {query[i][0], query[i][1], query[i + 1][0], query[i + 1][1]};
        }
        __syncwarp();
        return {};
    }

    /* Where a piece of a row begins; past the end of a head, the row's start: what they give is not used. */
    static __device__ __forceinline__ unsigned offset_of(const djinn_attention_args &a, unsigned at) {
        return at < a.kv.head_dim ? at : 0;
    }

    /* Of 16 positions: the lane's elements of keys lane / 4 and 8 further. */
    struct Keys {
        uint4 at[DIM / 4 / PIECE][2];

        __device__ __forceinline__ void load(const djinn_attention_args &a, const T *const *key) {
            const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
            const T *const low = key[row], *const high = key[row + 8];
#pragma unroll
            for (unsigned i = 0; i < DIM / 4 / PIECE; ++i) {
                const unsigned offset = offset_of(a, (i * 4 + quad) * PIECE);
                at[i][0] = load_once(low + offset);
                at[i][1] = load_once(high + offset);
            }
        }

        /* Rows by elements of step `i` of the product, as the matrix units take them. */
        __device__ __forceinline__ void operands(uint32_t (&to)[4], unsigned i) const {
            const uint4 low = at[i / (PIECE / 4)][0], high = at[i / (PIECE / 4)][1];
            const unsigned part = i % (PIECE / 4);
            if constexpr (IS_INT8<T>) {
                uint32_t l[2], h[2];
                widen_word(l, word_of(low, part));
                widen_word(h, word_of(high, part));
                to[0] = l[0], to[1] = h[0], to[2] = l[1], to[3] = h[1];
            } else {
                to[0] = word_of(low, 2 * part);
                to[1] = word_of(high, 2 * part);
                to[2] = word_of(low, 2 * part + 1);
                to[3] = word_of(high, 2 * part + 1);
            }
        }
    };

    /* Of 16 positions: the lane's elements of values 2 (lane % 4), the next, and both 8 further. */
    struct Values {
        static constexpr unsigned WORDS = VALUE_PIECE * sizeof(T) / 4;
        Pack<uint32_t, WORDS> at[DIM / 8 / VALUE_PIECE][4];

        __device__ __forceinline__ void load(const djinn_attention_args &a, const T *const *key, size_t value) {
            const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
            for (unsigned k = 0; k < 4; ++k) {
                const T *const from = key[2 * quad + k % 2 + k / 2 * 8] + value;
#pragma unroll
                for (unsigned i = 0; i < DIM / 8 / VALUE_PIECE; ++i) {
                    const T *const piece = from + offset_of(a, (i * 8 + row) * VALUE_PIECE);
                    if constexpr (WORDS == 4) {
                        const uint4 x = load_once(piece);
                        at[i][k] = {{x.x, x.y, x.z, x.w}};
                    } else {
                        at[i][k] = djinn::load<uint32_t, WORDS>(reinterpret_cast<const uint32_t *>(piece));
                    }
                }
            }
        }

        /* The lane's pair of elements number `i` by pairs of positions, as the matrix units take them. */
        __device__ __forceinline__ void operands(uint32_t (&to)[4], unsigned i) const {
            constexpr unsigned PAIRS = VALUE_PIECE / 2;
            const unsigned word = i % PAIRS * sizeof(T) / 2;
            uint32_t of[4];
#pragma unroll
            for (unsigned k = 0; k < 4; ++k) {
                of[k] = at[i / PAIRS][k].at[word];
            }
            if constexpr (IS_INT8<T>) {
                const unsigned which = i % 2 == 0 ? 0x5140 : 0x7362;
                uint32_t l[2], h[2];
                widen_word(l, __byte_perm(of[0], of[1], which));
                widen_word(h, __byte_perm(of[2], of[3], which));
                to[0] = l[0], to[1] = l[1], to[2] = h[0], to[3] = h[1];
            } else {
                to[0] = __byte_perm(of[0], of[1], 0x5410);
                to[1] = __byte_perm(of[0], of[1], 0x7632);
                to[2] = __byte_perm(of[2], of[3], 0x5410);
                to[3] = __byte_perm(of[2], of[3], 0x7632);
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

    /* Scales of the keys and values of a lane's positions of a share; of int8 alone. */
    struct LaneScales {
        float key[SHARE / 32], value[SHARE / 32];
    };

    /* What a warp has of its next share: the first tile. */
    struct Ahead {
        Keys keys;
        Values values;
        /* What values were divided by. */
        float power = 1;
        /* Which half of the shared memory has the share's addresses and scales. */
        unsigned half = 0;
    };

    /* The lane's position number `i` of a share. Hidden ones of a tile stand for one that is seen, with a weight of zero. */
    static __device__ __forceinline__ unsigned position_of(const Portion &portion, unsigned i) {
        return min(max(portion.base + i * 32 + threadIdx.x % 32, portion.begin), portion.end - 1);
    }

    /* Puts the addresses of a share's keys into half of the shared memory. */
    static __device__ __forceinline__ void locate(const djinn_attention_args &a, Shared &shared, unsigned half,
                                                  const Portion &portion) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (unsigned i = 0; i < SHARE / 32; ++i) {
            shared.key[half][warp][i * 32 + lane] =
                key_at<T>(a.kv, portion.sequence, position_of(portion, i), portion.kv_head);
        }
        __syncwarp();
    }

    /* Of int8, begins to load the scales of a share that half of the shared memory has the addresses of. */
    static __device__ __forceinline__ void load_scales(const djinn_attention_args &a, const Shared &shared, unsigned half,
                                                       const Portion &portion, LaneScales &scales) {
        if constexpr (IS_INT8<T>) {
#pragma unroll
            for (unsigned i = 0; i < SHARE / 32; ++i) {
                const T *const at = shared.key[half][threadIdx.x / 32][i * 32 + threadIdx.x % 32];
                const int8 *const from = scale_at(a.kv, at, position_of(portion, i));
                scales.key[i] = load_scale(from);
                scales.value[i] = load_scale(from + value_offset<T>(a.kv));
            }
        }
    }

    /* Puts the scales of a share into half of the shared memory; what those of values are divided by. */
    static __device__ __forceinline__ float settle(Shared &shared, unsigned half, const LaneScales &scales) {
        const unsigned warp = half * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
        float power = 1;
        if constexpr (IS_INT8<T>) {
            float most = 0;
#pragma unroll
            for (unsigned i = 0; i < SHARE / 32; ++i) {
                most = fmaxf(most, scales.value[i]);
            }
            const uint32_t bits = __float_as_uint(warp_max(most)) & 0x7f800000u;
            power = __uint_as_float(bits);
            const float inverse = __uint_as_float(0x7f000000u - bits);
#pragma unroll
            for (unsigned i = 0; i < SHARE / 32; ++i) {
                shared.key_scale[warp][i * 32 + lane] = scales.key[i];
                shared.value_scale[warp][i * 32 + lane] = __fmul_rn(scales.value[i], inverse);
            }
            __syncwarp();
        }
        return power;
    }

    /* The first position of a share's first tile. */
    static __device__ __forceinline__ unsigned first_tile(const Portion &portion) {
        return (portion.begin - portion.base) / TILE * TILE;
    }

    /* Finds a share. Reads no keys or values: the kernel before may still write them. */
    static __device__ __forceinline__ void find(const djinn_attention_args &a, Shared &shared, const Ahead &ahead,
                                                const Portion &portion) {
        if (!portion.is_empty()) {
            locate(a, shared, ahead.half, portion);
        }
    }

    /*
     * Has the first tiles of a share that was found brought to the second-level cache, where each lies in one page. More
     * of them, or later ones as well, would drive one another out where blocks are many.
     */
    static __device__ __forceinline__ void prefetch(const djinn_attention_args &a, const Shared &shared, const Ahead &ahead,
                                                    const Portion &portion) {
        constexpr unsigned TILES = 2;
        const unsigned lane = threadIdx.x % 32, in_share = first_tile(portion) + lane / 2 * TILE;
        const unsigned position = portion.base + in_share;
        if (lane < 2 * TILES && position >= portion.begin && position < portion.end && a.kv.page_tokens % TILE == 0) {
            const T *const keys = shared.key[ahead.half][threadIdx.x / 32][in_share];
            djinn::prefetch(keys + (lane % 2 == 0 ? 0 : value_offset<T>(a.kv)), TILE * a.kv.head_dim * sizeof(T));
        }
    }

    /* Begins to load the first tile of a share that was found. */
    static __device__ __forceinline__ void begin(const djinn_attention_args &a, Shared &shared, Ahead &ahead,
                                                 const Portion &portion) {
        if (portion.is_empty()) {
            /* Nothing, so that no register is kept for what was there. */
            ahead.keys = {}, ahead.values = {};
        } else {
            LaneScales scales;
            load_scales(a, shared, ahead.half, portion, scales);
            const T *const *const key = shared.key[ahead.half][threadIdx.x / 32] + first_tile(portion);
            ahead.keys.load(a, key);
            ahead.values.load(a, key, value_offset<T>(a.kv));
            /* Only now: what waits for scales shall not keep the first keys and values waiting. */
            ahead.power = settle(shared, ahead.half, scales);
        }
    }

    /*
     * The warp's share of a split, of which `ahead` has begun. If `goes_on`, begins the next. What was found is written
     * when all warps are done with the split before.
     */
    static __device__ __forceinline__ void take(const djinn_attention_args &a, Shared &shared, const Query &,
                                                Ahead &ahead, const Portion &portion, bool goes_on,
                                                const Portion &next) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        const unsigned half = ahead.half, scaled = half * WARPS + warp;
        const size_t value = value_offset<T>(a.kv);
        const T *const *next_key = nullptr;
        LaneScales next_scales;
        float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        float out[DIM / 16][4] = {};
        const float power = portion.is_empty() ? 1 : ahead.power;
        if (goes_on) {
            ahead.half = 1 - half;
            if (!next.is_empty()) {
                locate(a, shared, ahead.half, next);
                load_scales(a, shared, ahead.half, next, next_scales);
                next_key = shared.key[ahead.half][warp] + first_tile(next);
            }
        }
        if (!portion.is_empty()) {
            const T *const *const key = shared.key[half][warp];
            unsigned first = first_tile(portion);
            const unsigned last = (portion.end - 1 - portion.base) / TILE * TILE;
#pragma unroll 1
            for (; first <= last; first += TILE) {
                float scores[4] = {}, others[4] = {};
#pragma unroll
                for (unsigned i = 0; i < DIM / 16; ++i) {
                    uint32_t operands[4];
                    ahead.keys.operands(operands, i);
                    const uint4 query = shared.query[warp][i / 2][lane];
                    multiply<M>(IS_INT8<T> && i % 2 == 1 ? others : scores, operands, word_of(query, i % 2 * 2),
                                word_of(query, i % 2 * 2 + 1));
                }
                float value_scale[2] = {1, 1};
                if constexpr (IS_INT8<T>) {
#pragma unroll
                    for (unsigned i = 0; i < 2; ++i) {
                        const float key_scale = shared.key_scale[scaled][first + row + 8 * i];
                        value_scale[i] = shared.value_scale[scaled][first + row + 8 * i];
                        scores[2 * i] = __fmul_rn(scores[2 * i] + others[2 * i], key_scale);
                        scores[2 * i + 1] = __fmul_rn(scores[2 * i + 1] + others[2 * i + 1], key_scale);
                    }
                }
                const T *const *const following = first < last ? key + first + TILE : next_key;
                if (following != nullptr) {
                    ahead.keys.load(a, following);
                }
                const auto weights = weigh(a, shared, scores, value_scale, top, sum, out, portion.base + first,
                                           portion.begin, portion.end);
#pragma unroll
                for (unsigned i = 0; i < DIM / 16; ++i) {
                    uint32_t operands[4];
                    ahead.values.operands(operands, i);
                    multiply<M>(out[i], operands, weights.x, weights.y);
                }
                if (following != nullptr) {
                    ahead.values.load(a, following, value);
                }
            }
        } else if (next_key != nullptr) {
            ahead.keys.load(a, next_key);
            ahead.values.load(a, next_key, value);
        }
        if (next_key != nullptr) {
            ahead.power = settle(shared, ahead.half, next_scales);
        }
        __syncthreads();
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
                    constexpr unsigned PAIRS = VALUE_PIECE / 2;
                    const unsigned element = (d / PAIRS * 8 + row) * VALUE_PIECE + d % PAIRS * 2;
                    float *to = &shared.part[warp][at_part(head, element)];
                    store(to, IS_INT8<T> ? Pack<float, 2>{out[d][i] * power, out[d][2 + i] * power}
                                         : Pack<float, 2>{out[d][i], out[d][2 + i]});
                }
            }
        }
    }

    /*
     * Turns the scores of a tile into weights, positions in pairs for the lane's head. Scores may be up to MOST_ABOVE
     * above `top`, so that it rarely changes after the first tile.
     */
    static __device__ __forceinline__ uint2 weigh(const djinn_attention_args &a, const Shared &shared,
                                                  float (&scores)[4], const float (&value_scale)[2],
                                                  float (&top)[2], float (&sum)[2], float (&out)[DIM / 16][4],
                                                  unsigned base, unsigned begin, unsigned end) {
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
            if constexpr (IS_INT8<T>) {
                scores[i] = __fmul_rn(scores[i], value_scale[i / 2]);
            }
        }
        return {transpose(pack<M>(scores[0], scores[1])), transpose(pack<M>(scores[2], scores[3]))};
    }
};

} // namespace djinn

#endif
