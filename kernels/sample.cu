/*
 * argmax: out[r] = the first index of the greatest element of x[r, :]; NaN is never the greatest. A row without
 * anything above minus infinity gives its first index that is no NaN, or 0.
 * Shapes: x f32 [rows, width], out u32 [rows].
 * Launch: one block of 1024 threads a row; 4 elements a thread and step where rows are aligned.
 * CPU reference: djinn-device, kernels/reference.rs, `argmax`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned THREADS = 1024;
constexpr unsigned WARPS = THREADS / 32;
/* After all others: of no element. */
constexpr unsigned NONE = 0xffffffffu;

/* An element and where it is. */
struct Best {
    float value;
    unsigned index;

    /* NaN is neither greater nor equal. */
    __device__ __forceinline__ void meet(float x, unsigned i) {
        if (x > value || (x == value && i < index)) {
            value = x, index = i;
        }
    }

    /* All lanes get the warp's. */
    __device__ __forceinline__ void meet_lanes() {
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) {
            const float x = __shfl_xor_sync(0xffffffffu, value, lane);
            const unsigned i = __shfl_xor_sync(0xffffffffu, index, lane);
            meet(x, i);
        }
    }
};

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_argmax_f32(const __grid_constant__ djinn_argmax_args a) {
    using namespace djinn;
    __shared__ Best parts[WARPS];
    enter();
    const float *x = a.x + size_t(blockIdx.x) * a.width;
    Best best = {-INFINITY, NONE};
    if (a.width % 4 == 0) {
#pragma unroll 4
        for (unsigned i = threadIdx.x; i < a.width / 4; i += THREADS) {
            const auto pack = load<float, 4>(x + size_t(i) * 4);
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                best.meet(pack.at[j], i * 4 + j);
            }
        }
    } else {
        for (size_t i = threadIdx.x; i < a.width; i += THREADS) {
            best.meet(x[i], unsigned(i));
        }
    }
    best.meet_lanes();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = best;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        best = parts[threadIdx.x];
        best.meet_lanes();
        if (threadIdx.x == 0) {
            a.out[blockIdx.x] = best.index == NONE ? 0 : best.index;
        }
    }
}

extern "C" int djinn_argmax(const djinn_argmax_args *args, void *stream) {
    return djinn::launch(djinn_argmax_f32, args->rows, djinn::THREADS, 0, stream, *args);
}
