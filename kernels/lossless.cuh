/*
 * Rows of djinn-lossless (its `LosslessRow`): a byte of sign and mantissa for each value, a code of 4 bits for its
 * exponent, and a list of the values that have none, the escapes. k is a multiple of 64 here.
 */
#ifndef DJINN_LOSSLESS_CUH
#define DJINN_LOSSLESS_CUH

#include "encoded.cuh"

#include <type_traits>

namespace djinn {

/* Of f16 or bf16. */
template <typename T> struct Lossless {
    static constexpr bool HALF = std::is_same_v<T, f16>;

    /* Where exponents are in a value. */
    static constexpr unsigned EXPONENT = HALF ? 10 : 7;

    /*
     * The base, as the exponent of two values, and a row's last bytes: base and number of escapes, and the escapes. Those
     * before `next` are in columns that this lane is done with: runs are decoded in their order.
     */
    struct Row {
        uint32_t bases;
        const uint32_t *tail;
        unsigned next;
    };

    static __device__ __forceinline__ const uint32_t *tail(const char *row, unsigned k) {
        return reinterpret_cast<const uint32_t *>(row + k + k / 2);
    }

    static __device__ __forceinline__ Row row(const uint32_t *tail) {
        return {(*tail & 0xff) * (0x00010001u << EXPONENT), tail, 1};
    }

    /* Two values: the bytes of `kept` from `FIRST` on, with the codes in the same bytes. No code leads past 16 bits. */
    template <unsigned FIRST>
    static __device__ __forceinline__ uint32_t pair(uint32_t kept, uint32_t codes, uint32_t bases) {
        constexpr unsigned TWICE = FIRST == 0 ? 0x1100 : 0x3322, WIDE = FIRST == 0 ? 0x4140 : 0x4342;
        const uint32_t twice = __byte_perm(kept, 0, TWICE);
        const uint32_t exponents = (__byte_perm(codes, 0, WIDE) << EXPONENT) + bases;
        if constexpr (HALF) {
            return (twice & 0x80008000u) | (twice << 3 & 0x03f803f8u) | exponents;
        } else {
            return (twice & 0x807f807fu) | exponents;
        }
    }

    /*
     * A row whose next escape is known, which `column` is the column of: past the last one it is none. The one after it is
     * being read.
     */
    struct Ahead {
        uint32_t bases, next, after;
        unsigned column;
        /* Of the list: escapes, of which some were passed. */
        unsigned count, passed;
        const uint32_t *list;

        __device__ __forceinline__ Ahead(const char *row, unsigned k, unsigned row_bytes) {
            const uint32_t *words = Lossless::tail(row, k);
            /* A row has room for four, however many it has. */
            const uint32_t head = __ldg(words);
            list = words + 1, passed = 0;
            next = __ldg(list), after = __ldg(list + 1);
            bases = (head & 0xff) * (0x00010001u << EXPONENT);
            count = min(head >> 16, (row_bytes - k - k / 2) / unsigned(sizeof(uint32_t)) - 1);
            column = count > 0 ? next & 0xffff : ~0u;
        }

        __device__ __forceinline__ void advance() {
            next = after;
            column = ++passed < count ? next & 0xffff : ~0u;
            if (passed + 1 < count) {
                after = __ldg(list + passed + 1);
            }
        }

        /* Puts the escapes of the run that begins at `first` in their places. Runs are decoded in their order. */
        template <Lanes L> __device__ __forceinline__ void mend(unsigned first, unsigned quad, uint2 (&w)[4]) {
#pragma unroll 1
            for (; column < first + 64; advance()) {
                put<L>(next, column - first, quad, w);
            }
        }
    };

    /*
     * A run of a row, whose bytes begin at `kept`, and its codes at `codes`: of the columns from 16 s on, the lane's are
     * in w[s]. Whether any of them is an escape: then `mend` follows.
     */
    template <Lanes L>
    static __device__ __forceinline__ bool run(const char *kept, const char *codes, uint32_t bases, unsigned quad,
                                               uint2 (&w)[4]) {
        uint32_t escapes = 0;
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            const uint32_t code = four_bytes<L, 4>(codes + 16 * group, quad);
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const uint32_t mine = (half == 0 ? code : code >> 4) & 0x0f0f0f0fu;
                /* The highest bit of a byte: whether its code is 15. */
                escapes |= mine + 0x71717171u;
                const uint32_t values = four_bytes<L, 4>(kept + 32 * group + 16 * half, quad);
                w[2 * group + half] = {pair<0>(values, mine, bases), pair<2>(values, mine, bases)};
            }
        }
        return (escapes & 0x80808080u) != 0;
    }

    /* Puts an escape in its place, if column `at` of the run is one of the lane's. */
    template <Lanes L>
    static __device__ __forceinline__ void put(uint32_t entry, unsigned at, unsigned quad, uint2 (&w)[4]) {
        const unsigned in = at % 16, lane = L == Lanes::NEIGHBOURS ? in / 4 : in % 8 / 2;
        if (at >= 64 || lane != quad) {
            return;
        }
        const unsigned place = at / 16 * 2 + (L == Lanes::NEIGHBOURS ? in % 4 / 2 : in / 8);
        const unsigned half = at % 2 == 0 ? 0x3276 : 0x7610;
#pragma unroll
        for (unsigned s = 0; s < 4; ++s) {
            if (place == 2 * s) {
                w[s].x = __byte_perm(w[s].x, entry, half);
            }
            if (place == 2 * s + 1) {
                w[s].y = __byte_perm(w[s].y, entry, half);
            }
        }
    }

    /* Puts the escapes of the run that begins at `column` in their places. */
    template <Lanes L>
    static __device__ __forceinline__ void mend(Row &row, unsigned column, unsigned quad, uint2 (&w)[4]) {
        const unsigned count = *row.tail >> 16;
#pragma unroll 1
        for (; row.next <= count; ++row.next) {
            const uint32_t entry = row.tail[row.next];
            const unsigned at = (entry & 0xffff) - column;
            if (int(at) >= 64) {
                break;
            }
            put<L>(entry, at, quad, w);
        }
    }
};

} // namespace djinn

#endif
