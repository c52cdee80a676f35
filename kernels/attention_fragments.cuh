/*
 * A warp's share of a split of attention, on the tensor cores, for 16-bit or aligned int8 pages and a head_dim that is a
 * multiple of 8. Queries and weights are rounded to the type of the pages. It needs few instructions, so that memory is the
 * limit. Integers of int8 pages are widened to f16 in registers. Scores are multiplied by the keys' scales. Weights are
 * multiplied by the values' scales, divided by a power of two that brings the greatest of the warp's below 2, so that scales
 * may be of any size.
 *
 * Keys are the rows of the matrices, and up to 8 heads that share a key head are the columns; then elements of values are
 * the rows. A lane loads 16 integers at once, and uses them as the elements that the tensor cores expect of it: sums may take
 * elements in any order. The next keys are copied while values are weighted, the next values while keys are multiplied, and
 * those of the next share while this one is merged.
 */
#ifndef DJINN_ATTENTION_FRAGMENTS_CUH
#define DJINN_ATTENTION_FRAGMENTS_CUH

#include "attention_split.cuh"
#include "attention_tile.cuh"

namespace djinn {

/* Columns of a product. */
constexpr unsigned COLUMNS = 8;

/* The transpose of an 8 x 8 matrix of 16-bit elements. Each lane has two of row lane / 4. */
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
    uint32_t to;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
    return to;
}

/* For rows of up to MOST elements, and GROUP heads that share a key head. */
template <typename T, unsigned MOST, unsigned GROUP> struct Fragments {
    static constexpr unsigned DIM = MOST, HEADS = GROUP, THREADS = 128, WARPS = 4;
    /* Blocks of a multiprocessor, as registers allow. */
    static constexpr unsigned BLOCKS = DIM > 128 ? 2 : IS_INT8<T> && HEADS < 8 ? 4 : 3;
    using Tile = djinn::Tile<T, DIM>;
    static constexpr unsigned SHARE = SPLIT / WARPS, TILE = Tile::ROWS;
    /* Columns without a head have a bias as well: all columns decide whether weights are rescaled. */
    static constexpr unsigned SLOPES = COLUMNS;
    static_assert(HEADS <= COLUMNS);
    /* Whether the first tile of the next share is copied while this one is merged. */
    static constexpr bool GOES_ON = true;
    /* The type that is multiplied. */
    using M = Product<T>;
    static constexpr unsigned PIECE = Tile::PIECE, VALUE_PIECE = Tile::VALUE_PIECE;
    /* Elements of a head in shared memory, with gaps: lanes that store them have no bank conflicts. */
    static constexpr unsigned GAP = IS_INT8<T> ? 2 : 0, PADDED = DIM + DIM / VALUE_PIECE * GAP;
    static constexpr unsigned PITCH = IS_INT8<T> ? PADDED + (20 - PADDED % 16) % 16 : DIM + 4;
    /* What divides a head's elements, and where they begin in `part`. */
    static constexpr unsigned ALIGNED = 4, PART_ALIGNED = IS_INT8<T> ? 2 : 4;

    struct Shared : Scales<T, 2 * WARPS, SHARE> {
        Tile keys[WARPS], values[WARPS];
        /* On sm_90: that tiles are there. */
        Barrier keys_ready[WARPS], values_ready[WARPS];
        /* For the current share, and for the next. */
        PageSlot places[2][WARPS][SHARE];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[COLUMNS], own[COLUMNS];
        /* What each warp found; the maximum is -INFINITY if it saw no position. */
        float top[WARPS][HEADS], sum[WARPS][HEADS];
        /* Each lane's part of the scaled queries: elements of head lane / 4 for two steps of the product. */
        uint4 query[DIM / 32][32];
        alignas(16) float part[WARPS][HEADS * PITCH];
    };

    /* The place of a head's element in `part`. */
    static __device__ __forceinline__ unsigned at_part(unsigned head, unsigned element) {
        return head * PITCH + element + element / VALUE_PIECE * GAP;
    }

    /* Queries are in shared memory. */
    struct Query {};

    static __device__ __forceinline__ Query load_query(const djinn_attention_args &a, Shared &shared,
                                                       const float *queries, unsigned heads) {
        const unsigned lane = threadIdx.x % 32, head = lane / 4, quad = lane % 4, dim = a.kv.head_dim;
        const float scale = __fmul_rn(a.scale, LOG2_E);
        /* A pair of elements from `at` on. */
        const auto pair_at = [&](unsigned at) {
            const bool inside = head < heads && at < dim;
            const auto x = inside ? load<float, 2>(queries + size_t(head) * dim + at) : Pack<float, 2>{};
            return pack<M>(x.at[0] * scale, x.at[1] * scale);
        };
#pragma unroll
        for (unsigned i = threadIdx.x / 32; i < DIM / 32; i += WARPS) {
            /* In int8 elements are in the order of the lanes' pieces. */
            const unsigned first = IS_INT8<T> ? Tile::key_piece(i / 2) + i % 2 * 8 : i * 32 + 2 * quad;
            const unsigned apart = IS_INT8<T> ? 2 : 8;
            shared.query[i][lane] = {pair_at(first), pair_at(first + apart), pair_at(first + 2 * apart),
                                     pair_at(first + 3 * apart)};
        }
        __syncthreads();
        return {};
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

    /* For int8 only: scales of the keys and values of a lane's positions of a share. */
    struct LaneScales {
        float key[SHARE / 32], value[SHARE / 32];
    };

    /* A warp's next share, whose first tile is being copied. */
    struct Ahead {
        /* The parity of its barriers' phases. */
        unsigned parity = 0;
        /* What the values' scales were divided by. */
        float power = 1;
        /* Which half of the shared memory has the share's places and scales. */
        unsigned half = 0;
    };

    /* The lane's position number `i` of a share, or the nearest of `begin .. end`. */
    static __device__ __forceinline__ unsigned position_of(const Portion &portion, unsigned i, unsigned begin, unsigned end) {
        return min(max(portion.base + i * 32 + threadIdx.x % 32, begin), end - 1);
    }

    /* Puts the places of a share's positions into half of the shared memory; of whole tiles, if tiles lie in one page. */
    static __device__ __forceinline__ void locate(const djinn_attention_args &a, Shared &shared, unsigned half,
                                                  const Portion &portion) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = tiles_are_whole(a.kv) ? TILE : 1;
        const unsigned begin = portion.begin / tile * tile, end = (portion.end + tile - 1) / tile * tile;
#pragma unroll
        for (unsigned i = 0; i < SHARE / 32; ++i) {
            const unsigned position = position_of(portion, i, begin, end);
            shared.places[half][warp][i * 32 + lane] = PageSlot::of(a.kv, portion.sequence, position);
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void load_scales(const djinn_attention_args &a, const Portion &portion,
                                                       LaneScales &scales) {
        if constexpr (IS_INT8<T>) {
#pragma unroll
            for (unsigned i = 0; i < SHARE / 32; ++i) {
                const unsigned position = position_of(portion, i, portion.begin, portion.end);
                const int8 *const from =
                    scale_at(a.kv, key_at<T>(a.kv, portion.sequence, position, portion.kv_head), position);
                scales.key[i] = load_scale(from);
                scales.value[i] = load_scale(from + value_offset<T>(a.kv));
            }
        }
    }

    /* Puts the scales of a share into half of the shared memory. Returns what those of values were divided by. */
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

    /* The first tile of a share, as an offset from its base. */
    static __device__ __forceinline__ unsigned first_tile(const Portion &portion) {
        return (portion.begin - portion.base) / TILE * TILE;
    }

    /* Finds a share. It reads no keys or values, since the kernel before may still write them. */
    static __device__ __forceinline__ void find(const djinn_attention_args &a, Shared &shared, const Ahead &ahead,
                                                const Portion &portion) {
        if (!portion.is_empty()) {
            locate(a, shared, ahead.half, portion);
        }
    }

    /*
     * Prefetches the first tiles of a share that was found to L2, if each lies in one page. More tiles, or later ones too,
     * would evict one another when there are many blocks.
     */
    static __device__ __forceinline__ void prefetch(const djinn_attention_args &a, const Shared &shared, const Ahead &ahead,
                                                    const Portion &portion) {
        constexpr unsigned TILES = 2;
        const unsigned lane = threadIdx.x % 32, in_share = first_tile(portion) + lane / 2 * TILE;
        const unsigned position = portion.base + in_share;
        if (lane < 2 * TILES && position < portion.end && tiles_are_whole(a.kv)) {
            const PageSlot place = shared.places[ahead.half][threadIdx.x / 32][in_share];
            const unsigned plane = portion.kv_head + lane % 2 * a.kv.kv_heads;
            djinn::prefetch(vector_at<T>(a.kv, place, plane), TILE * a.kv.head_dim * sizeof(T));
        }
    }

    /* Called before the first share. */
    static __device__ __forceinline__ void prepare(Shared &shared) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) {
            shared.keys_ready[threadIdx.x / 32].init(1);
            shared.values_ready[threadIdx.x / 32].init(1);
            Barrier::publish();
        }
        __syncwarp();
#endif
    }

    /* Called before the first copy: lets copies read what earlier kernels wrote. */
    static __device__ __forceinline__ void admit() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 < TILE) {
            admit_bulk_copies();
        }
#endif
    }

    /* Start to copy a tile of keys, or of values; of none if `place` is null. */
    static __device__ __forceinline__ void copy_keys(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                     const PageSlot *place, unsigned kv_head) {
        const unsigned warp = threadIdx.x / 32;
        shared.keys[warp].copy(a.kv, part.pages, shared.keys_ready[warp], place, kv_head);
    }
    static __device__ __forceinline__ void copy_values(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                       const PageSlot *place, unsigned kv_head) {
        const unsigned warp = threadIdx.x / 32;
        shared.values[warp].copy(a.kv, part.pages, shared.values_ready[warp], place, a.kv.kv_heads + kv_head);
    }

    /* Begins to load the first tile of a share that was found. */
    static __device__ __forceinline__ void begin(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                 Ahead &ahead, const Portion &portion) {
        if (!portion.is_empty()) {
            LaneScales scales;
            load_scales(a, portion, scales);
            const PageSlot *const place = shared.places[ahead.half][threadIdx.x / 32] + first_tile(portion);
            copy_keys(a, part, shared, place, portion.kv_head);
            copy_values(a, part, shared, place, portion.kv_head);
            /* Only now: the wait for scales must not delay the first keys and values. */
            ahead.power = settle(shared, ahead.half, scales);
        }
    }

    /*
     * Takes the warp's share of a split, which was begun before. If `goes_on`, begins the next. Results are written once all
     * warps are done with the split before.
     */
    static __device__ __forceinline__ void take(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                const Query &, Ahead &ahead, const Portion &portion, bool goes_on,
                                                const Portion &next) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        const unsigned half = ahead.half, scaled = half * WARPS + warp;
        const PageSlot *next_place = nullptr;
        LaneScales next_scales;
        float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        float out[DIM / 16][4] = {};
        const float power = portion.is_empty() ? 1 : ahead.power;
        if (goes_on) {
            ahead.half = 1 - half;
            if (!next.is_empty()) {
                locate(a, shared, ahead.half, next);
                load_scales(a, next, next_scales);
                next_place = shared.places[ahead.half][warp] + first_tile(next);
            }
        }
        if (!portion.is_empty()) {
            const PageSlot *const places = shared.places[half][warp];
            unsigned first = first_tile(portion);
            const unsigned last = (portion.end - 1 - portion.base) / TILE * TILE;
#pragma unroll 1
            for (; first <= last; first += TILE) {
                float scores[4] = {}, others[4] = {};
                Tile::wait(shared.keys_ready[warp], ahead.parity);
                const auto add_keys = [&](unsigned i, const uint32_t (&keys)[4]) {
                    const uint4 query = shared.query[i / 2][lane];
                    multiply<M>(IS_INT8<T> && i % 2 == 1 ? others : scores, keys, word_of(query, i % 2 * 2),
                                word_of(query, i % 2 * 2 + 1));
                };
                float value_scale[2] = {1, 1};
                if constexpr (IS_INT8<T>) {
                    shared.keys[warp].each_int8_key_step(add_keys);
#pragma unroll
                    for (unsigned i = 0; i < 2; ++i) {
                        const float key_scale = shared.key_scale[scaled][first + row + 8 * i];
                        value_scale[i] = shared.value_scale[scaled][first + row + 8 * i];
                        scores[2 * i] = __fmul_rn(scores[2 * i] + others[2 * i], key_scale);
                        scores[2 * i + 1] = __fmul_rn(scores[2 * i + 1] + others[2 * i + 1], key_scale);
                    }
                } else {
                    shared.keys[warp].each_key_step(add_keys);
                }
                const bool more = first < last;
                const PageSlot *const following = more ? places + first + TILE : next_place;
                const unsigned of_head = more ? portion.kv_head : next.kv_head;
                copy_keys(a, part, shared, following, of_head);
                const auto weights = weigh(a, shared, scores, value_scale, top, sum, out, portion.base + first,
                                           portion.begin, portion.end);
                const unsigned tile = portion.base + first, seen = max(portion.begin, tile) - tile;
                Tile::wait(shared.values_ready[warp], ahead.parity);
                const auto add_values = [&](unsigned i, const uint32_t (&values)[4]) {
                    multiply<M>(out[i], values, weights.x, weights.y);
                };
                if constexpr (IS_INT8<T>) {
                    shared.values[warp].each_int8_value_step(seen, portion.end - tile, add_values);
                } else {
                    shared.values[warp].each_value_step(seen, portion.end - tile, add_values);
                }
                copy_values(a, part, shared, following, of_head);
                ahead.parity ^= 1;
            }
        } else if (next_place != nullptr) {
            copy_keys(a, part, shared, next_place, next.kv_head);
            copy_values(a, part, shared, next_place, next.kv_head);
        }
        if (next_place != nullptr) {
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
                    if constexpr (IS_INT8<T>) {
                        /* The rows of a product are pairs of a lane's piece. */
                        constexpr unsigned PAIRS = VALUE_PIECE / 2;
                        const unsigned element = (d / PAIRS * 8 + row) * VALUE_PIECE + d % PAIRS * 2;
                        store(&shared.part[warp][at_part(head, element)],
                              Pack<float, 2>{out[d][i] * power, out[d][2 + i] * power});
                    } else {
                        shared.part[warp][at_part(head, d * 16 + row)] = out[d][i];
                        shared.part[warp][at_part(head, d * 16 + 8 + row)] = out[d][2 + i];
                    }
                }
            }
        }
    }

    /*
     * Turns a tile's scores into weights, as pairs of positions for the lane's head. Scores may be up to MOST_ABOVE above
     * `top`, so that it rarely changes after the first tile.
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
