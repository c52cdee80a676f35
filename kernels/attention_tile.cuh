/*
 * The keys, or the values, of 16 positions and a head in shared memory, as a warp copies them and gives them to the tensor
 * cores, for pages of 16-bit or aligned int8 elements.
 *
 * On sm_90, bulk copies fill a tile: one copy if it lies in one page. Loads by lanes would wait in L1, which has what shared
 * memory leaves of 256 KiB. That depends on what the last large kernel needed: a multiprocessor divides them anew only when
 * it is idle, which it never is while kernels overlap. After a product, whose ring takes all there is, L1 has 28 KiB: too
 * few bytes in flight for the memory's speed.
 */
#ifndef DJINN_ATTENTION_TILE_CUH
#define DJINN_ATTENTION_TILE_CUH

#include "attention.cuh"
#include "cluster.cuh"

namespace djinn {

/* Word `i` of four. */
__device__ __forceinline__ uint32_t word_of(const uint4 &four, unsigned i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

/* For heads of up to DIM elements. */
template <typename T, unsigned DIM> struct Tile {
    static constexpr unsigned ROWS = 16;
    /* Elements that a lane takes at once, of keys and of values. Eight lanes share a row of values. */
    static constexpr unsigned PIECE = PER_16_BYTES<T>, VALUE_PIECE = PIECE < DIM / 8 ? PIECE : DIM / 8;
    static_assert(DIM % (4 * PIECE) == 0 && DIM % (8 * VALUE_PIECE) == 0);

    /* Rows of head_dim elements, one after the other. */
    alignas(16) T at[ROWS * DIM];
    /* On sm_90: that they are there. */
    Barrier ready;

    /* Whether a tile lies in one page. */
    static __device__ __forceinline__ bool is_whole(const djinn_attention_args &a) { return a.kv.page_tokens % ROWS == 0; }

    /* Called by a whole warp, before the first copy. */
    __device__ __forceinline__ void init() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) {
            ready.init(1);
            Barrier::publish();
        }
        __syncwarp();
#endif
    }

    /*
     * Starts a copy, by a whole warp that is done with what was there. `key` has the addresses of the positions' keys, or
     * just of the first if the tile lies in one page; the copy begins `offset` elements after them. If `key` is null,
     * nothing is copied, but a `wait` for another tile still counts the copies that began after its own.
     */
    __device__ __forceinline__ void copy(const djinn_attention_args &a, const T *const *key, size_t offset) {
        const unsigned lane = threadIdx.x % 32, dim = a.kv.head_dim;
        __syncwarp();
#if __CUDA_ARCH__ >= 900
        if (key == nullptr) {
            return;
        }
        if (lane == 0) {
            ready.arrive_expecting(ROWS * dim * sizeof(T));
        }
        if (is_whole(a)) {
            if (lane == 0) {
                copy_once(at, key[0] + offset, ROWS * dim * sizeof(T), ready);
            }
            return;
        }
        __syncwarp();
        if (lane < ROWS) {
            copy_once(at + lane * dim, key[lane] + offset, dim * sizeof(T), ready);
        }
#else
        constexpr unsigned PIECES = DIM / PIECE;
#pragma unroll
        for (unsigned i = lane; i < ROWS * PIECES && key != nullptr; i += 32) {
            const unsigned row = i / PIECES, element = i % PIECES * PIECE;
            if (element < dim) {
                const T *const from = is_whole(a) ? key[0] + row * dim : key[row];
                copy_async(at + row * dim + element, from + offset + element, true);
            }
        }
        commit_copies();
#endif
    }

    /*
     * Waits for a copy. At most one other tile's copy may have begun since. `parity` is that of the number of copies before
     * it.
     */
    __device__ __forceinline__ void wait(unsigned parity) {
#if __CUDA_ARCH__ >= 900
        ready.wait(parity);
#else
        wait_copies<1>();
        __syncwarp();
#endif
    }

    /*
     * Calls `work(step, operands)` for each step of 16 elements of the product, with the elements of keys lane / 4 and lane
     * / 4 + 8.
     */
    template <typename Work>
    __device__ __forceinline__ void each_key_step(const djinn_attention_args &a, Work work) const {
        constexpr unsigned STEPS = PIECE / 4;
        const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        const T *const keys = at + row * a.kv.head_dim, *const further = keys + 8 * a.kv.head_dim;
#pragma unroll
        for (unsigned i = 0; i < DIM / 4 / PIECE; ++i) {
            const unsigned offset = offset_of(a, (i * 4 + quad) * PIECE);
            const uint4 low = *reinterpret_cast<const uint4 *>(keys + offset);
            const uint4 high = *reinterpret_cast<const uint4 *>(further + offset);
#pragma unroll
            for (unsigned part = 0; part < STEPS; ++part) {
                uint32_t to[4];
                if constexpr (IS_INT8<T>) {
                    uint32_t l[2], h[2];
                    widen_word(l, word_of(low, part));
                    widen_word(h, word_of(high, part));
                    to[0] = l[0], to[1] = h[0], to[2] = l[1], to[3] = h[1];
                } else {
                    to[0] = word_of(low, 2 * part);
                    to[1] = word_of(high, 2 * part);
                    to[2] = word_of(low, 2 * part + 1);
                    to[3] = word_of(high, 2 * part + 1);
                }
                work(i * STEPS + part, to);
            }
        }
    }

    /*
     * Calls `work(step, operands)` for each step of 16 elements, with pairs of them for values 2 (lane % 4) and the next,
     * and for both 8 further on. Rows `first .. end` are seen. The nearest of them stands in for any other, whose weight is
     * zero and which may hold anything.
     */
    template <typename Work>
    __device__ __forceinline__ void each_value_step(const djinn_attention_args &a, unsigned first, unsigned end,
                                                    Work work) const {
        using Piece = Pack<uint32_t, VALUE_PIECE * sizeof(T) / 4>;
        constexpr unsigned PAIRS = VALUE_PIECE / 2;
        const unsigned row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
        const T *values[4];
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) {
            values[k] = at + min(max(2 * quad + k % 2 + k / 2 * 8, first), end - 1) * a.kv.head_dim;
        }
#pragma unroll
        for (unsigned i = 0; i < DIM / 8 / VALUE_PIECE; ++i) {
            const unsigned offset = offset_of(a, (i * 8 + row) * VALUE_PIECE);
            Piece of[4];
#pragma unroll
            for (unsigned k = 0; k < 4; ++k) {
                of[k] = *reinterpret_cast<const Piece *>(values[k] + offset);
            }
#pragma unroll
            for (unsigned pair = 0; pair < PAIRS; ++pair) {
                const unsigned word = pair * sizeof(T) / 2;
                uint32_t to[4];
                if constexpr (IS_INT8<T>) {
                    const unsigned which = pair % 2 == 0 ? 0x5140 : 0x7362;
                    uint32_t l[2], h[2];
                    widen_word(l, __byte_perm(of[0].at[word], of[1].at[word], which));
                    widen_word(h, __byte_perm(of[2].at[word], of[3].at[word], which));
                    to[0] = l[0], to[1] = l[1], to[2] = h[0], to[3] = h[1];
                } else {
                    to[0] = __byte_perm(of[0].at[word], of[1].at[word], 0x5410);
                    to[1] = __byte_perm(of[0].at[word], of[1].at[word], 0x7632);
                    to[2] = __byte_perm(of[2].at[word], of[3].at[word], 0x5410);
                    to[3] = __byte_perm(of[2].at[word], of[3].at[word], 0x7632);
                }
                work(i * PAIRS + pair, to);
            }
        }
    }

  private:
    /* Where a piece of a row begins. Past a head's end it is the row's start: the result is not used. */
    static __device__ __forceinline__ unsigned offset_of(const djinn_attention_args &a, unsigned element) {
        return element < a.kv.head_dim ? element : 0;
    }

    /* Starts a bulk copy of bytes that are not wanted again soon. Address and size are multiples of 16. */
    static __device__ __forceinline__ void copy_once(void *to, const void *from, unsigned bytes, Barrier &ready) {
        uint64_t policy;
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(&ready)), "l"(policy)
                     : "memory");
    }
};

} // namespace djinn

#endif
