/*
 * What launchers ask of the current device: its properties, and which of the kernels' code it runs. The loaded code itself
 * tells the latter: a new card runs code for an old one if the build has no other.
 */
#include "element.cuh"

#include <mutex>

namespace djinn {

/* The launch bound of `djinn_code`, by the code that is compiled. The driver tells it, and so which code it loaded. */
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
    int clock = 0, memory_clock = 0, bits = 0;
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, device);
    cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, device);
    cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device);
    /* Two transfers in a cycle of the memory's clock. */
    const unsigned bytes = clock > 0 ? unsigned(2.0 * memory_clock * bits / 8 / clock) : 0;
    cudaFuncAttributes code = {};
    if (cudaFuncGetAttributes(&code, djinn_code) != cudaSuccess) {
        /* The first launch will fail as well, and be reported. */
        cudaGetLastError();
    }
    return {multiprocessors > 0 ? unsigned(multiprocessors) : 1u, code.maxThreadsPerBlock >= OVERLAPPING,
            code.maxThreadsPerBlock == HOPPER, unsigned(shared), bytes};
}

const DeviceFacts *all_devices() {
    static DeviceFacts facts[MOST_DEVICES];
    static std::once_flag known[MOST_DEVICES];
    const int device = current_device();
    std::call_once(known[device], [&] { facts[device] = ask(device); });
    return facts;
}

} // namespace djinn
