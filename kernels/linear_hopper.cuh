/*
 * What linear_hopper.cu (plain weights) and linear_tiles.cuh (encoded ones) share, for up to 128 rows on Hopper; and the
 * kernel of the former.
 */
#ifndef DJINN_LINEAR_HOPPER_CUH
#define DJINN_LINEAR_HOPPER_CUH

#include "linear_maps.cuh"

#include <type_traits>

namespace djinn {

/* Rows of the weight that a warpgroup multiplies at once. */
constexpr unsigned TILE_ROWS = 64;

/* The most stages of a ring. */
constexpr unsigned MOST_STAGES = 16;

/*
 * The least. No second block of a product fits beside one, so that the next launch's blocks spread. If stages need no more,
 * two blocks of small kernels fit: they are set up beside the block, and begin when it ends.
 */
constexpr unsigned LEAST_SHARED = 224 * 1024;

/* Tensor maps of the weight's tiles, if TMA copies them, and of x. */
struct Maps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;

    __device__ __forceinline__ const CUtensorMap &of(unsigned tile) const { return weights[tile]; }
};

/* The weight's rows of a share, the shares of a weight, stages of a block's ring, and the gathered slots. */
struct Frame {
    uint32_t share, shares, stages;
    SlotRange range;
};

constexpr unsigned MOST_TILES = 4;

/* The most bytes of the weight in flight in a block while its ring is first filled. */
constexpr unsigned WINDOW = 96 * 1024;

/*
 * Plain weights. A stage has whole groups of 8 rows, which WGMMA reads. In a gated product, the arguments' n and tiles are
 * those of gate alone; up's tiles follow. A share has rows of gate and, from the middle of the warpgroups' rows on, the same
 * rows of up.
 */
template <typename T, bool GATES = false> struct PlainWeight {
    using Type = T;
    static constexpr bool GATED = GATES;
    static constexpr unsigned UP = MOST_TILES / 2 * TILE_ROWS * BLOCK_ROW;

    static __host__ __device__ __forceinline__ size_t row_bytes(const djinn_linear_args &a) { return sizeof(T) * a.k; }

    static __host__ __device__ __forceinline__ unsigned bytes(unsigned share) {
        return (GATED ? UP : 0) + (share + 7) / 8 * 8 * BLOCK_ROW;
    }

    /* Bytes past the last stage that products read, since they read whole tiles of rows. */
    static unsigned past(unsigned share, unsigned tiles, unsigned n) {
        const unsigned read = tiles * TILE_ROWS * BLOCK_ROW, there = bytes(share) + n * BLOCK_ROW;
        return read > there ? read - there : 0;
    }

    /* Describes the rows of a tile to TMA, in boxes of `share` rows. */
    static bool encode(Maps &maps, const djinn_linear_args &a, unsigned tile, unsigned rows, unsigned share) {
        return encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, share);
    }

    /*
     * Copies a run of a share to a stage. If GATED, the second matrix follows the first's `tiles`. Most launches read a weight
     * once, so L2 evicts it before activations, which the next launches read.
     */
    static __device__ __forceinline__ void copy(char *stage, const Maps &maps, unsigned tiles, const Share &share,
                                                unsigned rows, unsigned run, Barrier &ready) {
        ready.arrive_expecting((GATED ? 2 : 1) * rows * BLOCK_ROW);
        copy_box(stage, maps.of(share.tile), run * RUN, share.row, ready, leaves_first());
        if constexpr (GATED) {
            copy_box(stage + UP, maps.of(share.tile + tiles), run * RUN, share.row, ready, leaves_first());
        }
    }

    /* The same for an expert's share. */
    static __device__ __forceinline__ void copy(char *stage, const TileMaps &maps, unsigned, const Share &share, unsigned rows,
                                                unsigned run, Barrier &ready) {
        static_assert(!GATED);
        ready.arrive_expecting(rows * BLOCK_ROW);
        copy_box_to(shared_address(stage), maps.of(share.tile), run * RUN, share.row, maps.place[share.tile],
                    shared_address(&ready), leaves_first());
    }
};

/* Tensor maps of a launch with such arguments. */
template <typename Args> using MapsOf = std::conditional_t<std::is_same_v<Args, djinn_linear_args>, Maps, TileMaps>;

/* All shares of a weight, times all rows of x. */
struct AllRows {
    static constexpr bool ROUTED = false;
};

/* Of a block of a cluster that adds partial sums: those of a ring of stages, and of handing over the sums. */
struct SummingBarriers {
    Barrier ready[MOST_STAGES], x_ready[MOST_STAGES], free[MOST_STAGES];
    /* `summed`: all that this block adds is there. `added`: all blocks have added what this one handed them. */
    Barrier summed, added;

    /* Initialises them for a cluster of `blocks`, each with `computing` warps that compute. All call it, then `cluster_wait`. */
    __device__ __forceinline__ void init(unsigned stages, unsigned computing, unsigned blocks) {
        init_barriers(stages + 1, [&](unsigned i) {
            if (i < stages) {
                ready[i].init_by_warp(1);
                x_ready[i].init_by_warp(1);
                free[i].init_by_warp(computing);
            } else {
                summed.init_by_warp(1);
                added.init_by_warp(blocks * computing);
            }
        });
        __syncthreads();
        cluster_arrive_relaxed();
    }
};

/* N rows of x times 64 TILES rows of the weight. `Parts`: AllRows, or RoutedParts. */
template <typename Weight, unsigned N, unsigned TILES, typename Parts> struct Hopper {
    using T = typename Weight::Type;
    static constexpr unsigned COMPUTING = 128 * TILES;
    static constexpr unsigned X_BYTES = N * BLOCK_ROW;

    /* Groups of 8 rows of x whose partial sums are handed over at once, in up to 64 KiB. */
    static constexpr unsigned GROUPS = N / 8 * TILES <= 32 ? N / 8 : 8;

    using Barriers = SummingBarriers;
    /* The partial sums that a block adds: for each part, warpgroup and 8 rows of x, those of a warp's lanes. */
    struct Sums {
        float4 at[PARTIALS][TILES][GROUPS][32];
    };

    const djinn_linear_args &a;
    const Parts &parts;
    const Frame &f;
    Barriers &barriers;
    Sums &handed;
    /* Stages. */
    char *ring;
    unsigned partial, runs;
    /* The place in the ring, and how often sums were handed over. */
    unsigned slot = 0, parity = 0, turns = 0;

    static __host__ __device__ __forceinline__ unsigned stage_bytes(unsigned share) { return Weight::bytes(share) + X_BYTES; }

    __device__ __forceinline__ void advance() {
        if (++slot == f.stages) {
            slot = 0, parity ^= 1;
        }
    }

    __device__ __forceinline__ unsigned all() const {
        if constexpr (Parts::ROUTED) {
            return parts.parts;
        } else {
            return f.shares;
        }
    }

    __device__ __forceinline__ Part part_at(unsigned index) const {
        if constexpr (Parts::ROUTED) {
            return parts.at(a, f.share, Weight::row_bytes(a), N, index);
        } else {
            return {share_of(a, a.weights, f.share, index, Weight::row_bytes(a)), 0, a.rows, nullptr};
        }
    }

    /*
     * Calls `work(part, run, copied)` for all runs of all parts, once the stage at `slot` is free; `copied` came before.
     */
    template <typename Work> __device__ __forceinline__ void each_run(const Work &work) {
        unsigned copied = 0;
        for (unsigned index = blockIdx.x / PARTIALS; index < all(); index += gridDim.x / PARTIALS) {
            const Part of = part_at(index);
            for (unsigned i = 0; i < runs; ++i, ++copied) {
                if (copied >= f.stages) {
                    barriers.free[slot].wait(parity ^ 1);
                }
                work(of, partial + i * PARTIALS, copied);
                advance();
            }
        }
    }

    /*
     * Copies the weight, by one warp. While the ring is first filled, few stages are in flight: loads of the kernel before,
     * or of later ones that this block waits for, would queue behind them.
     */
    template <typename Maps> __device__ __forceinline__ void supply(const Maps &maps, unsigned lane) {
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        if (lane == 0) {
            const unsigned bytes = stage_bytes(f.share), window = max(1u, WINDOW / Weight::bytes(f.share));
            const unsigned tiles = Weight::GATED ? a.n / a.tile_rows : 0;
            each_run([&](const Part &of, unsigned run, unsigned copied) {
                if (copied >= window && copied < f.stages) {
                    barriers.ready[copied - window].wait(0);
                }
                Weight::copy(ring + slot * bytes, maps, tiles, of.share, f.share, run, barriers.ready[slot]);
            });
        }
        __syncwarp();
        await_previous();
    }

    /* Copies x, by one warp. */
    template <typename Maps> __device__ __forceinline__ void supply_x(const Maps &maps, unsigned lane) {
        await_previous();
        if (lane == 0) {
            const unsigned bytes = stage_bytes(f.share);
            admit_bulk_copies();
            each_run([&](const Part &of, unsigned run, unsigned) {
                barriers.x_ready[slot].arrive_expecting(X_BYTES);
                copy_box(ring + (slot + 1) * bytes - X_BYTES, maps.x, run * RUN, of.first, barriers.x_ready[slot]);
            });
        }
        __syncwarp();
    }

    __device__ __forceinline__ void compute(float (&sums)[N / 2], unsigned group, unsigned lane) {
        const unsigned bytes = stage_bytes(f.share);
        unsigned last = 0;
        for (unsigned i = 0; i < runs; ++i) {
            const char *stage = ring + slot * bytes;
            const uint64_t x = describe(stage + bytes - X_BYTES);
            barriers.ready[slot].wait(parity);
            barriers.x_ready[slot].wait(parity);
            begin_products();
#pragma unroll
            for (unsigned step = 0; step < RUN / 16; ++step) {
                multiply_block<T, N>(sums, describe(stage + group * TILE_ROWS * BLOCK_ROW) + 2 * step, x + 2 * step);
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
     * Hands a warp's partial sums to the blocks that add them, adds those that this block adds, and stores. Before a block
     * hands over the next sums, or ends, it sees all that others do to its shared memory. After the last sums (`is_last`),
     * no block says or waits to hear that they were added. Groups past the rows are left out.
     */
    __device__ __forceinline__ void finish(const Part &of, const float (&sums)[N / 2], unsigned group, unsigned warp,
                                           unsigned lane, bool is_last) {
        const unsigned to = warp % 4, barrier = address_at(shared_address(&barriers.summed), to);
        const unsigned address = address_at(shared_address(&handed.at[partial][group][0][lane]), to);
        /* With the most rows no register is left for a count. */
        const unsigned groups = N < MOST_GROUP ? min((of.count + 7) / 8, N / 8) : N / 8;
#pragma unroll
        for (unsigned first = 0; first < N / 8; first += GROUPS) {
            if (first >= groups) {
                break;
            }
            const unsigned used = min(groups - first, GROUPS);
            if (threadIdx.x == 0) {
                barriers.summed.arrive_expecting(used * (sizeof(Sums) / GROUPS));
            }
            if (turns > 0) {
                barriers.added.wait((turns - 1) & 1);
            }
#pragma unroll
            for (unsigned g = 0; g < GROUPS; ++g) {
                if (g < used) {
                    store_to_cluster(address + g * sizeof(handed.at[0][0][0]), sums + 4 * (first + g), barrier);
                }
            }
            barriers.summed.wait(turns & 1);
            add(of, first, used, warp, lane);
            __syncwarp();
            if (lane < PARTIALS && !(is_last && first + used == groups)) {
                barriers.added.arrive_at(lane);
            }
            ++turns;
        }
    }

    /* Adds the partial sums of `used` groups from `first` on, in order, and stores. */
    __device__ __forceinline__ void add(const Part &of, unsigned first, unsigned used, unsigned warp, unsigned lane) {
        constexpr unsigned GIVEN = Weight::GATED ? TILES / 2 : TILES;
        for (unsigned at = warp; at < GIVEN * used; at += COMPUTING / 32) {
            const unsigned group = at / used, g = at % used;
            float4 total = total_of(group, g, lane);
            if constexpr (Weight::GATED) {
                float gates[4] = {total.x, total.y, total.z, total.w};
                silu(gates);
                const float4 up = total_of(group + GIVEN, g, lane);
                total = {gates[0] * up.x, gates[1] * up.y, gates[2] * up.z, gates[3] * up.w};
            }
            const unsigned row = group * TILE_ROWS + partial * 16 + lane / 4, column = (first + g) * 8 + lane % 4 * 2;
            store(of, row, column, total.x, total.y);
            store(of, row + 8, column, total.z, total.w);
        }
    }

    __device__ __forceinline__ float4 total_of(unsigned group, unsigned g, unsigned lane) const {
        float4 total = handed.at[0][group][g][lane];
#pragma unroll
        for (unsigned other = 1; other < PARTIALS; ++other) {
            const float4 more = handed.at[other][group][g][lane];
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
        return total;
    }

    /* Stores a row's results for two successive rows of x. */
    __device__ __forceinline__ void store(const Part &of, unsigned row, unsigned x_row, float even, float odd) {
        if (row >= of.share.rows || x_row >= of.count) {
            return;
        }
        const unsigned j = of.share.first + row;
        const bool two = x_row + 1 < of.count;
        if constexpr (Weight::GATED) {
            const size_t at = size_t(x_row) * a.n + j;
            T *const rounded = static_cast<T *>(a.gated_rounded);
            rounded[at] = narrow<T>(even);
            if (two) {
                rounded[at + a.n] = narrow<T>(odd);
            }
            if (a.gated != nullptr) {
                a.gated[at] = even;
                if (two) {
                    a.gated[at + a.n] = odd;
                }
            }
        } else {
            const float bias = bias_of(a, j);
            float *out = a.out + a.out_column + j;
            const auto row_of = [&](unsigned i) { return size_t(Parts::ROUTED ? of.slots[i] : i) * a.out_width; };
            out[row_of(x_row)] = even + bias;
            if (two) {
                out[row_of(x_row + 1)] = odd + bias;
            }
        }
    }

    template <typename Maps>
    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Parts &parts, const Maps &maps,
                                               const Frame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, partial = cluster_rank();
        char *handed = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *ring = handed + sizeof(Sums);
        Hopper work{a, parts, f, barriers, *reinterpret_cast<Sums *>(handed), ring, partial, runs_of(a, partial)};
        release_next();
        const auto init = [&] { barriers.init(f.stages, COMPUTING / 32, PARTIALS); };
        if (warp == COMPUTING / 32) {
            if (lane == 0) {
                prefetch_map(maps.of(work.part_at(blockIdx.x / PARTIALS).share.tile));
            }
            __syncwarp();
            init();
            work.supply(maps, lane);
            cluster_wait();
        } else if (warp > COMPUTING / 32) {
            if (lane == 0) {
                prefetch_map(maps.x);
            }
            __syncwarp();
            init();
            work.supply_x(maps, lane);
            cluster_wait();
        } else {
            init();
            await_previous();
            for (unsigned index = blockIdx.x / PARTIALS; index < work.all(); index += gridDim.x / PARTIALS) {
                float sums[N / 2] = {};
                work.compute(sums, warp / 4, lane);
                if (work.turns == 0) {
                    /* All blocks' barriers are initialised from here on. */
                    cluster_wait();
                }
                const bool is_last = index + gridDim.x / PARTIALS >= work.all();
                work.finish(work.part_at(index), sums, warp / 4, warp, lane, is_last);
            }
        }
    }
};

/* A kernel, and the tiles of weight rows that its blocks take. */
template <typename Weight, typename Args> struct HopperChoice {
    void (*kernel)(Args, MapsOf<Args>, Frame);
    unsigned tiles, handed_bytes;
};

/* Rows of x for which every kind of kernel exists. */
constexpr unsigned columns_of(unsigned rows) { return rows <= 32 ? 32 : rows <= 64 ? 64 : MOST_GROUP; }

/* Those for which plain weights have a kernel. Few rows are few columns of WGMMA, and leave room for stages. */
constexpr unsigned plain_columns(unsigned rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : columns_of(rows); }

/*
 * The weight's rows of a share, for the fewest waves of products of 64 rows, overhead of a wave included. Shares end with
 * their tile, so waves are counted by shares.
 */
inline unsigned choose_share(const djinn_linear_args &a, unsigned at_once, unsigned most_tiles) {
    unsigned best = 0, best_cost = 0;
    for (unsigned tiles = 1; tiles <= most_tiles; ++tiles) {
        const Division division = divide(a, at_once, tiles * TILE_ROWS);
        const unsigned cost = ceil_div(division.blocks, at_once) * (5 * ceil_div(division.share, TILE_ROWS) + 2);
        if (best == 0 || cost < best_cost) {
            best = division.share, best_cost = cost;
        }
    }
    return best;
}

/*
 * The same for shares of several weights. They follow one another in a block, which copies one while another ends, so a share
 * takes little beside its rows: by an estimate, the time of some rows.
 */
inline unsigned choose_routed_share(const djinn_linear_args &a, unsigned weights, unsigned at_once, unsigned most_rows) {
    constexpr unsigned BESIDE = 24;
    unsigned best = 0;
    uint64_t best_cost = 0;
    const unsigned least = ceil_div(a.tile_rows, most_rows);
    for (unsigned each = least; each < 2 * least + 8; ++each) {
        const unsigned share = ceil_div(a.tile_rows, each);
        const uint64_t cost = ceil_div(uint64_t(shares_of(a, share)) * weights, at_once) * uint64_t(share + BESIDE);
        if (best == 0 || cost < best_cost) {
            best = share, best_cost = cost;
        }
    }
    return best;
}

/*
 * Rounded rows of x of a launch, of which a block takes up to `n`: in order, if there are no experts; or gathered, those of
 * the experts' slots from position `first` on.
 */
struct Batch {
    const void *rounded;
    unsigned rows, n, experts = 0, first = 0;

    SlotRange range() const { return {first, first + rows}; }
    unsigned weights() const { return experts == 0 ? 1 : experts; }
    unsigned portions(unsigned most) const { return experts == 0 ? 1 : portions_of(experts, rows, most); }
};

template <typename Weight, typename Args>
int launch_hopper(const HopperChoice<Weight, Args> &chosen, const Args &args, const djinn_linear_args &a,
                  const Batch &batch, unsigned share, void *stream) {
    const unsigned n = batch.n, bytes = Weight::bytes(share) + n * BLOCK_ROW;
    constexpr bool ARE_EXPERTS = std::is_same_v<Args, djinn_expert_linear_args>;
    const unsigned lists = ARE_EXPERTS ? PARTS_SHARED : 0;
    const unsigned beside = lists + BLOCK_ALIGN + chosen.handed_bytes + Weight::past(share, chosen.tiles, n);
    const unsigned fit = (MOST_SHARED - beside) / bytes;
    const Frame frame{share, shares_of(a, share), fit < MOST_STAGES ? fit : MOST_STAGES, batch.range()};
    const unsigned used = beside - lists + frame.stages * bytes, shared = used < LEAST_SHARED ? LEAST_SHARED : used;
    MapsOf<Args> maps;
    bool encoded = encode_map(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, n);
    if constexpr (ARE_EXPERTS) {
        encoded = encoded && encode_experts(maps, args, share);
    } else {
        const auto encode = [&](unsigned tile, unsigned rows) { return Weight::encode(maps, a, tile, rows, share); };
        encoded = encoded && encode_tiles(a, Weight::GATED ? 2 : 1, encode);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code = allow_shared(chosen.kernel, MOST_SHARED - lists);
    if (code != cudaSuccess) {
        return code;
    }
    const uint64_t parts = uint64_t(frame.shares) * batch.portions(n);
    const dim3 grid((parts < clusters_at_once() ? unsigned(parts) : clusters_at_once()) * PARTIALS);
    const unsigned threads = 128 * chosen.tiles + 64;
    return launch_clusters(PARTIALS, chosen.kernel, grid, threads, shared, stream, args, maps, frame);
}

/* Gathers the rows of x of the experts' slots in `range`, rounded, in the workspace: [end - first, k]. */
int gather_slots(const djinn_expert_linear_args &args, SlotRange range, void *stream);

/* Slots for which a portion has room: twice as many as an expert has on average, up to `most`. */
inline unsigned portion_slots(const djinn_expert_linear_args &args, unsigned most) {
    const unsigned wanted = plain_columns(ceil_div(2 * uint64_t(args.linear.rows), args.experts));
    return wanted < most ? wanted : most;
}

/*
 * Gathers the slots in the workspace, as many as fit, and calls `launch(some, batch)` for all experts `together`, or some at a
 * time, of each batch, in portions of up to `n` slots.
 */
template <typename Launch>
int by_batches(const djinn_expert_linear_args &args, unsigned n, bool together, void *stream, const Launch &launch) {
    /* A grid has up to 65,535 portions, and a portion has room for 8 slots or more. */
    constexpr unsigned MOST_SLOTS = 1 << 18;
    const unsigned slots = args.linear.rows;
    const uint64_t fit = args.workspace_bytes / (uint64_t(args.linear.k) * 2);
    const unsigned step = fit < MOST_SLOTS ? unsigned(fit) : MOST_SLOTS;
    for (unsigned first = 0; first < slots; first += step) {
        const unsigned rows = slots - first < step ? slots - first : step;
        int code = gather_slots(args, {first, first + rows}, stream);
        if (code == cudaSuccess) {
            const auto run = [&](const djinn_expert_linear_args &some) {
                return launch(some, Batch{args.workspace, rows, n, some.chosen, first});
            };
            code = together ? run(args) : by_experts(args, run);
        }
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

} // namespace djinn

#endif
