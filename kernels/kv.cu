/*
 * kv_write: writes keys and values of qkv to the pages, at each row's sequence and position, rounded to nearest even; to
 * int8 each vector with a scale of its own.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], row_seq and positions u32 [rows]; pages in kv.cuh.
 *
 * rope_kv_write: the bits of `rope`, then of `kv_write`.
 *
 * Launch: a warp for each row and head (of keys and values, or all), several in turn if there are many; blocks of 8
 * warps. 4 elements a lane and step if head_dim allows.
 * Reference: djinn-device, src/reference.rs, `kv_write` and `rope`.
 */
#include "kv.cuh"
#include "rope.cuh"

namespace djinn {

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;
/* The most blocks of a launch: several for each multiprocessor of a large device. */
constexpr unsigned MOST_BLOCKS = 2048;

/*
 * Writes a vector in int8 and its scale, by a warp. Each step is rounded to f32, as in the reference: the greatest magnitude
 * by 127, 127 by that magnitude, and the product of this with each number.
 */
__device__ __forceinline__ void write_int8(int8 *to, int8 *scale_to, const float *from, unsigned dim) {
    constexpr float STEPS = 127, LEAST = 0x1p-126f;
    const unsigned lane = threadIdx.x % 32;
    float largest = 0;
    bool finite = true;
    for (unsigned i = lane; i < dim; i += 32) {
        const float size = fabsf(from[i]);
        largest = fmaxf(largest, size);
        finite = finite && size < INFINITY;
    }
    largest = warp_max(largest);
    finite = __all_sync(0xffffffffu, finite);
    const float quotient = __fdiv_rn(largest, STEPS);
    const float scale = finite ? (quotient < LEAST ? 0 : quotient) : NAN, by = scale > 0 ? __fdiv_rn(STEPS, largest) : 0;
    for (unsigned i = lane; i < dim; i += 32) {
        to[i] = scale > 0 ? static_cast<int8>(__float2int_rn(__fmul_rn(from[i], by))) : int8(0);
    }
    if (lane < sizeof(float)) {
        scale_to[lane] = static_cast<int8>(__float_as_uint(scale) >> 8 * lane);
    }
}

/* The place in the pages of a row's key head `kv_head`, or of its value head `kv_head - kv_heads`. */
template <typename T>
__device__ __forceinline__ T *place_of(const djinn_kv_write_args &a, unsigned row, unsigned kv_head) {
    const unsigned kv_heads = a.kv.kv_heads;
    const bool value = kv_head >= kv_heads;
    const unsigned head = value ? kv_head - kv_heads : kv_head;
    return key_at<T>(a.kv, a.row_seq[row], a.positions[row], head) + (value ? value_offset<T>(a.kv) : 0);
}

/* Writes a key or value head of a row to its place, by a warp. */
template <typename T>
__device__ __forceinline__ void write_head(const djinn_kv_write_args &a, unsigned row, unsigned kv_head) {
    const unsigned lane = threadIdx.x % 32, dim = a.kv.head_dim;
    const size_t width = size_t(a.heads + 2 * a.kv.kv_heads) * dim;
    const float *from = a.qkv + row * width + size_t(a.heads + kv_head) * dim;
    T *to = place_of<T>(a, row, kv_head);
    if constexpr (IS_INT8<T>) {
        write_int8(to, scale_at(a.kv, to, a.positions[row]), from, dim);
    } else if (dim % 4 != 0) {
        for (unsigned i = lane; i < dim; i += 32) {
            to[i] = narrow<T>(from[i]);
        }
    } else {
        for (unsigned i = lane * 4; i < dim; i += 32 * 4) {
            store(to + i, narrowed<T>(load<float, 4>(from + i)));
        }
    }
}

/* Rotates a whole head in place, two pairs a lane and step, and stores it to `to` as well, unless that is null. */
template <typename T>
__device__ __forceinline__ void rotate_whole(const djinn_rope_args &a, unsigned row, unsigned head, T *to) {
    const unsigned half = a.head_dim / 2;
    const float *table = a.table + size_t(row) * a.head_dim;
    float *start = a.qkv + (size_t(row) * (a.heads + 2 * a.kv_heads) + head) * a.head_dim;
    for (unsigned i = threadIdx.x % 32 * 2; i < half; i += 32 * 2) {
        auto x = load<float, 2>(start + i), y = load<float, 2>(start + half + i);
        const auto cos = load<float, 2>(table + i), sin = load<float, 2>(table + half + i);
#pragma unroll
        for (unsigned j = 0; j < 2; ++j) {
            const float2 pair = rotated(x.at[j], y.at[j], cos.at[j], sin.at[j]);
            x.at[j] = pair.x, y.at[j] = pair.y;
        }
        store(start + i, x);
        store(start + half + i, y);
        if constexpr (!IS_INT8<T>) {
            if (to != nullptr) {
                store(to + i, narrowed<T>(x));
                store(to + half + i, narrowed<T>(y));
            }
        }
    }
}

template <typename Work> __device__ __forceinline__ void each_head(unsigned rows, unsigned heads, Work work) {
    const unsigned first = blockIdx.x * WARPS + threadIdx.x / 32;
    for (uint64_t i = first; i < uint64_t(rows) * heads; i += uint64_t(gridDim.x) * WARPS) {
        work(unsigned(i / heads), unsigned(i % heads));
    }
}

inline unsigned blocks_of(unsigned rows, unsigned heads) {
    const unsigned blocks = ceil_div(uint64_t(rows) * heads, WARPS);
    return blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
}

template <typename T> __device__ void kv_write(const djinn_kv_write_args &a) {
    enter();
    each_head(a.rows, 2 * a.kv.kv_heads, [&](unsigned row, unsigned head) { write_head<T>(a, row, head); });
}

template <typename T> __device__ void rope_kv_write(const djinn_rope_kv_write_args &a) {
    enter();
    const unsigned queries = a.rope.heads, kv_heads = a.rope.kv_heads, dim = a.rope.head_dim;
    const bool whole = a.rope.style == DJINN_ROPE_HALF && a.rope.rotary_dim == dim && dim % 4 == 0;
    each_head(a.rope.rows, queries + 2 * kv_heads, [&](unsigned row, unsigned head) {
        if (whole && head < queries + kv_heads) {
            /* int8 needs the whole vector first. */
            const bool later = head < queries || IS_INT8<T>;
            rotate_whole<T>(a.rope, row, head, later ? nullptr : place_of<T>(a.write, row, head - queries));
            if (!IS_INT8<T>) {
                return;
            }
        } else if (head < queries + kv_heads) {
            for (unsigned i = threadIdx.x % 32; i < a.rope.rotary_dim / 2; i += 32) {
                rotate(a.rope, row, head, i);
            }
        }
        if (head >= queries) {
            /* Lanes read what others rotated. */
            __syncwarp();
            write_head<T>(a.write, row, head - queries);
        }
    });
}

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_kv_write_##suffix(const __grid_constant__ djinn_kv_write_args a) {                             \
        djinn::kv_write<T>(a);                                                                               \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(djinn::THREADS)                                             \
        djinn_rope_kv_write_##suffix(const __grid_constant__ djinn_rope_kv_write_args a) {                   \
        djinn::rope_kv_write<T>(a);                                                                          \
    }
DJINN_FOR_CACHE_DTYPES(DJINN_KERNEL)

extern "C" int djinn_kv_write(const djinn_kv_write_args *args, void *stream) {
    const dim3 grid(djinn::blocks_of(args->rows, 2 * args->kv.kv_heads));
    DJINN_LAUNCH_BY_CACHE_DTYPE(args->kv.dtype, djinn_kv_write, grid, djinn::THREADS, stream, *args);
}

extern "C" int djinn_rope_kv_write(const djinn_rope_kv_write_args *args, void *stream) {
    const djinn_rope_args &rope = args->rope;
    if (rope.style > DJINN_ROPE_INTERLEAVED) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(djinn::blocks_of(rope.rows, rope.heads + 2 * rope.kv_heads));
    DJINN_LAUNCH_BY_CACHE_DTYPE(args->write.kv.dtype, djinn_rope_kv_write, grid, djinn::THREADS, stream, *args);
}
