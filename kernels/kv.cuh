/*
 * Where keys and values lie: pages of page_tokens tokens for all layers, within a page row-major
 * [layer][k|v][kv_head][slot][head_dim].
 */
#ifndef DJINN_KV_CUH
#define DJINN_KV_CUH

#include "element.cuh"

namespace djinn {

/* Elements between a key and the value of the same position and head. */
__device__ __forceinline__ size_t value_offset(const djinn_kv_pages &kv) {
    return size_t(kv.kv_heads) * kv.page_tokens * kv.head_dim;
}

/* The key of a position of a sequence. */
template <typename T>
__device__ __forceinline__ T *key_at(const djinn_kv_pages &kv, unsigned sequence, unsigned position,
                                     unsigned kv_head) {
    const unsigned index = position / kv.page_tokens, slot = position - index * kv.page_tokens;
    const unsigned page = kv.page_table[size_t(sequence) * kv.table_width + index];
    T *layer = reinterpret_cast<T *>(static_cast<char *>(kv.pages) + page * kv.page_bytes) +
               2 * kv.layer * value_offset(kv);
    return layer + (size_t(kv_head) * kv.page_tokens + slot) * kv.head_dim;
}

} // namespace djinn

#endif
