/*
 * The tiled path of attention on Hopper: the layout of tiles in shared memory, and the producer warps that copy them there.
 */
#ifndef DJINN_ATTENTION_COPIES_CUH
#define DJINN_ATTENTION_COPIES_CUH

#include "attention_units.cuh"
#include "wgmma.cuh"

namespace djinn {

/* Rows of a block (a row is a query row and a head), and of a warpgroup. */
constexpr unsigned ROWS = 128, GROUP_ROWS = 64;
constexpr unsigned THREADS = 384, COMPUTING = 256, COPYING = 128;
/* The most heads sharing a key head that a block takes. */
constexpr unsigned MOST_HEADS = 8;
/* Tiles that are copied ahead. */
constexpr unsigned STAGES = 2;

/* Integers on their way to a tile: 16 bytes for each producer thread and step. */
template <typename Stored, unsigned STEPS> struct Integers {};
template <unsigned STEPS> struct Integers<int8, STEPS> {
    uint4 integers[STEPS][COPYING];
};

/* A block's shared memory, for heads of up to DIM elements in pages of `Stored`. */
template <typename Stored, unsigned DIM> struct TileLayout {
    using T = Product<Stored>;
    /* Positions of a tile. */
    static constexpr unsigned KEYS = DIM <= 128 ? 128 : 64;
    static constexpr unsigned BLOCKS = (DIM + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    /* Rows of a tile that a warp copies. */
    static constexpr unsigned HALF = KEYS / 2;
    static_assert(TILED_SPLIT % KEYS == 0);

    struct Tile {
        T at[BLOCKS][KEYS][BLOCK_COLUMNS];
    };
    /* In a step, four lanes take 64 elements of one of eight rows. */
    static constexpr unsigned STEPS = HALF / 8 * BLOCKS;
    struct Tiles {
        T queries[BLOCKS][ROWS][BLOCK_COLUMNS];
        Tile keys[STAGES], values[STAGES];
    };
    struct Shared : Tiles, Integers<Stored, STEPS> {};
    struct Barriers {
        Barrier keys_ready[STAGES], values_ready[STAGES], keys_free[STAGES], values_free[STAGES];
    };

    /* The slot of a block's tile number `count`, and the parity of its barriers' phases. */
    static __device__ __forceinline__ unsigned slot(unsigned count) { return count % STAGES; }
    static __device__ __forceinline__ unsigned parity(unsigned count) { return count / STAGES % 2; }
};

/* The producer warps. */
template <typename Stored, unsigned DIM> struct TileCopies : TileLayout<Stored, DIM> {
    using Layout = TileLayout<Stored, DIM>;
    using typename Layout::Barriers, typename Layout::Shared, typename Layout::T, typename Layout::Tile;
    using Layout::BLOCKS, Layout::HALF, Layout::KEYS, Layout::STEPS;

    const djinn_attention_args &a;
    const Tiling &part;
    const CUtensorMap &pages;
    Shared &shared;
    Barriers &barriers;
    /* Tiles so far. */
    unsigned count = 0;

    __device__ __forceinline__ TileCopies(const djinn_attention_args &a, const Tiling &part, const CUtensorMap &pages,
                                          Shared &shared, Barriers &barriers)
        : a(a), part(part), pages(pages), shared(shared), barriers(barriers) {}

    /*
     * Starts the copy of half a tile: positions from `position` on, to rows from `first` on. What no row of the run sees, or
     * is past a head's end, becomes zeros. Eight lanes take a row's part of a block.
     */
    __device__ __forceinline__ void copy(Tile &to, const Run &run, const Unit &unit, bool values, unsigned first,
                                         unsigned position) {
        const unsigned in_block = threadIdx.x % 8, pieces = a.kv.head_dim / 8;
#pragma unroll 2
        for (unsigned i = threadIdx.x % 32 / 8; i < HALF; i += 4) {
            const unsigned row = first + i, at = position + i;
            const bool seen = at >= run.lowest && at < run.length;
            const T *key = key_at<T>(a.kv, run.sequence, seen ? at : run.lowest, unit.kv_head);
            const T *from = key + (values ? value_offset<T>(a.kv) : 0);
#pragma unroll
            for (unsigned block = 0; block < BLOCKS; ++block) {
                const unsigned piece = block * 8 + in_block;
                const bool inside = seen && piece < pieces;
                copy_async(&to.at[block][row][(in_block ^ row % 8) * 8], inside ? from + piece * 8 : from, inside);
            }
        }
        commit_copies();
    }

    /* The page from which a lane copies a box of half a tile at a position. */
    __device__ __forceinline__ unsigned page_of(const Run &run, unsigned position) const {
        const unsigned at = threadIdx.x % 32 / BLOCKS * part.box;
        const size_t row = size_t(run.sequence) * a.kv.table_width;
        return at < HALF ? a.kv.page_table[row + (position + at) / a.kv.page_tokens] : 0;
    }

    /* Makes TMA copy half a tile: positions from `position` on, all of which the run sees, to rows from `first` on. */
    __device__ __forceinline__ void copy_boxes(Tile &to, const Unit &unit, bool values, unsigned first, unsigned position,
                                               unsigned page, Barrier &ready) {
        const unsigned lane = threadIdx.x % 32, block = lane % BLOCKS, at = lane / BLOCKS * part.box;
        if (lane == 0) {
            ready.arrive_expecting(sizeof(Tile) / 2);
        }
        __syncwarp();
        if (at < HALF) {
            const unsigned slot = (position + at) % a.kv.page_tokens;
            const unsigned row = (values * a.kv.kv_heads + unit.kv_head) * a.kv.page_tokens + slot;
            copy_box(&to.at[block][first + at], pages, block * BLOCK_COLUMNS, row, page, ready);
        }
        if (lane != 0) {
            ready.arrive();
        }
    }

    /* For half a tile of int8: where the rows that the lane looks up begin, and their scales, 0 if not seen. */
    struct Rows {
        const int8 *at[HALF / 32];
        float scale[HALF / 32];
    };

    __device__ __forceinline__ Rows look_up(const Run &run, const Unit &unit, bool values, unsigned position) const {
        Rows rows;
#pragma unroll
        for (unsigned i = 0; i < HALF / 32; ++i) {
            const unsigned at = position + i * 32 + threadIdx.x % 32;
            const bool seen = at >= run.lowest && at < run.length;
            const unsigned read = seen ? at : run.lowest;
            const int8 *const key = key_at<int8>(a.kv, run.sequence, read, unit.kv_head);
            rows.at[i] = key + (values ? value_offset<int8>(a.kv) : 0);
            rows.scale[i] = seen ? load_scale(scale_at(a.kv, rows.at[i], read)) : 0;
        }
        return rows;
    }

    /* Steps whose integers are in registers at once. */
    static constexpr unsigned AT_ONCE = 4;
    static_assert(STEPS % AT_ONCE == 0);

    /* Starts the copy of the lane's integers of a step. Past a head's end, any integers are copied. */
    __device__ __forceinline__ void copy_integers(const Rows &rows, unsigned step) const {
        const unsigned lane = threadIdx.x % 32, row = step / BLOCKS * 8 + lane / 4;
        const unsigned column = step % BLOCKS * BLOCK_COLUMNS + lane % 4 * 16;
        const auto at = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(rows.at[step / BLOCKS / 4]));
        const auto from = __shfl_sync(0xffffffffu, at, row % 32) + (column < a.kv.head_dim ? column : 0);
        copy_async(&shared.integers[step][threadIdx.x % COPYING], reinterpret_cast<const void *>(from), true);
    }

    /* Widens the lane's integers of some steps into a tile. All loads start before any is used. */
    __device__ __forceinline__ void widen(Tile &to, const Rows &rows, unsigned first, unsigned begin) const {
        const unsigned lane = threadIdx.x % 32, piece = lane % 4 * 2;
        uint4 words[AT_ONCE];
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            words[i] = shared.integers[begin + i][threadIdx.x % COPYING];
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            const unsigned step = begin + i, row = step / BLOCKS * 8 + lane / 4, turn = row % 8;
            const HalfScale scale(__shfl_sync(0xffffffffu, rows.scale[step / BLOCKS / 4], row % 32));
            T *const line = to.at[step % BLOCKS][first + row];
            store_widened(line + (piece ^ turn) * 8, line + ((piece + 1) ^ turn) * 8, words[i], scale);
        }
    }

    /*
     * Widens the tiles of a unit of int8. Of four warps, two take keys and two take values, each half of a tile. Each lane
     * widens what it copied itself. The next tile's integers replace those that were widened, and meanwhile the rows of the
     * tile after it are looked up.
     */
    __device__ __forceinline__ void supply_int8(const Unit &unit) {
        const unsigned warp = threadIdx.x % COPYING / 32, first = warp % 2 * HALF;
        const bool values = warp >= 2;
        Tile *const tiles = values ? shared.values : shared.keys;
        Barrier *const ready = values ? barriers.values_ready : barriers.keys_ready;
        Barrier *const free = values ? barriers.values_free : barriers.keys_free;
        unit.each_run(a, [&](const Run &run) {
            const unsigned start = run.lowest / KEYS * KEYS + first;
            Rows rows = look_up(run, unit, values, start), next = look_up(run, unit, values, start + KEYS);
#pragma unroll
            for (unsigned step = 0; step < STEPS; ++step) {
                copy_integers(rows, step);
            }
            commit_copies();
            for (unsigned position = start; position < run.length + first; position += KEYS, ++count) {
                const unsigned slot = Layout::slot(count);
                /* Past the end of the run this is its lowest position. */
                const Rows after = look_up(run, unit, values, position + 2 * KEYS);
                wait_copies<0>();
                free[slot].wait(Layout::parity(count) ^ 1);
#pragma unroll
                for (unsigned step = 0; step < STEPS; step += AT_ONCE) {
                    widen(tiles[slot], rows, first, step);
#pragma unroll
                    for (unsigned i = 0; i < AT_ONCE; ++i) {
                        copy_integers(next, step + i);
                    }
                }
                commit_copies();
                rows = next;
                next = after;
                admit_shared_writes();
                ready[slot].arrive();
            }
            wait_copies<0>();
        });
    }

    /*
     * Copies the tiles of a unit. Of four warps, two take keys and two take values, each half of a tile. TMA copies half
     * tiles that lie within the run.
     */
    __device__ __forceinline__ void supply(const Unit &unit) {
        const unsigned warp = threadIdx.x % COPYING / 32, first = warp % 2 * HALF;
        const bool values = warp >= 2;
        Tile *const tiles = values ? shared.values : shared.keys;
        Barrier *const ready = values ? barriers.values_ready : barriers.keys_ready;
        Barrier *const free = values ? barriers.values_free : barriers.keys_free;
        unit.each_run(a, [&](const Run &run) {
            for (unsigned base = run.lowest / KEYS * KEYS; base < run.length; base += KEYS, ++count) {
                const unsigned position = base + first;
                const bool boxes = part.box != 0 && position >= run.lowest && position + HALF <= run.length;
                const unsigned page = boxes ? page_of(run, position) : 0;
                const unsigned slot = Layout::slot(count);
                free[slot].wait(Layout::parity(count) ^ 1);
                if (boxes) {
                    copy_boxes(tiles[slot], unit, values, first, position, page, ready[slot]);
                } else {
                    copy(tiles[slot], run, unit, values, first, position);
                    wait_copies<0>();
                    admit_shared_writes();
                    ready[slot].arrive();
                }
            }
        });
    }
};

} // namespace djinn

#endif
