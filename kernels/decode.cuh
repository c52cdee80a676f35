/*
 * What the kernels that only decode share: copies of blocks to shared memory, and runs of lossless rows.
 */
#ifndef DJINN_DECODE_CUH
#define DJINN_DECODE_CUH

#include "block_formats.cuh"
#include "lossless.cuh"

namespace djinn {

/*
 * Copies bytes to shared memory, by `threads` threads: 16 at a time, so addresses and `bytes` are multiples of 16. Each sees
 * the others' bytes after their next barrier.
 */
__device__ __forceinline__ void stage_bytes(char *to, const char *from, unsigned bytes, unsigned thread, unsigned threads) {
    for (unsigned at = 16 * thread; at < bytes; at += 16 * threads) {
        copy_async(to + at, from + at, true);
    }
    commit_copies();
    wait_copies<0>();
}

/* The first of the four successive columns, of every 16, that a lane gets of `lossless_run`. */
__device__ __forceinline__ unsigned lossless_column(unsigned quad) { return quad % 2 * 8 + quad / 2 * 4; }

/*
 * Decodes 64 columns of a lossless row of k, from `column` on: four successive ones of every 16. Past the row they are
 * arbitrary. The lanes of a quad call it together.
 */
template <typename T>
__device__ __forceinline__ void lossless_run(const char *row, unsigned k, unsigned column, unsigned quad, uint2 (&w)[4]) {
    const unsigned padded = (k + 31) / 32 * 32;
    const uint32_t *tail = Lossless<T>::tail(row, padded);
    auto of_row = Lossless<T>::row(tail);
    if (Lossless<T>::run(row + column, row + padded + column / 2, of_row.bases, quad, w)) {
        Lossless<T>::mend(of_row, column, quad, w);
    }
    /* Lanes have two columns of each half. Two lanes exchange them. */
    const unsigned lanes = 0xfu << (threadIdx.x % 32 & ~3u);
#pragma unroll
    for (uint2 &four : w) {
        const uint32_t other = __shfl_xor_sync(lanes, quad % 2 == 0 ? four.y : four.x, 1);
        four = quad % 2 == 0 ? uint2{four.x, other} : uint2{other, four.y};
    }
}

} // namespace djinn

#endif
