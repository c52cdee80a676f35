/*
 * linear for 17 to 64 rows with one read of the weight: out[r, out_column + j] = sum over i of x[r, i] weight[j, i],
 * plus bias[j], with the bits that each row has alone in linear.cu. For f16 and bf16, k a multiple of 64, sm_90.
 * Shapes: x f32 [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * CPU reference: djinn-device, kernels/reference.rs, `linear`.
 *
 * With many rows every block would read all of x again, more bytes than its share of the weight. So a first kernel
 * splits x once, in the order in which lanes need it (workspace), and the blocks of a cluster fetch each piece
 * together: each a part of it, for all.
 *
 * Launch: clusters of CLUSTER blocks, one block on each multiprocessor that a cluster can have, each with an equal
 * share of the weight's rows; where that is more than 64, more clusters than fit at once. 12 warps a block. The last
 * four fetch: their lanes copy weights, and for each partial sum one of them has x copied. What they fill is a ring of
 * stages, of 32 columns of PARTS partial sums each; a stage is ready when its barrier has seen all copies, and free when
 * the 8 other warps of all blocks of the cluster have read it. These divide a stage by partial sum, rows of the weight
 * (SLABS) and halves of the rows of x. Warps of the first partial sum of a stage keep the total, to which the others'
 * sums are added in order, through shared memory: the order of linear.cu.
 *
 * Workspace: uint32 [k / 32][tiles][2][32 lanes][4], for tiles of 8 rows of x: the four registers of a fragment.
 */
#include "cluster.cuh"
#include "linear.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Blocks that fetch x together. Each reads all that they all read of it; larger clusters leave more of a card idle. */
constexpr unsigned CLUSTER = 4;

/* Columns of a stage in each partial sum. */
constexpr unsigned STEP = 32;

/* Warps that compute, and those that fetch: so many that their instructions keep up with the memory. */
constexpr unsigned COMPUTING = 8, FETCHING = 4, HALVES = 2;
constexpr unsigned WIDE_THREADS = 32 * (COMPUTING + FETCHING);

/* Bytes of x in a tile of a step. */
constexpr unsigned TILE_BYTES = 2 * 32 * sizeof(Split);

/* Of a block, at most (sm_90). */
constexpr size_t MOST_SHARED = 227 * 1024;

/* Tiles of 8 rows that a kernel exists for. */
__host__ __device__ constexpr unsigned tiles_of(unsigned rows) {
    return rows <= 32 ? 4 : rows <= 48 ? 6 : 8;
}

/* Threads that split x. */
constexpr unsigned SPLIT_THREADS = 256;

/* A thread splits 8 elements of a row. */
template <typename T>
__device__ __forceinline__ void split_rows(const djinn_linear_args &a, unsigned tiles) {
    enter();
    const unsigned at = blockIdx.x * SPLIT_THREADS + threadIdx.x, lane = at % 32, place = at / 32;
    const unsigned step = place / tiles, row = place % tiles * 8 + lane / 4;
    if (step >= a.k / STEP) {
        return;
    }
    Split *to = static_cast<Split *>(a.workspace) + size_t(place) * 2 * 32 + lane;
    float4 x[2] = {};
    if (row < a.rows) {
        const float *from = a.x + size_t(row) * a.k + step * STEP + lane % 4 * 8;
        x[0] = *reinterpret_cast<const float4 *>(from);
        x[1] = *reinterpret_cast<const float4 *>(from + 4);
    }
    to[0] = split<T>(x[0]);
    to[32] = split<T>(x[1]);
}

/* Where in the order of stages a warp is, within the ring. */
template <unsigned STAGES> struct Place {
    unsigned slot = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == STAGES) {
            slot = 0, parity ^= 1;
        }
    }
};

/* Up to 8 SLABS UNITS rows of the weight by 8 TILES rows of x, PARTS partial sums at once. */
template <typename T, unsigned PARTS, unsigned SLABS, unsigned UNITS, unsigned TILES> struct Wide {
    static_assert(PARTS * SLABS * HALVES == COMPUTING && PARTIALS % PARTS == 0 && TILES % HALVES == 0);
    static constexpr unsigned STEPS = RUN / STEP;
    static constexpr unsigned ALL_UNITS = SLABS * UNITS, MINE = TILES / HALVES;
    static constexpr unsigned X_BYTES = TILES * TILE_BYTES, SLICE = X_BYTES / CLUSTER;
    static_assert(SLICE % 16 == 0);

    struct Stage {
        Split x[PARTS][TILES][2][32];
        uint4 weights[PARTS][ALL_UNITS][32];
    };
    /* The sums that are added to those of the first partial sum. */
    struct Sums {
        float2 at[PARTS - 1][SLABS * HALVES][UNITS * MINE][32];
    };
    static constexpr size_t FIT = (MOST_SHARED - sizeof(Sums)) / (sizeof(Stage) + 2 * sizeof(Barrier));
    static constexpr unsigned STAGES = FIT < 8 ? FIT : 8;
    static_assert(STAGES >= 3);
    struct Shared {
        Stage stages[STAGES];
        Sums sums;
        Barrier ready[STAGES], free[STAGES];
    };
    static_assert(sizeof(Shared) <= MOST_SHARED);

    /* The stages in order: `work(run, step)`, for the runs `run .. run + PARTS` of as many partial sums. */
    template <typename Work> static __device__ __forceinline__ void each_stage(unsigned round, unsigned runs, Work work) {
        for (unsigned run = round * PARTS; run < runs; run += PARTIALS) {
            for (unsigned step = 0; step < STEPS; ++step) {
                work(run, step);
            }
        }
    }

    /* A warp that fetches: of one partial sum, some of the units, and x if it is the first of those that do. */
    struct Fetcher {
        static constexpr unsigned MATES = FETCHING / PARTS, UNITS_EACH = (ALL_UNITS + MATES - 1) / MATES;
        static_assert(FETCHING % PARTS == 0);
        const djinn_linear_args &a;
        Shared &shared;
        unsigned lane, part, mate, runs;
        /* The lane's part of each unit; rows past the block's repeat its last. */
        const T *rows[UNITS_EACH];

        __device__ __forceinline__ Fetcher(const djinn_linear_args &a, Shared &shared, const Share &share, unsigned warp,
                                           unsigned lane)
            : a(a), shared(shared), lane(lane), part(warp % PARTS), mate(warp / PARTS), runs(a.k / RUN) {
            const T *base = static_cast<const T *>(share.weight) + lane % 4 * 8 + part * RUN;
#pragma unroll
            for (unsigned i = 0; i < UNITS_EACH; ++i) {
                rows[i] = base + size_t(min((mate + i * MATES) * 8 + lane / 4, share.rows - 1)) * a.k;
            }
        }

        __device__ __forceinline__ void weights(unsigned slot, unsigned run, unsigned step) {
            if (run + part < runs) {
                const unsigned column = run * RUN + step * STEP;
#pragma unroll
                for (unsigned i = 0; i < UNITS_EACH; ++i) {
                    const unsigned unit = mate + i * MATES;
                    if (unit < ALL_UNITS) {
                        copy_async_ahead(&shared.stages[slot].weights[part][unit][lane], rows[i] + column);
                    }
                }
            }
            shared.ready[slot].arrive_after_copies();
        }

        /* This block's slice of a piece, for all blocks. */
        __device__ __forceinline__ void x(unsigned slot, unsigned run, unsigned step) {
            if (lane != 0 || mate != 0) {
                return;
            }
            const bool present = run + part < runs;
            shared.ready[slot].arrive_expecting(present ? X_BYTES : 0);
            if (present) {
                const unsigned slice = cluster_rank() * SLICE;
                const size_t piece = (run + part) * STEPS + step;
                const char *from = static_cast<const char *>(a.workspace) + piece * X_BYTES + slice;
                char *to = reinterpret_cast<char *>(shared.stages[slot].x[part]) + slice;
                copy_to_cluster<CLUSTER>(to, from, SLICE, shared.ready[slot]);
            }
        }

        /* Weights as far as the ring reaches, before the previous kernel is done; then x; then all else in turn. */
        __device__ __forceinline__ void run() {
            unsigned filled = 0;
            for (unsigned round = 0; round < PARTIALS / PARTS && filled < STAGES; ++round) {
                each_stage(round, runs, [&](unsigned run, unsigned step) {
                    if (filled < STAGES) {
                        weights(filled++, run, step);
                    }
                });
            }
            await_previous();
            admit_bulk_copies();
            Place<STAGES> place;
            unsigned count = 0;
            for (unsigned round = 0; round < PARTIALS / PARTS; ++round) {
                each_stage(round, runs, [&](unsigned run, unsigned step) {
                    if (count >= filled) {
                        shared.free[place.slot].wait(place.parity ^ 1);
                        weights(place.slot, run, step);
                    }
                    x(place.slot, run, step);
                    count += 1;
                    place.advance();
                });
            }
        }
    };

    /* A warp that computes: its part of each stage, its slab of the weight's rows, its half of the rows of x. */
    struct Computer {
        Shared &shared;
        unsigned lane, part, slab, half;
        float total[UNITS][MINE][2];

        __device__ __forceinline__ Computer(Shared &shared, unsigned warp, unsigned lane)
            : shared(shared), lane(lane), part(warp / (SLABS * HALVES)), slab(warp / HALVES % SLABS),
              half(warp % HALVES) {}

        __device__ __forceinline__ void run(unsigned runs) {
            Place<STAGES> place;
            for (unsigned round = 0; round < PARTIALS / PARTS; ++round) {
                float sums[UNITS][MINE][4] = {};
                each_stage(round, runs, [&](unsigned run, unsigned) {
                    shared.ready[place.slot].wait(place.parity);
                    stage(sums, place.slot, run + part < runs);
                    place.advance();
                });
                add(sums, round == 0);
            }
        }

        /* The products of a stage, where there is a run of this partial sum. */
        __device__ __forceinline__ void stage(float (&sums)[UNITS][MINE][4], unsigned slot, bool present) {
            const Stage &from = shared.stages[slot];
            Split x[MINE][2];
            uint4 weights[UNITS];
            if (present) {
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
                    weights[unit] = from.weights[part][slab * UNITS + unit][lane];
                }
#pragma unroll
                for (unsigned tile = 0; tile < MINE; ++tile) {
                    x[tile][0] = from.x[part][half * MINE + tile][0][lane];
                    x[tile][1] = from.x[part][half * MINE + tile][1][lane];
                }
            }
            /* All lanes have read. */
            __syncwarp();
            if (lane < CLUSTER) {
                shared.free[slot].arrive_at(lane);
            }
            if (present) {
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
                    for (unsigned tile = 0; tile < MINE; ++tile) {
                        multiply<T>(sums[unit][tile], x[tile][0], weights[unit].x, weights[unit].y);
                    }
                }
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
                    for (unsigned tile = 0; tile < MINE; ++tile) {
                        multiply<T>(sums[unit][tile], x[tile][1], weights[unit].z, weights[unit].w);
                    }
                }
            }
        }

        /* Adds a round's partial sums to the total, in order. */
        __device__ __forceinline__ void add(const float (&sums)[UNITS][MINE][4], bool first) {
            const unsigned share = slab * HALVES + half, barrier = 1 + share;
            /* The warp of the first partial sum has read the round before. */
            sync_some(barrier, 32 * PARTS);
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
                for (unsigned tile = 0; tile < MINE; ++tile) {
                    /* The leading parts' sum and the rest's. */
                    const float (&sum)[4] = sums[unit][tile];
                    const float2 both = make_float2(sum[0] + sum[2], sum[1] + sum[3]);
                    if (part != 0) {
                        shared.sums.at[part - 1][share][unit * MINE + tile][lane] = both;
                    } else if (first) {
                        total[unit][tile][0] = both.x, total[unit][tile][1] = both.y;
                    } else {
                        total[unit][tile][0] += both.x, total[unit][tile][1] += both.y;
                    }
                }
            }
            sync_some(barrier, 32 * PARTS);
            if (part != 0) {
                return;
            }
#pragma unroll
            for (unsigned other = 0; other + 1 < PARTS; ++other) {
#pragma unroll
                for (unsigned i = 0; i < UNITS * MINE; ++i) {
                    const float2 sum = shared.sums.at[other][share][i][lane];
                    total[i / MINE][i % MINE][0] += sum.x, total[i / MINE][i % MINE][1] += sum.y;
                }
            }
        }

        /* Stores the totals of the block's share of the weight. */
        __device__ __forceinline__ void store(const djinn_linear_args &a, const Share &share) const {
            if (part != 0) {
                return;
            }
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    const unsigned at = (slab * UNITS + unit) * 8 + lane % 4 * 2 + i, j = share.first + at;
                    if (at >= share.rows) {
                        continue;
                    }
                    const float bias = bias_of(a, j);
#pragma unroll
                    for (unsigned tile = 0; tile < MINE; ++tile) {
                        const unsigned row = (half * MINE + tile) * 8 + lane / 4;
                        if (row < a.rows) {
                            a.out[size_t(row) * a.out_width + a.out_column + j] = total[unit][tile][i] + bias;
                        }
                    }
                }
            }
        }
    };

    static __device__ __forceinline__ void run(const djinn_linear_args &a, unsigned most) {
        extern __shared__ uint4 memory[];
        Shared &shared = *reinterpret_cast<Shared *>(memory);
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const Share share = share_of<T>(a, most);
        release_next();
        if (threadIdx.x < STAGES) {
            /* The lanes that copy weights, and those that announce x. */
            shared.ready[threadIdx.x].init(32 * FETCHING + PARTS);
            shared.free[threadIdx.x].init(COMPUTING * CLUSTER);
            Barrier::publish();
        }
        cluster_sync();
        if (warp >= COMPUTING) {
            Fetcher(a, shared, share, warp - COMPUTING, lane).run();
        } else {
            Computer computer(shared, warp, lane);
            computer.run(a.k / RUN);
            await_previous();
            computer.store(a, share);
        }
        /* No block ends while others may arrive at its barriers. */
        __syncwarp();
        cluster_sync();
    }
};

} // namespace djinn

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define DJINN_ON_CLUSTERS(...) __VA_ARGS__
#else
#define DJINN_ON_CLUSTERS(...)
#endif

#define DJINN_WIDE(suffix, T)                                                                                \
    __global__ void __launch_bounds__(djinn::SPLIT_THREADS)                                                  \
        djinn_linear_split_##suffix(const __grid_constant__ djinn_linear_args a, unsigned tiles) {           \
        djinn::split_rows<T>(a, tiles);                                                                      \
    }                                                                                                        \
    template <unsigned PARTS, unsigned SLABS, unsigned UNITS, unsigned TILES>                                \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_linear_wide_##suffix(const __grid_constant__ djinn_linear_args a, unsigned share) {            \
        DJINN_ON_CLUSTERS(djinn::Wide<T, PARTS, SLABS, UNITS, TILES>::run(a, share));                        \
    }
DJINN_WIDE(f16, djinn::f16)
DJINN_WIDE(bf16, djinn::bf16)

namespace djinn {

using WideKernel = void (*)(djinn_linear_args, unsigned);

/* A kernel with its launch. */
struct WideChoice {
    WideKernel kernel;
    size_t shared_bytes;
};

template <typename T, unsigned PARTS, unsigned SLABS, unsigned UNITS, unsigned TILES> WideChoice choice() {
    const size_t bytes = sizeof(typename Wide<T, PARTS, SLABS, UNITS, TILES>::Shared);
    if constexpr (std::is_same_v<T, f16>) {
        return {djinn_linear_wide_f16<PARTS, SLABS, UNITS, TILES>, bytes};
    } else {
        return {djinn_linear_wide_bf16<PARTS, SLABS, UNITS, TILES>, bytes};
    }
}

/* Units of 8 rows of the weight that a block takes, at most. */
constexpr unsigned MOST_UNITS = 8;

/* The kernel for so many units, with as few spare ones as there is one for. */
template <typename T, unsigned TILES> WideChoice choose_units(unsigned units) {
    switch (units) {
    case 1:
    case 2: return choice<T, 4, 1, 2, TILES>();
    case 3: return choice<T, 4, 1, 3, TILES>();
    case 4: return choice<T, 4, 1, 4, TILES>();
    case 5: return choice<T, 4, 1, 5, TILES>();
    case 6: return choice<T, 4, 1, 6, TILES>();
    default:
        /* A warp's registers hold the sums of so many units for few tiles alone. */
        if constexpr (TILES <= 4) {
            return choice<T, 4, 1, 8, TILES>();
        } else {
            return choice<T, 2, 2, 4, TILES>();
        }
    }
}

template <typename T> WideChoice choose(unsigned units, unsigned tiles) {
    switch (tiles) {
    case 4: return choose_units<T, 4>(units);
    case 6: return choose_units<T, 6>(units);
    default: return choose_units<T, 8>(units);
    }
}

WideChoice choose(const djinn_linear_args &a, unsigned units) {
    const unsigned tiles = tiles_of(a.rows);
    return a.weight_dtype == DJINN_F16 ? choose<f16>(units, tiles) : choose<bf16>(units, tiles);
}

/* Lets a kernel use its shared memory. */
cudaError_t allow(const WideChoice &choice) {
    const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    return cudaFuncSetAttribute(choice.kernel, limit, int(choice.shared_bytes));
}

/* Clusters that the current device runs at once; 0 if it has none. All kernels here have a block to a processor. */
unsigned clusters_at_once() {
    /* One more than the number; 0 until it is known. */
    static std::atomic<unsigned> known[MOST_DEVICES];
    const int device = current_device();
    unsigned found = known[device].load();
    if (found == 0) {
        found = 1;
        const WideChoice largest = choose<f16>(MOST_UNITS, tiles_of(DJINN_LINEAR_ROWS));
        LaunchConfig launch({CLUSTER}, WIDE_THREADS, largest.shared_bytes, nullptr, CLUSTER);
        int clusters = 0;
        if (all_devices()[device].overlaps && allow(largest) == cudaSuccess &&
            cudaOccupancyMaxActiveClusters(&clusters, largest.kernel, &launch.config) == cudaSuccess && clusters > 0) {
            found += clusters;
        } else {
            /* The failure is answered by the other path: it is none of the next launch. */
            cudaGetLastError();
        }
        known[device].store(found);
    }
    return found - 1;
}

bool serves_wide(const djinn_linear_args &a) {
    const uint64_t rows = a.rows < DJINN_LINEAR_ROWS ? a.rows : DJINN_LINEAR_ROWS;
    const uint64_t bytes = uint64_t(tiles_of(unsigned(rows))) * TILE_BYTES * (a.k / STEP);
    return a.k % RUN == 0 && (a.weight_dtype == DJINN_F16 || a.weight_dtype == DJINN_BF16) && a.workspace != nullptr &&
           a.workspace_bytes >= bytes && clusters_at_once() > 0;
}

int linear_wide(const djinn_linear_args &a, void *stream) {
    const unsigned tiles = tiles_of(a.rows);
    if (a.is_split == 0) {
        const dim3 grid(ceil_div(uint64_t(a.k / STEP) * tiles * 32, SPLIT_THREADS));
        const auto split = a.weight_dtype == DJINN_F16 ? djinn_linear_split_f16 : djinn_linear_split_bf16;
        const int code = launch(split, grid, SPLIT_THREADS, 0, stream, a, tiles);
        if (code != cudaSuccess) {
            return code;
        }
    }
    const unsigned blocks = clusters_at_once() * CLUSTER;
    const Division division = divide(a, blocks, 8 * MOST_UNITS);
    const WideChoice chosen = choose(a, ceil_div(division.share, 8));
    const cudaError_t code = allow(chosen);
    if (code != cudaSuccess) {
        return code;
    }
    const dim3 grid(ceil_div(division.blocks, CLUSTER) * CLUSTER);
    return launch_clusters(CLUSTER, chosen.kernel, grid, WIDE_THREADS, chosen.shared_bytes, stream, a, division.share);
}

} // namespace djinn
