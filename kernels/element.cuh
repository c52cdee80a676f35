/*
 * What the kernels share: element types and vectors of them, reductions over a warp or a block, launches, and dispatch by
 * dtype.
 */
#ifndef DJINN_ELEMENT_CUH
#define DJINN_ELEMENT_CUH

#include "djinn.h"

#include <atomic>
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

/* Rounds to nearest, ties to even. */
template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ f32 narrow<f32>(float x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

/* `silu` of several values, with the same bits. If no step of it can leave the range of f32, the divisions overlap. */
template <unsigned COUNT> __device__ __forceinline__ void silu(float (&x)[COUNT]) {
    float below[COUNT];
    bool inside = true;
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
        below[i] = 1.0f + expf(-x[i]);
        inside = inside && fabsf(x[i]) >= 0x1p-60f && fabsf(x[i]) <= 0x1p60f && below[i] <= 0x1p40f;
    }
#pragma unroll
    for (unsigned i = 0; inside && i < COUNT; ++i) {
        /* Corrected by its remainder, the quotient is rounded once, as in a division. */
        float inverse;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(below[i]));
        inverse = fmaf(inverse, fmaf(-below[i], inverse, 1.0f), inverse);
        const float quotient = __fmul_rn(x[i], inverse);
        x[i] = fmaf(inverse, fmaf(-below[i], quotient, x[i]), quotient);
    }
#pragma unroll
    for (unsigned i = 0; !inside && i < COUNT; ++i) {
        x[i] = x[i] / below[i];
    }
}

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

template <typename T, unsigned N> __device__ __forceinline__ Pack<T, N> narrowed(const Pack<float, N> &x) {
    Pack<T, N> out;
#pragma unroll
    for (unsigned i = 0; i < N; ++i) {
        out.at[i] = narrow<T>(x.at[i]);
    }
    return out;
}

/* Stores elements of an output from `at` on: to `out` unless `to.alone`, and rounded to `to` if that has an address. */
template <unsigned N>
__device__ __forceinline__ void store_output(float *out, const djinn_rounded &to, size_t at, const Pack<float, N> &x) {
    if (to.alone == 0) {
        store(out + at, x);
    }
    if (to.at == nullptr) {
        return;
    }
    if (to.dtype == DJINN_F16) {
        store(static_cast<f16 *>(to.at) + at, narrowed<f16>(x));
    } else {
        store(static_cast<bf16 *>(to.at) + at, narrowed<bf16>(x));
    }
}

template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<f16>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
template <> __device__ __forceinline__ uint32_t pack<bf16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* All lanes get the sum. The order of additions depends on the lanes alone. */
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

/* Makes the compiler keep an address in a register rather than compute it again. */
__device__ __forceinline__ unsigned keep(unsigned address) {
    asm volatile("" : "+r"(address));
    return address;
}

/*
 * The same for the assembler too, which otherwise computes again what it can. All lanes of a warp call these. With
 * `pin_shared` they have the same value, and the assembler knows that.
 */
__device__ __forceinline__ unsigned pin(unsigned value) { return __shfl_sync(~0u, value, threadIdx.x % 32); }
__device__ __forceinline__ unsigned pin_shared(unsigned value) { return __shfl_sync(~0u, value ^ threadIdx.x % 32, 0); }

__device__ __forceinline__ char *shared_at(unsigned address) {
    return static_cast<char *>(__cvta_shared_to_generic(address));
}

/* Starts a copy of 16 bytes to shared memory, bypassing L1. If not `inside`, it writes zeros. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

/* Starts a copy of 16 bytes to an address in shared memory, bypassing L1. */
__device__ __forceinline__ void copy_async_to(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/*
 * Prefetches to L2, on devices that can (sm_90). The address and the size are multiples of 16. Reads nothing: later loads
 * see all that is written there meanwhile.
 */
__device__ __forceinline__ void prefetch(const void *from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* Ends a group of this thread's copies. */
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `N` of this thread's groups of copies are in flight. */
template <unsigned N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/*
 * Programmatic dependent launch (sm_90): successive kernels of a stream overlap. The blocks of a kernel are set up while the
 * last ones of the kernel before still run.
 *
 * Every thread of every kernel calls `await_previous` before it writes, reads what an earlier kernel wrote, or ends. So when
 * a kernel is done, all before it are. Before that call, it may read weights, which no kernel writes, and what `djinn_copy`
 * put in place: a step's positions, sequences and page tables. That is safe since a copy calls `release_next` last, and a
 * kernel starts only when all blocks of the one before have called it: no later kernel starts before the copy is done. It
 * may not read what any other kernel wrote: several kernels may be set up while one runs.
 */
__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* For a kernel that has nothing to do before `await_previous`. */
__device__ __forceinline__ void enter() {
    release_next();
    await_previous();
}

struct DeviceFacts {
    unsigned multiprocessors;
    /* Whether it runs code in which kernels of a stream overlap and blocks form clusters (sm_90). */
    bool overlaps;
    /* Whether it runs code for sm_90a. */
    bool is_hopper;
    /* The most shared memory of a block, in bytes. */
    unsigned block_shared;
    /* Bytes that device memory moves in a cycle, by the clocks of the data sheet; 0 if the driver does not tell. */
    unsigned bytes_a_cycle;
};

constexpr int MOST_DEVICES = 64;

/* Facts by device: of the current device, and of those that were current when this was called. */
const DeviceFacts *all_devices();

/* Counts, from 1, how often contexts were left. What is kept about a kernel holds for one of these counts. */
inline std::atomic<unsigned> &contexts() {
    static std::atomic<unsigned> count{1};
    return count;
}

/* The current device. Devices past the table's end share its last place. */
inline int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device < MOST_DEVICES ? device : MOST_DEVICES - 1;
}

/* Lets blocks of a kernel have so much dynamic shared memory. Loads the kernel's code if nothing did before. */
template <typename Kernel> cudaError_t allow_shared(Kernel kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
}

/* A launch of a kernel that keeps the rules of `await_previous`, in clusters of `cluster` blocks if that is more than 1. */
struct LaunchConfig {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    LaunchConfig(dim3 grid, dim3 block, size_t shared, void *stream, unsigned cluster) {
        config.gridDim = grid;
        config.blockDim = block;
        config.dynamicSmemBytes = shared;
        config.stream = static_cast<cudaStream_t>(stream);
        config.attrs = attributes;
        if (all_devices()[current_device()].overlaps) {
            cudaLaunchAttribute &overlap = attributes[config.numAttrs++];
            overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            overlap.val.programmaticStreamSerializationAllowed = 1;
        }
        if (cluster > 1) {
            cudaLaunchAttribute &clusters = attributes[config.numAttrs++];
            clusters.id = cudaLaunchAttributeClusterDimension;
            clusters.val.clusterDim.x = cluster;
            clusters.val.clusterDim.y = clusters.val.clusterDim.z = 1;
        }
    }

    LaunchConfig(const LaunchConfig &) = delete;
};

/* Launches a kernel that keeps the rules of `await_previous`, with `shared` bytes of dynamic shared memory. */
template <typename... Params, typename... Args>
int launch_clusters(unsigned cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, void *stream,
                    const Args &...args) {
    const LaunchConfig launch(grid, block, shared, stream, cluster);
    return cudaLaunchKernelEx(&launch.config, kernel, Params(args)...);
}

template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, void *stream, const Args &...args) {
    return launch_clusters(1, kernel, grid, block, shared, stream, args...);
}

inline unsigned ceil_div(uint64_t a, uint64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

} // namespace djinn

/* `MACRO(suffix, type)` for each dtype. */
#define DJINN_FOR_DTYPES(MACRO)                                                                              \
    MACRO(f32, djinn::f32)                                                                                   \
    MACRO(f16, djinn::f16)                                                                                   \
    MACRO(bf16, djinn::bf16)

/* Launches `kernel_f32`, `kernel_f16` or `kernel_bf16`, and returns from the launcher. */
#define DJINN_LAUNCH_BY_DTYPE(dtype, kernel, grid, block, stream, ...)                                       \
    switch (dtype) {                                                                                         \
    case DJINN_F32: return djinn::launch(kernel##_f32, grid, block, 0, stream, __VA_ARGS__);                 \
    case DJINN_F16: return djinn::launch(kernel##_f16, grid, block, 0, stream, __VA_ARGS__);                 \
    case DJINN_BF16: return djinn::launch(kernel##_bf16, grid, block, 0, stream, __VA_ARGS__);               \
    default: return cudaErrorInvalidValue;                                                                   \
    }

#endif
