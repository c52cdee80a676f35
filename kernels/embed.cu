/*
 * embed: out[r, :] = table[tokens[r] - first_row, :], for the rows whose token lies in this tile of the table.
 * Shapes: tokens u32 [rows], table [table_rows, width], out f32 [rows, width].
 * Launch: one block of 256 threads a row; 16 bytes of the table a thread and step where rows are aligned.
 * Reference: djinn-device, src/reference.rs, `embed`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned THREADS = 256;

template <typename T> __device__ void embed(const djinn_embed_args &a) {
    enter();
    constexpr unsigned N = PER_16_BYTES<T>;
    const unsigned token = a.tokens[blockIdx.x], row = token - a.first_row;
    if (token < a.first_row || row >= a.table_rows) {
        return;
    }
    const T *from = static_cast<const T *>(a.table) + size_t(row) * a.width;
    float *to = a.out + size_t(blockIdx.x) * a.width;
    if (a.width % N != 0) {
        for (unsigned i = threadIdx.x; i < a.width; i += THREADS) {
            to[i] = widen(from[i]);
        }
        return;
    }
    for (unsigned i = threadIdx.x * N; i < a.width; i += THREADS * N) {
        const auto pack = load<T, N>(from + i);
#pragma unroll
        for (unsigned j = 0; j < N; j += 4) {
            store(to + i + j, Pack<float, 4>{widen(pack.at[j]), widen(pack.at[j + 1]), widen(pack.at[j + 2]),
                                             widen(pack.at[j + 3])});
        }
    }
}

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_embed_##suffix(const __grid_constant__ djinn_embed_args a) {                                   \
        djinn::embed<T>(a);                                                                                  \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

extern "C" int djinn_embed(const djinn_embed_args *args, void *stream) {
    DJINN_LAUNCH_BY_DTYPE(args->table_dtype, djinn_embed, args->rows, djinn::THREADS, stream, *args);
}

extern "C" const char *djinn_error_string(int code) {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}
