/*
 * A tile of linear_lossless_wide.cu's products, computed as in linear_wide.cuh. The warps that only copy there decode the
 * weight as well. The two blocks of a cluster have the same rows of the weight; each decodes half of them into its ring, and
 * copies them from there to the other's.
 */
#ifndef DJINN_LINEAR_LOSSLESS_WIDE_CUH
#define DJINN_LINEAR_LOSSLESS_WIDE_CUH

#include "linear_wide_launch.cuh"
#include "lossless.cuh"

namespace djinn {

/* Tensor maps of the weight's tiles, as rows of signs and mantissas and as rows of codes, of x, and of what is stored. */
struct LosslessWideMaps {
    CUtensorMap kept[DJINN_LINEAR_TILES], codes[DJINN_LINEAR_TILES];
    CUtensorMap x, out;
};

/*
 * What warps decode of a tile with N rows of the weight. Two teams of two warps take runs in turn; a warp has ROWS rows of
 * its team's run, from a ring of its own.
 */
template <unsigned N> struct EncodedRing {
    static constexpr unsigned TEAMS = 2, MEMBERS = 2, WARPS = TEAMS * MEMBERS, ROWS = N / SHARING / MEMBERS;
    /* Bytes of a run of these rows: of signs and mantissas, where TMA's 64-byte swizzle repeats, and of codes. */
    static constexpr unsigned KEPT_ROW = RUN, CODES_ROW = RUN / 2, REPEATS = 512;
    static constexpr unsigned KEPT = ROWS * KEPT_ROW, CODES = ROWS * CODES_ROW;
    static constexpr unsigned STAGE = (KEPT + CODES + REPEATS - 1) / REPEATS * REPEATS, STAGES = 2;
    /* What is kept of the end of each row, where its base and escapes are; and the bytes of a warp and of all. */
    static constexpr unsigned TAIL = 64, OF_WARP = STAGES * STAGE + ROWS * TAIL, BYTES = WARPS * OF_WARP;
    static_assert(ROWS % 16 == 0 && 32 * WARPS == WIDE_THREADS - COMPUTING && BYTES % BLOCK_ALIGN == 0);
};

template <typename T, unsigned N, bool GATED>
struct LosslessWideTiles : WideTiles<T, N, true, GATED, EncodedRing<N>::BYTES> {
    using Encoded = EncodedRing<N>;
    using Wide = WideTiles<T, N, true, GATED, Encoded::BYTES>;
    using typename Wide::Runs, typename Wide::Slot, typename Wide::Tile;
    using Wide::a, Wide::f, Wide::rank, Wide::ring, Wide::step;
    using Wide::STAGE, Wide::STAGES, Wide::X_BYTES;

    /* A warp's rows, and units of 8 of these. */
    static constexpr unsigned ROWS = Encoded::ROWS, UNITS = ROWS / 8;

    struct Barriers : Wide::Barriers {
        Barrier encoded[Encoded::WARPS][Encoded::STAGES];
    };

    __device__ __forceinline__ explicit LosslessWideTiles(const Wide &wide) : Wide(wide) {}

    /*
     * Half of a warp's units of a run, from FIRST on: first loaded, then decoded. Four lanes take a row. Each takes 8 of its
     * columns, and the 8 columns 16 further on, whose codes are in the same bytes.
     */
    template <unsigned FIRST> struct Units {
        static constexpr unsigned COUNT = UNITS / 2;
        uint2 low[COUNT], high[COUNT], codes[COUNT];

        __device__ __forceinline__ Units(const char *from, unsigned kept_at, unsigned codes_at) {
#pragma unroll
            for (unsigned i = 0; i < COUNT; ++i) {
                const char *const kept = from + (FIRST + i) * 8 * Encoded::KEPT_ROW;
                low[i] = *reinterpret_cast<const uint2 *>(kept + kept_at);
                high[i] = *reinterpret_cast<const uint2 *>(kept + (kept_at ^ 16));
                codes[i] = *reinterpret_cast<const uint2 *>(from + codes_at + (FIRST + i) * 8 * Encoded::CODES_ROW);
            }
        }

        /* Stores the values of all columns. Returns a bit for each unit: whether the lane's columns have an escape. */
        __device__ __forceinline__ unsigned decode(char *to, unsigned chunk, const uint32_t (&bases)[UNITS]) const {
            unsigned found = 0;
#pragma unroll
            for (unsigned i = 0; i < COUNT; ++i) {
                uint2 w[4];
                Lossless<T>::decode({{low[i].x}, {high[i].x}, {low[i].y}, {high[i].y}}, {{codes[i].x}, {codes[i].y}},
                                    bases[FIRST + i], w);
                found |= Lossless<T>::has_escape(codes[i]) ? 1u << (FIRST + i) : 0;
                char *const line = to + (FIRST + i) * 8 * BLOCK_ROW;
                *reinterpret_cast<uint4 *>(line + chunk) = {w[0].x, w[0].y, w[2].x, w[2].y};
                *reinterpret_cast<uint4 *>(line + (chunk ^ 32)) = {w[1].x, w[1].y, w[3].x, w[3].y};
            }
            return found;
        }
    };

    /* A run of a tile, in the order in which tiles are computed. */
    struct Cursor {
        unsigned pair;
        Tile tile;
        Runs runs;

        __device__ __forceinline__ Cursor(const LosslessWideTiles &of)
            : pair(Wide::first_pair()), tile(of.a, of.f, pair, of.rank), runs(of.a) {}

        /* Goes on by some runs. Returns whether it is of another tile. Past the last one, `pair` is past the pairs. */
        __device__ __forceinline__ bool advance(const LosslessWideTiles &of, unsigned by) {
            bool is_new = false;
            for (unsigned i = 0; i < by; ++i) {
                runs.advance();
                if (runs.taken == of.a.k / RUN) {
                    pair += of.step;
                    runs.run = runs.partial = runs.taken = 0;
                    is_new = true;
                }
            }
            if (is_new) {
                tile = Tile(of.a, of.f, min(pair, of.f.pairs - 1), of.rank);
            }
            return is_new;
        }
    };

    /* Copies a warp's rows of a run, by one lane. */
    __device__ __forceinline__ void fetch(const LosslessWideMaps &maps, const Cursor &at, unsigned first, char *to,
                                          Barrier &ready) const {
        const unsigned row = at.tile.row_of_piece + first;
        ready.arrive_expecting(ROWS * (Encoded::KEPT_ROW + Encoded::CODES_ROW));
        copy_box(to, maps.kept[at.tile.piece], at.runs.run * (RUN / 2), row, ready, leaves_first());
        copy_box(to + Encoded::KEPT, maps.codes[at.tile.piece], a.k / 2 + at.runs.run * (RUN / 4), row, ready);
    }

    /* Where a row of a tile is stored. Past the end of its piece: the last one. */
    __device__ __forceinline__ const char *row_at(const Tile &tile, unsigned row) const {
        const unsigned rows = GATED ? a.tile_rows : min(a.tile_rows, a.n - tile.piece * a.tile_rows);
        return static_cast<const char *>(a.weights[tile.piece]) + size_t(min(tile.row_of_piece + row, rows - 1)) * a.row_bytes;
    }

    /*
     * Copies and decodes all runs of a warp's team. The warp takes rows from `first` on of the block's half of the weight's
     * rows. Rows of successive quads are two apart, so that neither reading nor writing has bank conflicts.
     */
    __device__ __forceinline__ void decode(const LosslessWideMaps &maps, Barriers &barriers, char *encoded, unsigned warp,
                                           unsigned lane) {
        const unsigned team = warp / Encoded::MEMBERS, member = warp % Encoded::MEMBERS, first = member * ROWS;
        const unsigned quad = lane % 4, turn = lane / 4, row = (turn & 4) | (turn & 1) << 1 | (turn >> 1 & 1);
        char *const own = encoded + warp * Encoded::OF_WARP, *const tails = own + Encoded::STAGES * Encoded::STAGE;
        /* The swizzles are the same for every eighth row. */
        const unsigned kept_at = row * Encoded::KEPT_ROW + ((quad / 2 * 32) ^ (row / 2 % 4 * 16)) + quad % 2 * 8;
        const unsigned codes_at = Encoded::KEPT + row * Encoded::CODES_ROW + quad * 8;
        const unsigned chunk = ((quad / 2 * 4 + quad % 2) ^ row) * 16;
        char *const part = ring + X_BYTES + (rank * (N / SHARING) + first) * BLOCK_ROW, *const line = part + row * BLOCK_ROW;
        /* From an address here to that in the other block. */
        const unsigned other = address_at(shared_address(ring), rank ^ 1) - shared_address(ring);
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        Cursor ahead(*this);
        ahead.advance(*this, team);
        Cursor at = ahead;
        const auto fetch_next = [&](unsigned stage) {
            if (ahead.pair < f.pairs) {
                if (lane == 0) {
                    fetch(maps, ahead, first, own + stage * Encoded::STAGE, barriers.encoded[warp][stage]);
                }
                ahead.advance(*this, Encoded::TEAMS);
            }
        };
#pragma unroll 1
        for (unsigned stage = 0; stage < Encoded::STAGES; ++stage) {
            fetch_next(stage);
        }
        if (member == 0) {
            await_previous();
            admit_bulk_copies();
        }
        __syncwarp();
        Slot slot;
        for (unsigned i = 0; i < team; ++i) {
            slot.advance();
        }
        unsigned stage = 0, parity = 0;
        bool is_new = true;
        uint32_t bases[UNITS];
#pragma unroll 1
        while (at.pair < f.pairs) {
            if (is_new) {
                keep_tails(at.tile, tails, first + row, row, quad);
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
                    bases[unit] = Lossless<T>::row(tail_at(tails, row + unit * 8)).bases;
                }
            }
            const char *const from = own + stage * Encoded::STAGE;
            char *const to = line + slot.at * STAGE;
            Barrier &ready = barriers.ready[slot.at];
            barriers.encoded[warp][stage].wait(parity);
            const Units<0> units(from, kept_at, codes_at);
            barriers.free[slot.at].wait(slot.parity ^ 1);
            if (member == 0 && lane == 0) {
                ready.arrive_expecting(X_BYTES + N / SHARING * BLOCK_ROW);
                copy_box(ring + slot.at * STAGE, maps.x, at.runs.run * RUN, at.tile.row, ready);
            }
            unsigned found = units.decode(to, chunk, bases);
            found |= Units<Units<0>::COUNT>(from, kept_at, codes_at).decode(to, chunk, bases);
            if (__any_sync(~0u, found != 0)) {
                mend(at, found, to, tails, first + row, row, quad);
            }
            admit_shared_writes();
            __syncwarp();
            if (lane == 0) {
                const unsigned mine = shared_address(part) + slot.at * STAGE;
                copy_to_cluster(mine + other, mine, ROWS * BLOCK_ROW, shared_address(&ready) + other);
                ready.arrive();
            }
            fetch_next(stage);
            is_new = at.advance(*this, Encoded::TEAMS);
            for (unsigned i = 0; i < Encoded::TEAMS; ++i) {
                slot.advance();
            }
            if (++stage == Encoded::STAGES) {
                stage = 0, parity ^= 1;
            }
        }
        /* Until then the other block arrives at this block's barriers. The team whose turn it would be knows all slots. */
        const unsigned tiles = (f.pairs - Wide::first_pair() + step - 1) / step;
        for (unsigned i = 0; i < STAGES && team == tiles * (a.k / RUN) % Encoded::TEAMS; ++i) {
            barriers.free[slot.at].wait(slot.parity ^ 1);
            slot.advance();
        }
    }

    static __device__ __forceinline__ uint32_t *tail_at(char *tails, unsigned row) {
        return reinterpret_cast<uint32_t *>(tails + row * Encoded::TAIL);
    }

    /* Keeps the ends of a warp's rows in a tile. `row` is the lane's first one, number `number` of the warp's. */
    __device__ __forceinline__ void keep_tails(const Tile &tile, char *tails, unsigned row, unsigned number,
                                               unsigned quad) const {
        const unsigned room = (a.row_bytes - a.k - a.k / 2) / unsigned(sizeof(uint4));
        uint4 words[UNITS];
#pragma unroll
        for (unsigned unit = 0; unit < UNITS; ++unit) {
            const auto *const from = reinterpret_cast<const uint4 *>(Lossless<T>::tail(row_at(tile, row + unit * 8), a.k));
            words[unit] = quad < room ? __ldg(from + quad) : uint4{};
        }
        __syncwarp();
#pragma unroll
        for (unsigned unit = 0; unit < UNITS; ++unit) {
            reinterpret_cast<uint4 *>(tail_at(tails, number + unit * 8))[quad] = words[unit];
        }
        __syncwarp();
    }

    /* Stores the escapes of a run. `found` has a bit for each unit with one; rows are as for `keep_tails`. */
    __device__ __forceinline__ void mend(const Cursor &at, unsigned found, char *to, char *tails, unsigned row,
                                         unsigned number, unsigned quad) const {
        constexpr unsigned KEPT_WORDS = Encoded::TAIL / sizeof(uint32_t);
        const unsigned room = (a.row_bytes - a.k - a.k / 2) / unsigned(sizeof(uint32_t)) - 1;
        /* Escapes replace what other lanes stored. */
        __syncwarp();
        found |= __shfl_xor_sync(~0u, found, 1);
        found |= __shfl_xor_sync(~0u, found, 2);
#pragma unroll 1
        for (; found != 0; found &= found - 1) {
            const unsigned unit = __ffs(found) - 1;
            const uint32_t *const kept = tail_at(tails, number + unit * 8);
            const unsigned count = min(*kept >> 16, room);
            const auto put = [&](uint32_t entry) {
                const unsigned column = (entry & 0xffff) - at.runs.run * RUN;
                if (column < RUN) {
                    char *const place = to + unit * 8 * BLOCK_ROW + (column / 8 ^ number) * 16 + column % 8 * 2;
                    *reinterpret_cast<uint16_t *>(place) = uint16_t(entry >> 16);
                }
            };
#pragma unroll 1
            for (unsigned i = 1 + quad; i <= min(count, KEPT_WORDS - 1); i += 4) {
                put(kept[i]);
            }
            if (count >= KEPT_WORDS) {
                const uint32_t *const tail = Lossless<T>::tail(row_at(at.tile, row + unit * 8), a.k);
#pragma unroll 1
                for (unsigned i = KEPT_WORDS + quad; i <= count; i += 4) {
                    put(__ldg(tail + i));
                }
            }
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const LosslessWideMaps &maps,
                                               const WideFrame &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, rank = cluster_rank();
        char *ring = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *encoded = ring + STAGES * STAGE, *staging = encoded + Encoded::BYTES;
        char *spilled = staging + COMPUTING / 32 * Wide::STAGING;
        LosslessWideTiles work(Wide{a,
                                    f,
                                    barriers,
                                    ring,
                                    reinterpret_cast<float4 *>(spilled),
                                    reinterpret_cast<float *>(staging + warp * Wide::STAGING),
                                    rank,
                                    gridDim.x / SHARING});
        release_next();
        init_barriers(STAGES, [&](unsigned i) {
            barriers.ready[i].init_by_warp(1 + Encoded::MEMBERS);
            barriers.free[i].init_by_warp(SHARING * COMPUTING / 32);
        });
        init_barriers(Encoded::WARPS * Encoded::STAGES, [&](unsigned i) {
            barriers.encoded[i / Encoded::STAGES][i % Encoded::STAGES].init_by_warp(1);
        });
        cluster_sync();
        if (warp >= COMPUTING / 32) {
            give_registers<56>();
            work.decode(maps, barriers, encoded, warp - COMPUTING / 32, lane);
            await_previous();
        } else {
            take_registers<224>();
            await_previous();
            work.compute(maps.out, __shfl_sync(0xffffffffu, warp / 4, 0), warp % 4, lane);
        }
    }
};

} // namespace djinn

#endif
