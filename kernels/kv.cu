/*
 * kv_write: keys and values of qkv into the pages, at each row's sequence and position, rounded to nearest even.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], row_seq and positions u32 [rows]; pages in kv.cuh.
 * Launch: blocks of 128 threads, x over rows, y over key and value heads, keys first; 4 elements a thread and
 * step where head_dim allows.
 * CPU reference: djinn-device, kernels/reference.rs, `kv_write`.
 */
#include "kv.cuh"

namespace djinn {

constexpr unsigned THREADS = 128;

template <typename T> __device__ void kv_write(const djinn_kv_write_args &a) {
    const unsigned row = blockIdx.x, dim = a.kv.head_dim, kv_heads = a.kv.kv_heads;
    const bool value = blockIdx.y >= kv_heads;
    const unsigned head = value ? blockIdx.y - kv_heads : blockIdx.y;
    const size_t width = size_t(a.heads + 2 * kv_heads) * dim;
    const float *from = a.qkv + row * width + size_t(a.heads + blockIdx.y) * dim;
    T *to = key_at<T>(a.kv, a.row_seq[row], a.positions[row], head) + (value ? value_offset(a.kv) : 0);
    if (dim % 4 != 0) {
        for (unsigned i = threadIdx.x; i < dim; i += THREADS) {
            to[i] = narrow<T>(from[i]);
        }
        return;
    }
    for (unsigned i = threadIdx.x * 4; i < dim; i += THREADS * 4) {
        const auto x = load<float, 4>(from + i);
        store(to + i,
              Pack<T, 4>{narrow<T>(x.at[0]), narrow<T>(x.at[1]), narrow<T>(x.at[2]), narrow<T>(x.at[3])});
    }
}

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_kv_write_##suffix(const __grid_constant__ djinn_kv_write_args a) {                             \
        djinn::kv_write<T>(a);                                                                               \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

extern "C" int djinn_kv_write(const djinn_kv_write_args *args, void *stream) {
    const dim3 grid(args->rows, 2 * args->kv.kv_heads);
    DJINN_LAUNCH_BY_DTYPE(args->kv.dtype, djinn_kv_write, grid, djinn::THREADS, stream, *args);
}
