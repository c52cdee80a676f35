/*
 * linear on Hopper (sm_90a) for more rows than linear.cu's kernel takes at once, up to 128, with one read of the weight: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j], with the bits that each row
 * has alone in linear.cu. For f16 and bf16, k a multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Reference: djinn-device, src/reference.rs, `linear`.
 *
 * expert_linear, for any number of slots: a first launch gathers and rounds the rows of x of the expert's slots, one
 * block a slot; then, as above, y over groups of up to 128 slots. Of the blocks of both, those past the expert's slots
 * end at once; since the previous kernel may have found the slots, none reads weights before it is done.
 * Shapes: as in linear.cu.
 * Reference: djinn-device, src/reference/routing.rs, `expert_linear`.
 *
 * Rows of the weight are the wide operand of the matrix units (64 at once), rows of x the narrow one (N). A product of
 * 16 columns adds to a sum the same bits whatever N is, and the same as a product of linear.cu's.
 *
 * Launch: clusters of a block for each partial sum, one block on each multiprocessor that a cluster can have; the
 * clusters take equal shares of the weight's rows, up to 64 TILES, in turn. In each block one warp has weight and x copied
 * to a ring of stages of one run each, weights before the previous kernel is done, and those of the next share while the
 * present one ends; a warpgroup for each 64 rows multiplies. At the end of a share the partial sums of the rows of the warps
 * w of all warpgroups go to the block of rank w, which adds them in order.
 */
#include "linear.cuh"
#include "wgmma.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Of the weight: what a warpgroup multiplies at once. */
constexpr unsigned TILE_ROWS = 64;

/* Stages of a ring, at most. */
constexpr unsigned MOST_STAGES = 16;

/* Dynamic shared memory of a block, at most: what a block may have, less the barriers and what alignment takes. */
constexpr unsigned MOST_SHARED = 226 * 1024;

/* What the copy engine knows of the weight's tiles, and of x. */
struct Maps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;
};

/* Rows of the weight of a share, shares, stages of a block's ring, and the first of the expert's slots. */
struct Frame {
    uint32_t share, shares, stages, first;
};

/* Bytes of a stage for N rows of x: whole groups of 8 rows of the weight, then x. */
__host__ __device__ inline unsigned stage_bytes(unsigned share, unsigned n) {
    return ((share + 7) / 8 * 8 + n) * BLOCK_ROW;
}

/* N rows of x by 64 TILES rows of the weight; `Rows` finds those of out. */
template <typename T, unsigned N, unsigned TILES, typename Rows> struct Hopper {
    static constexpr unsigned COMPUTING = 128 * TILES, THREADS = COMPUTING + 32;
    static constexpr unsigned X_BYTES = N * BLOCK_ROW;

    /* Groups of 8 rows of x whose partial sums are handed over at once: in up to 64 KiB. */
    static constexpr unsigned GROUPS = N / 8 * TILES <= 32 ? N / 8 : 8;

    struct Barriers {
        Barrier ready[MOST_STAGES], free[MOST_STAGES];
        /* The partial sums that this block adds are there; all blocks have added what this one handed them. */
        Barrier summed, added;
    };
    /* The partial sums that a block adds: of each part and warpgroup, for each 8 rows of x, those of a warp's lanes. */
    struct Sums {
        float4 at[PARTIALS][TILES][GROUPS][32];
    };

    const djinn_linear_args &a;
    const Rows &rows;
    const Frame &f;
    Barriers &barriers;
    Sums &handed;
    /* Stages. */
    char *ring;
    unsigned part, runs;
    /* Place in the ring, and times that sums were handed over. */
    unsigned slot = 0, parity = 0, turns = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == f.stages) {
            slot = 0, parity ^= 1;
        }
    }

    /* Copies all stages. By one lane; `lane` says which this is. */
    __device__ __forceinline__ void supply(const Maps &maps, unsigned lane) {
        const unsigned bytes = stage_bytes(f.share, N), ahead = min(runs, f.stages);
        const auto column = [&](unsigned i) { return (part + i * PARTIALS) * RUN; };
        const auto weights = [&](const Share &share, unsigned at, unsigned i) {
            const unsigned piece = share.first / a.tile_rows;
            barriers.ready[at].arrive_expecting(f.share * BLOCK_ROW + X_BYTES);
            copy_box(ring + at * bytes, maps.weights[piece], column(i), share.first - piece * a.tile_rows,
                     barriers.ready[at]);
        };
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        if (lane == 0) {
            const Share share = share_of<T>(a, f.share, blockIdx.x / PARTIALS);
            for (unsigned i = 0; i < ahead; ++i) {
                weights(share, i, i);
            }
        }
        await_previous();
        if (lane == 0) {
            admit_bulk_copies();
            unsigned copied = 0;
            for (unsigned index = blockIdx.x / PARTIALS; index < f.shares; index += gridDim.x / PARTIALS) {
                const Share share = share_of<T>(a, f.share, index);
                for (unsigned i = 0; i < runs; ++i, ++copied) {
                    if (copied >= ahead) {
                        if (copied >= f.stages) {
                            barriers.free[slot].wait(parity ^ 1);
                        }
                        weights(share, slot, i);
                    }
                    char *x = ring + (slot + 1) * bytes - X_BYTES;
                    copy_box(x, maps.x, column(i), blockIdx.y * N, barriers.ready[slot]);
                    advance();
                }
            }
        }
        __syncwarp();
    }

    /* The products of a warpgroup with its rows of a share. */
    __device__ __forceinline__ void compute(float (&sums)[N / 2], unsigned group, unsigned lane) {
        const unsigned bytes = stage_bytes(f.share, N);
        unsigned last = 0;
        for (unsigned i = 0; i < runs; ++i) {
            const char *stage = ring + slot * bytes;
            const uint64_t weights = describe(stage + group * TILE_ROWS * BLOCK_ROW);
            const uint64_t x = describe(stage + bytes - X_BYTES);
            barriers.ready[slot].wait(parity);
            begin_products();
#pragma unroll
            for (unsigned step = 0; step < RUN / 16; ++step) {
                multiply_block<T, N>(sums, weights + 2 * step, x + 2 * step);
            }
            commit_products();
            if (i > 0) {
                wait_products<1>();
                if (lane == 0) {
                    barriers.free[last].arrive();
                }
            }
            last = slot;
            advance();
        }
        wait_products<0>();
        if (runs > 0 && lane == 0) {
            barriers.free[last].arrive();
        }
        settle(sums);
    }

    /*
     * Hands a warp's partial sums to the blocks that add them, adds those that this block adds, and stores. A block sees
     * all that others do to its shared memory before it hands over the next sums, or ends. After the last ones, which
     * `is_last` says, no block waits for word that they were added, and none is given.
     */
    __device__ __forceinline__ void finish(const Share &share, const float (&sums)[N / 2], unsigned group, unsigned warp,
                                           unsigned lane, bool is_last) {
        const unsigned to = warp % 4, barrier = address_at(shared_address(&barriers.summed), to);
        const unsigned address = address_at(shared_address(&handed.at[part][group][0][lane]), to);
#pragma unroll
        for (unsigned first = 0; first < N / 8; first += GROUPS, ++turns) {
            if (threadIdx.x == 0) {
                barriers.summed.arrive_expecting(sizeof(Sums));
            }
            if (turns > 0) {
                barriers.added.wait((turns - 1) & 1);
            }
#pragma unroll
            for (unsigned g = 0; g < GROUPS; ++g) {
                store_to_cluster(address + g * sizeof(handed.at[0][0][0]), sums + 4 * (first + g), barrier);
            }
            barriers.summed.wait(turns & 1);
            add(share, first, warp, lane);
            __syncwarp();
            if (lane < PARTIALS && !(is_last && first + GROUPS == N / 8)) {
                barriers.added.arrive_at(lane);
            }
        }
    }

    /* Adds the partial sums in order, and stores. */
    __device__ __forceinline__ void add(const Share &share, unsigned first, unsigned warp, unsigned lane) {
        const unsigned groups = (rows.count() + 7) / 8, used = groups > first ? min(groups - first, GROUPS) : 0;
        for (unsigned at = warp; at < TILES * used; at += COMPUTING / 32) {
            const unsigned group = at / used, g = at % used;
            float4 total = handed.at[0][group][g][lane];
#pragma unroll
            for (unsigned other = 1; other < PARTIALS; ++other) {
                const float4 more = handed.at[other][group][g][lane];
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            const unsigned row = group * TILE_ROWS + part * 16 + lane / 4, column = (first + g) * 8 + lane % 4 * 2;
            store(share, row, column, total.x, total.y);
            store(share, row + 8, column, total.z, total.w);
        }
    }

    /* Stores what two successive rows of x give with a row of the share. */
    __device__ __forceinline__ void store(const Share &share, unsigned row, unsigned x_row, float even, float odd) {
        if (row >= share.rows || x_row >= rows.count()) {
            return;
        }
        const unsigned j = share.first + row;
        const float bias = bias_of(a, j);
        float *out = a.out + a.out_column + j;
        out[size_t(rows.out(x_row)) * a.out_width] = even + bias;
        if (x_row + 1 < rows.count()) {
            out[size_t(rows.out(x_row + 1)) * a.out_width] = odd + bias;
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Rows &rows, const Maps &maps,
                                               const Frame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = cluster_rank();
        char *handed = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *ring = handed + sizeof(Sums);
        Hopper work{a, rows, f, barriers, *reinterpret_cast<Sums *>(handed), ring, part, runs_of(a, part)};
        release_next();
        if (threadIdx.x < f.stages) {
            barriers.ready[threadIdx.x].init(1);
            barriers.free[threadIdx.x].init(COMPUTING / 32);
            Barrier::publish();
        }
        if (threadIdx.x == 32) {
            barriers.summed.init(1);
            barriers.added.init(PARTIALS * COMPUTING / 32);
            Barrier::publish();
        }
        __syncthreads();
        cluster_arrive_relaxed();
        if (warp >= COMPUTING / 32) {
            work.supply(maps, lane);
            cluster_wait();
        } else {
            await_previous();
            for (unsigned index = blockIdx.x / PARTIALS; index < f.shares; index += gridDim.x / PARTIALS) {
                float sums[N / 2] = {};
                work.compute(sums, warp / 4, lane);
                if (work.turns == 0) {
                    /* The barriers of all blocks are there. */
                    cluster_wait();
                }
                const bool is_last = index + gridDim.x / PARTIALS >= f.shares;
                work.finish(share_of<T>(a, f.share, index), sums, warp / 4, warp, lane, is_last);
            }
        }
    }
};

constexpr unsigned GATHER_THREADS = 256;

/* A row of x, rounded, to the block's place in the workspace. */
template <typename T> __device__ __forceinline__ void gather(const djinn_expert_linear_args &a, unsigned row) {
    const unsigned k = a.linear.k;
    const float4 *x = reinterpret_cast<const float4 *>(a.linear.x + size_t(row) * k);
    uint2 *to = reinterpret_cast<uint2 *>(static_cast<T *>(a.workspace) + size_t(blockIdx.x) * k);
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < k / 4; i += GATHER_THREADS) {
        to[i] = {pack<T>(x[i].x, x[i].y), pack<T>(x[i].z, x[i].w)};
    }
}

} // namespace djinn

#define DJINN_HOPPER(suffix, T)                                                                              \
    template <unsigned N, unsigned TILES>                                                                    \
    __global__ void __launch_bounds__(128 * TILES + 32, 1)                                                   \
        djinn_linear_hopper_##suffix(const __grid_constant__ djinn_linear_args a,                            \
                                     const __grid_constant__ djinn::Maps maps,                               \
                                     const __grid_constant__ djinn::Frame f) {                               \
        DJINN_ON_HOPPER(djinn::Hopper<T, N, TILES, djinn::InOrder>::run(a, {a}, maps, f));                   \
    }                                                                                                        \
    template <unsigned N, unsigned TILES>                                                                    \
    __global__ void __launch_bounds__(128 * TILES + 32, 1)                                                   \
        djinn_expert_linear_hopper_##suffix(const __grid_constant__ djinn_expert_linear_args a,              \
                                            const __grid_constant__ djinn::Maps maps,                        \
                                            const __grid_constant__ djinn::Frame f) {                        \
        const djinn::Routed rows = djinn::slots_of(a, f.first + blockIdx.y * N, N);                          \
        if (rows.count() > 0) {                                                                              \
            DJINN_ON_HOPPER(djinn::Hopper<T, N, TILES, djinn::Routed>::run(a.linear, rows, maps, f));        \
        }                                                                                                    \
    }                                                                                                        \
    /* Rows of x of the expert's slots from `first` on, one a block, rounded: [gridDim.x, k]. */             \
    __global__ void __launch_bounds__(djinn::GATHER_THREADS)                                                 \
        djinn_gather_##suffix(const __grid_constant__ djinn_expert_linear_args a, unsigned first) {          \
        const djinn::Routed rows = djinn::slots_of(a, first + blockIdx.x, 1);                                \
        if (rows.count() > 0) {                                                                              \
            djinn::gather<T>(a, rows.in(0));                                                                 \
        }                                                                                                    \
    }
DJINN_HOPPER(f16, djinn::f16)
DJINN_HOPPER(bf16, djinn::bf16)

namespace djinn {

template <typename Args> using HopperKernel = void (*)(Args, Maps, Frame);

/* A kernel, the rows of x and tiles of rows of the weight that a block of it takes, and bytes for partial sums. */
template <typename Args> struct HopperChoice {
    HopperKernel<Args> kernel;
    unsigned n, tiles, handed_bytes;
};

template <typename Args, typename T, unsigned N, unsigned TILES> HopperChoice<Args> hopper_choice() {
    constexpr bool HALF = std::is_same_v<T, f16>;
    constexpr unsigned BYTES = sizeof(typename Hopper<T, N, TILES, InOrder>::Sums);
    if constexpr (std::is_same_v<Args, djinn_linear_args>) {
        return {HALF ? djinn_linear_hopper_f16<N, TILES> : djinn_linear_hopper_bf16<N, TILES>, N, TILES, BYTES};
    } else {
        return {HALF ? djinn_expert_linear_hopper_f16<N, TILES> : djinn_expert_linear_hopper_bf16<N, TILES>, N, TILES,
                BYTES};
    }
}

constexpr unsigned MOST_TILES = 4;

template <typename Args, typename T, unsigned N> HopperChoice<Args> choose_tiles(unsigned tiles) {
    switch (tiles) {
    case 1: return hopper_choice<Args, T, N, 1>();
    case 2: return hopper_choice<Args, T, N, 2>();
    case 3: return hopper_choice<Args, T, N, 3>();
    default: return hopper_choice<Args, T, N, MOST_TILES>();
    }
}

template <typename Args, typename T> HopperChoice<Args> choose_of(unsigned n, unsigned tiles) {
    switch (n) {
    case 32: return choose_tiles<Args, T, 32>(tiles);
    case 64: return choose_tiles<Args, T, 64>(tiles);
    default: return choose_tiles<Args, T, 128>(tiles);
    }
}

template <typename Args> HopperChoice<Args> choose_hopper(uint32_t dtype, unsigned n, unsigned tiles) {
    return dtype == DJINN_F16 ? choose_of<Args, f16>(n, tiles) : choose_of<Args, bf16>(n, tiles);
}

/* Rows of x that a kernel exists for. */
unsigned columns_of(unsigned rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : MOST_GROUP; }

/* Lets a kernel use its shared memory. */
template <typename Args> cudaError_t allow(const HopperChoice<Args> &choice) {
    return cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(MOST_SHARED));
}

/* Clusters that the current device runs at once; 0 if it has no code for them. */
unsigned clusters_at_once() {
    /* One more than the number; 0 until it is known. */
    static std::atomic<unsigned> known[MOST_DEVICES];
    const int device = current_device();
    unsigned found = known[device].load();
    if (found == 0) {
        found = 1;
        const auto largest = choose_hopper<djinn_linear_args>(DJINN_F16, 128, 4);
        LaunchConfig launch({PARTIALS}, 128 * largest.tiles + 32, MOST_SHARED, nullptr, PARTIALS);
        int clusters = 0;
        if (all_devices()[device].is_hopper && map_encoder() != nullptr && allow(largest) == cudaSuccess &&
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

/* Rows of the weight for each share: for the fewest waves of products of 64 rows, with what a wave costs besides. */
unsigned choose_share(unsigned rows, unsigned at_once) {
    unsigned best = 0, best_cost = 0;
    for (unsigned tiles = 1; tiles <= MOST_TILES; ++tiles) {
        const unsigned waves = ceil_div(rows, at_once * tiles * TILE_ROWS);
        const unsigned share = ceil_div(rows, at_once * waves);
        const unsigned cost = waves * (5 * ceil_div(share, TILE_ROWS) + 2);
        if (best == 0 || cost < best_cost) {
            best = share, best_cost = cost;
        }
    }
    return best;
}

bool serves_hopper(uint32_t k, uint32_t weight_dtype) {
    return k % RUN == 0 && (weight_dtype == DJINN_F16 || weight_dtype == DJINN_BF16) && clusters_at_once() > 0;
}

/* Rows of x that a launch multiplies, `n` at once, and the expert's slot that they begin with. */
struct Batch {
    const void *rounded;
    unsigned rows, n, first;
};

template <typename Args>
int launch_hopper(const Args &args, const djinn_linear_args &a, const Batch &batch, void *stream) {
    const unsigned n = batch.n, share = choose_share(a.n, clusters_at_once());
    const auto chosen = choose_hopper<Args>(a.weight_dtype, n, ceil_div(share, TILE_ROWS));
    const unsigned bytes = stage_bytes(share, n), room = MOST_SHARED - BLOCK_ALIGN - chosen.handed_bytes;
    /* Products read whole tiles, also of the last stage. */
    const unsigned past = chosen.tiles * TILE_ROWS * BLOCK_ROW - (bytes - n * BLOCK_ROW);
    const unsigned past_x = past > n * BLOCK_ROW ? past - n * BLOCK_ROW : 0;
    const unsigned fit = (room - past_x) / bytes;
    const Frame frame{share, shares_of(a, share), fit < MOST_STAGES ? fit : MOST_STAGES, batch.first};
    Maps maps;
    const unsigned tiles = ceil_div(a.n, a.tile_rows);
    bool encoded = encode_map(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, n);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : a.n - tile * a.tile_rows;
        encoded = encoded && encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, share);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code = allow(chosen);
    if (code != cudaSuccess) {
        return code;
    }
    const unsigned clusters = frame.shares < clusters_at_once() ? frame.shares : clusters_at_once();
    const dim3 grid(clusters * PARTIALS, ceil_div(batch.rows, n));
    const unsigned threads = 128 * chosen.tiles + 32;
    return launch_clusters(PARTIALS, chosen.kernel, grid, threads, MOST_SHARED, stream, args, maps, frame);
}

int linear_hopper(const djinn_linear_args &a, void *stream) {
    return launch_hopper(a, a, {a.rounded, a.rows, columns_of(a.rows), 0}, stream);
}

int expert_linear_hopper(const djinn_expert_linear_args &a, void *stream) {
    constexpr unsigned MOST_GROUPS = 65535;
    const djinn_linear_args &linear = a.linear;
    const unsigned slots = linear.rows, n = slots <= MOST_GROUP ? columns_of(slots) : MOST_GROUP;
    const uint64_t groups = a.workspace_bytes / (uint64_t(linear.k) * 2 * n);
    const unsigned step = unsigned(groups < MOST_GROUPS ? groups : MOST_GROUPS) * n;
    for (unsigned first = 0; first < slots; first += step) {
        const unsigned rows = slots - first < step ? slots - first : step;
        const auto gather = linear.weight_dtype == DJINN_F16 ? djinn_gather_f16 : djinn_gather_bf16;
        int code = launch(gather, rows, GATHER_THREADS, 0, stream, a, first);
        if (code == cudaSuccess) {
            code = launch_hopper(a, linear, {a.workspace, rows, n, first}, stream);
        }
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

} // namespace djinn

extern "C" uint32_t djinn_linear_rows(void) {
    return djinn::clusters_at_once() > 0 ? uint32_t(DJINN_LINEAR_ROWS) : djinn::MOST_ROWS;
}
