/*
 * Where keys and values lie: pages of page_tokens tokens of one layer, within a page row-major
 * [k|v][kv_head][slot][head_dim]. In int8, a head's [slot][head_dim] integers are followed by its [slot] scales, in
 * f32; a number is an integer times its vector's scale.
 */
#ifndef DJINN_KV_CUH
#define DJINN_KV_CUH

#include "element.cuh"

#include <type_traits>

namespace djinn {

/* An element of a vector with a scale. */
using int8 = int8_t;

template <typename T> constexpr bool IS_INT8 = std::is_same_v<T, int8>;
/* Bytes of a vector's scale. */
template <typename T> constexpr unsigned SCALE_BYTES = IS_INT8<T> ? sizeof(float) : 0;

/* The type in which the tensor cores multiply keys and values. Integers are exact in f16. */
template <typename T> using Product = std::conditional_t<IS_INT8<T>, f16, T>;

__device__ __forceinline__ __half2 as_halves(uint32_t pair) { return *reinterpret_cast<const __half2 *>(&pair); }
__device__ __forceinline__ uint32_t as_word(__half2 pair) { return *reinterpret_cast<const uint32_t *>(&pair); }

/* Widens the four integers of a word to two pairs of f16, exactly. */
__device__ __forceinline__ void widen_word(uint32_t (&pairs)[2], uint32_t word) {
    /* 1024 + (128 + x), whose lowest bits are those of x with the sign bit inverted. */
    const uint32_t turned = word ^ 0x80808080u;
    const __half2 less = __float2half2_rn(1152.0f);
    pairs[0] = as_word(__hsub2(as_halves(__byte_perm(turned, 0x64646464u, 0x4140)), less));
    pairs[1] = as_word(__hsub2(as_halves(__byte_perm(turned, 0x64646464u, 0x4342)), less));
}

/*
 * A scale as a number from 1 to below 2, in two parts of f16, times a power of two in f16. With it, an integer times its
 * scale is the nearest f16 or a neighbour, if that is in f16's range. NaN stays NaN.
 */
struct HalfScale {
    uint32_t parts, power;

    __device__ __forceinline__ explicit HalfScale(float scale) {
        const uint32_t bits = __float_as_uint(scale);
        const float number = __uint_as_float((bits & 0x007fffffu) | 0x3f800000u), high = widen(narrow<f16>(number));
        parts = pack<f16>(high, number - high);
        /* scale - scale is 0, or NaN. */
        const float factor = __uint_as_float(bits & 0x7f800000u) + (scale - scale);
        power = pack<f16>(factor, factor);
    }
};

/* Stores sixteen integers times their scale to shared memory, as two pieces of eight f16. */
__device__ __forceinline__ void store_widened(f16 *first, f16 *second, const uint4 &words, const HalfScale &scale) {
    const __half2 high = __low2half2(as_halves(scale.parts)), low = __high2half2(as_halves(scale.parts));
    const uint32_t each[4] = {words.x, words.y, words.z, words.w};
    uint32_t pairs[4][2];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        widen_word(pairs[i], each[i]);
#pragma unroll
        for (uint32_t &pair : pairs[i]) {
            const __half2 x = as_halves(pair);
            pair = as_word(__hmul2(__hfma2(x, high, __hmul2(x, low)), as_halves(scale.power)));
        }
    }
    *reinterpret_cast<uint4 *>(first) = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
    *reinterpret_cast<uint4 *>(second) = {pairs[2][0], pairs[2][1], pairs[3][0], pairs[3][1]};
}

/* Elements from the keys, or values, of a head in a page to those of the next head. */
template <typename T> __device__ __forceinline__ size_t plane_of(const djinn_kv_pages &kv) {
    return kv.page_tokens * (size_t(kv.head_dim) + SCALE_BYTES<T> / sizeof(T));
}

/* Elements from a key to the value of the same position and head, or between their scales. */
template <typename T> __device__ __forceinline__ size_t value_offset(const djinn_kv_pages &kv) {
    return kv.kv_heads * plane_of<T>(kv);
}

/* A page, and the slot of a position in it. */
struct PageSlot {
    unsigned page, slot;

    static __device__ __forceinline__ PageSlot of(const djinn_kv_pages &kv, unsigned sequence, unsigned position) {
        const unsigned index = position / kv.page_tokens;
        return {kv.page_table[size_t(sequence) * kv.table_width + index], position - index * kv.page_tokens};
    }
};

/* The vector at a place, in the plane of a key head, or of a value head `plane - kv_heads`. */
template <typename T>
__device__ __forceinline__ T *vector_at(const djinn_kv_pages &kv, const PageSlot &place, unsigned plane) {
    T *const planes = reinterpret_cast<T *>(static_cast<char *>(kv.pages) + place.page * kv.page_bytes);
    return planes + plane * plane_of<T>(kv) + size_t(place.slot) * kv.head_dim;
}

template <typename T>
__device__ __forceinline__ T *key_at(const djinn_kv_pages &kv, unsigned sequence, unsigned position,
                                     unsigned kv_head) {
    return vector_at<T>(kv, PageSlot::of(kv, sequence, position), kv_head);
}

/* The first byte of the scale of a position's vector. */
template <typename Byte>
__device__ __forceinline__ Byte *scale_at(const djinn_kv_pages &kv, Byte *vector, unsigned position) {
    const unsigned slot = position % kv.page_tokens;
    return vector + size_t(kv.page_tokens - slot) * kv.head_dim + slot * sizeof(float);
}

/* Whether integers are aligned to 16 bytes, and scales to 4. Otherwise they have no alignment. */
inline bool is_aligned_int8(const djinn_kv_pages &kv) {
    const uint64_t at = reinterpret_cast<uintptr_t>(kv.pages) | kv.page_bytes | kv.page_tokens | kv.head_dim;
    return kv.dtype == DJINN_INT8 && at % 16 == 0;
}

/* Load an aligned scale, and one that need not be. */
__device__ __forceinline__ float load_scale(const int8 *from) { return *reinterpret_cast<const float *>(from); }
__device__ __forceinline__ float gather_scale(const int8 *from) {
    uint32_t bits = 0;
#pragma unroll
    for (unsigned i = 0; i < sizeof(float); ++i) {
        bits |= uint32_t(uint8_t(from[i])) << 8 * i;
    }
    return __uint_as_float(bits);
}

/* For int8 only: the scales of the keys and values of each warp's positions. */
template <typename T, unsigned WARPS, unsigned POSITIONS> struct Scales {};
template <unsigned WARPS, unsigned POSITIONS> struct Scales<int8, WARPS, POSITIONS> {
    float key_scale[WARPS][POSITIONS], value_scale[WARPS][POSITIONS];
};

} // namespace djinn

/* `MACRO(suffix, type)` for each dtype of caches. */
#define DJINN_FOR_CACHE_DTYPES(MACRO)                                                                        \
    DJINN_FOR_DTYPES(MACRO)                                                                                  \
    MACRO(int8, djinn::int8)

/* Like DJINN_LAUNCH_BY_DTYPE, for the dtypes of caches. */
#define DJINN_LAUNCH_BY_CACHE_DTYPE(dtype, kernel, grid, block, stream, ...)                                 \
    if ((dtype) == DJINN_INT8) {                                                                             \
        return djinn::launch(kernel##_int8, grid, block, 0, stream, __VA_ARGS__);                            \
    }                                                                                                        \
    DJINN_LAUNCH_BY_DTYPE(dtype, kernel, grid, block, stream, __VA_ARGS__)

#endif
