/*
 * What launchers ask of the current device: what it has, and which of the kernels' code it runs. The second is asked of
 * the loaded code itself: a new card runs code for an old one where the build has no other.
 */
#include "element.cuh"

#include <mutex>

namespace djinn {

/* Threads that a block of `djinn_code` may have, by what the code has that is compiled: the driver tells them. */
enum Code { ANY = 32, OVERLAPPING = 64, HOPPER = 128 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int CODE = HOPPER;
#elif __CUDA_ARCH__ >= 900
constexpr int CODE = OVERLAPPING;
#else
constexpr int CODE = ANY;
#endif

} // namespace djinn

static __global__ void __launch_bounds__(djinn::CODE) djinn_code() {}

namespace djinn {

static DeviceFacts ask(int device) {
    int multiprocessors = 0, shared = 0;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaFuncAttributes code = {};
    if (cudaFuncGetAttributes(&code, djinn_code) != cudaSuccess) {
        /* The first launch fails alike, and is told. */
        cudaGetLastError();
    }
    return {multiprocessors > 0 ? unsigned(multiprocessors) : 1u, code.maxThreadsPerBlock >= OVERLAPPING,
            code.maxThreadsPerBlock == HOPPER, unsigned(shared)};
}

const DeviceFacts *all_devices() {
    static DeviceFacts facts[MOST_DEVICES];
    static std::once_flag known[MOST_DEVICES];
    const int device = current_device();
    std::call_once(known[device], [&] { facts[device] = ask(device); });
    return facts;
}

} // namespace djinn
