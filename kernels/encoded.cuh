/*
 * How products read encoded weights: in segments of 256 columns, which are one run (linear.cuh) for each partial sum. The
 * lanes of a quad read a run together, each 4 of every 16 columns. Which ones does not matter: the order in which the tensor
 * cores add the products of 16 columns changes no bit.
 */
#ifndef DJINN_ENCODED_CUH
#define DJINN_ENCODED_CUH

#include "element.cuh"

namespace djinn {

/* The columns of lane q of a quad in each 16: 4 q to 4 q + 3, or 2 q, 2 q + 1, 8 + 2 q, 9 + 2 q. */
enum class Lanes { NEIGHBOURS, HALVES };

/* The bytes of a lane's columns, the lowest first, from 16 bytes at a multiple of ALIGN (2, or a multiple of 4). */
template <Lanes L, unsigned ALIGN> __device__ __forceinline__ uint32_t four_bytes(const char *sixteen, unsigned quad) {
    static_assert(ALIGN == 2 || ALIGN % 4 == 0);
    if constexpr (L == Lanes::NEIGHBOURS && ALIGN != 2) {
        return *reinterpret_cast<const uint32_t *>(sixteen + 4 * quad);
    } else {
        constexpr unsigned STEP = L == Lanes::NEIGHBOURS ? 4 : 2, APART = L == Lanes::NEIGHBOURS ? 2 : 8;
        const uint32_t low = *reinterpret_cast<const uint16_t *>(sixteen + STEP * quad);
        const uint32_t high = *reinterpret_cast<const uint16_t *>(sixteen + STEP * quad + APART);
        return __byte_perm(low, high, 0x5410);
    }
}

} // namespace djinn

#endif
