/*
 * A tile of linear_wide.cu's products, as a cluster of two blocks computes it: the ring of stages, the sums in the order of
 * linear.cuh, and how they are stored.
 */
#ifndef DJINN_LINEAR_WIDE_CUH
#define DJINN_LINEAR_WIDE_CUH

#include "linear_maps.cuh"

namespace djinn {

/* Blocks of a cluster. */
constexpr unsigned SHARING = 2;

/*
 * Rows of x in a tile, and threads of the warpgroups that multiply them. One more warpgroup copies: only whole ones can give
 * registers to others.
 */
constexpr unsigned WIDE_ROWS = 128, COMPUTING = 256, WIDE_THREADS = COMPUTING + 128;

/* Tensor maps of the weight's tiles, of x, and of what is stored. */
struct WideMaps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x, out;
};

/* The same for experts, whose products TMA does not store. */
struct RoutedMaps : TileMaps {
    CUtensorMap out;
};

/* Parts, which are pairs of tiles: shares of the weight, or pairs of these, by groups of rows of x. `bulk`: TMA stores. */
struct WideFrame {
    static constexpr bool ROUTED = false;
    uint32_t parts, groups_of_rows, bulk;
};

/* Shares of each expert's weight, or pairs of these, and the gathered slots. */
struct RoutedFrame {
    uint32_t outer;
    SlotRange range;
};

/* What TMA stores at once: columns of out in f32, or of a gated tile of `width` columns, and 16 rows. */
constexpr unsigned BULK_COLUMNS = 16, BULK_ROWS = 16;
__host__ __device__ constexpr unsigned bulk_columns(bool gated, unsigned width) { return gated ? width / 2 : BULK_COLUMNS; }

/*
 * Tiles with N rows of the weight, in pairs with the same rows of the weight, or else with the same rows of x. In a gated
 * product, the arguments' n and tiles are those of gate alone; up's tiles follow. ENCODED: shared memory beside the ring for
 * warps that decode the weight, or 0. `Parts`: a frame, or experts' parts, which are pairs of tiles.
 */
template <typename T, unsigned N, bool SAME_WEIGHT, bool GATED, unsigned ENCODED = 0, typename Parts = WideFrame>
struct WideTiles {
    static constexpr bool ROUTED = Parts::ROUTED;
    static_assert(!(ROUTED && GATED));
    static constexpr bool SIDE_BY_SIDE = N <= 96;

    /* Columns of out: the weight's rows of a share. */
    static constexpr unsigned WIDTH = GATED ? N / 2 : N;

    /* Accumulators of a thread whose totals are in shared memory, since registers do not hold more. */
    static constexpr unsigned SPILLED = N > 192 ? N - 192 : 0, KEPT = N / 2 - SPILLED;

    /*
     * In the widest tiles a partial sum's first product sets it, instead of adding to zeros. Other tiles took 1 to 4 %
     * longer so.
     */
    static constexpr bool WIDEST = SPILLED > 0;

    /* Columns of out that a warp stores at once, for its 16 rows. */
    static constexpr unsigned COLUMNS = 32, STAGING = 16 * COLUMNS * sizeof(float);

    static constexpr unsigned X_BYTES = WIDE_ROWS * BLOCK_ROW, STAGE = X_BYTES + N * BLOCK_ROW;
    static constexpr unsigned BESIDE = COMPUTING / 32 * STAGING + COMPUTING * SPILLED * sizeof(float) + ENCODED;
    static constexpr unsigned LISTS = ROUTED && ENCODED == 0 ? PARTS_SHARED : 0;
    static constexpr unsigned STAGES = (MOST_SHARED - LISTS - BLOCK_ALIGN - BESIDE) / STAGE;
    static_assert(N % COLUMNS == 0 && SPILLED % 4 == 0 && STAGING % 1024 == 0);
    static_assert(BULK_ROWS * bulk_columns(GATED, WIDTH) * (GATED ? sizeof(T) : 2 * sizeof(float)) <= STAGING);

    struct Barriers {
        Barrier ready[STAGES], free[STAGES];
    };

    /* A warp's part of a tile whose totals are not stored yet, if there is one: its first column and row of out. */
    struct Unstored {
        unsigned column, row;
        bool there;
    };

    /* Groups of 8 columns of out. */
    static constexpr unsigned GROUPS = WIDTH / 8;

    /* A place in the ring. */
    struct Slot {
        unsigned at = 0, parity = 0;

        __device__ __forceinline__ void advance() {
            if (++at == STAGES) {
                at = 0, parity ^= 1;
            }
        }
    };

    /* Groups of 128 rows of x in a pair. */
    static constexpr unsigned GROUPS_OF_PAIR = SAME_WEIGHT ? SHARING : 1;

    /* A tile of out: its rows of the weight, where those that this block copies are, the first row of x, and where rows end. */
    struct Tile {
        Share share;
        unsigned piece, row_of_piece, row, end;

        __device__ __forceinline__ Tile(const djinn_linear_args &a, const Parts &f, unsigned pair, unsigned rank) {
            if constexpr (ROUTED) {
                const unsigned expert = f.expert_of(pair), begin = f.begins[expert], first = f.rows[expert];
                end = f.ends[expert];
                const unsigned groups = (end - first + GROUPS_OF_PAIR * WIDE_ROWS - 1) / (GROUPS_OF_PAIR * WIDE_ROWS);
                const unsigned outer = (pair - begin) / groups, inner = (pair - begin) % groups;
                const unsigned index = SAME_WEIGHT ? outer : outer * SHARING + rank;
                share = share_of<T>(a, f.weights, WIDTH, index, expert * tiles_of(a));
                piece = share.tile;
                row_of_piece = share.row + (SAME_WEIGHT ? rank * (N / SHARING) : 0);
                row = first + (SAME_WEIGHT ? inner * SHARING + rank : inner) * WIDE_ROWS;
            } else {
                const unsigned outer = pair / f.groups_of_rows, inner = pair % f.groups_of_rows;
                share = share_of<T>(a, a.weights, WIDTH, SAME_WEIGHT ? outer : outer * SHARING + rank);
                const unsigned from = share.first + (GATED && SAME_WEIGHT ? rank * a.n : 0);
                piece = from / a.tile_rows;
                row_of_piece = from - piece * a.tile_rows + (SAME_WEIGHT && !GATED ? rank * (N / SHARING) : 0);
                row = (SAME_WEIGHT ? inner * SHARING + rank : inner) * WIDE_ROWS;
                end = a.rows;
            }
        }
    };

    const djinn_linear_args &a;
    const Parts &f;
    Barriers &barriers;
    char *ring;
    float4 *spilled;
    /* This warp's, in shared memory. */
    float *staging;
    unsigned rank, step;

    /* The first pair of this cluster. It is read again each time: a value kept from the start on takes a register. */
    static __device__ __forceinline__ unsigned first_pair() {
        unsigned block;
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        return block / SHARING;
    }

    /*
     * Copies a run of `ROWS` rows from `row` on: for this block alone, or this block's half of them, for both. `policy`: an
     * L2 policy, or none.
     */
    template <unsigned ROWS, bool SHARED, typename... Policy>
    __device__ __forceinline__ void copy(char *to, const CUtensorMap &map, unsigned run, unsigned row, Barrier &ready,
                                         Policy... policy) {
        if constexpr (SHARED) {
            char *part = to + rank * (ROWS / SHARING) * BLOCK_ROW;
            copy_box_to_all(part, map, run * RUN, row, ready, (1 << SHARING) - 1, policy...);
        } else {
            copy_box(to, map, run * RUN, row, ready, policy...);
        }
    }

    /*
     * Copies all stages, by one thread of each block. Clusters read a run of the weight at about the same time, so L2 may
     * evict it before activations, which the next launches read.
     */
    template <typename Maps> __device__ __forceinline__ void supply(const Maps &maps) {
        const auto weights = [&](const Tile &tile, unsigned at, unsigned run) {
            char *to = ring + at * STAGE + X_BYTES;
            barriers.ready[at].arrive_expecting(STAGE);
            if constexpr (ROUTED) {
                static_assert(!SAME_WEIGHT);
                copy_box_to(shared_address(to), maps.of(tile.piece), run * RUN, tile.row_of_piece, maps.place[tile.piece],
                            shared_address(&barriers.ready[at]), leaves_first());
            } else {
                copy<N, SAME_WEIGHT>(to, maps.weights[tile.piece], run, tile.row_of_piece, barriers.ready[at], leaves_first());
            }
            if constexpr (GATED && !SAME_WEIGHT) {
                const unsigned up = tile.piece + a.n / a.tile_rows;
                copy_box(to + N / 2 * BLOCK_ROW, maps.weights[up], run * RUN, tile.row_of_piece, barriers.ready[at],
                         leaves_first());
            }
        };
        const unsigned ahead = min(a.k / RUN, STAGES), first = first_pair();
        if (ROUTED || a.fresh != 0) {
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
        for (unsigned pair = first; pair < f.parts; pair += step) {
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
        /* Until then other blocks arrive at this block's barriers. */
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

    /* This warp is done with a stage in the rings of all blocks: those that copy to it may do so again. */
    __device__ __forceinline__ void release(unsigned at, unsigned lane) {
        if (lane < SHARING) {
            barriers.free[at].arrive_at(lane);
        }
    }

    /* A warp's progress: the next run's place, and the stage that products read, if it is not released. */
    struct Progress {
        Slot slot;
        unsigned last = STAGES;
        /* The lower halves of the descriptors of x and of weights in the next run's stage. */
        unsigned x, weights;
    };

    /* Computes the descriptors of the next run while products run: what stands between two runs' products delays all. */
    __device__ __forceinline__ void prepare(Progress &at, unsigned group) {
        const uint64_t x = describe(ring + group * 64 * BLOCK_ROW), weights = describe(ring + X_BYTES);
        at.x = unsigned(x) + at.slot.at * (STAGE >> 4), at.weights = unsigned(weights) + at.slot.at * (STAGE >> 4);
        asm volatile("" : "+r"(at.x), "+r"(at.weights));
    }

    /* Starts the products of a run, and releases the stage before once its own are done. `SET`: overwrites the sums. */
    template <bool SET = false>
    __device__ __forceinline__ void multiply(float (&sums)[N / 2], Progress &at, unsigned group, unsigned lane) {
        barriers.ready[at.slot.at].wait(at.slot.parity);
        begin_products();
#pragma unroll
        for (unsigned k = 0; k < RUN / 16; ++k) {
            if constexpr (SET) {
                if (k == 0) {
                    set_block<T, N>(sums, described(at.x), described(at.weights));
                    continue;
                }
            }
            multiply_block<T, N>(sums, described(at.x + 2 * k), described(at.weights + 2 * k));
        }
        commit_products();
        const unsigned before = at.last;
        at.last = at.slot.at;
        at.slot.advance();
        prepare(at, group);
        if (before != STAGES) {
            wait_products<1>();
            release(before, lane);
        }
    }

    __device__ __forceinline__ void finish(Progress &at, unsigned lane) {
        wait_products<0>();
        if (at.last != STAGES) {
            release(at.last, lane);
        }
        at.last = STAGES;
    }

    /*
     * Computes the totals of a tile, in `total` and `spilled`. If these hold totals of the tile before that are not stored
     * yet, they are stored first: a group of columns after each run of the first partial sum, while the tensor cores are
     * busy.
     */
    __device__ __forceinline__ void sum(float (&total)[KEPT], Progress &at, Unstored &before, const CUtensorMap &out,
                                        unsigned group, unsigned lane) {
        const unsigned all = a.k / RUN;
        if constexpr (SIDE_BY_SIDE) {
            float sums[PARTIALS][N / 2] = {};
#pragma unroll 1
            for (unsigned run = 0; run < all; run += PARTIALS) {
#pragma unroll
                for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                    if (run + partial < all) {
                        multiply(sums[partial], at, group, lane);
                    }
                }
            }
            finish(at, lane);
#pragma unroll
            for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                settle(sums[partial]);
#pragma unroll
                for (unsigned i = 0; i < N / 2; ++i) {
                    total[i] = (partial == 0 ? 0 : total[i]) + sums[partial][i];
                }
            }
        } else {
            float sums[N / 2] = {};
#pragma unroll 1
            for (unsigned partial = 0; partial < PARTIALS; ++partial) {
                const unsigned runs = runs_of(a, partial);
                if (runs == 0) {
                    break;
                }
                unsigned taken = 0;
                if constexpr (WIDEST) {
                    multiply<true>(sums, at, group, lane);
                    ++taken;
                } else {
#pragma unroll
                    for (unsigned i = 0; i < N / 2; ++i) {
                        sums[i] = 0;
                    }
                }
                if (GATED && partial == 0 && before.there) {
#pragma unroll
                    for (unsigned columns = 0; columns < GROUPS; ++columns) {
                        if (taken < runs) {
                            multiply(sums, at, group, lane);
                            ++taken;
                        }
                        store_group(out, before, total, columns, lane);
                    }
                }
#pragma unroll 1
                for (; taken < runs; ++taken) {
                    multiply(sums, at, group, lane);
                }
                finish(at, lane);
                settle(sums);
                if (partial == 0) {
#pragma unroll
                    for (unsigned i = 0; i < KEPT; ++i) {
                        total[i] = 0;
                    }
                }
#pragma unroll
                for (unsigned i = 0; i < KEPT; ++i) {
                    total[i] += sums[i];
                }
#pragma unroll
                for (unsigned i = KEPT; i < N / 2; i += 4) {
                    float4 &to = spilled_at(i);
                    const float4 more = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
                    const float4 old = partial == 0 ? float4{} : to;
                    to = {old.x + more.x, old.y + more.y, old.z + more.z, old.w + more.w};
                }
            }
        }
    }

    /* This thread's totals of accumulators from i on, in shared memory. */
    __device__ __forceinline__ float4 &spilled_at(unsigned i) {
        return spilled[(i - KEPT) / 4 * COMPUTING + threadIdx.x];
    }
    __device__ __forceinline__ float4 total_at(const float (&total)[KEPT], unsigned i) {
        return i < KEPT ? float4{total[i], total[i + 1], total[i + 2], total[i + 3]} : spilled_at(i);
    }

    /* A thread's four results in a group. It has the totals of gate and up for the same columns. */
    __device__ __forceinline__ float4 result_at(const float (&total)[KEPT], unsigned group) {
        const float4 four = total_at(total, 4 * group);
        if constexpr (!GATED) {
            return four;
        }
        float gates[4] = {four.x, four.y, four.z, four.w};
        silu(gates);
        const float4 up = total_at(total, N / 4 + 4 * group);
        return {gates[0] * up.x, gates[1] * up.y, gates[2] * up.z, gates[3] * up.w};
    }

    __device__ __forceinline__ void compute(const CUtensorMap &out, unsigned group, unsigned warp, unsigned lane) {
        const unsigned first = first_pair();
        Progress at;
        prepare(at, group);
        Unstored before{};
        float total[KEPT] = {};
        for (unsigned pair = first; pair < f.parts; pair += step) {
            sum(total, at, before, out, group, lane);
            const Tile tile(a, f, pair, rank);
            const unsigned row = tile.row + group * 64 + warp * 16;
            if constexpr (ROUTED) {
                store_routed(tile, total, row, lane);
            } else if (f.bulk == 0 && row < tile.end) {
#pragma unroll
                for (unsigned column = 0; column < WIDTH; column += COLUMNS) {
                    store(tile, total, column, row, lane);
                }
            }
            /* The same for all of a warpgroup, which multiplies together; TMA leaves out rows past the end. A shuffle, so that
             * the compiler knows it. */
            const bool there = f.bulk != 0 && tile.row + group * 64 < tile.end;
            before = {tile.share.first, row, __shfl_sync(0xffffffffu, there, 0) != 0};
            if (!GATED) {
                store_bulk(out, before, total, lane);
            }
        }
        if (GATED) {
            store_bulk(out, before, total, lane);
        }
        wait_read_out<0>();
    }

    /* Has TMA store a warp's part, if there is one: lanes compute no address of out. */
    __device__ __forceinline__ void store_bulk(const CUtensorMap &out, const Unstored &tile, const float (&total)[KEPT],
                                               unsigned lane) {
        if (tile.there) {
#pragma unroll
            for (unsigned group = 0; group < GROUPS; ++group) {
                store_group(out, tile, total, group, lane);
            }
        }
    }

    /* Stages 8 columns of a warp's part, and stores them once a box is whole. Called for all groups in order. */
    __device__ __forceinline__ void store_group(const CUtensorMap &out, const Unstored &tile, const float (&total)[KEPT],
                                                unsigned group, unsigned lane) {
        constexpr unsigned EACH = bulk_columns(GATED, WIDTH), BYTES = GATED ? STAGING : STAGING / 2;
        const unsigned r = lane / 4, quad = lane % 4, box = group / (EACH / 8), g = group % (EACH / 8);
        char *part = reinterpret_cast<char *>(staging) + box * BYTES % STAGING;
        if (g == 0) {
            wait_read_out<STAGING / BYTES - 1>();
            __syncwarp();
        }
        const float4 four = result_at(total, group);
        if constexpr (GATED) {
            char *to = part + r * EACH * sizeof(T) + g * 16 + quad * 4;
            *reinterpret_cast<uint32_t *>(to) = pack<T>(four.x, four.y);
            *reinterpret_cast<uint32_t *>(to + 8 * EACH * sizeof(T)) = pack<T>(four.z, four.w);
        } else {
            /* TMA's 64-byte swizzle: chunks of row r are at places chunk ^ (r / 2 % 4). */
            char *to = part + r * EACH * sizeof(float) + ((2 * g + quad / 2) ^ r / 2) * 16 + quad % 2 * 8;
            *reinterpret_cast<float2 *>(to) = {four.x, four.y};
            *reinterpret_cast<float2 *>(to + 8 * EACH * sizeof(float)) = {four.z, four.w};
        }
        if (g == EACH / 8 - 1) {
            admit_shared_writes();
            __syncwarp();
            if (lane == 0) {
                if (!GATED && a.adds != 0) {
                    add_box_out(out, part, tile.column + box * EACH, tile.row);
                } else {
                    copy_box_out(out, part, tile.column + box * EACH, tile.row);
                }
            }
        }
    }

    /*
     * Stores a warp's part of some columns, from `row` on, through shared memory, in whole lines. Chunks of 4 columns of row
     * r are at places chunk ^ 2 (r % 4), so that neither writing nor reading has bank conflicts.
     */
    __device__ __forceinline__ void store(const Tile &tile, const float (&total)[KEPT], unsigned first_column,
                                          unsigned row, unsigned lane) {
#pragma unroll
        for (unsigned g = 0; g < COLUMNS / 8; ++g) {
            if (first_column + 8 * g >= WIDTH) {
                break;
            }
            const float4 four = result_at(total, first_column / 8 + g);
            float *to = staged(lane / 4, 2 * g + lane % 4 / 2) + lane % 2 * 2;
            *reinterpret_cast<float2 *>(to) = {four.x, four.y};
            *reinterpret_cast<float2 *>(to + 8 * COLUMNS) = {four.z, four.w};
        }
        __syncwarp();
        if constexpr (GATED) {
            store_gated(tile, first_column, row, lane);
        } else {
            store_plain(tile, first_column, row, lane);
        }
        __syncwarp();
    }

    /* Four staged columns of row r, from 4 chunk on. */
    __device__ __forceinline__ float *staged(unsigned r, unsigned chunk) const {
        return staging + r * COLUMNS + (chunk ^ (r % 4 * 2)) * 4;
    }

    /* A lane has four columns of every fourth row. */
    __device__ __forceinline__ void store_gated(const Tile &tile, unsigned first_column, unsigned row, unsigned lane) {
        const unsigned chunk = lane % 8, column = first_column + chunk * 4;
        const unsigned rows = column < WIDTH ? tile.end - row : 0;
#pragma unroll
        for (unsigned r = lane / 8; r < 16; r += 4) {
            if (r < rows) {
                const size_t at = size_t(row + r) * a.n + tile.share.first + column;
                const float4 four = *reinterpret_cast<const float4 *>(staged(r, chunk));
                const uint2 rounded{pack<T>(four.x, four.y), pack<T>(four.z, four.w)};
                if (a.gated != nullptr) {
                    __stcg(reinterpret_cast<float4 *>(a.gated + at), four);
                }
                __stcg(reinterpret_cast<uint2 *>(static_cast<T *>(a.gated_rounded) + at), rounded);
            }
        }
    }

    /*
     * Stores a warp's part of experts' slots from registers: four lanes have 32 bytes of a row. No slot is looked up, and no lane
     * waits for others, between two groups of columns.
     */
    __device__ __forceinline__ void store_routed(const Tile &tile, const float (&total)[KEPT], unsigned row, unsigned lane) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned r = row + lane / 4 + 8 * half, first = lane % 4 * 2;
            if (r >= tile.end) {
                return;
            }
            float *const to = a.out + size_t(f.slots[r]) * a.out_width + a.out_column + tile.share.first + first;
            const bool aligned = reinterpret_cast<uintptr_t>(to) % sizeof(float2) == 0;
#pragma unroll
            for (unsigned g = 0; g < GROUPS; ++g) {
                const float4 four = total_at(total, 4 * g);
                const float2 two = half == 0 ? float2{four.x, four.y} : float2{four.z, four.w};
                const unsigned column = 8 * g + first;
                if (aligned && column + 1 < tile.share.rows) {
                    *reinterpret_cast<float2 *>(to + 8 * g) = two;
                } else {
                    if (column < tile.share.rows) {
                        to[8 * g] = two.x;
                    }
                    if (column + 1 < tile.share.rows) {
                        to[8 * g + 1] = two.y;
                    }
                }
            }
        }
    }

    /* A lane has a column. */
    __device__ __forceinline__ void store_plain(const Tile &tile, unsigned first_column, unsigned row, unsigned lane) {
        const unsigned column = first_column + lane, j = tile.share.first + column;
        const unsigned rows = column < tile.share.rows ? min(tile.end - row, 16u) : 0;
        const float bias = rows > 0 ? bias_of(a, j) : 0;
        float *out = a.out + size_t(row) * a.out_width + a.out_column + j;
#pragma unroll
        for (unsigned r = 0; r < 16; ++r) {
            if (r < rows) {
                out[size_t(r) * a.out_width] = staged(r, lane / 4)[lane % 4] + bias;
            }
        }
    }

    template <typename Maps>
    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Maps &maps, const Parts &f) {
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
                       gridDim.x / SHARING};
        release_next();
        init_barriers(STAGES, [&](unsigned i) {
            barriers.ready[i].init_by_warp(1);
            barriers.free[i].init_by_warp(SHARING * COMPUTING / 32);
        });
        cluster_sync();
        if (warp >= COMPUTING / 32) {
            /* Moves registers from the producer's warpgroup to the others. */
            give_registers<40>();
            if (threadIdx.x == COMPUTING) {
                work.supply(maps);
            }
            await_previous();
        } else {
            take_registers<232>();
            await_previous();
            /* A shuffle, so that the compiler knows it to be uniform: descriptors are computed once for a warp. */
            work.compute(maps.out, __shfl_sync(0xffffffffu, warp / 4, 0), warp % 4, lane);
        }
    }
};

} // namespace djinn

#endif
