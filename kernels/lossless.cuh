/*
 * Rows of djinn-lossless (its `LosslessRow`): for each value a byte of sign and mantissa, and a code of 4 bits for its
 * exponent; and a list of escapes, the values that have no code. k is a multiple of 64 here.
 */
#ifndef DJINN_LOSSLESS_CUH
#define DJINN_LOSSLESS_CUH

#include "encoded.cuh"

#include <type_traits>

namespace djinn {

/* T is f16 or bf16. */
template <typename T> struct Lossless {
    static constexpr bool HALF = std::is_same_v<T, f16>;

    /* The exponent's lowest bit in a value. */
    static constexpr unsigned EXPONENT = HALF ? 10 : 7;

    /*
     * `bases` is the row's base, as the exponent of two values. `tail` is the row's end: base and number of escapes, then
     * the escapes. Those before `next` are done with in this lane: runs are decoded in order.
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

    /*
     * The first or the SECOND two of a lane's four bytes of 16 columns, which are in one word, or two each in two words.
     * `spread` puts each in the low byte of 16 bits, `twice` in both bytes.
     */
    template <bool SECOND, unsigned WORDS> static __device__ __forceinline__ uint32_t spread(const uint32_t (&bytes)[WORDS]) {
        return __byte_perm(bytes[SECOND ? WORDS - 1 : 0], 0, SECOND && WORDS == 1 ? 0x4342 : 0x4140);
    }
    template <bool SECOND, unsigned WORDS> static __device__ __forceinline__ uint32_t twice(const uint32_t (&bytes)[WORDS]) {
        return __byte_perm(bytes[SECOND ? WORDS - 1 : 0], 0, SECOND && WORDS == 1 ? 0x3322 : 0x1100);
    }

    /*
     * Two values, from bytes that `twice` gave and the low or HIGH nibbles of codes that `spread` gave. Base and code add up
     * within 16 bits. A low nibble left beside a HIGH one lands below the exponent, where it is replaced.
     */
    template <bool HIGH> static __device__ __forceinline__ uint32_t pair(uint32_t twice, uint32_t codes, uint32_t bases) {
        if constexpr (HALF) {
            const uint32_t exponents = HIGH ? (codes & 0x00f000f0u) << (EXPONENT - 4) : (codes & 0x000f000fu) << EXPONENT;
            return (twice & 0x80008000u) | (twice << 3 & 0x03f803f8u) | (exponents + bases);
        } else {
            /* A mask, a multiply-add and a bitwise choice. The compiler would need more instructions. */
            const uint32_t mine = HIGH ? codes : codes & 0x000f000fu;
            uint32_t exponents, values;
            asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(exponents) : "r"(mine), "n"(1 << (HIGH ? EXPONENT - 4 : EXPONENT)), "r"(bases));
            asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(values) : "n"(0x807f807f), "r"(twice), "r"(exponents));
            return values;
        }
    }

    /* Decodes a run of a row: w[s] gets the lane's four of the 16 columns from 16 s on, whose bytes are `kept[s]`. */
    template <unsigned WORDS>
    static __device__ __forceinline__ void decode(const uint32_t (&kept)[4][WORDS], const uint32_t (&codes)[2][WORDS],
                                                  uint32_t bases, uint2 (&w)[4]) {
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            const uint32_t first = spread<false>(codes[group]), second = spread<true>(codes[group]);
            const auto &low = kept[2 * group], &high = kept[2 * group + 1];
            w[2 * group] = {pair<false>(twice<false>(low), first, bases), pair<false>(twice<true>(low), second, bases)};
            w[2 * group + 1] = {pair<true>(twice<false>(high), first, bases), pair<true>(twice<true>(high), second, bases)};
        }
    }

    /*
     * A row with its next escape read ahead. `column` is that escape's, or beyond all columns past the last one. The escape
     * after it is being read.
     */
    struct Ahead {
        uint32_t bases, next, after;
        unsigned column;
        /* The list from `next` on, and the number of escapes in it. */
        const uint32_t *list;
        unsigned left;

        __device__ __forceinline__ Ahead(const char *row, unsigned k, unsigned row_bytes) {
            const uint32_t *words = Lossless::tail(row, k);
            /* There is room for four words at a row's end, even with fewer escapes. */
            const uint32_t head = __ldg(words);
            list = words + 1;
            next = __ldg(list), after = __ldg(list + 1);
            bases = (head & 0xff) * (0x00010001u << EXPONENT);
            left = min(head >> 16, (row_bytes - k - k / 2) / unsigned(sizeof(uint32_t)) - 1);
            column = left > 0 ? next & 0xffff : ~0u;
        }

        __device__ __forceinline__ void advance() {
            next = after, ++list;
            column = --left > 0 ? next & 0xffff : ~0u;
            if (left > 1) {
                after = __ldg(list + 1);
            }
        }

        /* Puts the escapes of the run that begins at `first` in their places. Runs must be decoded in order. */
        template <Lanes L> __device__ __forceinline__ void mend(unsigned first, unsigned quad, uint2 (&w)[4]) {
#pragma unroll 1
            for (; column < first + 64; advance()) {
                put<L>(next, column - first, quad, w);
            }
        }
    };

    /*
     * Decodes a run of a row, whose bytes begin at `kept` and codes at `codes`: w[s] gets the lane's four of the 16 columns
     * from 16 s on. Returns whether any is an escape: then call `mend`.
     */
    static __device__ __forceinline__ bool run(const char *kept, const char *codes, uint32_t bases, unsigned quad,
                                               uint2 (&w)[4]) {
        uint32_t bytes[4][1], code[2][1], escapes = 0;
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            bytes[step][0] = four_bytes<Lanes::NEIGHBOURS, 4>(kept + 16 * step, quad);
        }
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            code[group][0] = four_bytes<Lanes::NEIGHBOURS, 4>(codes + 16 * group, quad);
            /* The highest bit of each byte tells whether a code is 15. */
            escapes |= ((code[group][0] & 0x0f0f0f0fu) + 0x71717171u) | ((code[group][0] >> 4 & 0x0f0f0f0fu) + 0x71717171u);
        }
        decode(bytes, code, bases, w);
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
