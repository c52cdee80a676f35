/*
 * What the kernels share: element types, vectors of them, reductions over a warp or a block, launches, dispatch
 * by dtype.
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

/* To nearest, ties to even. */
template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ f32 narrow<f32>(float x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

/* As `silu`, to the same bits: where no step of it can leave the range of f32, divisions go on side by side. */
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
        /* The quotient is rounded once, with its remainder added: as in a division. */
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

/* Elements of an output from `at` on, to `out` and where they are wanted rounded, or there alone. */
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

/* Two f32, rounded, as a pair of T. */
template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<f16>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
template <> __device__ __forceinline__ uint32_t pack<bf16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
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

/* An address in shared memory that the compiler keeps, rather than finds anew. */
__device__ __forceinline__ unsigned keep(unsigned address) {
    asm volatile("" : "+r"(address));
    return address;
}

/* What is at an address in shared memory. */
__device__ __forceinline__ char *shared_at(unsigned address) {
    return static_cast<char *>(__cvta_shared_to_generic(address));
}

/* Starts a copy of 16 bytes to shared memory, past the first-level cache; zeros if not `inside`. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

/* Starts a copy of 16 bytes to an address in shared memory, past the first-level cache. */
__device__ __forceinline__ void copy_async_to(unsigned to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/*
 * Has bytes brought to the second-level cache, on devices that can (sm_90): whole 16 from a multiple of 16 on. Reads nothing:
 * what is written there meanwhile is seen by all later loads.
 */
__device__ __forceinline__ void prefetch(const void *from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* Ends a group of this thread's copies. */
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `N` of this thread's groups are under way. */
template <unsigned N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/*
 * Successive kernels of a stream overlap on devices that can (programmatic dependent launch, sm_90): a kernel's
 * blocks are set up while the last ones of the kernel before still run.
 *
 * Every thread of every kernel calls `await_previous` before it reads what an earlier kernel wrote, writes, or
 * ends: so when a kernel is done, all before it are. Before that it may read weights, which no kernel writes, and what
 * `djinn_copy` put in place: a step's positions, sequences and page tables. No later kernel of the stream starts before a
 * copy is done, since each starts only when all blocks of the one before have, and a copy calls `release_next` last. It may
 * not read what any other kernel wrote: several kernels may be set up while one runs.
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

/* The start of a kernel that has nothing to do before `await_previous`. */
__device__ __forceinline__ void enter() {
    release_next();
    await_previous();
}

/* What launchers ask of a device. */
struct DeviceFacts {
    unsigned multiprocessors;
    /* Whether it runs code in which kernels of a stream overlap and blocks form clusters (sm_90). */
    bool overlaps;
    /* Whether it runs code for sm_90a. */
    bool is_hopper;
    /* Shared memory that a block may have, in bytes. */
    unsigned block_shared;
};

constexpr int MOST_DEVICES = 64;

/* Facts by device, of the current one and of those that were; asked for once. */
const DeviceFacts *all_devices();

/* Counts the times that contexts were left, from 1: what is kept of a kernel is of the contexts of one number. */
inline std::atomic<unsigned> &contexts() {
    static std::atomic<unsigned> count{1};
    return count;
}

/* The current device; the last of the table stands for those beyond it. */
inline int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device < MOST_DEVICES ? device : MOST_DEVICES - 1;
}

/* A launch of a kernel that keeps the rules of `await_previous`, in clusters of `cluster` blocks; 1 for none. */
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

/* As `launch_clusters`, without clusters. */
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
