/*
 * What the kernels share: element types, vectors of them, reductions over a warp or a block, dispatch by dtype.
 */
#ifndef DJINN_ELEMENT_CUH
#define DJINN_ELEMENT_CUH

#include "djinn.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace djinn {

using f32 = float;
using f16 = __half;
using bf16 = __nv_bfloat16;

/* Elements in 16 bytes. */
template <typename T> constexpr unsigned PER_16_BYTES = 16 / sizeof(T);

__device__ __forceinline__ float widen(f32 x) { return x; }
__device__ __forceinline__ float widen(f16 x) { return __half2float(x); }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }

/* To nearest, ties to even. */
template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ f32 narrow<f32>(float x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }

/* Consecutive elements that are loaded and stored at once. */
template <typename T, unsigned N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <typename T, unsigned N> __device__ __forceinline__ Pack<T, N> load(const T *from) {
    return *reinterpret_cast<const Pack<T, N> *>(from);
}

template <typename T, unsigned N> __device__ __forceinline__ void store(T *to, const Pack<T, N> &pack) {
    *reinterpret_cast<Pack<T, N> *>(to) = pack;
}

/* All lanes get the sum, added in an order that depends on the lanes alone. */
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    }
    return x;
}

/* Starts a copy of 16 bytes to shared memory, past the first-level cache; zeros if not `inside`. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

/* Ends a group of this thread's copies. */
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `N` of this thread's groups are under way. */
template <unsigned N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

inline unsigned ceil_div(uint64_t a, uint64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

inline cudaStream_t as_stream(void *stream) { return static_cast<cudaStream_t>(stream); }

} // namespace djinn

/* `MACRO(suffix, type)` for each dtype. */
#define DJINN_FOR_DTYPES(MACRO)                                                                              \
    MACRO(f32, djinn::f32)                                                                                   \
    MACRO(f16, djinn::f16)                                                                                   \
    MACRO(bf16, djinn::bf16)

/* Launches `kernel_f32`, `kernel_f16` or `kernel_bf16`, and returns from the launcher. */
#define DJINN_LAUNCH_BY_DTYPE(dtype, kernel, grid, block, stream, ...)                                       \
    switch (dtype) {                                                                                         \
    case DJINN_F32: kernel##_f32<<<grid, block, 0, djinn::as_stream(stream)>>>(__VA_ARGS__); break;          \
    case DJINN_F16: kernel##_f16<<<grid, block, 0, djinn::as_stream(stream)>>>(__VA_ARGS__); break;          \
    case DJINN_BF16: kernel##_bf16<<<grid, block, 0, djinn::as_stream(stream)>>>(__VA_ARGS__); break;        \
    default: return cudaErrorInvalidValue;                                                                   \
    }                                                                                                        \
    return cudaGetLastError()

#endif
