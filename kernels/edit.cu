/*
 * edit_rows: y = clamp(scale y + along (y . direction) direction + add[i, :], low, high) for the columns from `column` on of
 * row indices[i] of x. A scale of 0 sets y to add. An addend of 0 changes no bit. NaN stays NaN.
 * Shapes: x f32 [_, x_width], indices u32 [rows], direction f32 [width], add f32 [rows, width] or [1, width]; all but x
 * may be pinned host memory.
 * Launch: one block of 256 threads for each row. Each thread adds up every 256th product; warps are added in order.
 * Reference: djinn-device, src/reference.rs, `edit_rows`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned EDIT_THREADS = 256;

/* As `EditRows::element` of djinn-device. */
__device__ __forceinline__ float edited(const djinn_edit_rows_args &a, float y, float dot, float direction, float add) {
    const bool sets = a.scale == 0.0f;
    y = sets ? add : y * a.scale;
    if (a.along != 0.0f) {
        y += a.along * dot * direction;
    }
    if (!sets && add != 0.0f) {
        y += add;
    }
    return y < a.low ? a.low : y > a.high ? a.high : y;
}

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::EDIT_THREADS)
    djinn_edit_rows_f32(const __grid_constant__ djinn_edit_rows_args a) {
    djinn::enter();
    __shared__ float parts[djinn::EDIT_THREADS / 32];
    float *y = a.x + size_t(a.indices[blockIdx.x]) * a.x_width + a.column;
    const float *add = a.add + (a.add_rows == 1 ? 0 : size_t(blockIdx.x) * a.width);
    float dot = 0.0f;
    if (a.along != 0.0f) {
        for (unsigned i = threadIdx.x; i < a.width; i += djinn::EDIT_THREADS) {
            dot += y[i] * a.direction[i];
        }
        dot = djinn::warp_sum(dot);
        if (threadIdx.x % 32 == 0) {
            parts[threadIdx.x / 32] = dot;
        }
        __syncthreads();
        dot = 0.0f;
        for (float part : parts) {
            dot += part;
        }
    }
    for (unsigned i = threadIdx.x; i < a.width; i += djinn::EDIT_THREADS) {
        const float direction = a.along != 0.0f ? a.direction[i] : 0.0f;
        y[i] = djinn::edited(a, y[i], dot, direction, add[i]);
    }
}

extern "C" int djinn_edit_rows(const djinn_edit_rows_args *args, void *stream) {
    return djinn::launch(djinn_edit_rows_f32, args->rows, djinn::EDIT_THREADS, 0, stream, *args);
}
