/*
 * linear on Hopper (sm_90a) for more rows than linear_hopper.cu takes, or a large weight: out[r, out_column + j] = sum
 * over i of x[r, i] weight[j, i], plus bias[j], with the bits that each row has alone in linear.cu. For f16 and bf16, k
 * a multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Gated: of the weight's rows, gate and up by halves, gated[r, j] = silu(gate[r, j]) up[r, j], and the same rounded.
 * Shapes: gated f32 [rows, n / 2], gated_rounded, weight's type [rows, n / 2].
 * Reference: djinn-device, src/reference.rs, `linear`, `silu_mul`.
 *
 * A tile of out is 128 rows of x by N rows of the weight. Each of two warpgroups multiplies 64 rows of x, the wide
 * operand of the matrix units: a product has the same bits whichever operand is the wide one. Up to 96 rows of the
 * weight, the partial sums of linear.cuh are formed side by side, from runs in order; of more, one after the other,
 * each added to the total of those before.
 *
 * Launch: as many clusters of two blocks as the device runs at once, which take pairs of tiles in turn. The tiles of a
 * pair have the same rows of the weight, or the same rows of x; each block copies half of these to both. In each block
 * one thread has weight and x copied to a ring of stages of one run each. A tile of a gated product has rows of gate,
 * which one block of the pair copies, and then the same rows of up, which the other does.
 */
#include "linear.cuh"
#include "wgmma.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Blocks of a cluster. */
constexpr unsigned SHARING = 2;

/* Dynamic shared memory of a block: what a block may have, less the barriers. */
constexpr unsigned WIDE_SHARED = 226 * 1024;

/* Of a tile: rows of x, and the warpgroups that multiply them. One more copies: registers are dealt out to whole ones. */
constexpr unsigned WIDE_ROWS = 128, COMPUTING = 256, WIDE_THREADS = COMPUTING + 128;

/* What the copy engine knows of the weight's tiles, and of x. */
struct WideMaps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;
};

/* Pairs of tiles: shares of the weight, or pairs of these, by groups of rows of x. */
struct WideFrame {
    uint32_t pairs, groups_of_rows;
};

/*
 * Tiles with N rows of the weight, in pairs with the same rows of the weight, or else with the same rows of x. Of a gated
 * product, the arguments' n and tiles are those of gate alone, whose tiles are followed by those of up.
 */
template <typename T, unsigned N, bool SAME_WEIGHT, bool GATED> struct WideTiles {
    static constexpr bool SIDE_BY_SIDE = N <= 96;

    /* Columns of out: rows of a share. */
    static constexpr unsigned WIDTH = GATED ? N / 2 : N;

    /* Of a thread's sums, those whose totals are in shared memory: a thread has no registers for more. */
    static constexpr unsigned SPILLED = N > 192 ? 28 : 0, KEPT = N / 2 - SPILLED;

    /* Columns of out that a warp stores at once, of its 16 rows. */
    static constexpr unsigned COLUMNS = 32, STAGING = 16 * COLUMNS * sizeof(float);

    static constexpr unsigned X_BYTES = WIDE_ROWS * BLOCK_ROW, STAGE = X_BYTES + N * BLOCK_ROW;
    static constexpr unsigned BESIDE = COMPUTING / 32 * STAGING + COMPUTING * SPILLED * sizeof(float);
    static constexpr unsigned STAGES = (WIDE_SHARED - BLOCK_ALIGN - BESIDE) / STAGE;
    static_assert(N % COLUMNS == 0 && SPILLED % 4 == 0 && (SAME_WEIGHT || !GATED));

    struct Barriers {
        Barrier ready[STAGES], free[STAGES];
    };

    /* A place in the ring. */
    struct Slot {
        unsigned at = 0, parity = 0;

        __device__ __forceinline__ void advance() {
            if (++at == STAGES) {
                at = 0, parity ^= 1;
            }
        }
    };

    /* A tile of out: rows of the weight, where those lie that this block copies, and the first row of x. */
    struct Tile {
        Share share;
        unsigned piece, row_of_piece, row;

        __device__ __forceinline__ Tile(const djinn_linear_args &a, const WideFrame &f, unsigned pair, unsigned rank) {
            const unsigned outer = pair / f.groups_of_rows, inner = pair % f.groups_of_rows;
            share = share_of<T>(a, WIDTH, SAME_WEIGHT ? outer : outer * SHARING + rank);
            const unsigned from = share.first + (GATED ? rank * a.n : 0);
            piece = from / a.tile_rows;
            row_of_piece = from - piece * a.tile_rows + (SAME_WEIGHT && !GATED ? rank * (N / SHARING) : 0);
            row = (SAME_WEIGHT ? inner * SHARING + rank : inner) * WIDE_ROWS;
        }
    };

    const djinn_linear_args &a;
    const WideFrame &f;
    Barriers &barriers;
    char *ring;
    float4 *spilled;
    /* Of this warp, in shared memory. */
    float *staging;
    unsigned rank, first, step;

    /* Copies a run of `ROWS` rows, for this block alone, or its half of them, from `row` on, for both. */
    template <unsigned ROWS, bool SHARED>
    __device__ __forceinline__ void copy(char *to, const CUtensorMap &map, unsigned run, unsigned row, Barrier &ready) {
        if constexpr (SHARED) {
            char *part = to + rank * (ROWS / SHARING) * BLOCK_ROW;
            copy_box_to_all(part, map, run * RUN, row, ready, (1 << SHARING) - 1);
        } else {
            copy_box(to, map, run * RUN, row, ready);
        }
    }

    /* Copies all stages. By one thread of each block. */
    __device__ __forceinline__ void supply(const WideMaps &maps) {
        const auto weights = [&](const Tile &tile, unsigned at, unsigned run) {
            barriers.ready[at].arrive_expecting(STAGE);
            copy<N, SAME_WEIGHT>(ring + at * STAGE + X_BYTES, maps.weights[tile.piece], run, tile.row_of_piece,
                                 barriers.ready[at]);
        };
        const unsigned ahead = min(a.k / RUN, STAGES);
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        Runs early(a);
        for (const Tile tile(a, f, first, rank); early.taken < ahead; early.advance()) {
            weights(tile, early.taken, early.run);
        }
        await_previous();
        admit_bulk_copies();
        Slot slot;
        unsigned copied = 0;
        for (unsigned pair = first; pair < f.pairs; pair += step) {
            const Tile tile(a, f, pair, rank);
            for (Runs runs(a); runs.taken < a.k / RUN; runs.advance()) {
                if (copied >= ahead) {
                    if (copied >= STAGES) {
                        barriers.free[slot.at].wait(slot.parity ^ 1);
                    }
                    weights(tile, slot.at, runs.run);
                }
                copy<WIDE_ROWS, !SAME_WEIGHT>(ring + slot.at * STAGE, maps.x, runs.run,
                                              tile.row + (SAME_WEIGHT ? 0 : rank * (WIDE_ROWS / SHARING)),
                                              barriers.ready[slot.at]);
                ++copied;
                slot.advance();
            }
        }
        /* Until then others arrive at this block's barriers. */
        for (unsigned i = 0; i < STAGES; ++i) {
            barriers.free[slot.at].wait(slot.parity ^ 1);
            slot.advance();
        }
    }

    /* The runs of all partial sums, in the order in which they are multiplied. */
    struct Runs {
        const djinn_linear_args &a;
        unsigned run = 0, partial = 0, taken = 0;

        __device__ __forceinline__ explicit Runs(const djinn_linear_args &a) : a(a) {}

        __device__ __forceinline__ void advance() {
            ++taken;
            run += SIDE_BY_SIDE ? 1 : PARTIALS;
            if (run >= a.k / RUN) {
                run = ++partial;
            }
        }
    };

    /* This warp is done with a stage, in the rings of all blocks: those that copy to it may do so again. */
    __device__ __forceinline__ void release(unsigned at, unsigned lane) {
        if (lane < SHARING) {
            barriers.free[at].arrive_at(lane);
        }
    }

    /* Starts the products of a run, and releases the stage before, `last`, once its own are done. */
    __device__ __forceinline__ void multiply(float (&sums)[N / 2], Slot &slot, unsigned &last, unsigned group,
                                             unsigned lane) {
        const char *stage = ring + slot.at * STAGE;
        const uint64_t x = describe(stage + group * 64 * BLOCK_ROW), weights = describe(stage + X_BYTES);
        barriers.ready[slot.at].wait(slot.parity);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < RUN / 16; ++k) {
            multiply_block<T, N>(sums, x + 2 * k, weights + 2 * k);
        }
        commit_products();
        if (last != STAGES) {
            wait_products<1>();
            release(last, lane);
        }
        last = slot.at;
        slot.advance();
    }

    /* Waits for all products. */
    __device__ __forceinline__ void finish(unsigned &last, unsigned lane) {
        wait_products<0>();
        if (last != STAGES) {
            release(last, lane);
        }
        last = STAGES;
    }

    /* The totals of a tile's sums, in `total` and `spilled`. */
    __device__ __forceinline__ void sum(float (&total)[KEPT], Slot &slot, unsigned group, unsigned lane) {
        const unsigned all = a.k / RUN;
        unsigned last = STAGES;
        if constexpr (SIDE_BY_SIDE) {
            float sums[PARTIALS][N / 2] = {};
#pragma unroll 1
            for (unsigned run = 0; run < all; run += PARTIALS) {
#pragma unroll
                for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                    if (run + partial < all) {
                        multiply(sums[partial], slot, last, group, lane);
                    }
                }
            }
            finish(last, lane);
#pragma unroll
            for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                settle(sums[partial]);
#pragma unroll
                for (unsigned i = 0; i < N / 2; ++i) {
                    total[i] = partial == 0 ? sums[0][i] : total[i] + sums[partial][i];
                }
            }
        } else {
#pragma unroll 1
            for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                float sums[N / 2] = {};
                const unsigned runs = runs_of(a, partial);
#pragma unroll 1
                for (unsigned i = 0; i < runs; ++i) {
                    multiply(sums, slot, last, group, lane);
                }
                finish(last, lane);
                settle(sums);
#pragma unroll
                for (unsigned i = 0; i < KEPT; ++i) {
                    total[i] = partial == 0 ? sums[i] : total[i] + sums[i];
                }
#pragma unroll
                for (unsigned i = KEPT; i < N / 2; i += 4) {
                    float4 &at = spilled_at(i);
                    const float4 more = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
                    const float4 old = partial == 0 ? float4{} : at;
                    at = {old.x + more.x, old.y + more.y, old.z + more.z, old.w + more.w};
                }
            }
        }
    }

    /* Of this thread, the totals of the sums from i on. */
    __device__ __forceinline__ float4 &spilled_at(unsigned i) {
        return spilled[(i - KEPT) / 4 * COMPUTING + threadIdx.x];
    }
    __device__ __forceinline__ float4 total_at(const float (&total)[KEPT], unsigned i) {
        return i < KEPT ? float4{total[i], total[i + 1], total[i + 2], total[i + 3]} : spilled_at(i);
    }

    /* Gate and up of the same columns are totals of the same thread: the first half and the second. */
    __device__ __forceinline__ void gate(float (&total)[KEPT]) {
#pragma unroll
        for (unsigned i = 0; i < N / 4; i += 4) {
            const float4 up = total_at(total, N / 4 + i);
            total[i] = silu(total[i]) * up.x, total[i + 1] = silu(total[i + 1]) * up.y;
            total[i + 2] = silu(total[i + 2]) * up.z, total[i + 3] = silu(total[i + 3]) * up.w;
        }
    }

    __device__ __forceinline__ void compute(unsigned group, unsigned warp, unsigned lane) {
        Slot slot;
        for (unsigned pair = first; pair < f.pairs; pair += step) {
            const Tile tile(a, f, pair, rank);
            float total[KEPT];
            sum(total, slot, group, lane);
            if constexpr (GATED) {
                gate(total);
            }
#pragma unroll
            for (unsigned column = 0; column < WIDTH; column += COLUMNS) {
                store(tile, total, column, tile.row + group * 64 + warp * 16, lane);
            }
        }
    }

    /*
     * Stores a warp's part of some columns, from `row` on, by way of shared memory: in whole lines. Chunks of 4 columns
     * of row r are at places chunk ^ 2 (r % 4), so that neither side meets in a bank.
     */
    __device__ __forceinline__ void store(const Tile &tile, const float (&total)[KEPT], unsigned first_column,
                                          unsigned row, unsigned lane) {
        const unsigned r = lane / 4, swizzle = r % 4 * 2;
#pragma unroll
        for (unsigned g = 0; g < COLUMNS / 8; ++g) {
            if (first_column + 8 * g >= WIDTH) {
                break;
            }
            const float4 four = total_at(total, first_column / 2 + 4 * g);
            const unsigned chunk = 2 * g + lane % 4 / 2;
            float *to = staging + r * COLUMNS + (chunk ^ swizzle) * 4 + lane % 2 * 2;
            *reinterpret_cast<float2 *>(to) = {four.x, four.y};
            *reinterpret_cast<float2 *>(to + 8 * COLUMNS) = {four.z, four.w};
        }
        __syncwarp();
        const unsigned column = first_column + lane, j = tile.share.first + column;
        const unsigned rows = column < tile.share.rows && row < a.rows ? min(a.rows - row, 16u) : 0;
        const auto value = [&](unsigned i) { return staging[i * COLUMNS + ((lane / 4) ^ (i % 4 * 2)) * 4 + lane % 4]; };
        if constexpr (GATED) {
            const size_t at = size_t(row) * a.n + j;
            T *rounded = static_cast<T *>(a.gated_rounded) + at;
#pragma unroll
            for (unsigned i = 0; i < 16; ++i) {
                if (i < rows) {
                    a.gated[at + size_t(i) * a.n] = value(i);
                    rounded[size_t(i) * a.n] = narrow<T>(value(i));
                }
            }
        } else {
            const float bias = rows > 0 ? bias_of(a, j) : 0;
            float *out = a.out + size_t(row) * a.out_width + a.out_column + j;
#pragma unroll
            for (unsigned i = 0; i < 16; ++i) {
                if (i < rows) {
                    out[size_t(i) * a.out_width] = value(i) + bias;
                }
            }
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const WideMaps &maps, const WideFrame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank();
        char *ring = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *staging = ring + STAGES * STAGE, *spilled = staging + COMPUTING / 32 * STAGING;
        WideTiles work{a,
                       f,
                       barriers,
                       ring,
                       reinterpret_cast<float4 *>(spilled),
                       reinterpret_cast<float *>(staging + warp * STAGING),
                       rank,
                       blockIdx.x / SHARING,
                       gridDim.x / SHARING};
        release_next();
        if (threadIdx.x < STAGES) {
            barriers.ready[threadIdx.x].init(1);
            barriers.free[threadIdx.x].init(SHARING * COMPUTING / 32);
            Barrier::publish();
        }
        cluster_sync();
        if (warp >= COMPUTING / 32) {
            /* What the block has, dealt out anew. */
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (threadIdx.x == COMPUTING) {
                work.supply(maps);
            }
            await_previous();
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            await_previous();
            work.compute(warp / 4, warp % 4, lane);
        }
    }
};

} // namespace djinn

#define DJINN_WIDE(suffix, T)                                                                                \
    template <unsigned N, bool SAME_WEIGHT, bool GATED>                                                      \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_linear_wide_##suffix(const __grid_constant__ djinn_linear_args a,                              \
                                   const __grid_constant__ djinn::WideMaps maps,                             \
                                   const __grid_constant__ djinn::WideFrame f) {                             \
        DJINN_ON_HOPPER(djinn::WideTiles<T, N, SAME_WEIGHT, GATED>::run(a, maps, f));                        \
    }
DJINN_WIDE(f16, djinn::f16)
DJINN_WIDE(bf16, djinn::bf16)

namespace djinn {

/* A kernel; of a tile, columns of out, and rows of the weight that a block copies; and the time of a pair beside others. */
struct WideChoice {
    void (*kernel)(djinn_linear_args, WideMaps, WideFrame);
    unsigned width, box;
    bool same_weight;
    unsigned wave;
};

template <unsigned N, bool SAME_WEIGHT, bool GATED = false>
static WideChoice wide_choice(uint32_t dtype, unsigned wave) {
    return {dtype == DJINN_F16 ? djinn_linear_wide_f16<N, SAME_WEIGHT, GATED> : djinn_linear_wide_bf16<N, SAME_WEIGHT, GATED>,
            GATED ? N / 2 : N, SAME_WEIGHT ? N / SHARING : N, SAME_WEIGHT, wave};
}

/* Pairs of tiles of a kernel. */
static WideFrame wide_frame(const djinn_linear_args &a, const WideChoice &choice) {
    const unsigned groups = ceil_div(a.rows, WIDE_ROWS), shares = shares_of(a, choice.width);
    return choice.same_weight ? WideFrame{shares * ceil_div(groups, SHARING), ceil_div(groups, SHARING)}
                              : WideFrame{ceil_div(shares, SHARING) * groups, groups};
}

/* Lets kernels use their memory: code is loaded when it is first asked about, and memory is measured after that. */
template <unsigned COUNT> static cudaError_t allow_all(const WideChoice (&choices)[COUNT]) {
    for (const WideChoice &choice : choices) {
        const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
        const cudaError_t code = cudaFuncSetAttribute(choice.kernel, limit, int(WIDE_SHARED));
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

/* The one of the least time: waves of pairs, and what a wave takes. */
template <unsigned COUNT>
static WideChoice least_of(const WideChoice (&choices)[COUNT], const djinn_linear_args &a, unsigned clusters) {
    const auto cost = [&](const WideChoice &choice) { return ceil_div(wide_frame(a, choice).pairs, clusters) * choice.wave; };
    const WideChoice *best = choices;
    for (const WideChoice &choice : choices) {
        best = cost(choice) < cost(*best) ? &choice : best;
    }
    return *best;
}

int linear_wide(const djinn_linear_args &args, void *stream) {
    const uint32_t dtype = args.weight_dtype;
    /* Times as measured. */
    const WideChoice plain[] = {wide_choice<64, true>(dtype, 180),   wide_choice<96, true>(dtype, 210),
                                wide_choice<128, true>(dtype, 260),  wide_choice<160, true>(dtype, 312),
                                wide_choice<192, true>(dtype, 362),  wide_choice<224, true>(dtype, 420),
                                wide_choice<64, false>(dtype, 185),  wide_choice<128, false>(dtype, 265),
                                wide_choice<192, false>(dtype, 367), wide_choice<224, false>(dtype, 430)};
    const WideChoice gated[] = {wide_choice<128, true, true>(dtype, 260), wide_choice<224, true, true>(dtype, 420)};
    /* By type and device, the context in which the kernels may use their memory. */
    static std::atomic<unsigned> allowed[2][MOST_DEVICES];
    std::atomic<unsigned> &known = allowed[dtype == DJINN_F16][current_device()];
    const unsigned context = contexts().load();
    if (known.load() != context) {
        cudaError_t code = allow_all(plain);
        code = code == cudaSuccess ? allow_all(gated) : code;
        if (code != cudaSuccess) {
            return code;
        }
        known.store(context);
    }
    djinn_linear_args a = args;
    if (a.gated != nullptr) {
        a.n /= 2;
        if (a.tile_rows > a.n) {
            a.weights[1] = static_cast<const char *>(a.weights[0]) + size_t(a.n) * a.k * 2;
            a.tile_rows = a.n;
        }
    }
    const unsigned clusters = all_devices()[current_device()].multiprocessors / SHARING;
    const WideChoice best = a.gated != nullptr ? least_of(gated, a, clusters) : least_of(plain, a, clusters);
    const WideFrame frame = wide_frame(a, best);
    WideMaps maps;
    const unsigned tiles = ceil_div(args.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, dtype, a.rows, a.k, best.same_weight ? WIDE_ROWS : WIDE_ROWS / SHARING);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : args.n - tile * a.tile_rows;
        encoded = encoded && encode_map(maps.weights[tile], a.weights[tile], dtype, rows, a.k, best.box);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const unsigned used = frame.pairs < clusters ? frame.pairs : clusters;
    return launch_clusters(SHARING, best.kernel, dim3(used * SHARING), WIDE_THREADS, WIDE_SHARED, stream, a, maps, frame);
}

} // namespace djinn

extern "C" uint32_t djinn_linear_gated(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t dtype) {
    /* Columns of the widest tile. */
    constexpr uint32_t WIDEST = 224 / 2;
    const uint32_t width = n / 2, tile = tile_rows < width ? tile_rows : width;
    const bool apart = tile_rows >= n || (tile_rows <= width && width % tile == 0);
    const bool halves = n % 2 == 0 && tile >= WIDEST && apart;
    const bool at_once = halves && n <= uint64_t(DJINN_LINEAR_TILES) * tile;
    return at_once && rows > djinn::MOST_GROUP && djinn::serves_hopper(k, dtype);
}
