/*
 * Copies between pinned host memory and the device, made by multiprocessors. They bypass the copy engines, which serve one
 * copy of each direction at a time, and may depend on a condition on the device.
 *
 * copy: dst = src. src and dst are any bytes, each in pinned host memory or the device's.
 *
 * copy_expert: if starts[expert + 1] > starts[expert], dst = src and moved = 1; else moved = 0 and nothing else. src and dst
 * as in copy; starts u32 [experts + 1]; moved u32, one. For a stream of copies: launched without the attribute that lets
 * kernels overlap.
 *
 * Launch: up to 24 blocks of 512 threads in strides of the grid, each thread with 8 loads of 16 bytes in flight: enough to
 * keep a link busy, few enough to leave the multiprocessors to the stream that computes. Single bytes if addresses are not
 * multiples of 16.
 * Reference: the device's own copy; djinn-device, src/reference/routing.rs, `copy_expert`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned COPY_BLOCKS = 24;
constexpr unsigned COPY_THREADS = 512;
/* Loads of 16 bytes that a thread has in flight. */
constexpr unsigned COPY_EACH = 8;
constexpr unsigned COPY_STEP = COPY_THREADS * COPY_EACH;

/* Called by all threads of the grid. */
__device__ __forceinline__ void copy_bytes(const void *src, void *dst, uint64_t bytes) {
    const bool aligned = ((reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst)) % 16) == 0;
    const uint64_t packs = aligned ? bytes / sizeof(uint4) : 0;
    const uint4 *from = static_cast<const uint4 *>(src);
    uint4 *to = static_cast<uint4 *>(dst);
    for (uint64_t first = uint64_t(blockIdx.x) * COPY_STEP; first < packs; first += uint64_t(gridDim.x) * COPY_STEP) {
        const uint64_t mine = first + threadIdx.x;
        uint4 kept[COPY_EACH];
#pragma unroll
        for (unsigned i = 0; i < COPY_EACH; ++i) {
            if (mine + i * COPY_THREADS < packs) {
                kept[i] = __ldcs(from + mine + i * COPY_THREADS);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < COPY_EACH; ++i) {
            if (mine + i * COPY_THREADS < packs) {
                to[mine + i * COPY_THREADS] = kept[i];
            }
        }
    }
    const uint64_t thread = uint64_t(blockIdx.x) * COPY_THREADS + threadIdx.x;
    for (uint64_t at = packs * sizeof(uint4) + thread; at < bytes; at += uint64_t(gridDim.x) * COPY_THREADS) {
        static_cast<uint8_t *>(dst)[at] = static_cast<const uint8_t *>(src)[at];
    }
}

unsigned copy_blocks(uint64_t bytes) {
    const uint64_t steps = (bytes / sizeof(uint4) + COPY_STEP - 1) / COPY_STEP;
    return steps == 0 ? 1 : steps < COPY_BLOCKS ? unsigned(steps) : COPY_BLOCKS;
}

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::COPY_THREADS) djinn_copy_u8(const __grid_constant__ djinn_copy_args a) {
    djinn::await_previous();
    djinn::copy_bytes(a.src, a.dst, a.bytes);
    /* Later kernels may read the copy before they wait for this kernel: see `await_previous`. */
    __threadfence();
    __syncthreads();
    djinn::release_next();
}

extern "C" __global__ void __launch_bounds__(djinn::COPY_THREADS)
    djinn_copy_expert_u8(const __grid_constant__ djinn_copy_expert_args a) {
    const bool used = a.starts[a.expert + 1] > a.starts[a.expert];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *a.moved = used;
    }
    if (used) {
        djinn::copy_bytes(a.src, a.dst, a.bytes);
    }
}

extern "C" int djinn_copy(const djinn_copy_args *args, void *stream) {
    using namespace djinn;
    return launch(djinn_copy_u8, copy_blocks(args->bytes), COPY_THREADS, 0, stream, *args);
}

extern "C" int djinn_copy_expert(const djinn_copy_expert_args *args, void *stream) {
    using namespace djinn;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(copy_blocks(args->bytes));
    config.blockDim = dim3(COPY_THREADS);
    config.stream = static_cast<cudaStream_t>(stream);
    return cudaLaunchKernelEx(&config, djinn_copy_expert_u8, djinn_copy_expert_args(*args));
}
