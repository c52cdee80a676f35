/*
 * Reads memory and does nothing with it: a kernel that needs each byte once takes at least as long. For reads.py.
 *
 * The copy engine brings chunks to rings in shared memory, one for each warp. A chunk waits for nothing but a free stage.
 */
#include <cstdint>
#include <cuda_runtime.h>

constexpr unsigned MOST_STAGES = 16, MOST_WARPS = 16;

struct Reads {
    const unsigned char *from;
    /* Which chunk is the i-th; null if they follow one another. */
    const uint32_t *order;
    uint32_t chunks, bytes, stages;
    /* Whether reading begins before the kernel before has ended. */
    uint32_t early;
};

__device__ __forceinline__ uint32_t shared_address(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void wait(const uint64_t &barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(&barrier)),
                 "r"(parity)
                 : "memory");
}

__global__ void __launch_bounds__(32 * MOST_WARPS) read_all(const Reads a) {
    extern __shared__ __align__(128) unsigned char rings[];
    __shared__ uint64_t barriers[MOST_WARPS][MOST_STAGES];
    cudaTriggerProgrammaticLaunchCompletion();
    const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) {
        uint64_t *const ready = barriers[warp];
        unsigned char *const ring = rings + size_t(warp) * a.stages * a.bytes;
        for (uint32_t stage = 0; stage < a.stages; ++stage) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(ready + stage)) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if (!a.early) {
            cudaGridDependencySynchronize();
        }
        uint32_t count = 0;
        for (uint32_t i = blockIdx.x * warps + warp; i < a.chunks; i += gridDim.x * warps, ++count) {
            const uint32_t stage = count % a.stages, round = count / a.stages;
            if (round > 0) {
                wait(ready[stage], (round - 1) % 2);
            }
            const size_t chunk = a.order == nullptr ? i : a.order[i];
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(ready + stage)), "r"(a.bytes)
                         : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             shared_address(ring + stage * a.bytes)),
                         "l"(a.from + chunk * a.bytes), "r"(a.bytes), "r"(shared_address(ready + stage))
                         : "memory");
        }
        for (uint32_t i = count > a.stages ? count - a.stages : 0; i < count; ++i) {
            wait(ready[i % a.stages], i / a.stages % 2);
        }
    }
    cudaGridDependencySynchronize();
}

extern "C" int read_chunks(const Reads *args, unsigned blocks, unsigned warps, void *stream) {
    if (args->stages == 0 || args->stages > MOST_STAGES || warps == 0 || warps > MOST_WARPS) {
        return cudaErrorInvalidValue;
    }
    const unsigned shared = warps * args->stages * args->bytes;
    const cudaError_t code = cudaFuncSetAttribute(read_all, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (code != cudaSuccess) {
        return code;
    }
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = 32 * warps;
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlap;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, read_all, *args);
}
