/*
 * How products read encoded weights: by segments of 256 columns of a row, which are one run (linear.cuh) for each
 * partial sum, and a run by the lanes of a quad. A lane has 4 columns of each 16: the order in which a product of 16
 * columns adds them changes no bit.
 */
#ifndef DJINN_ENCODED_CUH
#define DJINN_ENCODED_CUH

#include "element.cuh"

namespace djinn {

/* The columns that a lane of a quad has of each 16: 4 q to 4 q + 3, or 2 q, 2 q + 1, 8 + 2 q, 9 + 2 q. */
enum class Lanes { NEIGHBOURS, HALVES };

/* The bytes of a lane's columns, of 16 bytes at a multiple of ALIGN (2 or 4), from the lowest byte on. */
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
