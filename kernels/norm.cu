/*
 * rms_norm: out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) weight.
 * Shapes: x and out f32 [rows, width] (out may be x), weight [width].
 *
 * layer_norm: out[r, :] = (x[r, :] - mean) / sqrt(variance + eps) weight + bias, variance the mean of (x - mean)^2.
 * Shapes: x and out f32 [rows, width] (out may be x), weight and bias [width], each of its own type.
 *
 * add_rms_norm: sum = a + b, then out is the norm of sum. a, b and sum f32 [rows, width]. Each of sum and out may be a or b,
 * but may not overlap them otherwise. The bits are those of `add`, then `rms_norm`.
 *
 * Both RMS norms may store out rounded as well, or only rounded.
 *
 * head_norm: the norm of each query head and each key head of qkv f32 [rows, (heads + 2 kv_heads) head_dim], in place, by
 * weights [head_dim]. Launch: a warp for each row and head, blocks of 8 warps; lanes take every 32nd element.
 *
 * Launch of the others: one block of 512 threads for each row; 4 elements a thread and step if the width allows, the first 2
 * or 4 steps kept in registers. The RMS norms, which products read, take few registers, so that their blocks fit beside those
 * of a product.
 * Reference: djinn-device, src/reference.rs, `rms_norm`, `layer_norm`, `add` and `head_norm`.
 */
#include "element.cuh"

#include <type_traits>

namespace djinn {

constexpr unsigned THREADS = 512;
constexpr unsigned WARPS = THREADS / 32;

/* The block's sum. `parts` is shared memory that no other sum of the kernel uses. */
__device__ __forceinline__ float block_sum(float x, float (&parts)[WARPS]) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < WARPS; ++i) {
        total += parts[i];
    }
    return total;
}

/* 1 / sqrt(mean of squares + eps), from each thread's sum of squares. */
__device__ float inverse_norm(float squares, unsigned width, float eps) {
    __shared__ float parts[WARPS];
    return 1.0f / sqrtf(block_sum(squares, parts) / float(width) + eps);
}

/*
 * `N` elements a step, `KEPT` steps in registers; the width is a multiple of N. With `ADD`, the threads that read a row of x
 * first make it from those of `left` and `right`.
 */
template <typename T, unsigned N, unsigned KEPT, bool ADD>
__device__ void norm(const djinn_rms_norm_args &a, const float *left, const float *right, float *sum) {
    constexpr unsigned STEP = THREADS * N;
    const size_t start = size_t(blockIdx.x) * a.width;
    const float *x = a.x + start;
    const auto take = [&](unsigned at) {
        if constexpr (!ADD) {
            return load<float, N>(x + at);
        } else {
            auto pack = load<float, N>(left + start + at);
            const auto other = load<float, N>(right + start + at);
#pragma unroll
            for (unsigned i = 0; i < N; ++i) {
                pack.at[i] += other.at[i];
            }
            store(sum + start + at, pack);
            return pack;
        }
    };
    const T *weight = static_cast<const T *>(a.weight);
    const unsigned first = threadIdx.x * N;

    release_next();
    /* The weight may come from memory behind the next product's weights, so it is requested as early as those. */
    Pack<T, N> scales[KEPT];
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
            scales[s] = load<T, N>(weight + first + s * STEP);
        }
    }
    await_previous();
    Pack<float, N> kept[KEPT];
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
            kept[s] = take(first + s * STEP);
        }
    }
    float squares = 0;
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
#pragma unroll
            for (unsigned i = 0; i < N; ++i) {
                squares += kept[s].at[i] * kept[s].at[i];
            }
        }
    }
    for (unsigned at = first + KEPT * STEP; at < a.width; at += STEP) {
        const auto pack = take(at);
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            squares += pack.at[i] * pack.at[i];
        }
    }
    const float scale = inverse_norm(squares, a.width, a.eps);
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
#pragma unroll
            for (unsigned i = 0; i < N; ++i) {
                kept[s].at[i] = kept[s].at[i] * scale * widen(scales[s].at[i]);
            }
            store_output(a.out, a.rounded, start + first + s * STEP, kept[s]);
        }
    }
    for (unsigned at = first + KEPT * STEP; at < a.width; at += STEP) {
        auto pack = load<float, N>(x + at);
        const auto scales = load<T, N>(weight + at);
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            pack.at[i] = pack.at[i] * scale * widen(scales.at[i]);
        }
        store_output(a.out, a.rounded, start + at, pack);
    }
}

/*
 * Registers are so few that this many blocks of this many threads would fit a multiprocessor. Short rows, which fit 2 steps of
 * 4 elements, need fewer.
 */
template <bool SHORT> constexpr unsigned BLOCKS = SHORT ? 3 : 2;
template <bool SHORT> constexpr unsigned MOST_THREADS = SHORT ? THREADS : THREADS + 128;

inline bool is_short(unsigned width) { return width % 4 == 0 && width <= 2 * 4 * THREADS; }

template <typename T, bool SHORT, bool ADD>
__device__ __forceinline__ void norm(const djinn_rms_norm_args &a, const float *left, const float *right, float *sum) {
    if constexpr (SHORT) {
        norm<T, 4, 2, ADD>(a, left, right, sum);
    } else if (a.width % 4 == 0) {
        norm<T, 4, 4, ADD>(a, left, right, sum);
    } else {
        norm<T, 1, 4, ADD>(a, left, right, sum);
    }
}

template <typename T, bool SHORT>
__global__ void __launch_bounds__(MOST_THREADS<SHORT>, BLOCKS<SHORT>)
    djinn_rms_norm(const __grid_constant__ djinn_rms_norm_args a) {
    norm<T, SHORT, false>(a, nullptr, nullptr, nullptr);
}

template <typename T, bool SHORT>
__global__ void __launch_bounds__(MOST_THREADS<SHORT>, BLOCKS<SHORT>)
    djinn_add_rms_norm(const __grid_constant__ djinn_add_rms_norm_args a) {
    norm<T, SHORT, true>(a.norm, a.a, a.b, a.sum);
}

/* `work(element type, whether rows are short)` for an RMS norm's arguments. */
template <typename Work> int by_weight_and_width(const djinn_rms_norm_args &a, Work work) {
    const auto by_width = [&](auto type) {
        return is_short(a.width) ? work(type, std::true_type()) : work(type, std::false_type());
    };
    switch (a.weight_dtype) {
    case DJINN_F32: return by_width(f32());
    case DJINN_F16: return by_width(f16());
    case DJINN_BF16: return by_width(bf16());
    default: return cudaErrorInvalidValue;
    }
}

/* N elements of any type, widened. */
template <unsigned N> __device__ __forceinline__ Pack<float, N> widened(const void *from, uint32_t dtype, unsigned at) {
    Pack<float, N> out;
    const auto fill = [&](const auto &pack) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            out.at[i] = widen(pack.at[i]);
        }
    };
    switch (dtype) {
    case DJINN_F32: fill(load<f32, N>(static_cast<const f32 *>(from) + at)); break;
    case DJINN_F16: fill(load<f16, N>(static_cast<const f16 *>(from) + at)); break;
    default: fill(load<bf16, N>(static_cast<const bf16 *>(from) + at));
    }
    return out;
}

/* `N` elements a step; the width is a multiple of N. A row is read once if it fits the registers. */
template <unsigned N> __device__ void centre(const djinn_layer_norm_args &a) {
    constexpr unsigned KEPT = 4, STEP = THREADS * N;
    __shared__ float sums[WARPS], squares[WARPS];
    const float *x = a.x + size_t(blockIdx.x) * a.width;
    float *out = a.out + size_t(blockIdx.x) * a.width;
    const unsigned first = threadIdx.x * N;
    Pack<float, N> kept[KEPT];
    /* Calls `work(elements)` for the thread's elements, always in the same order. */
    const auto each = [&](auto work) {
#pragma unroll
        for (unsigned s = 0; s < KEPT; ++s) {
            if (first + s * STEP < a.width) {
                work(kept[s]);
            }
        }
        for (unsigned at = first + KEPT * STEP; at < a.width; at += STEP) {
            work(load<float, N>(x + at));
        }
    };
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
            kept[s] = load<float, N>(x + first + s * STEP);
        }
    }
    float sum = 0;
    each([&](const Pack<float, N> &pack) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            sum += pack.at[i];
        }
    });
    const float mean = block_sum(sum, sums) / float(a.width);
    float square = 0;
    each([&](const Pack<float, N> &pack) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            square += (pack.at[i] - mean) * (pack.at[i] - mean);
        }
    });
    const float scale = 1.0f / sqrtf(block_sum(square, squares) / float(a.width) + a.eps);
    const auto write = [&](Pack<float, N> pack, unsigned at) {
        const auto weight = widened<N>(a.weight, a.weight_dtype, at), bias = widened<N>(a.bias, a.bias_dtype, at);
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            pack.at[i] = (pack.at[i] - mean) * scale * weight.at[i] + bias.at[i];
        }
        store(out + at, pack);
    };
#pragma unroll
    for (unsigned s = 0; s < KEPT; ++s) {
        if (first + s * STEP < a.width) {
            write(kept[s], first + s * STEP);
        }
    }
    for (unsigned at = first + KEPT * STEP; at < a.width; at += STEP) {
        write(load<float, N>(x + at), at);
    }
}

constexpr unsigned HEADS_PER_BLOCK = 8;

template <typename T> __device__ void head_norm(const djinn_head_norm_args &a) {
    enter();
    const unsigned lane = threadIdx.x % 32, normed = a.heads + a.kv_heads, dim = a.head_dim;
    const uint64_t item = uint64_t(blockIdx.x) * HEADS_PER_BLOCK + threadIdx.x / 32;
    const unsigned row = unsigned(item / normed), head = unsigned(item % normed);
    if (row >= a.rows) {
        return;
    }
    float *x = a.qkv + size_t(row) * (normed + a.kv_heads) * dim + size_t(head) * dim;
    const T *weight = static_cast<const T *>(head < a.heads ? a.query : a.key);
    float squares = 0;
    for (unsigned i = lane; i < dim; i += 32) {
        squares += x[i] * x[i];
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / float(dim) + a.eps);
    for (unsigned i = lane; i < dim; i += 32) {
        x[i] = x[i] * scale * widen(weight[i]);
    }
}

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * djinn::HEADS_PER_BLOCK)                                \
        djinn_head_norm_##suffix(const __grid_constant__ djinn_head_norm_args a) {                           \
        djinn::head_norm<T>(a);                                                                              \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_layer_norm_f32(const __grid_constant__ djinn_layer_norm_args a) {
    djinn::enter();
    if (a.width % 4 == 0) {
        djinn::centre<4>(a);
    } else {
        djinn::centre<1>(a);
    }
}

extern "C" int djinn_rms_norm(const djinn_rms_norm_args *args, void *stream) {
    return djinn::by_weight_and_width(*args, [&](auto type, auto is_short) {
        const auto kernel = djinn::djinn_rms_norm<decltype(type), is_short>;
        return djinn::launch(kernel, args->rows, djinn::THREADS, 0, stream, *args);
    });
}

extern "C" int djinn_layer_norm(const djinn_layer_norm_args *args, void *stream) {
    if (args->weight_dtype > DJINN_BF16 || args->bias_dtype > DJINN_BF16) {
        return cudaErrorInvalidValue;
    }
    return djinn::launch(djinn_layer_norm_f32, args->rows, djinn::THREADS, 0, stream, *args);
}

extern "C" int djinn_add_rms_norm(const djinn_add_rms_norm_args *args, void *stream) {
    return djinn::by_weight_and_width(args->norm, [&](auto type, auto is_short) {
        const auto kernel = djinn::djinn_add_rms_norm<decltype(type), is_short>;
        return djinn::launch(kernel, args->norm.rows, djinn::THREADS, 0, stream, *args);
    });
}

extern "C" int djinn_head_norm(const djinn_head_norm_args *args, void *stream) {
    const uint64_t items = uint64_t(args->rows) * (args->heads + args->kv_heads);
    const unsigned blocks = djinn::ceil_div(items, djinn::HEADS_PER_BLOCK), threads = 32 * djinn::HEADS_PER_BLOCK;
    DJINN_LAUNCH_BY_DTYPE(args->weight_dtype, djinn_head_norm, blocks, threads, stream, *args);
}
