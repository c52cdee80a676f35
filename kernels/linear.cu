/*
 * linear: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j].
 * Shapes: x f32 [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * CPU reference: djinn-device, kernels/reference.rs, `linear`.
 *
 * Meant for up to 16 rows, where the time is that of reading the weight; more rows take a launch for each 16.
 *
 * f16 and bf16 with k a multiple of 8: tensor cores, in tf32. A 16-bit weight is exact in tf32; x is the sum of
 * two tf32 numbers, which together hold 22 bits of it; products accumulate in f32.
 * Launch: a block of 8 warps (16 from 8192 columns on) for each 16 rows of the weight. The warps take turns at
 * runs of 128 columns, lanes 16 bytes at once; their partial sums are added in the order of the warps. Rows of x
 * are the columns of the matrix fragments, so each row's arithmetic is the same whatever stands in the others.
 *
 * Otherwise: a warp for each row of the weight, 8 warps a block; a lane takes every 32nd group of elements, and
 * the lanes' sums are added in a tree.
 */
#include "element.cuh"

namespace djinn {

/* Of the plain kernels. */
constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = 32 * WARPS;
/* From this many columns on, more warps share them. */
constexpr unsigned WIDE = 8192;
/* Columns that a warp takes before the next warp's. */
constexpr unsigned RUN = 128;
constexpr unsigned MOST_ROWS = 16;

__device__ __forceinline__ float bias_of(const djinn_linear_args &a, unsigned j) {
    if (a.bias == nullptr) {
        return 0;
    }
    switch (a.bias_dtype) {
    case DJINN_F32: return static_cast<const f32 *>(a.bias)[j];
    case DJINN_F16: return widen(static_cast<const f16 *>(a.bias)[j]);
    default: return widen(static_cast<const bf16 *>(a.bias)[j]);
    }
}

/* The two elements of a word, as the bits of f32. */
template <typename T> __device__ __forceinline__ uint2 unpack(uint32_t word);
template <> __device__ __forceinline__ uint2 unpack<bf16>(uint32_t word) {
    return make_uint2(word << 16, word & 0xffff0000u);
}
template <> __device__ __forceinline__ uint2 unpack<f16>(uint32_t word) {
    const __half2 pair = *reinterpret_cast<const __half2 *>(&word);
    return make_uint2(__float_as_uint(__low2float(pair)), __float_as_uint(__high2float(pair)));
}

/* sum[16, 8] += a[16, 8] b[8, 8] in tf32. */
__device__ __forceinline__ void multiply(float (&sum)[4], const uint2 &upper, const uint2 &lower, uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(b0), "r"(b1));
}

/* The leading 11 bits of x, which tf32 holds. */
__device__ __forceinline__ uint32_t high_part(float x) { return __float_as_uint(x) & 0xffffe000u; }
__device__ __forceinline__ uint32_t low_part(float x, uint32_t high) {
    return __float_as_uint(x - __uint_as_float(high));
}

/* Adds the products of 32 columns: this lane's 8 of two weight rows, and of one row of x for each tile. */
template <typename T, unsigned TILES>
__device__ __forceinline__ void step(float (&high)[TILES][4], float (&low)[TILES][4], const uint4 &upper,
                                     const uint4 &lower, const float4 (&x)[TILES][2]) {
    const uint32_t u[4] = {upper.x, upper.y, upper.z, upper.w}, l[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const uint2 a = unpack<T>(u[i]), b = unpack<T>(l[i]);
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            const float4 half = x[tile][i / 2];
            const float x0 = i % 2 ? half.z : half.x, x1 = i % 2 ? half.w : half.y;
            const uint32_t h0 = high_part(x0), h1 = high_part(x1);
            multiply(high[tile], a, b, h0, h1);
            multiply(low[tile], a, b, low_part(x0, h0), low_part(x1, h1));
        }
    }
}

/*
 * Up to 8 TILES rows of x. Each lane copies the weights that it will use itself to its own place in shared
 * memory, STAGES - 1 steps ahead: many loads under way, few registers, and no barrier.
 */
template <typename T, unsigned TILES, unsigned WARPS> __device__ void linear_tensor(const djinn_linear_args &a) {
    constexpr unsigned ROWS = 16, COLUMNS = 8 * TILES, STEP = 32, DEEP = RUN / STEP, STAGES = WARPS == 8 ? 4 : 3;
    static_assert(WARPS * COLUMNS * ROWS * sizeof(float) <= WARPS * STAGES * 64 * sizeof(uint4), "parts fit");
    __shared__ uint4 staged[WARPS][STAGES][2][32];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
    const unsigned first = blockIdx.x * ROWS;
    const T *weight = static_cast<const T *>(a.weight);
    /* Rows beyond the last one repeat it, and are not stored. */
    const T *upper = weight + size_t(min(first + group, a.n - 1)) * a.k;
    const T *lower = weight + size_t(min(first + group + 8, a.n - 1)) * a.k;
    const float *x[TILES];
#pragma unroll
    for (unsigned tile = 0; tile < TILES; ++tile) {
        x[tile] = a.x + size_t(min(tile * 8 + group, a.rows - 1)) * a.k;
    }
    const unsigned runs = (a.k + RUN - 1) / RUN;
    const unsigned steps = runs > warp ? (runs - warp + WARPS - 1) / WARPS * DEEP : 0;
    /* The lane's first column of a step. */
    const auto column_of = [&](unsigned i) { return (i / DEEP * WARPS + warp) * RUN + i % DEEP * STEP + quad * 8; };
    const auto fetch = [&](unsigned i, unsigned stage) {
        const unsigned at = column_of(i);
        const bool inside = i < steps && at < a.k;
        if (i < steps) {
            copy_async(&staged[warp][stage][0][lane], upper + (inside ? at : 0), inside);
            copy_async(&staged[warp][stage][1][lane], lower + (inside ? at : 0), inside);
        }
        commit_copies();
    };

    float high[TILES][4] = {}, low[TILES][4] = {};
#pragma unroll
    for (unsigned i = 0; i + 1 < STAGES; ++i) {
        fetch(i, i);
    }
    for (unsigned i = 0, stage = 0; i < steps; ++i, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        const unsigned at = column_of(i);
        float4 columns[TILES][2];
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            columns[tile][0] = columns[tile][1] = make_float4(0, 0, 0, 0);
            if (at < a.k) {
                columns[tile][0] = *reinterpret_cast<const float4 *>(x[tile] + at);
                columns[tile][1] = *reinterpret_cast<const float4 *>(x[tile] + at + 4);
            }
        }
        wait_copies<STAGES - 2>();
        const uint4 u = staged[warp][stage][0][lane], l = staged[warp][stage][1][lane];
        fetch(i + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        step<T, TILES>(high, low, u, l, columns);
    }

    /* The partial sums take the place of the weights, once all warps are done with them. */
    auto &parts = *reinterpret_cast<float(*)[WARPS][COLUMNS][ROWS]>(&staged);
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            parts[warp][tile * 8 + 2 * quad + i % 2][group + i / 2 * 8] = high[tile][i] + low[tile][i];
        }
    }
    __syncthreads();
    const unsigned column = threadIdx.x / ROWS, row = threadIdx.x % ROWS, j = first + row;
    if (column >= a.rows || column >= COLUMNS || j >= a.n) {
        return;
    }
    float sum = parts[0][column][row];
#pragma unroll
    for (unsigned i = 1; i < WARPS; ++i) {
        sum += parts[i][column][row];
    }
    a.out[size_t(column) * a.out_width + a.out_column + j] = sum + bias_of(a, j);
}

/* Up to ROWS rows of x; elements are read N at once, and k is a multiple of N. */
template <typename T, unsigned N, unsigned ROWS> __device__ void linear_plain(const djinn_linear_args &a) {
    const unsigned lane = threadIdx.x % 32, j = blockIdx.x * WARPS + threadIdx.x / 32;
    if (j >= a.n) {
        return;
    }
    const T *weight = static_cast<const T *>(a.weight) + size_t(j) * a.k;
    float sums[ROWS] = {};
#pragma unroll 4
    for (unsigned at = lane * N; at < a.k; at += 32 * N) {
        const auto w = load<T, N>(weight + at);
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) {
            const auto x = load<float, N>(a.x + size_t(min(r, a.rows - 1)) * a.k + at);
#pragma unroll
            for (unsigned i = 0; i < N; ++i) {
                sums[r] = __fmaf_rn(widen(w.at[i]), x.at[i], sums[r]);
            }
        }
    }
    const float bias = bias_of(a, j);
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && r < a.rows) {
            a.out[size_t(r) * a.out_width + a.out_column + j] = sum + bias;
        }
    }
}

} // namespace djinn

/* Registers are limited so that enough warps, and with them loads under way, fit a multiprocessor. */
#define DJINN_TENSOR(suffix, T)                                                                              \
    template <unsigned TILES, unsigned WARPS>                                                                \
    __global__ void __launch_bounds__(32 * WARPS, (TILES == 1 ? 32 : 16) / WARPS)                            \
        djinn_linear_tensor_##suffix(const __grid_constant__ djinn_linear_args a) {                          \
        djinn::linear_tensor<T, TILES, WARPS>(a);                                                            \
    }
DJINN_TENSOR(f16, djinn::f16)
DJINN_TENSOR(bf16, djinn::bf16)

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned N, unsigned ROWS>                                                                     \
    __global__ void __launch_bounds__(djinn::THREADS)                                                        \
        djinn_linear_##suffix(const __grid_constant__ djinn_linear_args a) {                                 \
        djinn::linear_plain<T, N, ROWS>(a);                                                                  \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

using Kernel = void (*)(djinn_linear_args);

/* The one for a number of rows up to 16. */
#define DJINN_BY_ROWS(kernel, n, rows)                                                                       \
    ((rows) <= 1   ? Kernel(kernel<n, 1>)                                                                    \
     : (rows) <= 2 ? Kernel(kernel<n, 2>)                                                                    \
     : (rows) <= 4 ? Kernel(kernel<n, 4>)                                                                    \
     : (rows) <= 8 ? Kernel(kernel<n, 8>)                                                                    \
                   : Kernel(kernel<n, 16>))

/* The one for a number of rows up to 16, and for a number of columns. */
#define DJINN_BY_SHAPE(kernel, rows, k)                                                                      \
    ((rows) <= 8 ? ((k) < WIDE ? Kernel(kernel<1, 8>) : Kernel(kernel<1, 16>))                               \
                 : ((k) < WIDE ? Kernel(kernel<2, 8>) : Kernel(kernel<2, 16>)))

/* The plain kernel for a dtype, a number of columns and a number of rows. */
Kernel plain_kernel(const djinn_linear_args &a) {
    switch (a.weight_dtype) {
    case DJINN_F32:
        return a.k % 4 == 0 ? DJINN_BY_ROWS(djinn_linear_f32, 4, a.rows) : DJINN_BY_ROWS(djinn_linear_f32, 1, a.rows);
    case DJINN_F16: return DJINN_BY_ROWS(djinn_linear_f16, 1, a.rows);
    case DJINN_BF16: return DJINN_BY_ROWS(djinn_linear_bf16, 1, a.rows);
    default: return nullptr;
    }
}

int linear_rows(const djinn_linear_args &a, cudaStream_t stream) {
    const bool tensor = a.weight_dtype != DJINN_F32 && a.k % 8 == 0;
    Kernel kernel = plain_kernel(a);
    if (kernel == nullptr) {
        return cudaErrorInvalidValue;
    }
    unsigned grid = ceil_div(a.n, WARPS), threads = THREADS;
    if (tensor) {
        kernel = a.weight_dtype == DJINN_F16 ? DJINN_BY_SHAPE(djinn_linear_tensor_f16, a.rows, a.k)
                                             : DJINN_BY_SHAPE(djinn_linear_tensor_bf16, a.rows, a.k);
        grid = ceil_div(a.n, 16);
        threads = a.k < WIDE ? 256 : 512;
    }
    kernel<<<grid, threads, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace djinn

extern "C" int djinn_linear(const djinn_linear_args *args, void *stream) {
    if (args->bias != nullptr && args->bias_dtype > DJINN_BF16) {
        return cudaErrorInvalidValue;
    }
    for (unsigned row = 0; row < args->rows; row += djinn::MOST_ROWS) {
        djinn_linear_args part = *args;
        part.rows = args->rows - row < djinn::MOST_ROWS ? args->rows - row : djinn::MOST_ROWS;
        part.x += size_t(row) * args->k;
        part.out += size_t(row) * args->out_width;
        const int code = djinn::linear_rows(part, djinn::as_stream(stream));
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}
