/*
 * linear over lossless weights on Hopper (sm_90a), for more than 16 rows of x. The bits are those of the product over
 * decoded rows.
 *
 * The weight's rows are the wide operand of WGMMA, the rows of x the narrow one (N), as in linear_tiles.cuh. A block has up
 * to 64 TILES rows of the weight and two of the four partial sums: a warpgroup for each of these and each 64 rows. So it
 * copies pieces of 128 and 64 bytes of a row, and only half of x, where a block of linear_tiles.cuh copies all of it. A warp
 * decodes to the registers that feed WGMMA, which meanwhile multiplies the run before.
 *
 * Launch: clusters of two blocks, one block on each multiprocessor. Clusters take equal shares of the weight's rows, in
 * turn. One producer warp copies the weight, from before the previous kernel is done; another copies x. At the end of a
 * share each block adds the partial sums of half of the rows, in order.
 */
#ifndef DJINN_LINEAR_LOSSLESS_TILES_CUH
#define DJINN_LINEAR_LOSSLESS_TILES_CUH

#include "linear_lossless.cuh"

namespace djinn {

/* Tensor maps of the weight's tiles, as rows of signs and mantissas and as rows of codes, and of x. */
struct LosslessMaps {
    CUtensorMap kept[DJINN_LINEAR_TILES], codes[DJINN_LINEAR_TILES], x;
};

/* N rows of x times up to 64 TILES rows of the weight, along the lines of `Hopper` in linear_hopper.cuh. */
template <typename T, unsigned N, unsigned TILES> struct LosslessTileProducts {
    using Row = typename Lossless<T>::Ahead;
    using Weights = uint2[2][4];
    static constexpr unsigned CLUSTER = 2, OWN = PARTIALS / CLUSTER, WARPS = 4 * TILES, COMPUTING = 32 * OWN * WARPS;
    static constexpr unsigned THREADS = COMPUTING + 128;
    /* For two runs: bytes of a row's signs and mantissas, of its codes, and of x, a box for each run. */
    static constexpr unsigned KEPT = OWN * RUN, CODES = KEPT / 2, X_BOX = N * BLOCK_ROW, X_BYTES = OWN * X_BOX;
    /* Groups of 8 rows of x whose partial sums are handed over at once, in up to 64 KiB. */
    static constexpr unsigned GROUPS = N < 64 ? N / 8 : 8;
    /* Whether consumer warps need registers of the producers. */
    static constexpr bool TAKES = TILES == 2;

    using Barriers = SummingBarriers;
    /* The partial sums that a block adds: for each part and 8 rows of x, those of the lanes of some warps. */
    struct Sums {
        float4 at[PARTIALS][TILES][GROUPS][OWN][32];
    };

    const djinn_linear_args &a;
    const Frame &f;
    Barriers &barriers;
    Sums &handed;
    char *ring;
    /* The block's rank, and the number of segments. A segment is two runs of each block. */
    unsigned rank, segments;
    /* How often sums were handed over. */
    unsigned turns = 0;

    /* Divides a share's units of 8 rows among the warps of a part: each has as many as the others or one more. */
    struct Units {
        unsigned each, more;
        __device__ __forceinline__ explicit Units(unsigned share)
            : each((share + 7) / 8 / WARPS), more((share + 7) / 8 % WARPS) {}
        __device__ __forceinline__ unsigned first(unsigned warp) const { return warp * each + min(warp, more); }
        __device__ __forceinline__ unsigned count(unsigned warp) const { return each + (warp < more ? 1 : 0); }
    };

    static __host__ __device__ __forceinline__ unsigned kept_bytes(unsigned share) { return (share + 7) / 8 * 8 * KEPT; }
    static __host__ __device__ __forceinline__ unsigned weight_bytes(unsigned share) {
        return (kept_bytes(share) / 2 * 3 + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    }
    /* Bytes of a stage: the weight's, and those of x. */
    static __host__ __device__ __forceinline__ unsigned stage_bytes(unsigned share) { return weight_bytes(share) + X_BYTES; }

    __device__ __forceinline__ Share share_at(unsigned index) const { return share_of(a, a.weights, f.share, index, a.row_bytes); }

    /*
     * Calls `work(share, segment, slot, copied)` for all segments of all shares, once a stage is free; `copied` came before.
     */
    template <typename Work> __device__ __forceinline__ void each_segment(const Work &work) const {
        Place place;
        unsigned copied = 0;
        for (unsigned index = blockIdx.x / CLUSTER; index < f.shares; index += gridDim.x / CLUSTER) {
            const Share share = share_at(index);
            for (unsigned segment = 0; segment < segments; ++segment, ++copied) {
                if (copied >= f.stages) {
                    barriers.free[place.slot].wait(place.parity ^ 1);
                }
                work(share, segment, place.slot, copied);
                place.advance(f.stages);
            }
        }
    }

    /* Copies the weight, by one lane. While the ring is first filled, few stages are in flight, as in linear_hopper.cuh. */
    __device__ __forceinline__ void supply(const LosslessMaps &maps) const {
        const unsigned bytes = stage_bytes(f.share), kept = kept_bytes(f.share), expected = f.share * (KEPT + CODES);
        const unsigned window = max(1u, WINDOW / expected);
        each_segment([&](const Share &share, unsigned segment, unsigned slot, unsigned copied) {
            if (copied >= window && copied < f.stages) {
                barriers.ready[copied - window].wait(0);
            }
            const unsigned column = (segment * PARTIALS + rank * OWN) * RUN;
            Barrier &ready = barriers.ready[slot];
            char *const stage = ring + slot * bytes;
            ready.arrive_expecting(expected);
            /* Past a row's columns, other bytes of the row are read; past its end, zeros. */
            copy_box(stage, maps.kept[share.tile], column / 2, share.row, ready, leaves_first());
            copy_box(stage + kept, maps.codes[share.tile], (a.k + column / 2) / 2, share.row, ready, leaves_first());
        });
    }

    /* Copies x, by one lane. */
    __device__ __forceinline__ void supply_x(const LosslessMaps &maps) const {
        const unsigned bytes = stage_bytes(f.share), to = weight_bytes(f.share);
        admit_bulk_copies();
        each_segment([&](const Share &, unsigned segment, unsigned slot, unsigned) {
            Barrier &ready = barriers.x_ready[slot];
            ready.arrive_expecting(X_BYTES);
            /* Columns past the last are zeros. */
#pragma unroll
            for (unsigned own = 0; own < OWN; ++own) {
                const unsigned column = (segment * PARTIALS + rank * OWN + own) * RUN;
                copy_box(ring + slot * bytes + to + own * X_BOX, maps.x, column, 0, ready);
            }
        });
    }

    /* What the swizzle XORs to the offset of 16 bytes in a row. */
    template <unsigned PITCH> static __device__ __forceinline__ unsigned turn_of(unsigned row) {
        return row * PITCH >> 3 & (PITCH - 16);
    }

    /* Computes a warp's part of all shares. `own` is which of the block's partial sums it has. */
    __device__ __forceinline__ void compute(unsigned own, unsigned warp, unsigned lane) {
        const Units units(f.share);
        const unsigned first = units.first(warp) * 8, row = first + lane / 4, quad = lane % 4, count = units.count(warp);
        const unsigned bytes = pin_shared(stage_bytes(f.share)), ring_at = pin_shared(shared_address(ring));
        const unsigned stages = pin_shared(f.stages);
        /* Where the lane reads for `load_bytes` and `load_codes`, in a stage. */
        const unsigned in = lane % 8, chunk = lane / 8;
        const unsigned kept_at = pin((first + in) * KEPT + (own * RUN + chunk * 16 ^ turn_of<KEPT>(in)));
        const unsigned codes_row = kept_bytes(f.share) + (first + chunk / 2 * 8 + in) * CODES;
        const unsigned codes_at = pin(codes_row + (own * RUN / 2 + chunk % 2 * 16 ^ turn_of<CODES>(in)));
        const unsigned x_at = pin_shared(weight_bytes(f.share) + own * X_BOX), runs = pin_shared(runs_of(a, rank * OWN + own));
        const unsigned ready = pin_shared(shared_address(barriers.ready)), free = pin_shared(shared_address(barriers.free));
        const unsigned x_ready = pin_shared(shared_address(barriers.x_ready));
        unsigned slot = 0, parity = 0, index = blockIdx.x / CLUSTER;
        Share share = share_at(index);
        Row of[2];
        uint4 words[2];
        const auto expect = [&] {
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) {
                const size_t from = size_t(min(row + 8 * i, share.rows - 1)) * a.row_bytes;
                words[i] = of[i].expect(static_cast<const char *>(share.weight) + from, a.k, a.row_bytes, quad);
            }
        };
        expect();
        await_previous();
        for (bool is_last = false; !is_last;) {
            Lossless<T>::template begin_all<2>(of, words, rank * OWN + own, quad);
            float sums[N / 2] = {};
            Weights even = {}, odd = {};
            /* The barrier of the stage that was multiplied last. */
            unsigned read = 0, column = (rank * OWN + own) * RUN;
            const auto tell = [&] {
                if (read != 0 && lane == 0) {
                    Barrier::arrive_own(read);
                }
            };
            const auto advance = [&] {
                read = free + slot * 8;
                if (++slot == stages) {
                    slot = 0, parity ^= 1;
                }
            };
            const auto run = [&](Weights &w, const Weights &before) {
                const unsigned at = ring_at + slot * bytes;
                Barrier::wait_at(ready + slot * 8, parity);
                if (count > 0) {
                    RunOfTwo<T> stored;
                    stored.load(at + kept_at, at + codes_at, KEPT);
                    stored.decode(of, count, column, quad, w);
                }
                column += PARTIALS * RUN;
                Barrier::wait_at(x_ready + slot * 8, parity);
                const uint64_t x = describe_at(at + x_at);
                begin_products();
#pragma unroll
                for (unsigned step = 0; step < RUN / 16; ++step) {
                    const uint32_t values[4] = {w[0][step].x, w[1][step].x, w[0][step].y, w[1][step].y};
                    multiply_rows<T, N>(sums, values, x + 2 * step);
                }
                commit_products();
                wait_products<1>();
                hold(before);
                tell();
                advance();
            };
#pragma unroll 1
            for (unsigned i = 0; i < runs; i += 2) {
                run(even, odd);
                if (i + 1 < runs) {
                    run(odd, even);
                }
            }
            wait_products<0>();
            hold(even);
            hold(odd);
            tell();
            /* The last segment may have no run of this part. */
            if (runs < segments) {
                Barrier::wait_at(ready + slot * 8, parity);
                advance();
                tell();
            }
            settle(sums);
            if (turns == 0) {
                /* Both blocks' barriers are initialised from here on. */
                cluster_wait();
            }
            const Share done = share;
            index += gridDim.x / CLUSTER;
            is_last = index >= f.shares;
            if (!is_last) {
                share = share_at(index);
                expect();
            }
            finish(done, sums, own, warp, lane, is_last);
        }
    }

    /*
     * Hands a warp's partial sums to the blocks that add them, adds those that this block adds, and stores; as `Hopper`
     * does.
     */
    __device__ __forceinline__ void finish(const Share &share, const float (&sums)[N / 2], unsigned own, unsigned warp,
                                           unsigned lane, bool is_last) {
        const unsigned to = warp % 4 / OWN, barrier = address_at(shared_address(&barriers.summed), to);
        const unsigned address = address_at(shared_address(&handed.at[rank * OWN + own][warp / 4][0][warp % OWN][lane]), to);
        const unsigned groups = min((a.rows + 7) / 8, N / 8);
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
            add(share, first, used, lane);
            __syncwarp();
            if (lane < CLUSTER && !(is_last && first + used == groups)) {
                barriers.added.arrive_at(lane);
            }
            ++turns;
        }
    }

    /* Adds the partial sums of `used` groups from `first` on, in order, and stores. */
    __device__ __forceinline__ void add(const Share &share, unsigned first, unsigned used, unsigned lane) const {
        const Units units(f.share);
        for (unsigned at = threadIdx.x / 32; at < TILES * OWN * used; at += COMPUTING / 32) {
            const unsigned slice = at % OWN, tile = at / OWN / used, g = at / OWN % used;
            float4 total = handed.at[0][tile][g][slice][lane];
#pragma unroll
            for (unsigned other = 1; other < PARTIALS; ++other) {
                const float4 more = handed.at[other][tile][g][slice][lane];
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            const unsigned warp = tile * 4 + rank * OWN + slice, count = units.count(warp);
            const unsigned row = units.first(warp) * 8 + lane / 4, x_row = (first + g) * 8 + lane % 4 * 2;
            if (count > 0) {
                store(share, row, x_row, total.x, total.y);
            }
            if (count > 1) {
                store(share, row + 8, x_row, total.z, total.w);
            }
        }
    }

    /* Stores a row's results for two successive rows of x. */
    __device__ __forceinline__ void store(const Share &share, unsigned row, unsigned x_row, float even, float odd) const {
        if (row >= share.rows || x_row >= a.rows) {
            return;
        }
        const unsigned j = share.first + row;
        const float bias = bias_of(a, j);
        float *out = a.out + a.out_column + j;
        out[size_t(x_row) * a.out_width] = even + bias;
        if (x_row + 1 < a.rows) {
            out[size_t(x_row + 1) * a.out_width] = odd + bias;
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const LosslessMaps &maps, const Frame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        /* A shuffle, so that the compiler knows it to be uniform. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
        const unsigned rank = cluster_rank();
        char *const handed = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *const ring = handed + sizeof(Sums);
        LosslessTileProducts work{a, f, barriers, *reinterpret_cast<Sums *>(handed), ring, rank, runs_of(a, rank * OWN)};
        release_next();
        const auto init = [&] { barriers.init(f.stages, COMPUTING / 32, CLUSTER); };
        if (warp < COMPUTING / 32) {
            init();
            if constexpr (TAKES) {
                take_registers<112>();
            }
            if (a.fresh != 0) {
                await_previous();
            }
            /*
             * A scheduler has warps of all parts. Other warps in each part have one unit more, so that no scheduler gets all
             * of these.
             */
            const unsigned own = warp / 4 % OWN, turned = (warp - own * Units(f.share).more) % 4;
            work.compute(own, warp / 4 / OWN * 4 + turned, lane);
        } else {
            if (threadIdx.x == COMPUTING) {
                const unsigned tile = work.share_at(blockIdx.x / CLUSTER).tile;
                prefetch_map(maps.kept[tile]);
                prefetch_map(maps.codes[tile]);
                prefetch_map(maps.x);
            }
            __syncwarp();
            init();
            if constexpr (TAKES) {
                give_registers<32>();
            }
            if (a.fresh != 0) {
                await_previous();
                admit_bulk_copies();
            }
            if (warp == COMPUTING / 32 && lane == 0) {
                work.supply(maps);
            }
            __syncwarp();
            await_previous();
            if (warp == COMPUTING / 32 + 1 && lane == 0) {
                work.supply_x(maps);
            }
            __syncwarp();
            cluster_wait();
        }
    }
};

template <typename T, unsigned N, unsigned TILES>
__global__ void __launch_bounds__(LosslessTileProducts<T, N, TILES>::THREADS, 1)
    djinn_linear_lossless_tiles(const __grid_constant__ djinn_linear_args a, const __grid_constant__ LosslessMaps maps,
                                const __grid_constant__ Frame f) {
    DJINN_ON_HOPPER(LosslessTileProducts<T, N, TILES>::run(a, maps, f));
}

inline unsigned lossless_clusters() { return all_devices()[current_device()].multiprocessors / 2; }

template <typename T, unsigned N, unsigned TILES>
int launch_lossless_tiles(const djinn_linear_args &a, const Division &division, void *stream) {
    using Kernel = LosslessTileProducts<T, N, TILES>;
    const unsigned share = division.share, bytes = Kernel::stage_bytes(share);
    const unsigned beside = BLOCK_ALIGN + sizeof(typename Kernel::Sums), fit = (MOST_SHARED - beside) / bytes;
    const Frame frame{share, division.blocks, fit < MOST_STAGES ? fit : MOST_STAGES, 0};
    const unsigned used = beside + frame.stages * bytes, shared = used < LEAST_SHARED ? LEAST_SHARED : used;
    LosslessMaps maps;
    const unsigned tiles = ceil_div(a.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, N);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : a.n - tile * a.tile_rows;
        const auto encode = [&](CUtensorMap &map, unsigned bytes, CUtensorMapSwizzle swizzle) {
            return encode_bytes(map, a.weights[tile], rows, a.row_bytes, bytes, share, swizzle);
        };
        encoded = encoded && encode(maps.kept[tile], Kernel::KEPT, CU_TENSOR_MAP_SWIZZLE_128B) &&
                  encode(maps.codes[tile], Kernel::CODES, CU_TENSOR_MAP_SWIZZLE_64B);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    const auto kernel = djinn_linear_lossless_tiles<T, N, TILES>;
    const cudaError_t code = allow_shared(kernel, MOST_SHARED);
    if (code != cudaSuccess) {
        return code;
    }
    const unsigned at_once = lossless_clusters(), clusters = division.blocks < at_once ? division.blocks : at_once;
    const dim3 grid(clusters * Kernel::CLUSTER);
    return launch_clusters(Kernel::CLUSTER, kernel, grid, Kernel::THREADS, shared, stream, a, maps, frame);
}

/* The shares of a product of up to 128 rows of x. Past 64, a block has no more rows of the weight than a warpgroup. */
inline Division divide_tiles(const djinn_linear_args &a) {
    return divide(a, lossless_clusters(), (a.rows <= 64 ? 2 : 1) * TILE_ROWS);
}

/*
 * Whether these kernels were faster than linear_tiles.cuh's when both were timed. The latter copy all of x to each block,
 * which is slow if a block has few rows of the weight; these have fewer stages if there are more rows of x.
 */
inline bool serves_tiles(const djinn_linear_args &a, const Division &division) {
    if (a.rows <= 64) {
        return a.rows <= 32 || division.blocks <= 4 * lossless_clusters();
    }
    return division.share >= 56 && division.blocks <= 2 * lossless_clusters();
}

template <typename T, unsigned N> int launch_lossless_tiles(const djinn_linear_args &a, const Division &division, void *stream) {
    if constexpr (N <= 64) {
        if (division.share > TILE_ROWS) {
            return launch_lossless_tiles<T, N, 2>(a, division, stream);
        }
    }
    return launch_lossless_tiles<T, N, 1>(a, division, stream);
}

/* Takes up to 128 rows of x, given rounded, as `divide_tiles` divides them. */
template <typename T> int launch_lossless_tiles(const djinn_linear_args &a, const Division &division, void *stream) {
    switch (columns_of(a.rows)) {
    case 32: return launch_lossless_tiles<T, 32>(a, division, stream);
    case 64: return launch_lossless_tiles<T, 64>(a, division, stream);
    default: return launch_lossless_tiles<T, 128>(a, division, stream);
    }
}

} // namespace djinn

#endif
