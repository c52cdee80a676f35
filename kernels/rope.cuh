/*
 * Rotation of one pair of a head's elements.
 */
#ifndef DJINN_ROPE_CUH
#define DJINN_ROPE_CUH

#include "element.cuh"

namespace djinn {

/* Rotates pair `i` of a query or key head of a row, in place. */
__device__ __forceinline__ void rotate(const djinn_rope_args &a, size_t row, unsigned head, unsigned i) {
    const unsigned half = a.rotary_dim / 2;
    const size_t width = size_t(a.heads + 2 * a.kv_heads) * a.head_dim;
    const float *table = a.table + row * a.rotary_dim;
    float *start = a.qkv + row * width + size_t(head) * a.head_dim;
    float *first = a.style == DJINN_ROPE_HALF ? start + i : start + 2 * i;
    float *second = a.style == DJINN_ROPE_HALF ? first + half : first + 1;
    const float cos = table[i], sin = table[half + i], x = *first, y = *second;
    *first = x * cos - y * sin;
    *second = y * cos + x * sin;
}

} // namespace djinn

#endif
