/*
 * attention in tiles on Hopper (sm_90a), for rows in runs of more than DJINN_PREFILL_RUN of one sequence:
 * out[r, h, :] = softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= positions[r], or the last `window`.
 * Shapes: as in attention.cu; f16 or bf16 pages, head_dim a multiple of 8.
 * Reference: djinn-device, src/reference.rs, `attention`.
 *
 * The method is that of FlashAttention-3 (Shah et al., 2024): a warpgroup has keys and values copied to shared memory,
 * two others multiply 64 rows each, and the weights of one tile of keys are computed while the tile before is
 * multiplied with its values. A block's rows are query rows times up to 8 heads that share a key head, so that heads
 * share copies.
 *
 * The context is cut every TILED_SPLIT positions, and tiles of keys start at multiples of KEYS, both from position 0
 * on. A tile that a row does not see changes none of its bits. Where a row sees several splits, a second kernel merges
 * their results in order of position. So a row depends on its queries and its context alone.
 * Launch: a block for each multiprocessor, which takes units of rows, heads and a split in turn; those that come
 * together share keys. Then a warp for each row and head.
 */
#include "attention_units.cuh"
#include "wgmma.cuh"

namespace djinn {

/* Rows of a block, each a query row and a head, and of a warpgroup. */
constexpr unsigned ROWS = 128, GROUP_ROWS = 64;
constexpr unsigned THREADS = 384, COMPUTING = 256, COPYING = 128;
/* Heads that share a key head, and that a block takes at most. */
constexpr unsigned MOST_HEADS = 8;
/* Tiles that are copied ahead. */
constexpr unsigned STAGES = 2;
/* Registers of a thread that copies, and of one that computes. */
#define DJINN_FEW_REGISTERS "56"
#define DJINN_MANY_REGISTERS "224"

/* For heads of up to DIM elements. */
template <typename T, unsigned DIM> struct HopperTiles {
    /* Positions of a tile. */
    static constexpr unsigned KEYS = DIM <= 128 ? 128 : 64;
    static constexpr unsigned BLOCKS = (DIM + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS, STEPS = DIM / 16;
    /* Pieces of 16 bytes in a row. */
    static constexpr unsigned PIECES = DIM / 8;
    /* Of a tile: rows that a warp copies. */
    static constexpr unsigned HALF = KEYS / 2;
    static_assert(TILED_SPLIT % KEYS == 0);

    struct Tile {
        T at[BLOCKS][KEYS][BLOCK_COLUMNS];
    };
    struct Shared {
        T queries[BLOCKS][ROWS][BLOCK_COLUMNS];
        Tile keys[STAGES], values[STAGES];
    };
    struct Barriers {
        Barrier keys_ready[STAGES], values_ready[STAGES], keys_free[STAGES], values_free[STAGES];
    };

    /* One thread's two rows, 8 apart. */
    struct Rows {
        float out[DIM / 2];
        float top[2], sum[2];
        /* The positions that each row sees of the present run, from `from` on and before `sees`. */
        unsigned from[2], sees[2];
        /* With biases: of the head, and the bias of the row's own position. */
        float slope[2], own[2];
    };

    const djinn_attention_args &a;
    const Tiling &part;
    const CUtensorMap &pages;
    Shared &shared;
    Barriers &barriers;
    /* Tiles so far. */
    unsigned count;

    __device__ __forceinline__ unsigned slot() const { return count % STAGES; }
    __device__ __forceinline__ unsigned parity() const { return count / STAGES % 2; }

    /* Where a piece of a row lies. */
    template <unsigned N>
    static __device__ __forceinline__ T *piece(T (&blocks)[BLOCKS][N][BLOCK_COLUMNS], unsigned row, unsigned at) {
        return &blocks[at / 8][row][(at % 8 ^ row % 8) * 8];
    }

    /*
     * Starts the copy of half a tile, from `first` on and a position on; zeros for what no row of the run sees, and
     * past the end of a head. Eight lanes take a row's part of a block.
     */
    __device__ __forceinline__ void copy(Tile &to, const Run &run, const Unit &unit, bool values, unsigned first,
                                         unsigned position) {
        const unsigned in_block = threadIdx.x % 8, pieces = a.kv.head_dim / 8;
#pragma unroll 2
        for (unsigned i = threadIdx.x % 32 / 8; i < HALF; i += 4) {
            const unsigned row = first + i, at = position + i;
            const bool seen = at >= run.lowest && at < run.length;
            const T *key = key_at<T>(a.kv, run.sequence, seen ? at : run.lowest, unit.kv_head);
            const T *from = key + (values ? value_offset(a.kv) : 0);
#pragma unroll
            for (unsigned block = 0; block < BLOCKS; ++block) {
                const unsigned piece = block * 8 + in_block;
                const bool inside = seen && piece < pieces;
                copy_async(&to.at[block][row][(in_block ^ row % 8) * 8], inside ? from + piece * 8 : from, inside);
            }
        }
        commit_copies();
    }

    /* Has the copy engine copy half a tile, from `first` on and a position on that all rows of the run may see. */
    __device__ __forceinline__ void copy_boxes(Tile &to, const Run &run, const Unit &unit, bool values, unsigned first,
                                               unsigned position, Barrier &ready) {
        const unsigned lane = threadIdx.x % 32, block = lane % BLOCKS, at = lane / BLOCKS * part.box;
        if (lane == 0) {
            ready.arrive_expecting(sizeof(Tile) / 2);
        }
        __syncwarp();
        if (at < HALF) {
            const unsigned index = (position + at) / a.kv.page_tokens;
            const unsigned slot = position + at - index * a.kv.page_tokens;
            const unsigned page = a.kv.page_table[size_t(run.sequence) * a.kv.table_width + index];
            const unsigned row = ((2 * a.kv.layer + values) * a.kv.kv_heads + unit.kv_head) * a.kv.page_tokens + slot;
            copy_box(&to.at[block][first + at], pages, block * BLOCK_COLUMNS, row, page, ready);
        }
        if (lane != 0) {
            ready.arrive();
        }
    }

    /*
     * Copies the tiles of a unit: of four warps, two take the keys and two the values, each half of a tile. The copy
     * engine copies what is seen whole.
     */
    __device__ __forceinline__ void supply(const Unit &unit) {
        const unsigned warp = threadIdx.x % COPYING / 32, first = warp % 2 * HALF;
        const bool values = warp >= 2;
        Tile *const tiles = values ? shared.values : shared.keys;
        Barrier *const ready = values ? barriers.values_ready : barriers.keys_ready;
        Barrier *const free = values ? barriers.values_free : barriers.keys_free;
        unit.each_run(a, [&](const Run &run) {
            for (unsigned base = run.lowest / KEYS * KEYS; base < run.length; base += KEYS, ++count) {
                free[slot()].wait(parity() ^ 1);
                const unsigned position = base + first;
                if (part.box != 0 && position >= run.lowest && position + HALF <= run.length) {
                    copy_boxes(tiles[slot()], run, unit, values, first, position, ready[slot()]);
                } else {
                    copy(tiles[slot()], run, unit, values, first, position);
                    wait_copies<0>();
                    admit_shared_writes();
                    ready[slot()].arrive();
                }
            }
        });
    }

    /* A warpgroup's queries, scaled and rounded, to shared memory. */
    __device__ __forceinline__ void load_queries(const Unit &unit, unsigned group) {
        const unsigned pieces = a.kv.head_dim / 8;
        const size_t width = size_t(a.heads + 2 * a.kv.kv_heads) * a.kv.head_dim;
        const float scale = a.scale * LOG2_E;
        sync_group(group);
        for (unsigned i = threadIdx.x % 128; i < GROUP_ROWS * PIECES; i += 128) {
            const unsigned in_block = group * GROUP_ROWS + i / PIECES, at = i % PIECES;
            const unsigned row = unit.first + in_block / part.heads, head = in_block % part.heads;
            Pack<T, 8> rounded{};
            if (row < unit.end && head < unit.heads && at < pieces) {
                const float *from = a.qkv + row * width + size_t(unit.head + head) * a.kv.head_dim + at * 8;
                const auto low = load<float, 4>(from), high = load<float, 4>(from + 4);
#pragma unroll
                for (unsigned e = 0; e < 4; ++e) {
                    rounded.at[e] = narrow<T>(low.at[e] * scale);
                    rounded.at[e + 4] = narrow<T>(high.at[e] * scale);
                }
            }
            store(piece(shared.queries, in_block, at), rounded);
        }
        admit_shared_writes();
        sync_group(group);
    }

    static __device__ __forceinline__ void sync_group(unsigned group) {
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    }

    __device__ __forceinline__ void await_keys(unsigned tile) {
        barriers.keys_ready[tile % STAGES].wait(tile / STAGES % 2);
    }

    /* Starts the products of a tile of keys with the queries. */
    __device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 2], uint64_t queries) {
        const uint64_t keys = describe(shared.keys[slot()].at);
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

    /* Starts the products of the tile before this with weights. */
    __device__ __forceinline__ void multiply_values(Rows &r, const uint32_t (&weights)[KEYS / 16][4]) {
        const unsigned before = count - 1, slot = before % STAGES;
        const uint64_t values = describe(shared.values[slot].at, KEYS * BLOCK_ROW);
        barriers.values_ready[slot].wait(before / STAGES % 2);
        begin_products();
#pragma unroll
        for (unsigned s = 0; s < KEYS / 16; ++s) {
            djinn::multiply_values<T, DIM>(r.out, weights[s], values + s * (16 * BLOCK_ROW >> 4));
        }
        commit_products();
    }

    /* Lets the values of the tile before this be replaced. */
    __device__ __forceinline__ void free_values(Rows &r) {
        wait_products<0>();
        settle(r.out);
        if (threadIdx.x % 32 == 0) {
            barriers.values_free[(count - 1) % STAGES].arrive();
        }
    }

    /* Turns scores into weights; `keep` is what the sums so far are worth. Whether that is less than before. */
    __device__ __forceinline__ bool weigh(Rows &r, float (&scores)[KEYS / 2], float (&keep)[2], unsigned base) {
        const unsigned quad = threadIdx.x % 4;
        if (a.alibi != 0) {
            const float scale = a.scale * LOG2_E;
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                const unsigned position = base + i / 4 * 8 + 2 * quad + i % 2, row = i / 2 % 2;
                scores[i] = __fmaf_rn(bias_at(r.slope[row], position) - r.own[row], scale, scores[i]);
            }
        }
        if (base < max(r.from[0], r.from[1]) || base + KEYS > min(r.sees[0], r.sees[1])) {
#pragma unroll
            for (unsigned i = 0; i < KEYS / 2; ++i) {
                const unsigned position = base + i / 4 * 8 + 2 * quad + i % 2, row = i / 2 % 2;
                scores[i] = position >= r.from[row] && position < r.sees[row] ? scores[i] : -INFINITY;
            }
        }
        /* In four chains a row. */
        float tops[2][4];
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; ++i) {
            float &top = tops[i / 2 % 2][i / 4 % 2 * 2 + i % 2];
            top = i < 8 ? scores[i] : fmaxf(top, scores[i]);
        }
        float offset[2], top[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            top[i] = quad_max(fmaxf(fmaxf(fmaxf(tops[i][0], tops[i][1]), fmaxf(tops[i][2], tops[i][3])), r.top[i]));
            /* A row that has seen nothing yet has no maximum; any finite offset gives it zeros. */
            offset[i] = top[i] == -INFINITY ? 0 : top[i];
            keep[i] = power_of_two(r.top[i] - offset[i]);
            r.top[i] = top[i];
            r.sum[i] *= keep[i];
        }
#pragma unroll
        for (unsigned i = 0; i < KEYS / 2; ++i) {
            scores[i] = power_of_two(scores[i] - offset[i / 2 % 2]);
            r.sum[i / 2 % 2] += scores[i];
        }
        /*
         * Times one changes nothing. No sum is below zero: it is asked so that the weights are computed here, and not
         * after the wait for products that run meanwhile.
         */
        return __any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1 || r.sum[0] + r.sum[1] < 0);
    }

    /* Lets the keys of this tile be replaced, and turns their scores into weights. */
    __device__ __forceinline__ bool end_keys(Rows &r, float (&scores)[KEYS / 2], float (&keep)[2], unsigned tile) {
        settle(scores);
        if (threadIdx.x % 32 == 0) {
            barriers.keys_free[slot()].arrive();
        }
        return weigh(r, scores, keep, tile * KEYS);
    }

    /* What is added from now on has other weights. */
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

    /* Extends a warpgroup's rows by the tiles of a run. */
    __device__ __forceinline__ void extend(Rows &r, const Run &run, uint64_t queries) {
        uint32_t weights[KEYS / 16][4];
        float scores[KEYS / 2], keep[2];
        unsigned tile = run.lowest / KEYS;
        await_keys(count);
        multiply_keys(scores, queries);
        wait_products<0>();
        rescale(r, weights, scores, keep, end_keys(r, scores, keep, tile));
        ++count;
        if ((tile + 1) * KEYS < run.length) {
            await_keys(count);
        }
        for (++tile; tile * KEYS < run.length; ++tile, ++count) {
            multiply_keys(scores, queries);
            multiply_values(r, weights);
            wait_products<1>();
            const bool less = end_keys(r, scores, keep, tile);
            /* Between the weights and the wait for values: neither is moved past it. */
            if ((tile + 1) * KEYS < run.length) {
                await_keys(count + 1);
            }
            free_values(r);
            rescale(r, weights, scores, keep, less);
        }
        multiply_values(r, weights);
        free_values(r);
    }

    /* What one of the thread's rows found: its result if it sees one split alone, or else that of this split. */
    __device__ __forceinline__ void write(const Rows &r, unsigned i, float sum, unsigned row, unsigned head,
                                          unsigned split) {
        const unsigned quad = threadIdx.x % 4, dim = a.kv.head_dim;
        const unsigned position = a.positions[row], start = first_seen(a, position) / TILED_SPLIT;
        const bool alone = start == position / TILED_SPLIT;
        float *to = a.out + (size_t(row) * a.heads + head) * dim;
        if (!alone) {
            const Partials partials(a, part.rows, part.splits);
            const size_t at = partials.at(row - part.first_row, head, split - start);
            if (quad == 0) {
                partials.facts[at] = {r.top[i], sum};
            }
            to = partials.vector(at);
        }
        const float divisor = alone ? sum : 1.0f;
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; ++d) {
            if (d * 8 < dim) {
                store(to + d * 8 + 2 * quad,
                      Pack<float, 2>{r.out[d * 4 + 2 * i] / divisor, r.out[d * 4 + 2 * i + 1] / divisor});
            }
        }
    }

    __device__ __forceinline__ void compute(const Unit &unit) {
        const unsigned group = threadIdx.x / 128;
        const unsigned in_block = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        const uint64_t queries = describe(&shared.queries[0][group * GROUP_ROWS][0]);
        Rows r = {};
        r.top[0] = r.top[1] = -INFINITY;
        unsigned rows[2], heads[2];
        bool mine[2] = {false, false};
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
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                r.from[i] = r.sees[i] = 0;
                if (rows[i] >= run.first && rows[i] < run.end && heads[i] < unit.heads) {
                    const unsigned position = a.positions[rows[i]];
                    r.from[i] = first_seen(a, position);
                    r.sees[i] = position + 1;
                    mine[i] = position >= unit.from && r.from[i] < unit.to;
                    if (a.alibi != 0) {
                        r.slope[i] = slope_of(unit.head + heads[i], a.heads);
                        r.own[i] = bias_at(r.slope[i], position);
                    }
                }
            }
            extend(r, run, queries);
        });
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const float sum = quad_sum(r.sum[i]);
            if (mine[i]) {
                write(r, i, sum, rows[i], unit.head + heads[i], unit.from / TILED_SPLIT);
            }
        }
    }

    static __device__ __forceinline__ void run(const djinn_attention_args &a, const Tiling &part,
                                               const CUtensorMap &pages) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        char *aligned = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        HopperTiles work{a, part, pages, *reinterpret_cast<Shared *>(aligned), barriers, 0};
        if (threadIdx.x < STAGES) {
            barriers.keys_ready[threadIdx.x].init(COPYING / 2);
            barriers.values_ready[threadIdx.x].init(COPYING / 2);
            barriers.keys_free[threadIdx.x].init(COMPUTING / 32);
            barriers.values_free[threadIdx.x].init(COMPUTING / 32);
            Barrier::publish();
        }
        __syncthreads();
        enter();
        const unsigned units = part.tiles * a.kv.kv_heads * part.groups * part.all_splits;
        if (threadIdx.x >= COMPUTING) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 " DJINN_FEW_REGISTERS ";");
            admit_bulk_copies();
            for (unsigned index = blockIdx.x; index < units; index += gridDim.x) {
                work.supply(Unit(a, part, index));
            }
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 " DJINN_MANY_REGISTERS ";");
            for (unsigned index = blockIdx.x; index < units; index += gridDim.x) {
                work.compute(Unit(a, part, index));
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

template <unsigned DIM> HopperTilesChoice tiles_of(bool half) {
    const size_t bytes = sizeof(typename HopperTiles<f16, DIM>::Shared) + BLOCK_ALIGN;
    const auto kernel = half ? djinn_attention_hopper_f16<DIM> : djinn_attention_hopper_bf16<DIM>;
    return {kernel, bytes, HopperTiles<f16, DIM>::HALF};
}

static HopperTilesChoice choose_tiles(const djinn_attention_args &a) {
    const bool half = a.kv.dtype == DJINN_F16;
    return a.kv.head_dim <= 64    ? tiles_of<64>(half)
           : a.kv.head_dim <= 96  ? tiles_of<96>(half)
           : a.kv.head_dim <= 128 ? tiles_of<128>(half)
                                  : tiles_of<256>(half);
}

/* Rows that a launch takes, at most. */
static uint64_t most_rows(const djinn_attention_args &a) {
    const unsigned splits = most_splits(a, TILED_SPLIT);
    return splits == 1 ? a.rows : rows_that_fit(a, splits);
}

bool serves_hopper_runs(const djinn_attention_args &a) {
    const bool fits = may_have_runs(a) && a.kv.dtype != DJINN_F32 && a.kv.head_dim % 8 == 0;
    return fits && all_devices()[current_device()].is_hopper && most_rows(a) > 0;
}

/* Positions that the copy engine copies at once: of one page, and of half a tile. */
static unsigned box_of(const djinn_attention_args &a, unsigned half) {
    const unsigned page = a.kv.page_tokens, box = page < half ? page : half;
    const bool fits = box % 8 == 0 && half % box == 0 && page % box == 0 && a.kv.page_bytes % (a.kv.head_dim * 2) == 0;
    return fits && map_encoder() != nullptr ? box : 0;
}

int attention_hopper(const djinn_attention_args &a, void *stream) {
    const auto [kernel, bytes, half] = choose_tiles(a);
    const unsigned shared_by = a.heads / a.kv.kv_heads, heads = shared_by < MOST_HEADS ? shared_by : MOST_HEADS;
    const unsigned groups = ceil_div(shared_by, heads), at_once = ROWS / heads, box = box_of(a, half);
    const unsigned all = ceil_div(uint64_t(a.kv.table_width) * a.kv.page_tokens, TILED_SPLIT);
    const unsigned splits = most_splits(a, TILED_SPLIT), blocks = all_devices()[current_device()].multiprocessors;
    CUtensorMap pages{};
    if (box != 0 && !encode_pages(pages, a.kv, box)) {
        return cudaErrorInvalidValue;
    }
    const uint64_t fit = most_rows(a);
    /* Whole tiles, where they fit. */
    const unsigned step = fit >= a.rows ? a.rows : fit < at_once ? unsigned(fit) : unsigned(fit / at_once * at_once);
    int code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
    for (unsigned row = 0; row < a.rows && code == cudaSuccess; row += step) {
        const unsigned rows = a.rows - row < step ? a.rows - row : step;
        const Tiling part{row, rows, heads, groups, at_once, ceil_div(rows, at_once), all, splits, box};
        const uint64_t units = uint64_t(part.tiles) * a.kv.kv_heads * groups * all;
        code = launch(kernel, units < blocks ? unsigned(units) : blocks, THREADS, bytes, stream, a, part, pages);
        if (code == cudaSuccess && splits > 1) {
            const dim3 grid(rows, ceil_div(a.heads, MERGING / 32));
            code = launch(djinn_attention_merge, grid, MERGING, 0, stream, a, part);
        }
    }
    return code;
}

} // namespace djinn
