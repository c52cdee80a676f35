/*
 * Operations on single elements, and copies of rows.
 *
 * silu_mul: out[r, i] = silu(x[r, i]) x[r, width + i], perhaps rounded as well, or only rounded.
 * x f32 [rows, 2 width], out f32 [rows, width].
 * select_rows: out[i, :] = x[indices[i], :]. x f32 [_, width], indices u32 [rows], out f32 [rows, width].
 * add_bias: out[r, out_column + j] += bias[j]. out f32 [rows, out_width], bias [n].
 * Launch of these: blocks of 256 threads with 4 elements each, x over rows, y over columns.
 *
 * add: out = a + b. f32 [len], out may be a or b.
 * gelu: out = x/2 (1 + erf(x / sqrt(2))), or x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). f32 [len], out may be x.
 * convert: out = x rounded to nearest even. x f32 [len], out f16 or bf16 [len].
 * Launch of these: blocks of 256 threads with 4 elements each.
 *
 * Reference: djinn-device, src/reference.rs, `silu_mul`, `select_rows`, `add`, `gelu`; `linear` for the bias;
 * kernels/element.rs, `narrow`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned THREADS = 256;
constexpr unsigned EACH = 4;
constexpr unsigned BLOCK = THREADS * EACH;

/* Calls `four(i)` for this thread's elements of `begin .. len` if there are four, else `one(i)` for each. */
template <typename Four, typename One>
__device__ __forceinline__ void each(uint64_t begin, uint64_t len, bool aligned, Four four, One one) {
    const uint64_t mine = begin + uint64_t(threadIdx.x) * EACH;
    if (aligned && mine + EACH <= len) {
        four(mine);
        return;
    }
    for (uint64_t i = mine; i < len && i < mine + EACH; ++i) {
        one(i);
    }
}

/* x times the normal distribution function. */
struct GeluErf {
    __device__ __forceinline__ float operator()(float x) const { return x * normcdff(x); }
};

/* x/2 (1 + tanh(y)) is x / (1 + e^(-2y)), which avoids cancellation. */
struct GeluTanh {
    __device__ __forceinline__ float operator()(float x) const {
        constexpr float TWO_ROOT = 1.59576912160573071176f; /* 2 sqrt(2 / pi) */
        return x / (1.0f + expf(-TWO_ROOT * (x + 0.044715f * x * x * x)));
    }
};

template <typename Form> __device__ __forceinline__ void gelu(const djinn_gelu_args &a, Form form) {
    each(
        uint64_t(blockIdx.x) * BLOCK, a.len, true,
        [&](uint64_t i) {
            auto x = load<float, 4>(a.x + i);
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                x.at[j] = form(x.at[j]);
            }
            store(a.out + i, x);
        },
        [&](uint64_t i) { a.out[i] = form(a.x[i]); });
}

template <typename T> __device__ void add_bias(const djinn_add_bias_args &a) {
    enter();
    const T *bias = static_cast<const T *>(a.bias);
    float *out = a.out + size_t(blockIdx.x) * a.out_width + a.out_column;
    for (unsigned i = 0; i < EACH; ++i) {
        const unsigned j = blockIdx.y * BLOCK + i * THREADS + threadIdx.x;
        if (j < a.n) {
            out[j] += widen(bias[j]);
        }
    }
}

template <typename T> __device__ void convert(const djinn_convert_args &a) {
    enter();
    T *out = static_cast<T *>(a.out);
    each(
        uint64_t(blockIdx.x) * BLOCK, a.len, true,
        [&](uint64_t i) {
            store(out + i, narrowed<T>(load<float, 4>(a.x + i)));
        },
        [&](uint64_t i) { out[i] = narrow<T>(a.x[i]); });
}

inline dim3 grid_of_rows(uint32_t rows, uint32_t width) { return dim3(rows, ceil_div(width, BLOCK)); }

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_silu_mul_f32(const __grid_constant__ djinn_silu_mul_args a) {
    djinn::enter();
    const float *gate = a.x + size_t(blockIdx.x) * 2 * a.width, *up = gate + a.width;
    const size_t start = size_t(blockIdx.x) * a.width;
    const auto give = [&](uint64_t i, const auto &x) {
        djinn::store_output(a.out, a.rounded, start + i, x);
    };
    djinn::each(
        uint64_t(blockIdx.y) * djinn::BLOCK, a.width, a.width % 4 == 0,
        [&](uint64_t i) {
            auto x = djinn::load<float, 4>(gate + i);
            const auto y = djinn::load<float, 4>(up + i);
            djinn::silu(x.at);
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                x.at[j] *= y.at[j];
            }
            give(i, x);
        },
        [&](uint64_t i) { give(i, djinn::Pack<float, 1>{djinn::silu(gate[i]) * up[i]}); });
}

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_select_rows_f32(const __grid_constant__ djinn_select_rows_args a) {
    djinn::enter();
    const float *from = a.x + size_t(a.indices[blockIdx.x]) * a.width;
    float *to = a.out + size_t(blockIdx.x) * a.width;
    djinn::each(
        uint64_t(blockIdx.y) * djinn::BLOCK, a.width, a.width % 4 == 0,
        [&](uint64_t i) { djinn::store(to + i, djinn::load<float, 4>(from + i)); },
        [&](uint64_t i) { to[i] = from[i]; });
}

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_gelu_f32(const __grid_constant__ djinn_gelu_args a) {
    djinn::enter();
    if (a.form == DJINN_GELU_ERF) {
        djinn::gelu(a, djinn::GeluErf());
    } else {
        djinn::gelu(a, djinn::GeluTanh());
    }
}

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_add_f32(const __grid_constant__ djinn_add_args a) {
    djinn::enter();
    djinn::each(
        uint64_t(blockIdx.x) * djinn::BLOCK, a.len, true,
        [&](uint64_t i) {
            auto x = djinn::load<float, 4>(a.a + i);
            const auto y = djinn::load<float, 4>(a.b + i);
#pragma unroll
            for (unsigned j = 0; j < 4; ++j) {
                x.at[j] += y.at[j];
            }
            djinn::store(a.out + i, x);
        },
        [&](uint64_t i) { a.out[i] = a.a[i] + a.b[i]; });
}

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_add_bias_##suffix(const __grid_constant__ djinn_add_bias_args a) {                             \
        djinn::add_bias<T>(a);                                                                               \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_convert_f16(const __grid_constant__ djinn_convert_args a) {
    djinn::convert<djinn::f16>(a);
}

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_convert_bf16(const __grid_constant__ djinn_convert_args a) {
    djinn::convert<djinn::bf16>(a);
}

extern "C" int djinn_silu_mul(const djinn_silu_mul_args *args, void *stream) {
    const dim3 grid = djinn::grid_of_rows(args->rows, args->width);
    return djinn::launch(djinn_silu_mul_f32, grid, djinn::THREADS, 0, stream, *args);
}

extern "C" int djinn_select_rows(const djinn_select_rows_args *args, void *stream) {
    const dim3 grid = djinn::grid_of_rows(args->rows, args->width);
    return djinn::launch(djinn_select_rows_f32, grid, djinn::THREADS, 0, stream, *args);
}

extern "C" int djinn_gelu(const djinn_gelu_args *args, void *stream) {
    if (args->form > DJINN_GELU_TANH) {
        return cudaErrorInvalidValue;
    }
    const unsigned grid = djinn::ceil_div(args->len, djinn::BLOCK);
    return djinn::launch(djinn_gelu_f32, grid, djinn::THREADS, 0, stream, *args);
}

extern "C" int djinn_add(const djinn_add_args *args, void *stream) {
    const unsigned grid = djinn::ceil_div(args->len, djinn::BLOCK);
    return djinn::launch(djinn_add_f32, grid, djinn::THREADS, 0, stream, *args);
}

extern "C" int djinn_add_bias(const djinn_add_bias_args *args, void *stream) {
    const dim3 grid = djinn::grid_of_rows(args->rows, args->n);
    DJINN_LAUNCH_BY_DTYPE(args->bias_dtype, djinn_add_bias, grid, djinn::THREADS, stream, *args);
}

extern "C" int djinn_convert(const djinn_convert_args *args, void *stream) {
    const unsigned grid = djinn::ceil_div(args->len, djinn::BLOCK);
    switch (args->out_dtype) {
    case DJINN_F16: return djinn::launch(djinn_convert_f16, grid, djinn::THREADS, 0, stream, *args);
    case DJINN_BF16: return djinn::launch(djinn_convert_bf16, grid, djinn::THREADS, 0, stream, *args);
    default: return cudaErrorInvalidValue;
    }
}
