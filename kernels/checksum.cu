/*
 * checksum: out = the wrapping sum of mix(w ^ mix(index)) over the 32-bit words w of src, the last one padded with zeros.
 * Shapes: src any bytes, at a multiple of 16; out u64 [1].
 * Launch: out is cleared; then up to 2048 blocks of 256 threads read 16 bytes a thread and step, with one 64-bit atomic
 * addition a warp. Wrapping addition commutes, so the result has one value.
 * Reference: djinn-device, src/reference.rs, `checksum`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned THREADS = 256;
constexpr unsigned MOST_BLOCKS = 2048;

/* SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014; Stafford's variant 13 of the constants). */
__device__ __forceinline__ uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ uint64_t term(uint32_t word, uint64_t index) { return mix(word ^ mix(index)); }

/* The terms of the words past the last whole 16 bytes. */
__device__ uint64_t tail(const unsigned char *src, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint64_t at = bytes / 16 * 16; at < bytes; at += 4) {
        uint32_t word = 0;
        for (unsigned i = 0; i < 4 && at + i < bytes; ++i) {
            word |= uint32_t(src[at + i]) << (8 * i);
        }
        sum += term(word, at / 4);
    }
    return sum;
}

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_checksum_u32(const __grid_constant__ djinn_checksum_args a) {
    djinn::enter();
    const uint64_t first = uint64_t(blockIdx.x) * djinn::THREADS + threadIdx.x;
    const uint64_t step = uint64_t(gridDim.x) * djinn::THREADS, quads = a.bytes / 16;
    uint64_t sum = 0;
    for (uint64_t i = first; i < quads; i += step) {
        const uint4 words = static_cast<const uint4 *>(a.src)[i];
        sum += djinn::term(words.x, 4 * i) + djinn::term(words.y, 4 * i + 1) +
               djinn::term(words.z, 4 * i + 2) + djinn::term(words.w, 4 * i + 3);
    }
    if (first == 0) {
        sum += djinn::tail(static_cast<const unsigned char *>(a.src), a.bytes);
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(sum), lane);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(a.out), static_cast<unsigned long long>(sum));
    }
}

extern "C" int djinn_checksum(const djinn_checksum_args *args, void *stream) {
    const cudaError_t cleared = cudaMemsetAsync(args->out, 0, sizeof(uint64_t), static_cast<cudaStream_t>(stream));
    if (cleared != cudaSuccess) {
        return cleared;
    }
    const uint64_t blocks = args->bytes / 16 / djinn::THREADS + 1;
    const unsigned grid = blocks < djinn::MOST_BLOCKS ? unsigned(blocks) : djinn::MOST_BLOCKS;
    return djinn::launch(djinn_checksum_u32, grid, djinn::THREADS, 0, stream, *args);
}
