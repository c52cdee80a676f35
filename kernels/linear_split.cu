/*
 * linear on Hopper (sm_90a) for more than 128 rows, where linear_wide.cu would have too few tiles for the card: out[r,
 * out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j], with the bits that each row has alone in linear.cu.
 * For f16 and bf16, k a multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Reference: djinn-device, src/reference.rs, `linear`.
 *
 * Split-K: a tile of out is 64 GROUPS rows of x, the wide operand of WGMMA, by N rows of the weight. It belongs to a cluster
 * with a block for each partial sum of linear.cuh. In each block a producer thread copies weight and x to a ring of stages
 * of one run each, weights from before the previous kernel is done; a warpgroup for each 64 rows of x multiplies. When all
 * blocks are done with their rings, partial sums take their place: those of warps w of all warpgroups go to the block of
 * rank w, which adds them in order.
 *
 * Launch: a cluster for each tile. Tiles with the same rows of the weight are neighbours.
 */
#include "linear.cuh"
#include "wgmma.cuh"

#include <array>

namespace djinn {

/* Tensor maps of the weight's tiles, and of x. */
struct SplitMaps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;
};

/* Tiles of 64 GROUPS rows of x by N rows of the weight. `groups_of_rows` tiles have the same rows of the weight. */
template <typename T, unsigned GROUPS, unsigned N> struct SplitTile {
    /* Groups of 64 rows for each warpgroup: four warpgroups would have too few registers. */
    static constexpr unsigned EACH = GROUPS == 4 ? 2 : 1;
    static constexpr unsigned ROWS = 64 * GROUPS, COMPUTING = 128 * GROUPS / EACH, THREADS = COMPUTING + 128;
    static constexpr unsigned X_BYTES = ROWS * BLOCK_ROW, STAGE = X_BYTES + N * BLOCK_ROW;
    static constexpr unsigned STAGES = (MOST_SHARED - BLOCK_ALIGN) / STAGE;

    struct Barriers {
        Barrier ready[STAGES], free[STAGES];
        /* All partial sums that this block adds are there. */
        Barrier summed;
    };

    /* The partial sums that a block adds, in place of the ring: for each 8 columns of out, those of a warp's lanes. */
    struct Sums {
        float4 at[PARTIALS][GROUPS][N / 8][32];
    };
    /* Bytes that other blocks hand over, and the number of this block's warps that store its own sums. */
    static constexpr unsigned GIVEN = sizeof(Sums) / PARTIALS * (PARTIALS - 1), OWN_WARPS = COMPUTING / 128;
    static_assert(sizeof(Sums) <= MOST_SHARED - BLOCK_ALIGN && N % 8 == 0);

    const djinn_linear_args &a;
    Barriers &barriers;
    char *ring;
    Share share;
    /* The first row of x, this block's partial sum, and its number of runs. */
    unsigned row, part, runs;

    /* Copies all stages, by one thread. */
    __device__ __forceinline__ void supply(const SplitMaps &maps) {
        const unsigned ahead = min(runs, STAGES);
        const auto column = [&](unsigned i) { return (part + i * PARTIALS) * RUN; };
        const auto weights = [&](unsigned at, unsigned i) {
            char *to = ring + at * STAGE + X_BYTES;
            barriers.ready[at].arrive_expecting(STAGE);
            copy_box(to, maps.weights[share.tile], column(i), share.row, barriers.ready[at]);
        };
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        for (unsigned i = 0; i < ahead; ++i) {
            weights(i, i);
        }
        await_previous();
        admit_bulk_copies();
        unsigned at = 0, parity = 0;
        for (unsigned i = 0; i < runs; ++i) {
            if (i >= ahead) {
                barriers.free[at].wait(parity ^ 1);
                weights(at, i);
            }
            copy_box(ring + at * STAGE, maps.x, column(i), row, barriers.ready[at]);
            if (++at == STAGES) {
                at = 0, parity ^= 1;
            }
        }
    }

    __device__ __forceinline__ void multiply(float (&sums)[EACH][N / 2], unsigned group, unsigned lane) {
        unsigned at = 0, parity = 0, last = 0;
#pragma unroll 1
        for (unsigned i = 0; i < runs; ++i) {
            const char *stage = ring + at * STAGE;
            const uint64_t x = describe(stage + group * EACH * 64 * BLOCK_ROW), weights = describe(stage + X_BYTES);
            barriers.ready[at].wait(parity);
            begin_products();
#pragma unroll
            for (unsigned k = 0; k < RUN / 16; ++k) {
#pragma unroll
                for (unsigned e = 0; e < EACH; ++e) {
                    multiply_block<T, N>(sums[e], x + (e * 64 * BLOCK_ROW >> 4) + 2 * k, weights + 2 * k);
                }
            }
            commit_products();
            if (i > 0) {
                wait_products<1>();
                if (lane == 0) {
                    barriers.free[last].arrive();
                }
            }
            last = at;
            if (++at == STAGES) {
                at = 0, parity ^= 1;
            }
        }
        wait_products<0>();
#pragma unroll
        for (unsigned e = 0; e < EACH; ++e) {
            settle(sums[e]);
        }
    }

    /* Hands a warp's partial sums to the block that adds them. All blocks are done with their rings. */
    __device__ __forceinline__ void hand_over(const float (&sums)[EACH][N / 2], unsigned group, unsigned warp,
                                              unsigned lane) {
        Sums &handed = *reinterpret_cast<Sums *>(ring);
        if (warp == part) {
#pragma unroll
            for (unsigned g = 0; g < EACH * (N / 8); ++g) {
                const float *four = sums[g / (N / 8)] + g % (N / 8) * 4;
                handed.at[part][group * EACH + g / (N / 8)][g % (N / 8)][lane] = {four[0], four[1], four[2], four[3]};
            }
            __syncwarp();
            if (lane == 0) {
                barriers.summed.arrive();
            }
            return;
        }
        const unsigned address = address_at(shared_address(&handed.at[part][group * EACH][0][lane]), warp);
        const unsigned barrier = address_at(shared_address(&barriers.summed), warp);
#pragma unroll
        for (unsigned g = 0; g < EACH * (N / 8); ++g) {
            store_to_cluster(address + g * sizeof(handed.at[0][0][0]), sums[g / (N / 8)] + g % (N / 8) * 4, barrier);
        }
    }

    /* Adds the partial sums in order, and stores. */
    __device__ __forceinline__ void add(unsigned warp, unsigned lane) {
        const Sums &handed = *reinterpret_cast<const Sums *>(ring);
        float *const out = a.out + a.out_column + share.first;
        const bool pairs = reinterpret_cast<uintptr_t>(out) % sizeof(float2) == 0 && a.out_width % 2 == 0;
        for (unsigned at = warp; at < GROUPS * (N / 8); at += COMPUTING / 32) {
            const unsigned group = at / (N / 8), g = at % (N / 8), column = g * 8 + lane % 4 * 2;
            const unsigned first = row + group * 64 + part * 16 + lane / 4;
            float4 total = handed.at[0][group][g][lane];
#pragma unroll
            for (unsigned other = 1; other < PARTIALS; ++other) {
                const float4 more = handed.at[other][group][g][lane];
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            if (column >= share.rows) {
                continue;
            }
            const bool two = column + 1 < share.rows;
            const unsigned j = share.first + column;
            const float bias = bias_of(a, j), next_bias = two ? bias_of(a, j + 1) : 0;
            const float2 halves[2] = {{total.x + bias, total.y + next_bias}, {total.z + bias, total.w + next_bias}};
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                float *to = out + size_t(first + 8 * half) * a.out_width + column;
                if (first + 8 * half >= a.rows) {
                    break;
                }
                if (pairs && two) {
                    *reinterpret_cast<float2 *>(to) = halves[half];
                } else {
                    to[0] = halves[half].x;
                    if (two) {
                        to[1] = halves[half].y;
                    }
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const SplitMaps &maps,
                                               unsigned groups_of_rows) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = cluster_rank();
        const unsigned tile = blockIdx.x / PARTIALS;
        char *ring = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        const Share share = share_of<T>(a, a.weights, N, tile / groups_of_rows);
        SplitTile work{a, barriers, ring, share, tile % groups_of_rows * ROWS, part, runs_of(a, part)};
        release_next();
        const auto init = [&] {
            init_barriers(STAGES + 1, [&](unsigned i) {
                if (i < STAGES) {
                    barriers.ready[i].init_by_warp(1);
                    barriers.free[i].init_by_warp(COMPUTING / 32);
                } else {
                    barriers.summed.init_by_warp(1 + OWN_WARPS);
                }
            });
            __syncthreads();
        };
        if (warp >= COMPUTING / 32) {
            if (threadIdx.x == COMPUTING) {
                prefetch_map(maps.weights[share.tile]);
                prefetch_map(maps.x);
            }
            __syncwarp();
            init();
            if (threadIdx.x == COMPUTING) {
                barriers.summed.arrive_expecting(GIVEN);
            }
            __syncwarp();
            /* Moves registers from the producer's warpgroup to the others. */
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (threadIdx.x == COMPUTING) {
                work.supply(maps);
            }
            __syncwarp();
            await_previous();
            cluster_sync();
        } else {
            init();
            if constexpr (COMPUTING == 256) {
                asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
            } else {
                asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
            }
            await_previous();
            float sums[EACH][N / 2] = {};
            work.multiply(sums, warp / 4, lane);
            cluster_sync();
            work.hand_over(sums, warp / 4, warp % 4, lane);
            barriers.summed.wait(0);
            work.add(warp, lane);
        }
    }
};

} // namespace djinn

#define DJINN_SPLIT(suffix, T)                                                                               \
    template <unsigned GROUPS, unsigned N>                                                                   \
    __global__ void __launch_bounds__(djinn::SplitTile<T, GROUPS, N>::THREADS, 1)                            \
        djinn_linear_split_##suffix(const __grid_constant__ djinn_linear_args a,                             \
                                    const __grid_constant__ djinn::SplitMaps maps, unsigned groups_of_rows) { \
        DJINN_ON_HOPPER(djinn::SplitTile<T, GROUPS, N>::run(a, maps, groups_of_rows));                       \
    }
DJINN_SPLIT(f16, djinn::f16)
DJINN_SPLIT(bf16, djinn::bf16)

namespace djinn {

/* A kernel, its threads, and a tile's groups of 64 rows of x and rows of the weight. */
struct SplitChoice {
    void (*kernel)(djinn_linear_args, SplitMaps, unsigned);
    unsigned threads, groups, width;

    unsigned groups_of_rows(const djinn_linear_args &a) const { return ceil_div(a.rows, 64 * groups); }
    unsigned tiles(const djinn_linear_args &a) const { return shares_of(a, width) * groups_of_rows(a); }

    /* Cycles as measured: those of a tile's products, and of all else. */
    uint64_t cycles(const djinn_linear_args &a) const {
        const uint64_t tile = uint64_t(a.k) * groups * width / 100 + 10000;
        return ceil_div(tiles(a), clusters_at_once()) * tile;
    }
};

template <unsigned GROUPS, unsigned N> static SplitChoice split_choice(uint32_t dtype) {
    const auto kernel = dtype == DJINN_F16 ? djinn_linear_split_f16<GROUPS, N> : djinn_linear_split_bf16<GROUPS, N>;
    return {kernel, SplitTile<f16, GROUPS, N>::THREADS, GROUPS, N};
}

static std::array<SplitChoice, 6> split_choices(uint32_t dtype) {
    return {split_choice<3, 128>(dtype), split_choice<3, 144>(dtype), split_choice<3, 176>(dtype),
            split_choice<4, 128>(dtype), split_choice<4, 144>(dtype), split_choice<4, 176>(dtype)};
}

/* Lets all kernels of a type use their shared memory, which loads their code. */
int allow_split(uint32_t dtype) {
    for (const SplitChoice &choice : split_choices(dtype)) {
        const cudaError_t code = allow_shared(choice.kernel, MOST_SHARED);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

static SplitChoice best_split(const djinn_linear_args &a) {
    const auto choices = split_choices(a.weight_dtype);
    SplitChoice best = choices[0];
    for (const SplitChoice &choice : choices) {
        best = choice.cycles(a) < best.cycles(a) ? choice : best;
    }
    return best;
}

uint64_t split_cycles(const djinn_linear_args &a) {
    return best_split(a).cycles(a);
}

int linear_split(const djinn_linear_args &a, void *stream) {
    const SplitChoice best = best_split(a);
    SplitMaps maps;
    const unsigned tiles = ceil_div(a.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, 64 * best.groups);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : a.n - tile * a.tile_rows;
        encoded = encoded && encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, best.width);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(best.tiles(a) * PARTIALS);
    return launch_clusters(PARTIALS, best.kernel, grid, best.threads, MOST_SHARED, stream, a, maps, best.groups_of_rows(a));
}

} // namespace djinn
