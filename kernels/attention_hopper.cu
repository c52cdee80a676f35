/*
 * attention in tiles on Hopper (sm_90a), for rows in runs of more than DJINN_PREFILL_RUN of one sequence: out[r, h, :] =
 * softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= positions[r], or the last `window`.
 * Shapes: as in attention.cu; f16 or bf16 pages, head_dim a multiple of 8; or aligned int8 pages, which become f16 on their
 * way to the tiles.
 * Reference: djinn-device, src/reference.rs, `attention`.
 *
 * The method is that of FlashAttention-3 (Shah et al., 2024). A producer warpgroup copies keys and values to shared memory.
 * Two consumer warpgroups multiply 64 rows each; they compute the weights of one tile of keys while the tile before is
 * multiplied with its values, and start products in turns. A block's rows are query rows times up to 8 heads that share a
 * key head, so that these share the copies.
 *
 * The context is cut every TILED_SPLIT positions, and tiles of keys start at multiples of KEYS, both from position 0 on. A
 * tile that a row does not see changes none of its bits. A row's results of several splits are merged in order of position
 * (attention_merge.cuh). So a row depends on its queries and its context alone.
 * Launch: a persistent kernel with a block for each multiprocessor. Blocks take units of rows and heads in turn; units that
 * run at the same time share keys. If such units keep the device busy, a unit has all splits of its rows. Else it has one,
 * and a second kernel, with a warp for each row and head, merges them.
 */
#include "attention_copies.cuh"
#include "attention_merge.cuh"

namespace djinn {

/* The consumer warpgroups, for heads of up to DIM elements in pages of `Stored`. */
template <typename Stored, unsigned DIM> struct HopperTiles : TileLayout<Stored, DIM> {
    /* Registers of a producer thread, which may widen integers, and of a consumer thread. */
    static constexpr bool WIDENS = IS_INT8<Stored> && DIM <= 128;
    static constexpr unsigned FEW_REGISTERS = WIDENS ? 72 : 56, MANY_REGISTERS = WIDENS ? 216 : 224;
    using Layout = TileLayout<Stored, DIM>;
    using typename Layout::Barriers, typename Layout::Shared, typename Layout::T;
    using Layout::BLOCKS, Layout::KEYS;
    using Rows = FoundRows<DIM>;
    /* Steps of a product with keys, and pieces of 16 bytes in a row. */
    static constexpr unsigned STEPS = DIM / 16, PIECES = DIM / 8;

    const djinn_attention_args &a;
    const Tiling &part;
    Shared &shared;
    Barriers &barriers;
    /* Tiles so far. */
    unsigned count = 0;

    __device__ __forceinline__ HopperTiles(const djinn_attention_args &a, const Tiling &part, Shared &shared,
                                           Barriers &barriers)
        : a(a), part(part), shared(shared), barriers(barriers) {}

    /* The place of a piece of a row, swizzled. */
    template <unsigned N>
    static __device__ __forceinline__ T *piece(T (&blocks)[BLOCKS][N][BLOCK_COLUMNS], unsigned row, unsigned at) {
        return &blocks[at / 8][row][(at % 8 ^ row % 8) * 8];
    }

    /* Lets the producers replace a tile. */
    static __device__ __forceinline__ void leave(Barrier &free) {
        if (threadIdx.x % 32 == 0) {
            free.arrive();
        }
    }

    __device__ __forceinline__ void load_queries(const Unit &unit, unsigned group) {
        constexpr unsigned EACH = GROUP_ROWS * PIECES / 128, AT_ONCE = EACH < 8 ? EACH : 8;
        static_assert(GROUP_ROWS * PIECES % 128 == 0 && EACH % AT_ONCE == 0);
        const size_t width = size_t(a.heads + 2 * a.kv.kv_heads) * a.kv.head_dim;
        const float scale = a.scale * LOG2_E;
        sync_group(group);
#pragma unroll 1
        for (unsigned first = threadIdx.x % 128; first < GROUP_ROWS * PIECES; first += 128 * AT_ONCE) {
            /* All loads start before any is used. */
            Pack<float, 4> loaded[AT_ONCE][2];
#pragma unroll
            for (unsigned j = 0; j < AT_ONCE; ++j) {
                const unsigned i = first + 128 * j, in_block = group * GROUP_ROWS + i / PIECES, at = i % PIECES;
                const unsigned row = unit.first + in_block / part.heads, head = in_block % part.heads;
                const bool inside = row < unit.end && head < unit.heads && at < a.kv.head_dim / 8;
                const float *from = a.qkv + row * width + size_t(unit.head + head) * a.kv.head_dim + at * 8;
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    loaded[j][half] = inside ? load<float, 4>(from + 4 * half) : Pack<float, 4>{};
                }
            }
#pragma unroll
            for (unsigned j = 0; j < AT_ONCE; ++j) {
                const unsigned i = first + 128 * j;
                Pack<T, 8> rounded;
#pragma unroll
                for (unsigned e = 0; e < 8; ++e) {
                    rounded.at[e] = narrow<T>(loaded[j][e / 4].at[e % 4] * scale);
                }
                store(piece(shared.queries, group * GROUP_ROWS + i / PIECES, i % PIECES), rounded);
            }
        }
        admit_shared_writes();
        sync_group(group);
    }

    static __device__ __forceinline__ void sync_group(unsigned group) {
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    }

    /*
     * The two warpgroups start the products of their tiles in turns: one computes weights while the other's products run.
     * Both have the same number of tiles. The second lets the first begin.
     */
    static __device__ __forceinline__ void await_turn(unsigned group) {
        asm volatile("bar.sync %0, 256;" ::"r"(group + 3) : "memory");
    }
    static __device__ __forceinline__ void end_turn(unsigned group) {
        asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory");
    }

    __device__ __forceinline__ void await_keys(unsigned tile) {
        barriers.keys_ready[Layout::slot(tile)].wait(Layout::parity(tile));
    }

    /* Starts the products of the queries with the tile of keys. */
    __device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], uint64_t queries) {
        const uint64_t keys = describe(shared.keys[Layout::slot(count)].at);
        begin_products();
#pragma unroll
        for (unsigned s = 0; s < STEPS; ++s) {
            const uint64_t q = queries + s / 4 * (ROWS * BLOCK_ROW >> 4) + s % 4 * 2;
            const uint64_t k = keys + s / 4 * (KEYS * BLOCK_ROW >> 4) + s % 4 * 2;
            if (s == 0) {
                set_block<T, KEYS>(scores, q, k);
            } else {
                multiply_block<T, KEYS>(scores, q, k);
            }
        }
        commit_products();
    }

    /* Starts the products of weights with the values of the tile before this. */
    __device__ __forceinline__ void multiply_values(Rows &r, const uint32_t (&weights)[KEYS / 16][4]) {
        const unsigned before = count - 1, slot = Layout::slot(before);
        const uint64_t values = describe(shared.values[slot].at, KEYS * BLOCK_ROW);
        barriers.values_ready[slot].wait(Layout::parity(before));
        begin_products();
#pragma unroll
        for (unsigned s = 0; s < KEYS / 16; ++s) {
            djinn::multiply_values<T, DIM>(r.out, weights[s], values + s * (16 * BLOCK_ROW >> 4));
        }
        commit_products();
    }

    /* Waits for these products, and lets the values be replaced. */
    __device__ __forceinline__ void free_values(Rows &r) {
        wait_products<0>();
        settle(r.out);
        leave(barriers.values_free[Layout::slot(count - 1)]);
    }

    /* The greatest of each row's scores, compared as signed integers: right if it is above zero. */
    static __device__ __forceinline__ void find_most(const float (&scores)[KEYS / 2], int (&most)[2]) {
        /* Two chains for each row. */
        int chains[2][2];
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; i += 4) {
#pragma unroll
            for (unsigned row = 0; row < 2; ++row) {
                const int first = __float_as_int(scores[i + 2 * row]), second = __float_as_int(scores[i + 2 * row + 1]);
                int &chain = chains[row][i / 4 % 2];
                chain = i < 8 ? max(first, second) : __vimax3_s32(chain, first, second);
            }
        }
        most[0] = max(chains[0][0], chains[0][1]);
        most[1] = max(chains[1][0], chains[1][1]);
    }

    /*
     * Turns scores into weights relative to the row's `top`: the greatest score of the first tile that the row sees. Later
     * `top` moves only to scores more than MOST_ABOVE above it, and `keep` is the factor for the sums so far. Returns
     * whether it may have moved.
     */
    __device__ __forceinline__ bool weigh(Rows &r, float (&scores)[KEYS / 2], float (&keep)[2], unsigned base) {
        const unsigned quad = threadIdx.x % 4;
        if (__builtin_expect(a.alibi != 0, 0)) {
            const float scale = a.scale * LOG2_E;
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                const unsigned position = base + i / 4 * 8 + 2 * quad + i % 2, row = i / 2 % 2;
                scores[i] = __fmaf_rn(bias_at(r.slope[row], position) - r.own[row], scale, scores[i]);
            }
        }
        if (__builtin_expect(base < max(r.from[0], r.from[1]) || base + KEYS > min(r.sees[0], r.sees[1]), 0)) {
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                const unsigned position = base + i / 4 * 8 + 2 * quad + i % 2, row = i / 2 % 2;
                scores[i] = position >= r.from[row] && position < r.sees[row] ? scores[i] : -INFINITY;
            }
        }
        const bool new_row[2] = {r.top[0] == -INFINITY, r.top[1] == -INFINITY};
        const float offset[2] = {new_row[0] ? 0 : r.top[0], new_row[1] ? 0 : r.top[1]};
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; ++i) {
            scores[i] -= offset[i / 2 % 2];
        }
        int most[2];
        find_most(scores, most);
        const bool above = max(most[0], most[1]) > __float_as_int(MOST_ABOVE);
        const bool moves = __any_sync(0xffffffffu, above || new_row[0] || new_row[1]);
        if (__builtin_expect(moves, 0)) {
            float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i]);
            }
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                /* Each row is judged by itself: the warp's others have no effect on it. */
                top[i] = quad_max(top[i]);
                const bool row_moves = top[i] > (new_row[i] ? -INFINITY : MOST_ABOVE);
                top[i] = row_moves ? top[i] : 0;
                r.top[i] = row_moves ? offset[i] + top[i] : r.top[i];
                keep[i] = new_row[i] ? 0 : power_of_two(-top[i]);
                r.sum[i] *= keep[i];
            }
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                scores[i] -= top[i / 2 % 2];
            }
        }
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; ++i) {
            scores[i] = power_of_two(scores[i]);
            r.sum[i / 2 % 2] += scores[i];
        }
        /*
         * A sum is never below zero. The test makes the compiler compute the weights here, not after the wait for the
         * products in flight.
         */
        return moves | __any_sync(0xffffffffu, r.sum[0] + r.sum[1] < 0);
    }

    /* Lets the keys of this tile be replaced, and turns their scores into weights. */
    __device__ __forceinline__ bool end_keys(Rows &r, float (&scores)[KEYS / 2], float (&keep)[2], unsigned tile) {
        settle(scores);
        leave(barriers.keys_free[Layout::slot(count)]);
        return weigh(r, scores, keep, tile * KEYS);
    }

    /* Rescales the sums if `less`, and packs the weights that are added next. */
    static __device__ __forceinline__ void rescale(Rows &r, uint32_t (&weights)[KEYS / 16][4],
                                                   const float (&scores)[KEYS / 2], const float (&keep)[2], bool less) {
        if (less) {
#pragma unroll
            for (unsigned i = 0; i < DIM / 2; ++i) {
                r.out[i] *= keep[i / 2 % 2];
            }
        }
#pragma unroll
        for (unsigned i = 0; i < KEYS / 4; ++i) {
            weights[i / 4][i % 4] = pack<T>(scores[2 * i], scores[2 * i + 1]);
        }
    }

    /* What a warpgroup's rows find from position `begin` on and before `end`. `meanwhile` runs beside the last products. */
    template <typename Meanwhile>
    __device__ __forceinline__ void extend(Rows &r, unsigned begin, unsigned end, uint64_t queries, Meanwhile meanwhile) {
        const unsigned group = threadIdx.x / 128;
        uint32_t weights[KEYS / 16][4];
        float scores[KEYS / 2], keep[2];
        unsigned tile = begin / KEYS;
        /* Rows outside the run find nothing. */
        r.top[0] = r.sees[0] == 0 ? 0 : -INFINITY;
        r.top[1] = r.sees[1] == 0 ? 0 : -INFINITY;
        r.sum[0] = r.sum[1] = 0;
#pragma unroll
        for (unsigned i = 0; i < DIM / 2; ++i) {
            r.out[i] = 0;
        }
        await_keys(count);
        multiply_keys(scores, queries);
        wait_products<0>();
        rescale(r, weights, scores, keep, end_keys(r, scores, keep, tile));
        ++count;
        if ((tile + 1) * KEYS < end) {
            await_keys(count);
        }
        for (++tile; tile * KEYS < end; ++tile, ++count) {
            await_turn(group);
            multiply_keys(scores, queries);
            multiply_values(r, weights);
            end_turn(group);
            wait_products<1>();
            const bool less = end_keys(r, scores, keep, tile);
            /* Stands between the weights and the wait for values, so that neither is moved across it. */
            if ((tile + 1) * KEYS < end) {
                await_keys(count + 1);
            }
            free_values(r);
            rescale(r, weights, scores, keep, less);
        }
        multiply_values(r, weights);
        meanwhile();
        free_values(r);
    }

    __device__ __forceinline__ void compute(const Unit &unit) {
        const unsigned group = threadIdx.x / 128;
        const unsigned in_block = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        const uint64_t queries = describe(&shared.queries[0][group * GROUP_ROWS][0]);
        unsigned rows[2], heads[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            rows[i] = unit.first + (in_block + 8 * i) / part.heads;
            heads[i] = (in_block + 8 * i) % part.heads;
        }
        bool loaded = false;
        unit.each_run(a, [&](const Run &run) {
            if (!loaded) {
                load_queries(unit, group);
                loaded = true;
            }
            Rows r;
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                r.from[i] = r.sees[i] = 0;
                if (rows[i] >= run.first && rows[i] < run.end && heads[i] < unit.heads) {
                    const unsigned position = a.positions[rows[i]];
                    r.from[i] = first_seen(a, position);
                    r.sees[i] = position + 1;
                    if (a.alibi != 0) {
                        r.slope[i] = slope_of(unit.head + heads[i], a.heads);
                        r.own[i] = bias_at(r.slope[i], position);
                    }
                }
            }
            HandOver<DIM> hand_over(a, part, rows, heads, unit.head);
            for (unsigned begin = run.lowest; begin < run.length;) {
                const unsigned split = begin / TILED_SPLIT, end = (split + 1) * TILED_SPLIT;
                extend(r, begin, min(end, run.length), queries, [&] { hand_over.begin(r, split); });
                hand_over.end(r);
                begin = end;
            }
        });
    }

    static __device__ __forceinline__ void run(const djinn_attention_args &a, const Tiling &part,
                                               const CUtensorMap &pages) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        __shared__ Order order;
        char *aligned = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        Shared &shared = *reinterpret_cast<Shared *>(aligned);
        init_barriers(STAGES, [&](unsigned i) {
            barriers.keys_ready[i].init_by_warp(COPYING / 2);
            barriers.values_ready[i].init_by_warp(COPYING / 2);
            barriers.keys_free[i].init_by_warp(COMPUTING / 32);
            barriers.values_free[i].init_by_warp(COMPUTING / 32);
        });
        enter();
        const unsigned units = part.tiles * a.kv.kv_heads * part.groups * part.all_splits;
        order.find(a, part, units);
        if (threadIdx.x >= COMPUTING) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEW_REGISTERS));
            admit_bulk_copies();
            TileCopies<Stored, DIM> copies(a, part, pages, shared, barriers);
            for (unsigned index = blockIdx.x; index < units; index += gridDim.x) {
                const Unit unit(a, part, order, index);
                if constexpr (IS_INT8<Stored>) {
                    copies.supply_int8(unit);
                } else {
                    copies.supply(unit);
                }
            }
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MANY_REGISTERS));
            HopperTiles work(a, part, shared, barriers);
            const unsigned group = threadIdx.x / 128;
            if (group == 1) {
                end_turn(group);
            }
            for (unsigned index = blockIdx.x; index < units; index += gridDim.x) {
                work.compute(Unit(a, part, order, index));
            }
        }
    }
};

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned DIM>                                                                                  \
    __global__ void __launch_bounds__(djinn::THREADS, 1)                                                     \
        djinn_attention_hopper_##suffix(const __grid_constant__ djinn_attention_args a,                      \
                                        const __grid_constant__ djinn::Tiling part,                      \
                                        const __grid_constant__ CUtensorMap pages) {                         \
        DJINN_ON_HOPPER(djinn::HopperTiles<T, DIM>::run(a, part, pages));                                    \
    }
DJINN_KERNEL(f16, djinn::f16)
DJINN_KERNEL(bf16, djinn::bf16)
DJINN_KERNEL(int8, djinn::int8)

__global__ void __launch_bounds__(djinn::MERGING)
    djinn_attention_merge(const __grid_constant__ djinn_attention_args a, const __grid_constant__ djinn::Tiling part) {
    djinn::enter();
    djinn::merge(a, part);
}

namespace djinn {

using HopperTilesKernel = void (*)(djinn_attention_args, Tiling, CUtensorMap);

/* A kernel, its shared memory, and the positions of half a tile. */
struct HopperTilesChoice {
    HopperTilesKernel kernel;
    size_t bytes;
    unsigned half;
};

template <unsigned DIM> HopperTilesChoice tiles_of(uint32_t dtype) {
    const size_t floats = sizeof(typename HopperTiles<f16, DIM>::Shared) + BLOCK_ALIGN;
    const size_t int8s = sizeof(typename HopperTiles<int8, DIM>::Shared) + BLOCK_ALIGN;
    const auto kernel = dtype == DJINN_F16    ? djinn_attention_hopper_f16<DIM>
                        : dtype == DJINN_BF16 ? djinn_attention_hopper_bf16<DIM>
                                              : djinn_attention_hopper_int8<DIM>;
    return {kernel, dtype == DJINN_INT8 ? int8s : floats, HopperTiles<f16, DIM>::HALF};
}

static HopperTilesChoice choose_tiles(const djinn_attention_args &a) {
    const uint32_t dtype = a.kv.dtype;
    return a.kv.head_dim <= 64    ? tiles_of<64>(dtype)
           : a.kv.head_dim <= 96  ? tiles_of<96>(dtype)
           : a.kv.head_dim <= 128 ? tiles_of<128>(dtype)
                                  : tiles_of<256>(dtype);
}

static uint64_t most_rows(const djinn_attention_args &a) {
    const unsigned splits = most_splits(a, TILED_SPLIT);
    return splits == 1 ? a.rows : rows_that_fit(a, splits);
}

bool serves_hopper_runs(const djinn_attention_args &a) {
    const bool typed = a.kv.dtype == DJINN_INT8 ? is_aligned_int8(a.kv) : a.kv.dtype != DJINN_F32;
    const bool fits = may_have_runs(a) && typed && a.kv.head_dim % 8 == 0;
    return fits && all_devices()[current_device()].is_hopper && most_rows(a) > 0;
}

/* Positions that TMA copies at once: within one page and half a tile. 0 if pages do not suit it. */
static unsigned box_of(const djinn_attention_args &a, unsigned half) {
    const unsigned page = a.kv.page_tokens, box = page < half ? page : half;
    const bool typed = a.kv.dtype != DJINN_INT8;
    const bool fits = typed && box % 8 == 0 && half % box == 0 && page % box == 0 && a.kv.page_bytes % (a.kv.head_dim * 2) == 0;
    return fits && map_encoder() != nullptr ? box : 0;
}

int attention_hopper(const djinn_attention_args &a, void *stream) {
    const auto [kernel, bytes, half] = choose_tiles(a);
    const unsigned shared_by = a.heads / a.kv.kv_heads, heads = shared_by < MOST_HEADS ? shared_by : MOST_HEADS;
    const unsigned groups = ceil_div(shared_by, heads), at_once = ROWS / heads, box = box_of(a, half);
    const unsigned splits = most_splits(a, TILED_SPLIT), blocks = all_devices()[current_device()].multiprocessors;
    CUtensorMap pages{};
    if (box != 0 && !encode_pages(pages, a.kv, box)) {
        return cudaErrorInvalidValue;
    }
    /* Units of rows and heads alone, if they keep the device busy; they need no workspace. */
    const uint64_t units = uint64_t(ceil_div(a.rows, at_once)) * a.kv.kv_heads * groups;
    const bool whole = splits == 1 || 4 * blocks * uint64_t(ceil_div(units, blocks)) <= 5 * units;
    const unsigned all = whole ? 1 : ceil_div(uint64_t(a.kv.table_width) * a.kv.page_tokens, TILED_SPLIT);
    const uint64_t fit = whole ? a.rows : rows_that_fit(a, splits);
    /* Whole tiles, if they fit. */
    const unsigned step = fit >= a.rows ? a.rows : fit < at_once ? unsigned(fit) : unsigned(fit / at_once * at_once);
    int code = allow_shared(kernel, bytes);
    for (unsigned row = 0; row < a.rows && code == cudaSuccess; row += step) {
        const unsigned rows = a.rows - row < step ? a.rows - row : step;
        const Tiling part{row, rows, heads, groups, at_once, ceil_div(rows, at_once), all, splits, box, whole};
        const uint64_t units = uint64_t(part.tiles) * a.kv.kv_heads * groups * all;
        code = launch(kernel, units < blocks ? unsigned(units) : blocks, THREADS, bytes, stream, a, part, pages);
        if (code == cudaSuccess && !whole) {
            const dim3 grid(rows, ceil_div(a.heads, MERGING / 32));
            code = launch(djinn_attention_merge, grid, MERGING, 0, stream, a, part);
        }
    }
    return code;
}

} // namespace djinn
