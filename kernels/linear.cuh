/*
 * What the kernels of `linear` share: how x is split for the tensor cores, and the order in which a row's sum is
 * formed. Every kernel on the tensor cores keeps that order, so that a row has the same bits in each of them.
 */
#ifndef DJINN_LINEAR_CUH
#define DJINN_LINEAR_CUH

#include "element.cuh"

namespace djinn {

/* Columns are taken in runs, which are dealt to partial sums in turn; these are added in their order. */
constexpr unsigned RUN = 64, PARTIALS = 16;

/* Rows of one launch of the kernels for few rows. */
constexpr unsigned MOST_ROWS = 16;

/* Whether `linear_wide` serves these sizes on the current device, with this workspace. */
bool serves_wide(const djinn_linear_args &a);

/* From 17 to DJINN_LINEAR_ROWS rows at once; fewer are served, too. */
int linear_wide(const djinn_linear_args &a, void *stream);

/* Rows of the weight that a block computes: within one tile. */
struct Share {
    const void *weight;
    unsigned first, rows;
};

/* How a launch divides the weight: blocks with shares of so many rows, or less where a tile has less. */
struct Division {
    unsigned share, blocks;
};

/* Equal shares of up to `most` rows, for whole waves of `at_once` blocks where that can be. */
inline Division divide(const djinn_linear_args &a, unsigned at_once, unsigned most) {
    const unsigned whole = (a.n - 1) / a.tile_rows, last = a.n - whole * a.tile_rows;
    for (unsigned waves = ceil_div(a.n, uint64_t(at_once) * most);; ++waves) {
        for (unsigned share = ceil_div(a.n, uint64_t(at_once) * waves); share <= most; ++share) {
            const unsigned blocks = whole * ceil_div(a.tile_rows, share) + ceil_div(last, share);
            if (blocks <= at_once * waves) {
                return {share, blocks};
            }
        }
    }
}

/*
 * The share of this block; of blocks past the division's, the last. The last share of a tile ends with it, and may have
 * rows of the one before as well, to the same bits.
 */
template <typename T> __device__ __forceinline__ Share share_of(const djinn_linear_args &a, unsigned share) {
    const unsigned each = (a.tile_rows + share - 1) / share;
    const unsigned tile = min(blockIdx.x / each, (a.n - 1) / a.tile_rows), start = tile * a.tile_rows;
    const unsigned tile_rows = min(a.tile_rows, a.n - start), rows = min(share, tile_rows);
    const unsigned first = min((blockIdx.x - tile * each) * share, tile_rows - rows);
    return {static_cast<const T *>(a.weights[tile]) + size_t(first) * a.k, start + first, rows};
}

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

/* Two f32 as a pair of T. */
template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<f16>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
template <> __device__ __forceinline__ uint32_t pack<bf16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* A pair of T as two f32. */
template <typename T> __device__ __forceinline__ float2 unpack(uint32_t pair);
template <> __device__ __forceinline__ float2 unpack<f16>(uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}
template <> __device__ __forceinline__ float2 unpack<bf16>(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* Four elements of a row of x in the order of a fragment: pairs of their leading parts, each with what it leaves. */
struct alignas(16) Split {
    uint32_t high_0, low_0, high_1, low_1;
};
template <typename T> __device__ __forceinline__ Split split(const float4 &x) {
    const uint32_t a = pack<T>(x.x, x.y), b = pack<T>(x.z, x.w);
    const float2 ra = unpack<T>(a), rb = unpack<T>(b);
    return {a, pack<T>(x.x - ra.x, x.y - ra.y), b, pack<T>(x.z - rb.x, x.w - rb.y)};
}

/*
 * sum[16, 8] += a[16, 16] b[16, 8]. Rows 0 to 7 of a are the leading parts of as many rows of x, rows 8 to 15 the
 * rest of them; columns of b are rows of the weight.
 */
template <typename T> __device__ __forceinline__ void multiply(float (&sum)[4], const Split &a, uint32_t b0, uint32_t b1);
#define DJINN_MULTIPLY(T, name)                                                                              \
    template <>                                                                                              \
    __device__ __forceinline__ void multiply<T>(float (&sum)[4], const Split &a, uint32_t b0, uint32_t b1) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, "                 \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                                  \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                         \
            : "r"(a.high_0), "r"(a.low_0), "r"(a.high_1), "r"(a.low_1), "r"(b0), "r"(b1));                   \
    }
DJINN_MULTIPLY(f16, "f16")
DJINN_MULTIPLY(bf16, "bf16")

} // namespace djinn

#endif
