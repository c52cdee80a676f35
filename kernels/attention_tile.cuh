/*
 * The keys, or the values, of 16 positions and a head in shared memory, as a warp copies them and gives them to the tensor
 * cores, for pages of 16-bit or aligned int8 elements.
 *
 * A vector is cut into lines of 128 bytes, and the 16-byte chunks of position r's lines lie at places chunk ^ (r % 8): lanes
 * that read the same chunk of several positions then have no bank conflicts.
 *
 * On sm_90, TMA fills a tile and puts chunks there: a box for each line of a vector if the tile lies in one page. Loads by
 * lanes would wait in L1, which has what shared memory leaves of 256 KiB. That depends on what the last large kernel needed:
 * a multiprocessor divides them anew only when it is idle, which it never is while kernels overlap. After a product, whose
 * ring takes all there is, L1 has 28 KiB: too few bytes in flight for the memory's speed.
 */
#ifndef DJINN_ATTENTION_TILE_CUH
#define DJINN_ATTENTION_TILE_CUH

#include "attention.cuh"
#include "wgmma.cuh"

namespace djinn {

/* Word `i` of four. */
__device__ __forceinline__ uint32_t word_of(const uint4 &four, unsigned i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/* Positions of a tile. */
constexpr unsigned TILE_POSITIONS = 16;

/* Whether tiles lie in one page; and the positions that TMA copies at once. */
__host__ __device__ __forceinline__ bool tiles_are_whole(const djinn_kv_pages &kv) {
    return kv.page_tokens % TILE_POSITIONS == 0;
}
inline uint32_t positions_at_once(const djinn_kv_pages &kv) { return tiles_are_whole(kv) ? TILE_POSITIONS : 1; }

/* For heads of up to DIM elements. */
template <typename T, unsigned DIM> struct Tile {
    static constexpr unsigned ROWS = TILE_POSITIONS;
    /* Lines of a vector, and bytes of a line of all positions. */
    static constexpr unsigned LINES = (DIM * sizeof(T) + BLOCK_ROW - 1) / BLOCK_ROW, LINE = ROWS * BLOCK_ROW;
    static_assert(LINE % BLOCK_ALIGN == 0);

    /* For int8: elements of keys and of values that a lane takes at once. Eight lanes share a row of values. */
    static constexpr unsigned PIECE = PER_16_BYTES<T>, VALUE_PIECE = PIECE < DIM / 8 ? PIECE : DIM / 8;

    alignas(BLOCK_ALIGN) unsigned char at[LINES][LINE];

    /*
     * Starts a copy, by a whole warp whose products have taken what was there: of plane `plane` at the places of the
     * positions; if the tile lies in one page, `place` has only the first. Chunks past a head's end become zeros. If `place`
     * is null, nothing is copied, but a `wait` for another tile still counts the copies that began after its own.
     */
    __device__ __forceinline__ void copy(const djinn_kv_pages &kv, const CUtensorMap &pages, Barrier &ready,
                                         const PageSlot *place, unsigned plane) {
        const unsigned lane = threadIdx.x % 32;
        __syncwarp();
#if __CUDA_ARCH__ >= 900
        if (place == nullptr) {
            return;
        }
        if (lane == 0) {
            ready.arrive_expecting(sizeof(at));
        }
        if (lane < (tiles_are_whole(kv) ? 1 : ROWS)) {
            const PageSlot from = place[lane];
#pragma unroll
            for (unsigned line = 0; line < LINES; ++line) {
                copy_box(&at[line][lane * BLOCK_ROW], pages, line * BLOCK_ROW, from.slot, plane, from.page, ready,
                         leaves_first());
            }
        }
#else
        constexpr unsigned CHUNKS = BLOCK_ROW / 16;
#pragma unroll
        for (unsigned i = lane; i < ROWS * LINES * CHUNKS && place != nullptr; i += 32) {
            const unsigned row = i / (LINES * CHUNKS), in_row = i % (LINES * CHUNKS), element = in_row * PIECE;
            const bool inside = element < kv.head_dim;
            const PageSlot at_row = tiles_are_whole(kv) ? PageSlot{place->page, place->slot + row} : place[row];
            const T *const from = vector_at<T>(kv, at_row, plane);
            copy_async(&at[in_row / CHUNKS][row * BLOCK_ROW + (in_row % CHUNKS ^ row % 8) * 16],
                       inside ? from + element : from, inside);
        }
        commit_copies();
#endif
    }

    /*
     * Waits for a copy. At most one other tile's copy may have begun since. `parity` is that of the number of copies before
     * it.
     */
    static __device__ __forceinline__ void wait(Barrier &ready, unsigned parity) {
#if __CUDA_ARCH__ >= 900
        ready.wait(parity);
#else
        wait_copies<1>();
        __syncwarp();
#endif
    }

    /* Where a chunk of a position's first line is. The address xored with 32 i is that of the chunk 2 i on, if `chunk` < 2. */
    __device__ __forceinline__ unsigned address_of(unsigned row, unsigned chunk) const {
        return shared_address(at) + row * BLOCK_ROW + (chunk ^ row % 8) * 16;
    }

    /* For 16-bit elements: calls `work(step, operands)` for each step of 16 elements of the product, for all positions. */
    template <typename Work> __device__ __forceinline__ void each_key_step(Work work) const {
        const unsigned lane = threadIdx.x % 32, from = address_of(lane % 16, lane / 16);
#pragma unroll
        for (unsigned step = 0; step < DIM / 16; ++step) {
            uint32_t to[4];
            load_matrices<false>(to, (from ^ step % 4 * 32) + step / 4 * LINE);
            work(step, to);
        }
    }

    /*
     * For 16-bit elements: calls `work(step, operands)` for each 16 elements of values, for all positions. Rows `first ..
     * end` are seen. The nearest of them stands in for any other, whose weight is zero and which may hold anything.
     */
    template <typename Work>
    __device__ __forceinline__ void each_value_step(unsigned first, unsigned end, Work work) const {
        const unsigned lane = threadIdx.x % 32, row = min(max(lane % 8 + lane / 16 * 8, first), end - 1);
        const unsigned from = address_of(row, lane / 8 % 2);
#pragma unroll
        for (unsigned step = 0; step < DIM / 16; ++step) {
            uint32_t to[4];
            load_matrices<true>(to, (from ^ step % 4 * 32) + step / 4 * LINE);
            work(step, to);
        }
    }

    /* N bytes of a position, from a byte on. */
    template <unsigned N> __device__ __forceinline__ Pack<uint32_t, N / 4> bytes_of(unsigned row, unsigned byte) const {
        const unsigned place = byte % BLOCK_ROW ^ row % 8 * 16;
        return load<uint32_t, N / 4>(reinterpret_cast<const uint32_t *>(&at[byte / BLOCK_ROW][row * BLOCK_ROW + place]));
    }

    /* The first element of a lane's `i`th piece of keys. Lanes of two positions read from all chunks of a line. */
    static __device__ __forceinline__ unsigned key_piece(unsigned i) {
        constexpr unsigned BOTH = DIM / 4 / PIECE < 2 ? 1 : 2;
        return (i / BOTH * 4 * BOTH + threadIdx.x % 4 * BOTH + i % BOTH) * PIECE;
    }

    /*
     * For int8: calls `work(step, operands)` for each step of 16 elements of the product, with the elements of keys lane / 4
     * and lane / 4 + 8. Steps go through the lanes' pieces.
     */
    template <typename Work> __device__ __forceinline__ void each_int8_key_step(Work work) const {
        constexpr unsigned STEPS = PIECE / 4;
        const unsigned row = threadIdx.x % 32 / 4;
#pragma unroll
        for (unsigned i = 0; i < DIM / 4 / PIECE; ++i) {
            const auto low = bytes_of<16>(row, key_piece(i)), high = bytes_of<16>(row + 8, key_piece(i));
#pragma unroll
            for (unsigned part = 0; part < STEPS; ++part) {
                uint32_t l[2], h[2];
                widen_word(l, low.at[part]);
                widen_word(h, high.at[part]);
                const uint32_t to[4] = {l[0], h[0], l[1], h[1]};
                work(i * STEPS + part, to);
            }
        }
    }

    /*
     * For int8: calls `work(step, operands)` for each step of 16 elements, with pairs of them for values 2 (lane % 4) and the
     * next, and for both 8 further on. Rows as in `each_value_step`.
     */
    template <typename Work>
    __device__ __forceinline__ void each_int8_value_step(unsigned first, unsigned end, Work work) const {
        constexpr unsigned PAIRS = VALUE_PIECE / 2;
        const unsigned piece = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
        for (unsigned i = 0; i < DIM / 8 / VALUE_PIECE; ++i) {
            Pack<uint32_t, VALUE_PIECE / 4> of[4];
#pragma unroll
            for (unsigned k = 0; k < 4; ++k) {
                const unsigned row = min(max(2 * quad + k % 2 + k / 2 * 8, first), end - 1);
                of[k] = bytes_of<VALUE_PIECE>(row, (i * 8 + piece) * VALUE_PIECE);
            }
#pragma unroll
            for (unsigned pair = 0; pair < PAIRS; ++pair) {
                const unsigned word = pair / 2, which = pair % 2 == 0 ? 0x5140 : 0x7362;
                uint32_t l[2], h[2];
                widen_word(l, __byte_perm(of[0].at[word], of[1].at[word], which));
                widen_word(h, __byte_perm(of[2].at[word], of[3].at[word], which));
                const uint32_t to[4] = {l[0], l[1], h[0], h[1]};
                work(i * PAIRS + pair, to);
            }
        }
    }
};

} // namespace djinn

#endif
