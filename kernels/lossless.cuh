/*
 * Rows of djinn-lossless (its `LosslessRow`): for each value a byte of sign and mantissa, and a code of 4 bits for its
 * exponent; and a list of escapes, the values that have no code. k is a multiple of 64 here. Four successive bytes, and codes,
 * of each 16 are those of a lane's columns (Lanes::HALVES), whose fragment of the operand they become.
 */
#ifndef DJINN_LOSSLESS_CUH
#define DJINN_LOSSLESS_CUH

#include "encoded.cuh"
#include "linear.cuh"

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

    /* The first or the SECOND two of four bytes. `spread` puts each in the low byte of 16 bits, `twice` in both bytes. */
    template <bool SECOND> static __device__ __forceinline__ uint32_t spread(uint32_t bytes) {
        return __byte_perm(bytes, 0, SECOND ? 0x4342 : 0x4140);
    }
    template <bool SECOND> static __device__ __forceinline__ uint32_t twice(uint32_t bytes) {
        return __byte_perm(bytes, 0, SECOND ? 0x3322 : 0x1100);
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
    static __device__ __forceinline__ void decode(const uint32_t (&kept)[4], const uint32_t (&codes)[2], uint32_t bases,
                                                  uint2 (&w)[4]) {
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            const uint32_t first = spread<false>(codes[group]), second = spread<true>(codes[group]);
            const uint32_t low = kept[2 * group], high = kept[2 * group + 1];
            w[2 * group] = {pair<false>(twice<false>(low), first, bases), pair<false>(twice<true>(low), second, bases)};
            w[2 * group + 1] = {pair<true>(twice<false>(high), first, bases), pair<true>(twice<true>(high), second, bases)};
        }
    }

    /* Whether any of 16 codes is that of an escape: all bits are set. */
    static __device__ __forceinline__ bool has_escape(const uint2 &codes) {
        const auto all_set = [](uint32_t x) {
            const uint32_t pairs = x & x >> 1;
            return pairs & pairs >> 2;
        };
        return ((all_set(codes.x) | all_set(codes.y)) & 0x11111111u) != 0;
    }

    /*
     * A row's escapes in the runs of one partial sum, and the next one of these. A quad looks through 16 words of the row's
     * end at a time, from `list` on. `own` tells which of them are escapes of this part to come. `column` is the next one's,
     * or beyond all columns past the last one. All lanes of a warp call all methods together.
     */
    struct Ahead {
        uint32_t bases, entry, own;
        unsigned column;
        const uint32_t *list;
        /* How many escapes the row still has, from the first word in `list` on. */
        unsigned left;

        /* Starts to read the end of a row: returns the lane's first four words. */
        __device__ __forceinline__ uint4 expect(const char *row, unsigned k, unsigned row_bytes, unsigned quad) {
            const unsigned room = (row_bytes - k - k / 2) / unsigned(sizeof(uint4));
            list = Lossless::tail(row, k);
            left = room * 4 - 1;
            return quad < room ? __ldg(reinterpret_cast<const uint4 *>(list) + quad) : uint4{};
        }

        /* Begins with that row. `seek_all` must follow. */
        __device__ __forceinline__ void begin(const uint4 &words, unsigned part, unsigned quad) {
            const uint32_t head = __shfl_sync(~0u, words.x, 0, 4);
            bases = (head & 0xff) * (0x00010001u << EXPONENT);
            left = min(head >> 16, left);
            /* The first word is no escape. */
            own = find(words, part, quad) & ~1u;
        }

        /* Which of the quad's words are escapes of this part. */
        __device__ __forceinline__ uint32_t find(const uint4 &words, unsigned part, unsigned quad) const {
            const uint32_t four[4] = {words.x, words.y, words.z, words.w};
            uint32_t found = 0;
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                found |= four[i] / RUN % PARTIALS == part && 4 * quad + i <= left ? 1u << i : 0;
            }
            found <<= 4 * quad;
            found |= __shfl_xor_sync(~0u, found, 1);
            return found | __shfl_xor_sync(~0u, found, 2);
        }

        /* If `own` has no escape, goes on to the words after these, until it has one. */
        __device__ __forceinline__ void refill(unsigned part, unsigned quad) {
            const auto is_past = [&] { return own == 0 && left >= 16; };
#pragma unroll 1
            while (__any_sync(~0u, is_past())) {
                const bool is_mine = is_past();
                uint4 words = {};
                if (is_mine) {
                    left -= 16, list += 16;
                    if (4 * quad <= left) {
                        words = __ldg(reinterpret_cast<const uint4 *>(list) + quad);
                    }
                }
                const uint32_t found = find(words, part, quad);
                own = is_mine ? found : own;
            }
        }

        /* Reads the first escape in `own`, and then its column. */
        __device__ __forceinline__ void fetch() { entry = __ldg(list + (max(__ffs(own), 1) - 1)); }
        __device__ __forceinline__ void seek() { column = own != 0 ? entry & 0xffff : ~0u; }

        /*
         * Puts the next escape in its place, if it is in the run that begins at `first`. Returns whether another one may be:
         * then call `seek_all`.
         */
        __device__ __forceinline__ bool mend(unsigned first, unsigned quad, uint2 (&w)[4]) {
            const bool is_here = column < first + RUN;
            put(entry, column - first, quad, w);
            own &= is_here ? own - 1 : ~0u;
            column = is_here ? ~0u : column;
            return is_here & ((own != 0) | (left >= 16));
        }
    };

    /* Finds the next escapes of ROWS rows. They are read at once. */
    template <unsigned ROWS> static __device__ __forceinline__ void seek_all(Ahead *rows, unsigned part, unsigned quad) {
#pragma unroll
        for (unsigned i = 0; i < ROWS; ++i) {
            rows[i].refill(part, quad);
        }
#pragma unroll
        for (unsigned i = 0; i < ROWS; ++i) {
            rows[i].fetch();
        }
#pragma unroll
        for (unsigned i = 0; i < ROWS; ++i) {
            rows[i].seek();
        }
    }

    /* Begins with the rows that were expected; `words` is what `expect` returned. */
    template <unsigned ROWS>
    static __device__ __forceinline__ void begin_all(Ahead *rows, const uint4 (&words)[ROWS], unsigned part, unsigned quad) {
#pragma unroll
        for (unsigned i = 0; i < ROWS; ++i) {
            rows[i].begin(words[i], part, quad);
        }
        seek_all<ROWS>(rows, part, quad);
    }

    /* Puts the escapes of ROWS rows' runs that begin at `first` in their places. Without any, it is one branch. */
    template <unsigned ROWS>
    static __device__ __forceinline__ void mend_all(unsigned first, unsigned quad, Ahead *rows, uint2 (*w)[4]) {
        const auto has_any = [&] {
            unsigned next = rows[0].column;
#pragma unroll
            for (unsigned i = 1; i < ROWS; ++i) {
                next = min(next, rows[i].column);
            }
            return __any_sync(~0u, next < first + RUN);
        };
        bool goes_on = has_any();
#pragma unroll 1
        while (goes_on) {
            bool may_be_more = false;
#pragma unroll
            for (unsigned i = 0; i < ROWS; ++i) {
                if (ROWS == 1 || __any_sync(~0u, rows[i].column < first + RUN)) {
                    may_be_more |= rows[i].mend(first, quad, w[i]);
                }
            }
            goes_on = __any_sync(~0u, may_be_more);
            if (goes_on) {
                seek_all<ROWS>(rows, first / RUN % PARTIALS, quad);
                goes_on = has_any();
            }
        }
    }

    /*
     * Decodes a run of a row, whose bytes begin at `kept` and codes at `codes`: w[s] gets the lane's four of the 16 columns
     * from 16 s on. Returns whether any is an escape: then call `mend`.
     */
    static __device__ __forceinline__ bool run(const char *kept, const char *codes, uint32_t bases, unsigned quad,
                                               uint2 (&w)[4]) {
        uint32_t bytes[4], code[2], escapes = 0;
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            bytes[step] = *reinterpret_cast<const uint32_t *>(kept + 16 * step + 4 * quad);
        }
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            code[group] = *reinterpret_cast<const uint32_t *>(codes + 16 * group + 4 * quad);
            /* The highest bit of each byte tells whether a code is 15. */
            escapes |= ((code[group] & 0x0f0f0f0fu) + 0x71717171u) | ((code[group] >> 4 & 0x0f0f0f0fu) + 0x71717171u);
        }
        decode(bytes, code, bases, w);
        return (escapes & 0x80808080u) != 0;
    }

    /* Puts an escape in its place, if column `at` of the run is one of the lane's. */
    static __device__ __forceinline__ void put(uint32_t entry, unsigned at, unsigned quad, uint2 (&w)[4]) {
        /* What `prmt` takes of a word and the entry: the word alone, or the entry's upper half and the word's other half. */
        constexpr unsigned NONE = 0x3210;
        const bool is_mine = at % 8 / 2 == quad, is_second = at % 16 / 8 != 0;
        const unsigned half = at % 2 == 0 ? 0x3276 : 0x7610;
        const unsigned first = is_mine && !is_second ? half : NONE, second = is_mine && is_second ? half : NONE;
        /* No branch, and no memory indexed by `at`, which the compiler would make of this. */
#pragma unroll
        for (unsigned s = 0; s < 4; ++s) {
            asm("{\n"
                ".reg .pred here;\n"
                "setp.eq.u32 here, %2, %3;\n"
                "@here prmt.b32 %0, %0, %4, %5;\n"
                "@here prmt.b32 %1, %1, %4, %6;\n"
                "}"
                : "+r"(w[s].x), "+r"(w[s].y)
                : "r"(at / 16), "r"(s), "r"(entry), "r"(first), "r"(second));
        }
    }

    /* Puts the escapes of the run that begins at `column` in their places. */
    static __device__ __forceinline__ void mend(Row &row, unsigned column, unsigned quad, uint2 (&w)[4]) {
        const unsigned count = *row.tail >> 16;
#pragma unroll 1
        for (; row.next <= count; ++row.next) {
            const uint32_t entry = row.tail[row.next];
            const unsigned at = (entry & 0xffff) - column;
            if (int(at) >= 64) {
                break;
            }
            put(entry, at, quad, w);
        }
    }
};

} // namespace djinn

#endif
