/*
 * linear and expert_linear on Hopper (sm_90a) over encoded weights, for up to 128 rows of x at once. The bits are those of
 * the product over decoded rows.
 *
 * A block has up to 64 rows of the weight, and a warpgroup for each partial sum. Rows are copied as they are stored, one
 * segment of each to a stage. If the format has scales to prepare, two warps prepare a stage's. A warp decodes its part of
 * every segment for its 16 rows, into the registers that feed WGMMA.
 *
 * Launch: one block on each multiprocessor; blocks take equal shares of the weight's rows, in turn. One producer warp copies
 * the weight, from before the previous kernel is done. Another copies x by multicast: each block of a cluster copies other
 * parts of a segment to all blocks. At the end of a share the partial sums are added in order.
 */
#ifndef DJINN_LINEAR_TILES_CUH
#define DJINN_LINEAR_TILES_CUH

#include "encoded.cuh"
#include "linear_hopper.cuh"

#include <cstddef>

namespace djinn {

/* The rows of x and of out: one after another, or those of an expert's slots, as `Routed` has them. */
struct SomeRows {
    static constexpr bool ROUTED = false;
    unsigned rows;
    const uint32_t *slots;
    unsigned slots_per_row, tile, first;
    const void *const *tiles;

    __device__ __forceinline__ SomeRows(const djinn_linear_args &a)
        : rows(a.rows), slots(nullptr), slots_per_row(1), tile(0), first(0), tiles(a.weights) {}
    __device__ __forceinline__ SomeRows(const Routed &of)
        : rows(of.slot_count), slots(of.slots), slots_per_row(of.slots_per_row), tile(of.tile), first(of.first),
          tiles(of.tiles) {}

    __device__ __forceinline__ const void *const *weights() const { return tiles; }
    __device__ __forceinline__ unsigned count() const { return rows; }
    __device__ __forceinline__ unsigned in(unsigned i) const { return slots == nullptr ? i : slots[i] / slots_per_row; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return slots == nullptr ? i : slots[i]; }

    /* A share of the weight, with all rows, as RoutedParts has it. */
    __device__ __forceinline__ Part at(const djinn_linear_args &a, unsigned share, size_t row_bytes, unsigned,
                                       unsigned index) const {
        return {share_of(a, tiles, share, index, row_bytes, tile), first, rows, slots};
    }
};

/* The lane's number, read again instead of kept in a register. */
__device__ __forceinline__ unsigned lane_anew() {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* The weight's rows of a share, the number of shares, stages of the weight and of x, and the gathered slots. */
struct TileFrame {
    uint32_t share, shares, stages, x_stages;
    SlotRange range;
};

/* A place in a ring. */
struct Place {
    unsigned slot = 0, parity = 0;
    __device__ __forceinline__ void advance(unsigned size) {
        if (++slot == size) {
            slot = 0, parity ^= 1;
        }
    }
};

/* Keeps registers that WGMMA reads: the compiler gives them no other use before this point. */
__device__ __forceinline__ void hold(const uint2 (&w)[2][RUN / 16]) {
#pragma unroll
    for (unsigned step = 0; step < RUN / 16; ++step) {
        asm volatile("" ::"r"(w[0][step].x), "r"(w[0][step].y), "r"(w[1][step].x), "r"(w[1][step].y));
    }
}

/*
 * Prepares all parts of a segment, and calls `keep(part, prepared)`. The more at once, the less they wait for shared memory,
 * and the more registers they take.
 */
template <typename Prepared, unsigned AT_ONCE, typename Keep>
__device__ __forceinline__ void prepare_parts(const char *segment, const Keep &keep) {
    const auto of_part = Prepared::each(segment);
#pragma unroll 1
    for (unsigned first = 0; first < PARTIALS; first += AT_ONCE) {
        Prepared of[AT_ONCE];
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            of[i] = of_part(first + i);
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            keep(first + i, of[i]);
        }
    }
}

/* N rows of x times up to 64 rows of the weight. */
template <typename Format, unsigned N> struct TileProducts {
    using T = typename Format::Type;
    static constexpr unsigned STEPS = RUN / 16, COMPUTING = 128 * PARTIALS, THREADS = COMPUTING + 128;
    static constexpr unsigned SEGMENT = PARTIALS * RUN, X_BOX = N * BLOCK_ROW, X_STAGE = PARTIALS * X_BOX;
    /* The least and the most stages of x: more where enough bytes of the weight stay in flight. */
    static constexpr unsigned LEAST_X_STAGES = N > 64 ? 2 : N > 32 ? 3 : 4, X_STAGES = N > 64 ? 2 : N > 32 ? 4 : 8;
    static constexpr unsigned LEAST_BYTES = 64 * 1024, LEAST_STAGES = 3;
    /* Blocks of a cluster, to which x is multicast. */
    static constexpr unsigned CLUSTER = N > 64 ? 4 : 2;
    /*
     * Pieces of a stage of x, each with barriers of its own. With one for each part, warpgroups need not wait for one another,
     * so that one decodes while another multiplies. Each block then copies one piece, and is told when it was read.
     */
    static constexpr unsigned X_PIECES = N > 64 ? PARTIALS : 1, PIECE_BOXES = PARTIALS / X_PIECES;
    static constexpr unsigned TOLD = X_PIECES == 1 ? CLUSTER : 1;
    static_assert(X_PIECES == 1 || X_PIECES == CLUSTER);
    /* Whether a run is decoded while the one before is multiplied. With more rows of x there are too few registers. */
    static constexpr bool OVERLAPS = N <= 32;
    /* The last warps prepare scales, each of 32 rows of a stage, a lane one row. */
    static constexpr bool PREPARES = Format::PREPARES;
    static constexpr unsigned PREPARERS = 2, PREPARED_ROWS = TILE_ROWS / PREPARERS;
    /* Registers of each thread that computes, and of each other one. 640 threads begin with 96, and divide these anew. */
    static constexpr unsigned REGISTERS = PREPARES && N <= 64 ? 104 : 112, OF_OTHERS = 480 - 4 * REGISTERS;
    /* Parts that are prepared at once: more take more registers. */
    static constexpr unsigned PREPARED_AT_ONCE = OF_OTHERS >= 64 ? PARTIALS : 1;
    /* Groups of 8 rows of x whose partial sums are handed over at once. */
    static constexpr unsigned GROUPS = N / 8 < PARTIALS ? N / 8 : PARTIALS;

    struct Barriers {
        Barrier ready[MOST_STAGES], prepared[MOST_STAGES], free[MOST_STAGES];
        Barrier x_ready[X_STAGES][X_PIECES], x_free[X_STAGES][X_PIECES];
    };
    /* Of a stage whose weights may be decoded. */
    static constexpr unsigned READY = PREPARES ? offsetof(Barriers, prepared) : offsetof(Barriers, ready);
    static constexpr unsigned FREE = offsetof(Barriers, free);
    static constexpr unsigned X_READY = offsetof(Barriers, x_ready), X_FREE = offsetof(Barriers, x_free);
    /* For each part and 8 rows of x, the sums of a warp's lanes. */
    struct Sums {
        float4 at[PARTIALS][GROUPS][4][32];
    };

    /* Rows of 128 bytes have WGMMA's swizzle, in boxes of whole groups of 8 rows. */
    static constexpr bool SWIZZLED = Format::PITCH == BLOCK_ROW;
    static constexpr unsigned ALIGN = SWIZZLED ? BLOCK_ALIGN : 128, BEYOND = SWIZZLED ? BLOCK_ALIGN : 16 * Format::PITCH;

    static __host__ __device__ __forceinline__ unsigned box_bytes(unsigned share) {
        return (share * Format::PITCH + ALIGN - 1) / ALIGN * ALIGN;
    }
    /* A stage: boxes; 16 prepared bytes for each run of a row; and a flag for each of some rows. */
    static __host__ __device__ __forceinline__ unsigned scales_at(unsigned share) {
        return Format::BOXES * box_bytes(share);
    }
    static __host__ __device__ __forceinline__ unsigned flags_at(unsigned share) {
        return scales_at(share) + PARTIALS * share * 16;
    }
    static __host__ __device__ __forceinline__ unsigned stage_bytes(unsigned share) {
        const unsigned prepared = (flags_at(share) + PREPARERS * 4 + ALIGN - 1) / ALIGN * ALIGN;
        return PREPARES ? prepared : scales_at(share);
    }

    /* Stages of the weight that fit; at least two. Warps also read rows past the share's last, of the last stage as well. */
    static unsigned stages(unsigned share, unsigned x_stages) {
        const unsigned beside = BLOCK_ALIGN + x_stages * X_STAGE + sizeof(Sums) + BEYOND;
        const unsigned fit = (MOST_SHARED - beside) / stage_bytes(share);
        return fit < MOST_STAGES ? fit : MOST_STAGES;
    }

    static unsigned x_stages(unsigned share) {
        const auto leaves_enough = [&](unsigned x) {
            return stages(share, x) >= LEAST_STAGES && stages(share, x) * stage_bytes(share) >= LEAST_BYTES;
        };
        unsigned x = X_STAGES;
        while (x > LEAST_X_STAGES && !leaves_enough(x)) {
            --x;
        }
        return x;
    }

    const djinn_linear_args &a;
    const SomeRows &rows;
    const TileFrame &f;
    Barriers &barriers;
    char *x;
    Sums &handed;
    char *ring;
    unsigned segments;

    __device__ __forceinline__ Share share_at(unsigned index) const {
        return share_of(a, rows.weights(), f.share, index, a.row_bytes, rows.tile);
    }

    /* A warp's rows of the weight. Few rows are spread over all warps, which then have 8 rows, and 8 of zeros. */
    __device__ __forceinline__ unsigned warp_rows() const { return f.share <= 32 ? 8 : 16; }

    /* Copies the weight, by one warp. */
    __device__ __forceinline__ void supply(const Maps &maps, unsigned lane, unsigned shares) const {
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        if (lane == 0) {
            const unsigned box = box_bytes(f.share);
            Place place;
            unsigned copied = 0;
            for (unsigned turn = 0; turn < shares; ++turn) {
                const Share share = share_at(blockIdx.x + turn * gridDim.x);
                for (unsigned segment = 0; segment < segments; ++segment, ++copied) {
                    if (copied >= f.stages) {
                        barriers.free[place.slot].wait(place.parity ^ 1);
                    }
                    Barrier &ready = barriers.ready[place.slot];
                    char *stage = ring + place.slot * stage_bytes(f.share);
                    ready.arrive_expecting(Format::BOXES * f.share * Format::PITCH);
#pragma unroll
                    for (unsigned b = 0; b < Format::BOXES; ++b) {
                        const unsigned at = min(Format::box_at(segment, b, a.k), a.row_bytes - 16);
                        copy_box(stage + b * box, maps.weights[share.tile], at / 2, share.row, ready);
                    }
                    place.advance(f.stages);
                }
            }
        }
        __syncwarp();
    }

    /* Copies x to all blocks of the cluster, by one warp. */
    __device__ __forceinline__ void supply_x(const Maps &maps, unsigned lane, unsigned shares) const {
        if (lane == 0) {
            admit_bulk_copies();
            Place place;
            unsigned copied = 0;
            for (unsigned turn = 0; turn < shares; ++turn) {
                for (unsigned segment = 0; segment < segments; ++segment, ++copied) {
                    const bool reuses = copied >= f.x_stages;
                    for (Barrier &ready : barriers.x_ready[place.slot]) {
                        if (reuses) {
                            ready.wait(place.parity ^ 1);
                        }
                        ready.arrive_expecting(PIECE_BOXES * X_BOX);
                    }
                    for (unsigned box = cluster_rank(); box < PARTIALS; box += CLUSTER) {
                        const unsigned piece = box / PIECE_BOXES;
                        if (reuses) {
                            barriers.x_free[place.slot][piece].wait(place.parity ^ 1);
                        }
                        /* Columns past the last are zeros. */
                        copy_box_to_all(x + place.slot * X_STAGE + box * X_BOX, maps.x, segment * SEGMENT + box * RUN,
                                        rows.first, barriers.x_ready[place.slot][piece], (1u << CLUSTER) - 1);
                    }
                    place.advance(f.x_stages);
                }
            }
        }
        __syncwarp();
    }

    /* Prepares some rows of each stage, by one warp. */
    __device__ __forceinline__ void prepare(unsigned which, unsigned lane, unsigned shares) const {
        const unsigned row = min(which * PREPARED_ROWS + lane, f.share - 1);
        Place place;
        for (unsigned turn = 0; turn < shares; ++turn) {
            for (unsigned segment = 0; segment < segments; ++segment) {
                barriers.ready[place.slot].wait(place.parity);
                char *stage = ring + place.slot * stage_bytes(f.share);
                if (which * PREPARED_ROWS < f.share) {
                    const char *from = stage + row * Format::PITCH + Format::shift(segment);
                    using Prepared = typename Format::Prepared;
                    prepare_parts<Prepared, PREPARED_AT_ONCE>(from, [&](unsigned part, const Prepared &of) {
                        char *to = stage + scales_at(f.share) + (part * f.share + row) * 16;
                        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(&of);
                        if (part == 0 && lane == 0) {
                            *reinterpret_cast<uint32_t *>(stage + flags_at(f.share) + which * 4) = of.is_usual;
                        }
                    });
                }
                __syncwarp();
                if (lane == 0) {
                    barriers.prepared[place.slot].arrive();
                }
                place.advance(f.stages);
            }
        }
    }

    /* Computes all shares of the block: a warpgroup's partial sum. */
    __device__ __forceinline__ void compute(unsigned shares) const {
        /* A shuffle, so that the compiler knows it to be uniform. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), part = warp / 4;
        /* A scheduler has one warp of each part. Their rows differ, so that no scheduler gets all warps with few rows. */
        const unsigned turned = (warp + part) % 4, first = turned * warp_rows();
        const unsigned lane = threadIdx.x % 32, quad = lane % 4, row = first + lane / 4, halves = warp_rows() / 8;
        const unsigned box = pin_shared(box_bytes(f.share)), stage_size = pin_shared(stage_bytes(f.share));
        const unsigned ring_at = pin_shared(shared_address(ring));
        /* The lane's first row, and what was prepared of it. The other one is 8 rows further. */
        const unsigned rows_at = keep(ring_at + row * Format::PITCH);
        const unsigned scales = keep(ring_at + scales_at(f.share) + (part * f.share + row) * 16);
        const unsigned flag = pin_shared(flags_at(f.share) + first / PREPARED_ROWS * 4);
        const unsigned stages = pin_shared(f.stages), x_stages = pin_shared(f.x_stages);
        const unsigned columns = pin_shared(first < f.share ? a.k : 0);
        const unsigned barriers_at = pin_shared(shared_address(&barriers));
        /* Lanes tell the blocks that copy this piece of x that it was read. */
        const unsigned piece = part / PIECE_BOXES;
        const unsigned x_free = keep(address_at(barriers_at + X_FREE + piece * 8, (part + lane) % CLUSTER));
        const unsigned x_ready = barriers_at + X_READY + piece * 8;
        const unsigned x_at = pin_shared(shared_address(x) + part * X_BOX);
        unsigned slot = 0, parity = 0, x_slot = 0, x_parity = 0;
        Share share = share_at(blockIdx.x);
        typename Format::Rows of;
        const auto expect = [&] {
            const auto row_at = [&](unsigned row) {
                return static_cast<const char *>(share.weight) + size_t(min(row, share.rows - 1)) * a.row_bytes;
            };
            const unsigned weight_row = first + lane_anew() / 4;
            of.expect(a, row_at(weight_row), row_at(weight_row + 8), quad);
        };
        expect();
        for (unsigned turn = 0; turn < shares; ++turn) {
            of.begin(part, quad);
            float sums[N / 2] = {};
            uint2 even[2][STEPS] = {}, odd[2][STEPS] = {};
            /* The barrier of the x that was multiplied last. */
            unsigned read = 0;
            const auto tell = [&] {
                if (read != 0 && lane < TOLD) {
                    Barrier::arrive_other(read);
                }
            };
            const auto run = [&](unsigned segment, uint2 (&w)[2][STEPS], const uint2 (&before)[2][STEPS]) {
                const unsigned column = segment * SEGMENT + part * RUN, at = slot * stage_size;
                Barrier::wait_at(barriers_at + READY + slot * 8, parity);
                const typename Format::Stage records(rows_at + at, box, segment, scales + at, ring_at + at + flag);
                if constexpr (!OVERLAPS) {
                    wait_products<0>();
                    tell();
                }
#pragma unroll
                for (unsigned step = 0; step < STEPS; ++step) {
                    w[0][step] = w[1][step] = {0, 0};
                }
                if (column < columns) {
                    records.decode(of, halves, column, part, quad, w);
                }
                end_shared_reads();
                __syncwarp();
                if (lane == 0) {
                    Barrier::arrive_own(barriers_at + FREE + slot * 8);
                }
                if (++slot == stages) {
                    slot = 0, parity ^= 1;
                }
                Barrier::wait_at(x_ready + x_slot * 8 * X_PIECES, x_parity);
                const uint64_t box_of_x = describe_at(x_at + x_slot * X_STAGE);
                begin_products();
#pragma unroll
                for (unsigned step = 0; step < STEPS; ++step) {
                    const uint32_t values[4] = {w[0][step].x, w[1][step].x, w[0][step].y, w[1][step].y};
                    multiply_rows<T, N>(sums, values, box_of_x + 2 * step);
                }
                commit_products();
                if constexpr (OVERLAPS) {
                    wait_products<1>();
                    hold(before);
                    tell();
                }
                read = x_free + x_slot * 8 * X_PIECES;
                if (++x_slot == x_stages) {
                    x_slot = 0, x_parity ^= 1;
                }
            };
#pragma unroll 1
            for (unsigned segment = 0; segment < segments; segment += OVERLAPS ? 2 : 1) {
                run(segment, even, odd);
                if (OVERLAPS && segment + 1 < segments) {
                    run(segment + 1, odd, even);
                }
            }
            wait_products<0>();
            hold(even);
            hold(odd);
            tell();
            settle(sums);
            const Share done = share;
            if (turn + 1 < shares) {
                share = share_at(blockIdx.x + (turn + 1) * gridDim.x);
                expect();
            }
            finish(done, sums, part, turned, lane_anew(), turn + 1 == shares);
        }
    }

    static __device__ __forceinline__ void meet() { asm volatile("bar.sync 1, %0;" ::"n"(COMPUTING) : "memory"); }

    /* Adds the partial sums in order, and stores. */
    __device__ __forceinline__ void finish(const Share &share, const float (&sums)[N / 2], unsigned part, unsigned warp,
                                           unsigned lane, bool is_last) const {
#pragma unroll
        for (unsigned first = 0; first < N / 8; first += GROUPS) {
#pragma unroll
            for (unsigned g = 0; g < GROUPS; ++g) {
                const float *four = sums + 4 * (first + g);
                handed.at[part][g][warp][lane] = {four[0], four[1], four[2], four[3]};
            }
            meet();
            const unsigned column = (first + part) * 8 + lane % 4 * 2;
            if (part < GROUPS && (first + part) * 8 < rows.count()) {
                float4 total = handed.at[0][part][warp][lane];
#pragma unroll
                for (unsigned other = 1; other < PARTIALS; ++other) {
                    const float4 more = handed.at[other][part][warp][lane];
                    total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
                }
                const unsigned row = warp * warp_rows() + lane / 4;
                store(share, row, column, total.x, total.y);
                if (warp_rows() == 16) {
                    store(share, row + 8, column, total.z, total.w);
                }
            }
            if (!is_last || first + GROUPS < N / 8) {
                meet();
            }
        }
    }

    /* Stores a row's results for two successive rows of x. */
    __device__ __forceinline__ void store(const Share &share, unsigned row, unsigned x_row, float even, float odd) const {
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

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const SomeRows &rows, const Maps &maps,
                                               const TileFrame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        char *x = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *handed = x + f.x_stages * X_STAGE;
        const TileProducts work{a,    rows, f, barriers, x, *reinterpret_cast<Sums *>(handed), handed + sizeof(Sums),
                                (a.k + SEGMENT - 1) / SEGMENT};
        /* All blocks of a cluster take as many shares; those past the last repeat it. */
        const unsigned shares = (f.shares + gridDim.x - 1) / gridDim.x;
        release_next();
        const auto init = [&] {
            init_barriers(f.stages + f.x_stages, [&](unsigned i) {
                if (i < f.stages) {
                    barriers.ready[i].init_by_warp(1);
                    barriers.prepared[i].init_by_warp(PREPARERS);
                    barriers.free[i].init_by_warp(COMPUTING / 32);
                } else {
#pragma unroll
                    for (unsigned piece = 0; piece < X_PIECES; ++piece) {
                        barriers.x_ready[i - f.stages][piece].init_by_warp(1);
                        barriers.x_free[i - f.stages][piece].init_by_warp(CLUSTER * COMPUTING / 32 / X_PIECES);
                    }
                }
            });
            __syncthreads();
            cluster_arrive_relaxed();
        };
        if (warp >= COMPUTING / 32) {
            if (threadIdx.x == COMPUTING) {
                prefetch_map(maps.weights[work.share_at(blockIdx.x).tile]);
                prefetch_map(maps.x);
            }
            __syncwarp();
            init();
            give_registers<OF_OTHERS>();
            if (warp == COMPUTING / 32) {
                work.supply(maps, lane, shares);
            }
            if constexpr (PREPARES) {
                if (warp >= COMPUTING / 32 + 2) {
                    work.prepare(warp - COMPUTING / 32 - 2, lane, shares);
                }
            }
            await_previous();
            cluster_wait();
            if (warp == COMPUTING / 32 + 1) {
                work.supply_x(maps, lane, shares);
            }
        } else {
            init();
            take_registers<REGISTERS>();
            await_previous();
            cluster_wait();
            work.compute(shares);
        }
        /* No copy or arrival of another block is in flight from here on. */
        cluster_sync();
    }
};

template <typename Format, unsigned N>
__global__ void __launch_bounds__(TileProducts<Format, N>::THREADS, 1)
    djinn_linear_tiles(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ Maps maps,
                       const __grid_constant__ TileFrame f) {
    SomeRows rows(a.linear);
    if (a.order != nullptr) {
        rows = slots_of_block(a, blockIdx.y, N, f.range);
    }
    if (rows.count() > 0) {
        DJINN_ON_HOPPER(TileProducts<Format, N>::run(a.linear, rows, maps, f));
    }
}

template <typename Format, unsigned N>
int launch_tiles(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    using Kernel = TileProducts<Format, N>;
    const djinn_linear_args &a = args.linear;
    const unsigned pairs = all_devices()[current_device()].multiprocessors / 2;
    const unsigned at_once = Kernel::CLUSTER == 2 ? 2 * pairs : PARTIALS * clusters_at_once();
    static_assert(Kernel::CLUSTER == 2 || Kernel::CLUSTER == PARTIALS);
    const unsigned clusters = blocks_of_portion(args, at_once / Kernel::CLUSTER, TILE_ROWS * Kernel::CLUSTER);
    const Division division = divide(a, clusters * Kernel::CLUSTER, TILE_ROWS);
    const unsigned x_stages = Kernel::x_stages(division.share);
    const TileFrame frame{division.share, division.blocks, Kernel::stages(division.share, x_stages), x_stages, batch.range()};
    Maps maps;
    const auto encode = [&](unsigned tile, unsigned rows) {
        return encode_bytes(maps.weights[tile], a.weights[tile], rows, a.row_bytes, Format::PITCH, division.share,
                            Kernel::SWIZZLED ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
    };
    if (!encode_map(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, N) || !encode_tiles(a, batch.weights(), encode)) {
        return cudaErrorInvalidValue;
    }
    const auto kernel = djinn_linear_tiles<Format, N>;
    const cudaError_t code = allow_shared(kernel, MOST_SHARED);
    if (code != cudaSuccess) {
        return code;
    }
    const unsigned blocks = ceil_div(division.blocks, Kernel::CLUSTER) * Kernel::CLUSTER;
    const dim3 grid(blocks < at_once ? blocks : at_once, batch.portions(N));
    return launch_clusters(Kernel::CLUSTER, kernel, grid, Kernel::THREADS, MOST_SHARED, stream, args, maps, frame);
}

/* Takes up to `batch.n` rows at once. */
template <typename Format>
int launch_tiles_of(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    switch (batch.n) {
    case 8:
    case 16:
    case 32: return launch_tiles<Format, 32>(args, batch, stream);
    case 64: return launch_tiles<Format, 64>(args, batch, stream);
    default: return launch_tiles<Format, MOST_GROUP>(args, batch, stream);
    }
}

} // namespace djinn

#endif
