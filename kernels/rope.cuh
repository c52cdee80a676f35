/*
 * Rotation of one pair of a head's elements.
 */
#ifndef DJINN_ROPE_CUH
#define DJINN_ROPE_CUH

#include "element.cuh"

namespace djinn {

/* Fused operations are explicit, so that a rotated pair has the same bits in every kernel. */
__device__ __forceinline__ float2 rotated(float x, float y, float cos, float sin) {
    return {__fmaf_rn(x, cos, -__fmul_rn(y, sin)), __fmaf_rn(x, sin, __fmul_rn(y, cos))};
}

/* Rotates pair `i` of a query or key head of a row, in place. */
__device__ __forceinline__ void rotate(const djinn_rope_args &a, size_t row, unsigned head, unsigned i) {
    const unsigned half = a.rotary_dim / 2;
    const size_t width = size_t(a.heads + 2 * a.kv_heads) * a.head_dim;
    const float *table = a.table + row * a.rotary_dim;
    float *start = a.qkv + row * width + size_t(head) * a.head_dim;
    float *first = a.style == DJINN_ROPE_HALF ? start + i : start + 2 * i;
    float *second = a.style == DJINN_ROPE_HALF ? first + half : first + 1;
    const float2 pair = rotated(*first, *second, table[i], table[half + i]);
    *first = pair.x;
    *second = pair.y;
}

} // namespace djinn

#endif
