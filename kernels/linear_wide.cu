/*
 * linear on Hopper (sm_90a) for more rows than linear_hopper.cu takes: out[r, out_column + j] = sum over i of
 * x[r, i] weight[j, i], plus bias[j], with the bits that each row has alone in linear.cu. For f16 and bf16, k a
 * multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Reference: djinn-device, src/reference.rs, `linear`.
 *
 * A tile of out is N rows of x by 64 GROUPS rows of the weight. Each of GROUPS warpgroups multiplies 64 rows of the
 * weight, the wide operand of the matrix units, one partial sum after the other, and adds it to those before: so sums
 * are formed as linear.cuh says.
 *
 * Launch: as many clusters of two blocks as the device runs at once, which take pairs of tiles in turn. A pair has the
 * same rows of the weight; each block copies half of them to both. In each block one thread has weight and x copied to
 * a ring of stages of one run each.
 */
#include "linear.cuh"
#include "wgmma.cuh"

#include <type_traits>

namespace djinn {

/* Blocks of a cluster. */
constexpr unsigned SHARING = 2;

/* Dynamic shared memory of a block: what a block may have, less the barriers. */
constexpr unsigned WIDE_SHARED = 226 * 1024;

/* What the copy engine knows of the weight's tiles, and of x. */
struct WideMaps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;
};

/* Pairs of tiles: shares of the weight by groups of rows of x. */
struct WideFrame {
    uint32_t pairs, groups_of_rows;
};

template <typename T, unsigned N, unsigned GROUPS> struct WideTiles {
    /* A warpgroup copies: registers are dealt out to whole ones. */
    static constexpr unsigned COMPUTING = 128 * GROUPS, THREADS = COMPUTING + 128;
    static constexpr unsigned WEIGHTS = 64 * GROUPS, WEIGHT_BYTES = WEIGHTS * BLOCK_ROW, X_BYTES = N * BLOCK_ROW;
    static constexpr unsigned STAGE = WEIGHT_BYTES + X_BYTES, STAGES = (WIDE_SHARED - BLOCK_ALIGN) / STAGE;

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

    /* A tile of out: rows of the weight, where these lie, and the first row of x. */
    struct Tile {
        Share share;
        unsigned piece, row_of_piece, row;

        __device__ __forceinline__ Tile(const djinn_linear_args &a, const WideFrame &f, unsigned pair, unsigned rank)
            : share(share_of<T>(a, WEIGHTS, pair / f.groups_of_rows)), piece(share.first / a.tile_rows),
              row_of_piece(share.first - piece * a.tile_rows),
              row((pair % f.groups_of_rows * SHARING + rank) * N) {}
    };

    const djinn_linear_args &a;
    const WideFrame &f;
    Barriers &barriers;
    char *ring;
    unsigned rank, first, step;

    /* Copies all stages. By one thread of each block. */
    __device__ __forceinline__ void supply(const WideMaps &maps) {
        constexpr unsigned HALF = WEIGHTS / SHARING;
        const auto weights = [&](const Tile &tile, unsigned at, unsigned run) {
            barriers.ready[at].arrive_expecting(STAGE);
            copy_box_to_all(ring + at * STAGE + rank * HALF * BLOCK_ROW, maps.weights[tile.piece], run * RUN,
                            tile.row_of_piece + rank * HALF, barriers.ready[at], (1 << SHARING) - 1);
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
                copy_box(ring + slot.at * STAGE + WEIGHT_BYTES, maps.x, runs.run * RUN, tile.row,
                         barriers.ready[slot.at]);
                ++copied;
                slot.advance();
            }
        }
    }

    /* The runs of all partial sums, in the order in which they are multiplied. */
    struct Runs {
        const djinn_linear_args &a;
        unsigned run = 0, partial = 0, taken = 0;

        __device__ __forceinline__ explicit Runs(const djinn_linear_args &a) : a(a) {}

        __device__ __forceinline__ void advance() {
            ++taken;
            run += PARTIALS;
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

    __device__ __forceinline__ void compute(unsigned group, unsigned warp, unsigned lane) {
        Slot slot;
        for (unsigned pair = first; pair < f.pairs; pair += step) {
            const Tile tile(a, f, pair, rank);
            float total[N / 2];
#pragma unroll 1
            for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                float sums[N / 2] = {};
                unsigned last = STAGES;
                const unsigned runs = runs_of(a, partial);
#pragma unroll 1
                for (unsigned i = 0; i < runs; ++i) {
                    const char *stage = ring + slot.at * STAGE;
                    const uint64_t weights = describe(stage + group * 64 * BLOCK_ROW);
                    const uint64_t x = describe(stage + WEIGHT_BYTES);
                    barriers.ready[slot.at].wait(slot.parity);
                    begin_products();
#pragma unroll
                    for (unsigned k = 0; k < RUN / 16; ++k) {
                        multiply_block<T, N>(sums, weights + 2 * k, x + 2 * k);
                    }
                    commit_products();
                    if (last != STAGES) {
                        wait_products<1>();
                        release(last, lane);
                    }
                    last = slot.at;
                    slot.advance();
                }
                wait_products<0>();
                settle(sums);
                if (last != STAGES) {
                    release(last, lane);
                }
#pragma unroll
                for (unsigned i = 0; i < N / 2; ++i) {
                    total[i] = partial == 0 ? sums[i] : total[i] + sums[i];
                }
            }
            store(tile, total, group * 64 + warp * 16 + lane / 4, lane % 4 * 2);
        }
    }

    /* Stores a warp's part of a tile: of this lane, rows `row` and 8 after it of the share. */
    __device__ __forceinline__ void store(const Tile &tile, const float (&total)[N / 2], unsigned row,
                                          unsigned column) {
        const unsigned rows = a.rows > tile.row + column ? a.rows - tile.row - column : 0;
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            if (row + 8 * half >= tile.share.rows) {
                continue;
            }
            const unsigned j = tile.share.first + row + 8 * half;
            const float bias = bias_of(a, j);
            float *out = a.out + size_t(tile.row + column) * a.out_width + a.out_column + j;
#pragma unroll
            for (unsigned g = 0; g < N / 8; ++g) {
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    if (g * 8 + i < rows) {
                        out[size_t(g * 8 + i) * a.out_width] = total[4 * g + 2 * half + i] + bias;
                    }
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const WideMaps &maps, const WideFrame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank();
        char *ring = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        WideTiles work{a, f, barriers, ring, rank, blockIdx.x / SHARING, gridDim.x / SHARING};
        release_next();
        if (threadIdx.x < STAGES) {
            barriers.ready[threadIdx.x].init(1);
            barriers.free[threadIdx.x].init(SHARING * COMPUTING / 32);
            Barrier::publish();
        }
        cluster_sync();
        if (warp >= COMPUTING / 32) {
            /* What the block has, dealt out anew. */
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 32 : 40));
            if (threadIdx.x == COMPUTING) {
                work.supply(maps);
            }
            await_previous();
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 160 : 232));
            await_previous();
            work.compute(warp / 4, warp % 4, lane);
        }
        /* Until then others copy to this block's ring and arrive at its barriers. */
        cluster_sync();
    }
};

} // namespace djinn

#define DJINN_WIDE(suffix, T)                                                                                \
    template <unsigned N, unsigned GROUPS>                                                                   \
    __global__ void __launch_bounds__(128 * GROUPS + 128, 1)                                                 \
        djinn_linear_wide_##suffix(const __grid_constant__ djinn_linear_args a,                              \
                                   const __grid_constant__ djinn::WideMaps maps,                             \
                                   const __grid_constant__ djinn::WideFrame f) {                             \
        DJINN_ON_HOPPER(djinn::WideTiles<T, N, GROUPS>::run(a, maps, f));                                    \
    }
DJINN_WIDE(f16, djinn::f16)
DJINN_WIDE(bf16, djinn::bf16)

namespace djinn {

/* A kernel, the rows of x of its tiles, its warpgroups, and the time of a pair of tiles beside that of others. */
struct WideChoice {
    void (*kernel)(djinn_linear_args, WideMaps, WideFrame);
    unsigned n, groups, wave;
};

template <unsigned N, unsigned GROUPS> static WideChoice wide_choice(uint32_t dtype, unsigned wave) {
    return {dtype == DJINN_F16 ? djinn_linear_wide_f16<N, GROUPS> : djinn_linear_wide_bf16<N, GROUPS>, N, GROUPS, wave};
}

/* Pairs of tiles of a kernel. */
static WideFrame wide_frame(const djinn_linear_args &a, const WideChoice &choice) {
    const unsigned groups_of_rows = ceil_div(a.rows, choice.n * SHARING);
    return {shares_of(a, 64 * choice.groups) * groups_of_rows, groups_of_rows};
}

int linear_wide(const djinn_linear_args &a, void *stream) {
    const unsigned clusters = all_devices()[current_device()].multiprocessors / SHARING;
    /* Those of the least time: waves of pairs, and what a wave takes, as measured. */
    const WideChoice choices[] = {wide_choice<128, 2>(a.weight_dtype, 28), wide_choice<128, 3>(a.weight_dtype, 38),
                                  wide_choice<192, 2>(a.weight_dtype, 39)};
    const auto cost = [&](const WideChoice &choice) { return ceil_div(wide_frame(a, choice).pairs, clusters) * choice.wave; };
    const WideChoice *best = choices;
    for (const WideChoice &choice : choices) {
        /* All of them: code is loaded when it is first asked about, and its memory is measured before it is used. */
        const cudaError_t code =
            cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(WIDE_SHARED));
        if (code != cudaSuccess) {
            return code;
        }
        best = cost(choice) < cost(*best) ? &choice : best;
    }
    const auto kernel = best->kernel;
    const unsigned n = best->n, groups = best->groups;
    const WideFrame frame = wide_frame(a, *best);
    WideMaps maps;
    const unsigned tiles = ceil_div(a.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, n);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : a.n - tile * a.tile_rows;
        encoded = encoded &&
                  encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, 64 * groups / SHARING);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const unsigned used = frame.pairs < clusters ? frame.pairs : clusters;
    return launch_clusters(SHARING, kernel, dim3(used * SHARING), 128 * groups + 128, WIDE_SHARED, stream, a, maps,
                           frame);
}

} // namespace djinn
