/*
 * kv_write: writes keys and values of qkv to the pages, at each row's sequence and position, rounded to nearest even; to
 * int8 each vector with a scale of its own.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], row_seq and positions u32 [rows]; pages in kv.cuh.
 *
 * rope_kv_write: the bits of `rope`, then of `kv_write`.
 *
 * Launch: blocks of 8 warps, x over rows, y over the heads of a row. A warp takes a head, 4 elements a lane and step if
 * head_dim allows; of heads that are rotated whole, a thread takes 8 elements.
 * Reference: djinn-device, src/reference.rs, `kv_write` and `rope`.
 */
#include "kv.cuh"
#include "rope.cuh"

namespace djinn {

constexpr unsigned WARPS = 8, THREADS = 32 * WARPS;

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

/*
 * How the heads of a row are dealt: the first `in_pieces` as pieces of 8 elements, one for each thread of the first
 * `piece_blocks` blocks, and the others to warps. Only heads that are rotated whole, by halves, come in pieces; to int8, keys
 * and values do not, since a scale is that of a whole vector.
 */
struct Deal {
    unsigned in_pieces, pieces, piece_blocks;

    template <typename T> static __host__ __device__ __forceinline__ Deal of(const djinn_rope_args &a) {
        const bool whole = a.style == DJINN_ROPE_HALF && a.rotary_dim == a.head_dim && a.head_dim % 8 == 0;
        const unsigned in_pieces = !whole ? 0 : IS_INT8<T> ? a.heads : a.heads + 2 * a.kv_heads;
        const unsigned pieces = in_pieces * (a.head_dim / 8);
        return {in_pieces, pieces, (pieces + THREADS - 1) / THREADS};
    }
};

/*
 * Four elements from `at` on of each half of a head: rotates those of queries and keys in place, and writes keys and values to
 * the pages.
 */
template <typename T>
__device__ __forceinline__ void write_piece(const djinn_rope_kv_write_args &a, unsigned row, unsigned head, unsigned at) {
    const unsigned queries = a.rope.heads, kv_heads = a.rope.kv_heads, dim = a.rope.head_dim, half = dim / 2;
    float *const first = a.rope.qkv + (size_t(row) * (queries + 2 * kv_heads) + head) * dim + at, *const second = first + half;
    auto x = load<float, 4>(first), y = load<float, 4>(second);
    if (head < queries + kv_heads) {
        const float *table = a.rope.table + size_t(row) * dim + at;
        const auto cos = load<float, 4>(table), sin = load<float, 4>(table + half);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const float2 pair = rotated(x.at[i], y.at[i], cos.at[i], sin.at[i]);
            x.at[i] = pair.x, y.at[i] = pair.y;
        }
        store(first, x);
        store(second, y);
    }
    if constexpr (!IS_INT8<T>) {
        if (head >= queries) {
            T *const to = place_of<T>(a.write, row, head - queries) + at;
            store(to, narrowed<T>(x));
            store(to + half, narrowed<T>(y));
        }
    }
}

template <typename T> __device__ void kv_write(const djinn_kv_write_args &a) {
    enter();
    const unsigned head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head < 2 * a.kv.kv_heads) {
        write_head<T>(a, blockIdx.x, head);
    }
}

template <typename T> __device__ void rope_kv_write(const djinn_rope_kv_write_args &a) {
    enter();
    const unsigned row = blockIdx.x, queries = a.rope.heads, kv_heads = a.rope.kv_heads;
    const auto deal = Deal::of<T>(a.rope);
    if (blockIdx.y < deal.piece_blocks) {
        const unsigned piece = blockIdx.y * THREADS + threadIdx.x, each = a.rope.head_dim / 8;
        if (piece < deal.pieces) {
            write_piece<T>(a, row, piece / each, piece % each * 4);
        }
        return;
    }
    const unsigned head = deal.in_pieces + (blockIdx.y - deal.piece_blocks) * WARPS + threadIdx.x / 32;
    if (head < queries + kv_heads) {
        for (unsigned i = threadIdx.x % 32; i < a.rope.rotary_dim / 2; i += 32) {
            rotate(a.rope, row, head, i);
        }
    }
    if (head >= queries && head < queries + 2 * kv_heads) {
        /* Lanes read what others rotated. */
        __syncwarp();
        write_head<T>(a.write, row, head - queries);
    }
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
    const dim3 grid(args->rows, djinn::ceil_div(2 * args->kv.kv_heads, djinn::WARPS));
    DJINN_LAUNCH_BY_CACHE_DTYPE(args->kv.dtype, djinn_kv_write, grid, djinn::THREADS, stream, *args);
}

extern "C" int djinn_rope_kv_write(const djinn_rope_kv_write_args *args, void *stream) {
    const djinn_rope_args &rope = args->rope;
    if (rope.style > DJINN_ROPE_INTERLEAVED) {
        return cudaErrorInvalidValue;
    }
    const bool is_int8 = args->write.kv.dtype == DJINN_INT8;
    const auto deal = is_int8 ? djinn::Deal::of<djinn::int8>(rope) : djinn::Deal::of<djinn::f32>(rope);
    const unsigned by_warps = rope.heads + 2 * rope.kv_heads - deal.in_pieces;
    const dim3 grid(rope.rows, deal.piece_blocks + djinn::ceil_div(by_warps, djinn::WARPS));
    DJINN_LAUNCH_BY_CACHE_DTYPE(args->write.kv.dtype, djinn_rope_kv_write, grid, djinn::THREADS, stream, *args);
}
