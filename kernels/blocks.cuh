/*
 * The block formats of quantised weights: integers of 2 to 8 bits with shared scales. djinn-srg, src/encoding/block, defines
 * their values in f32. This file has what the formats share, in f32 and rounded to f16; block_formats.cuh has all formats.
 *
 * A segment is 256 columns of a row: one, two or eight blocks. It has four parts of 64 columns, and a part four steps of 16.
 * The four lanes of a quad decode a part together: each has four columns of every step, as `Lanes` says.
 *
 * A decoder that does not go through f32 is exact up to its last operation, so it rounds once as well. All kernels decode
 * with this code, so a row has the same bits in each of them.
 */
#ifndef DJINN_BLOCKS_CUH
#define DJINN_BLOCKS_CUH

#include "encoded.cuh"

namespace djinn {

constexpr unsigned SEGMENT_COLUMNS = 256;

#ifdef __CUDACC__
/* Operations on pairs of f16, which round once, to nearest even; on bytes; and among the lanes of a quad. */
__device__ __forceinline__ uint32_t half2_add(uint32_t a, uint32_t b) {
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
__device__ __forceinline__ uint32_t half2_sub(uint32_t a, uint32_t b) {
    uint32_t difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
__device__ __forceinline__ uint32_t half2_neg(uint32_t a) {
    uint32_t negative;
    asm("neg.f16x2 %0, %1;" : "=r"(negative) : "r"(a));
    return negative;
}
__device__ __forceinline__ uint32_t half2_mul(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
__device__ __forceinline__ uint32_t half2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
__device__ __forceinline__ uint32_t low_twice(uint32_t pair) {
    uint32_t both;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(both) : "r"(pair));
    return both;
}
__device__ __forceinline__ uint32_t high_twice(uint32_t pair) {
    uint32_t both;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}" : "=r"(both) : "r"(pair));
    return both;
}
__device__ __forceinline__ float widen_bits(uint32_t f16_bits) { return __half2float(__ushort_as_half(f16_bits)); }
__device__ __forceinline__ float float_of_bits(uint32_t f32_bits) { return __uint_as_float(f32_bits); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/* Exact to a few units in the last place. b must not be subnormal. */
__device__ __forceinline__ float quotient(float a, float b) {
    float by;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(b));
    return a * by;
}
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
__device__ __forceinline__ uint32_t rotate_left(uint32_t a, unsigned bits) { return __funnelshift_l(a, a, bits); }
/* (a & mask) | c, as one instruction if its constants are in registers. */
__device__ __forceinline__ uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t c) {
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(a), "r"(mask), "r"(c));
    return bits;
}
/* The value of another lane of this quad. */
__device__ __forceinline__ uint32_t of_quad(uint32_t value, unsigned lane) { return __shfl_sync(~0u, value, lane, 4); }
/* Whether the value is true in all lanes of the warp. */
__device__ __forceinline__ bool of_warp(bool value) { return __all_sync(~0u, value); }
#endif

/* 1024 and 1/16, as pairs of f16. */
constexpr uint32_t H_1024 = 0x64006400, H_16TH = 0x2c002c00;

/* For an integer i below 1024, 1024 + i in f16 has the bits of 1024 and those of i. Sets both halves of a register so. */
__device__ __forceinline__ uint32_t above_1024(uint32_t pair, uint32_t mask) { return masked_or(pair, mask, H_1024); }

__device__ __forceinline__ uint32_t half_at(const char *at) { return *reinterpret_cast<const uint16_t *>(at); }
__device__ __forceinline__ uint32_t byte_at(const char *at) { return *reinterpret_cast<const uint8_t *>(at); }

/* A lane's four of 16 bytes, which begin at a multiple of ALIGN (2 or 4). The low half has its first two columns. */
template <Lanes L, unsigned ALIGN = 2> __device__ __forceinline__ uint32_t lane_bytes(const char *sixteen, unsigned quad) {
    if constexpr (L == Lanes::NEIGHBOURS && ALIGN == 4) {
        return *reinterpret_cast<const uint32_t *>(sixteen + 4 * quad);
    } else {
        const char *first = sixteen + (L == Lanes::NEIGHBOURS ? 4 : 2) * quad;
        return pick_bytes(half_at(first), half_at(first + (L == Lanes::NEIGHBOURS ? 2 : 8)), 0x5410);
    }
}

/* The four bytes that begin `at` bytes past `base`, a multiple of 4, read as the words that they lie in. */
__device__ __forceinline__ uint32_t uneven_word(const char *base, unsigned at) {
    const uint32_t low = *reinterpret_cast<const uint32_t *>(base + at / 4 * 4);
    const uint32_t high = *reinterpret_cast<const uint32_t *>(base + (at + 3) / 4 * 4);
    return pick_bytes(low, high, 0x3210 + at % 4 * 0x1111);
}

/* Like `lane_bytes`, for 16 bytes that begin `at` bytes past a multiple of 4. */
template <Lanes L> __device__ __forceinline__ uint32_t uneven_bytes(const char *base, unsigned at, unsigned quad) {
    if constexpr (L == Lanes::NEIGHBOURS) {
        return uneven_word(base + 4 * quad, at);
    } else {
        const char *x = base + at + 2 * quad, *y = x + 8;
        return byte_at(x) | byte_at(x + 1) << 8 | byte_at(y) << 16 | byte_at(y + 1) << 24;
    }
}

/*
 * A lane's four of 16 bytes, each in the low half of 16 bits: .x has its first two columns. `above` fills the high halves;
 * the bits of `flip` are inverted first.
 */
template <Lanes L, unsigned ALIGN>
__device__ __forceinline__ uint2 spread_bytes(const char *sixteen, unsigned quad, uint32_t above = 0, uint32_t flip = 0) {
    if constexpr (L == Lanes::NEIGHBOURS && ALIGN % 4 == 0) {
        const uint32_t word = *reinterpret_cast<const uint32_t *>(sixteen + 4 * quad) ^ flip;
        return {pick_bytes(word, above, 0x4140), pick_bytes(word, above, 0x4342)};
    } else {
        const char *first = sixteen + (L == Lanes::NEIGHBOURS ? 4 : 2) * quad;
        const uint32_t x = half_at(first) ^ flip, y = half_at(first + (L == Lanes::NEIGHBOURS ? 2 : 8)) ^ flip;
        return {pick_bytes(x, above, 0x4140), pick_bytes(y, above, 0x4140)};
    }
}

/* A lane's four of the lowest 16 bits of a word, each moved to bit `AT` of 16 bits. */
template <Lanes L, unsigned AT> __device__ __forceinline__ uint2 spread_bits(uint32_t word, unsigned quad) {
    const unsigned first = (L == Lanes::NEIGHBOURS ? 4 : 2) * quad, second = first + (L == Lanes::NEIGHBOURS ? 2 : 8);
    const auto pair = [](uint32_t bits) { return (bits << AT & 1u << AT) | (bits << (AT + 15) & 1u << (AT + 16)); };
    return {pair(word >> first), pair(word >> second)};
}

__device__ __forceinline__ uint2 field(uint2 pairs, unsigned shift, uint32_t mask) {
    return {pairs.x >> shift & mask, pairs.y >> shift & mask};
}

__device__ __forceinline__ uint2 operator|(uint2 a, uint2 b) { return {a.x | b.x, a.y | b.y}; }

/*
 * Addresses at which a segment would begin: `shared` for the bytes that all parts of a block of 256 columns use, above all
 * scales, `own` for the others. They may have been copied to different places.
 */
struct Segment {
    const char *shared, *own;

    __device__ __forceinline__ Segment(const char *whole) : shared(whole), own(whole) {}
    __device__ __forceinline__ Segment(const char *shared, const char *own) : shared(shared), own(own) {}
};

constexpr unsigned common_divisor(unsigned a, unsigned b) { return b == 0 ? a : common_divisor(b, a % b); }

/*
 * How TMA copies a segment of each of some rows: in boxes that begin at multiples of 16 bytes, `shift` before the segment, up
 * to SHIFT.
 */
template <typename Format> struct SegmentBox {
    static constexpr unsigned SHIFT = 16 - common_divisor(16, Format::BYTES);
    /* Bytes of a box's row: an odd multiple of 16, so that lanes that read from 8 rows at once have no bank conflicts. */
    static constexpr unsigned PITCH = 16 * ((Format::BYTES + SHIFT + 15) / 16 | 1);
    /* Where a box begins in its row of the weight. */
    static __device__ __forceinline__ unsigned begin(unsigned segment) { return segment * Format::BYTES / 16 * 16; }
    static __device__ __forceinline__ unsigned shift(unsigned segment) {
        return SHIFT == 0 ? 0 : segment * Format::BYTES % 16;
    }
};

/* Bytes of a row's blocks, without padding, and whether rows of `row_bytes` are what `Encoding::row_bytes` (djinn-srg) says. */
template <typename Format> uint64_t blocks_bytes(unsigned k) { return uint64_t(k) / Format::COLUMNS * Format::BLOCK_BYTES; }
template <typename Format> bool are_padded(unsigned k, unsigned row_bytes) {
    return k % Format::COLUMNS == 0 && (blocks_bytes<Format>(k) + 15) / 16 * 16 == row_bytes;
}

/* A weight is scale (integer - LESS) + offset, or scale number + offset. An offset of -0 leaves the product as it is. */
struct Line {
    float scale, offset;
};

/*
 * A lane's values of 16 columns in f32: the integers of `Format`, or its numbers, which are exact in f16, on the line of
 * these columns.
 */
template <typename Format, Lanes L>
__device__ __forceinline__ float4 line_values(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
    const Line line = Format::line(segment, part, step);
    if constexpr (Format::ARE_HALVES) {
        const uint2 pairs = Format::template halves<L>(segment, part, step, quad);
        const auto value = [&](uint32_t number) { return fused(widen_bits(number), line.scale, line.offset); };
        return {value(pairs.x & 0xffff), value(pairs.x >> 16), value(pairs.y & 0xffff), value(pairs.y >> 16)};
    } else {
        const uint2 pairs = Format::template integers<L>(segment, part, step, quad);
        const auto value = [&](uint32_t integer) {
            return fused(float(int(integer) - Format::LESS), line.scale, line.offset);
        };
        return {value(pairs.x & 0xffff), value(pairs.x >> 16), value(pairs.y & 0xffff), value(pairs.y >> 16)};
    }
}

/*
 * What a lane prepares of a part of a segment, for itself or for other lanes of its quad, which get it by `of_lane`, and how
 * a lane decodes the part to f16: w[s] has the lane's columns of step s, the first two in x, the first of a pair in the low
 * half. All lanes of a warp must prepare together, and call `of_lane` together.
 *
 * This one prepares nothing, and rounds the values in f32.
 */
template <typename Format> struct ByLine {
    static constexpr bool is_usual = true;

    __device__ __forceinline__ ByLine() {}
    __device__ __forceinline__ ByLine(const Segment &, unsigned) {}

    __device__ __forceinline__ const ByLine &of_lane(unsigned) const { return *this; }
    static __device__ __forceinline__ unsigned lane_at(unsigned, unsigned) { return 0; }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const float4 v = line_values<Format, L>(segment, part, step, quad);
            w[step] = {pack<f16>(v.x, v.y), pack<f16>(v.z, v.w)};
        }
    }
};

/* The same out of line, for "unusual" blocks, for which a format's faster decoder would not be exact. */
template <typename Format, Lanes L>
__device__ __noinline__ void run_apart(const char *shared, const char *own, unsigned part, unsigned quad, uint2 *w) {
    uint2 found[4];
    ByLine<Format>().template run<L>({shared, own}, part, quad, found);
    for (unsigned step = 0; step < 4; ++step) {
        w[step] = found[step];
    }
}
template <typename Format, Lanes L>
__device__ __forceinline__ void run_unusual(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) {
    uint2 found[4];
    run_apart<Format, L>(segment.shared, segment.own, part, quad, found);
#pragma unroll
    for (unsigned step = 0; step < 4; ++step) {
        w[step] = found[step];
    }
}

/*
 * For formats whose weights are an f16 scale times a small integer: the integer is exact in f16, so the product rounds once.
 */
template <typename Format> struct ByScale {
    static constexpr bool is_usual = true;

    __device__ __forceinline__ ByScale() {}
    __device__ __forceinline__ ByScale(const Segment &, unsigned) {}

    __device__ __forceinline__ const ByScale &of_lane(unsigned) const { return *this; }
    static __device__ __forceinline__ unsigned lane_at(unsigned, unsigned) { return 0; }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const uint32_t scale = Format::scale(segment, part, step);
            const uint2 integers = Format::template halves<L>(segment, part, step, quad);
            w[step] = {half2_mul(integers.x, scale), half2_mul(integers.y, scale)};
        }
    }
};

/*
 * A format: its bytes, its values in f32 (bit for bit the definition's) and in f16. Unusual blocks use nothing prepared:
 * `run_unusual` decodes them. It gives other blocks the same bits as `run`.
 */
template <typename F, typename Part, bool COMMON = false> struct Decoded : F {
    using Format = F;
    using Prepared = Part;
    /* Whether anything is prepared, and whether files have most of their weights in this format. */
    static constexpr bool IS_PREPARED = sizeof(Part) > 1, IS_COMMON = COMMON;

    /* A lane's columns of a step. */
    template <Lanes L>
    static __device__ __forceinline__ float4 values(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return line_values<Format, L>(segment, part, step, quad);
    }

    /* Decodes a part, with what lane `from` of the quad has prepared of it. */
    template <Lanes L>
    static __device__ __forceinline__ void run(const Prepared &prepared, unsigned from, const Segment &segment,
                                               unsigned part, unsigned quad, uint2 (&w)[4]) {
        if (prepared.is_usual) {
            prepared.of_lane(from).template run<L>(segment, part, quad, w);
        } else {
            run_unusual<Format, L>(segment, part, quad, w);
        }
    }
};

template <djinn_encoding E> struct Blocks;

} // namespace djinn

#endif
