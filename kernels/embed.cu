/*
 * embed: out[r, :] = table[tokens[r] - first_row, :], for the rows whose token lies in this tile of the table.
 * Shapes: tokens u32 [rows], table [table_rows, width], plain or encoded, out f32 [rows, width].
 * Launch: one block of 256 threads for each row. Plain rows: 16 bytes of the table a thread and step if they are aligned.
 * Encoded rows: 4096 columns a step, those of blocks by way of shared memory.
 * Reference: djinn-device, src/reference.rs, `embed`; blocks: djinn-srg, src/encoding/block.rs.
 */
#include "decode.cuh"

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

/* The columns that a block decodes at once: 64 for every four threads. */
constexpr unsigned STEP_COLUMNS = THREADS / 4 * 64;

/* The encoded row of the block's token, or null. Waits for the previous kernel. */
__device__ __forceinline__ const char *row_of(const djinn_embed_args &a) {
    enter();
    const unsigned token = a.tokens[blockIdx.x], row = token - a.first_row;
    return token < a.first_row || row >= a.table_rows ? nullptr
                                                      : static_cast<const char *>(a.table) + size_t(row) * a.row_bytes;
}

template <djinn_encoding E>
__global__ void __launch_bounds__(THREADS) djinn_embed_blocks(const __grid_constant__ djinn_embed_args a) {
    using Format = Blocks<E>;
    constexpr unsigned BYTES = STEP_COLUMNS / SEGMENT_COLUMNS * Format::BYTES;
    __shared__ alignas(16) char staged[BYTES];
    const char *from = row_of(a);
    if (from == nullptr) {
        return;
    }
    const unsigned quad = threadIdx.x % 4, part = threadIdx.x / 4 % 4;
    const char *segment = staged + threadIdx.x / 16 * Format::BYTES;
    for (unsigned first = 0, at = 0; first < a.width; first += STEP_COLUMNS, at += BYTES) {
        stage_bytes(staged, from + at, min(BYTES, a.row_bytes - at), threadIdx.x, THREADS);
        __syncthreads();
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const unsigned column = first + threadIdx.x / 4 * 64 + step * 16;
            if (column < a.width) {
                *reinterpret_cast<float4 *>(a.out + size_t(blockIdx.x) * a.width + column + 4 * quad) =
                    Format::template values<Lanes::NEIGHBOURS>(segment, part, step, quad);
            }
        }
        __syncthreads();
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) djinn_embed_lossless(const __grid_constant__ djinn_embed_args a) {
    const char *from = row_of(a);
    if (from == nullptr) {
        return;
    }
    const unsigned quad = threadIdx.x % 4;
    for (unsigned first = threadIdx.x / 4 * 64; first < a.width; first += STEP_COLUMNS) {
        uint2 w[4];
        lossless_run<T>(from, a.width, first, quad, w);
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const auto pack = *reinterpret_cast<const Pack<T, 4> *>(&w[step]);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned column = first + step * 16 + lossless_column(quad) + i;
                if (column < a.width) {
                    a.out[size_t(blockIdx.x) * a.width + column] = widen(pack.at[i]);
                }
            }
        }
    }
}

template <djinn_encoding E> int embed_blocks(const djinn_embed_args &a, void *stream) {
    using Format = Blocks<E>;
    if (!are_padded<Format>(a.width, a.row_bytes)) {
        return cudaErrorInvalidValue;
    }
    return launch(djinn_embed_blocks<E>, a.rows, THREADS, 0, stream, a);
}

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_embed_##suffix(const __grid_constant__ djinn_embed_args a) {                                   \
        djinn::embed<T>(a);                                                                                  \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

extern "C" int djinn_embed(const djinn_embed_args *args, void *stream) {
    switch (args->encoding) {
    case DJINN_PLAIN: break;
    case DJINN_LOSSLESS:
        switch (args->table_dtype) {
        case DJINN_F16: return djinn::launch(djinn::djinn_embed_lossless<djinn::f16>, args->rows, djinn::THREADS, 0, stream, *args);
        case DJINN_BF16: return djinn::launch(djinn::djinn_embed_lossless<djinn::bf16>, args->rows, djinn::THREADS, 0, stream, *args);
        default: return cudaErrorInvalidValue;
        }
#define DJINN_EMBED(format)                                                                                  \
    case DJINN_##format: return djinn::embed_blocks<DJINN_##format>(*args, stream);
        DJINN_FOR_BLOCKS(DJINN_EMBED)
#undef DJINN_EMBED
    default: return cudaErrorInvalidValue;
    }
    DJINN_LAUNCH_BY_DTYPE(args->table_dtype, djinn_embed, args->rows, djinn::THREADS, stream, *args);
}

extern "C" const char *djinn_error_string(int code) {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}
