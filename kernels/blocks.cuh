/*
 * What the blocks of quantised formats stand for: integers of 2 to 8 bits and shared scales. djinn-srg,
 * src/encoding/block, defines it in f32; here are the same values, and the same rounded to f16. Those with evenly spaced
 * levels, of GGML's; block_formats.cuh has all.
 *
 * A segment is 256 columns of a row: one block, two or eight. It has four parts of 64 columns.
 * Four lanes decode a part of a row together: of each 16 columns every lane has four, as `Lanes` says.
 *
 * Where the f16 path does without f32, it is exact until its last operation, and rounds once. A row has the same bits
 * wherever it is decoded, since all kernels decode here.
 */
#ifndef DJINN_BLOCKS_CUH
#define DJINN_BLOCKS_CUH

#include "encoded.cuh"

namespace djinn {

constexpr unsigned SEGMENT_COLUMNS = 256;

#ifdef __CUDACC__
/* Operations on pairs of f16, which round once, to nearest even; on bytes; among the lanes of a quad. */
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
/* To a few units in the last place. b is no subnormal. */
__device__ __forceinline__ float quotient(float a, float b) {
    float by;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(by) : "f"(b));
    return a * by;
}
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
__device__ __forceinline__ uint32_t rotate_left(uint32_t a, unsigned bits) { return __funnelshift_l(a, a, bits); }
/* The bits of a under a mask, and those of c; in one operation, if it finds its constants in registers. */
__device__ __forceinline__ uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t c) {
    uint32_t bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(a), "r"(mask), "r"(c));
    return bits;
}
/* What a lane of this quad has. */
__device__ __forceinline__ uint32_t of_quad(uint32_t value, unsigned lane) { return __shfl_sync(~0u, value, lane, 4); }
/* Whether all lanes of the warp say so. */
__device__ __forceinline__ bool of_warp(bool value) { return __all_sync(~0u, value); }
#endif

/* Pairs of f16: 1024, 1/16. */
constexpr uint32_t H_1024 = 0x64006400, H_16TH = 0x2c002c00;

/* An integer below 1024 as f16, added to 1024, is its bits in those of 1024; that of both halves of a register. */
__device__ __forceinline__ uint32_t above_1024(uint32_t pair, uint32_t mask) { return masked_or(pair, mask, H_1024); }

__device__ __forceinline__ uint32_t half_at(const char *at) { return *reinterpret_cast<const uint16_t *>(at); }
__device__ __forceinline__ uint32_t byte_at(const char *at) { return *reinterpret_cast<const uint8_t *>(at); }

/* A lane's four bytes of 16 at a multiple of ALIGN (2 or 4), those of its first two columns in the low half. */
template <Lanes L, unsigned ALIGN = 2> __device__ __forceinline__ uint32_t lane_bytes(const char *sixteen, unsigned quad) {
    if constexpr (L == Lanes::NEIGHBOURS && ALIGN == 4) {
        return *reinterpret_cast<const uint32_t *>(sixteen + 4 * quad);
    } else {
        const char *first = sixteen + (L == Lanes::NEIGHBOURS ? 4 : 2) * quad;
        return pick_bytes(half_at(first), half_at(first + (L == Lanes::NEIGHBOURS ? 2 : 8)), 0x5410);
    }
}

/* Four bytes, `at` bytes past a multiple of 4, of the words that they lie in. */
__device__ __forceinline__ uint32_t uneven_word(const char *base, unsigned at) {
    const uint32_t low = *reinterpret_cast<const uint32_t *>(base + at / 4 * 4);
    const uint32_t high = *reinterpret_cast<const uint32_t *>(base + (at + 3) / 4 * 4);
    return pick_bytes(low, high, 0x3210 + at % 4 * 0x1111);
}

/* As `lane_bytes`, of 16 bytes that are `at` bytes past a multiple of 4. */
template <Lanes L> __device__ __forceinline__ uint32_t uneven_bytes(const char *base, unsigned at, unsigned quad) {
    if constexpr (L == Lanes::NEIGHBOURS) {
        return uneven_word(base + 4 * quad, at);
    } else {
        const char *x = base + at + 2 * quad, *y = x + 8;
        return byte_at(x) | byte_at(x + 1) << 8 | byte_at(y) << 16 | byte_at(y + 1) << 24;
    }
}

/*
 * A lane's four bytes of 16, each in the low half of 16 bits: .x has its first two columns. `above` fills the high halves;
 * bits of `flip` are inverted before.
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

/* A lane's bits of the first 16 of a word, each as the bit `AT` of 16 bits. */
template <Lanes L, unsigned AT> __device__ __forceinline__ uint2 spread_bits(uint32_t word, unsigned quad) {
    const unsigned first = (L == Lanes::NEIGHBOURS ? 4 : 2) * quad, second = first + (L == Lanes::NEIGHBOURS ? 2 : 8);
    const auto pair = [](uint32_t bits) { return (bits << AT & 1u << AT) | (bits << (AT + 15) & 1u << (AT + 16)); };
    return {pair(word >> first), pair(word >> second)};
}

/* What is left under a mask after a shift to the right. */
__device__ __forceinline__ uint2 field(uint2 pairs, unsigned shift, uint32_t mask) {
    return {pairs.x >> shift & mask, pairs.y >> shift & mask};
}

__device__ __forceinline__ uint2 operator|(uint2 a, uint2 b) { return {a.x | b.x, a.y | b.y}; }

/*
 * Where the bytes of a segment are, as if it began there: those of a block of 256 columns that all its parts share, scales
 * above all, and all others. They may have been copied to different places.
 */
struct Segment {
    const char *shared, *own;

    __device__ __forceinline__ Segment(const char *whole) : shared(whole), own(whole) {}
    __device__ __forceinline__ Segment(const char *shared, const char *own) : shared(shared), own(own) {}
};

/* A weight is scale (integer - less) + offset, or scale number + offset; an offset of -0 leaves the product as it is. */
struct Line {
    float scale, offset;
};

/* What a format's values are, in f32: of `Format`, the integers, or numbers that f16 hold, and the line of 16 columns. */
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
 * What a lane prepares of a part of a segment, for itself or for other lanes of its quad, which get it by `of_lane`; and how a
 * lane decodes the part to f16: w[s] has the lane's columns of 16 s .., the first two in x, the first in the low half. All
 * lanes of a warp prepare together, and call `of_lane` together.
 *
 * Here nothing is prepared: by way of f32, which is rounded.
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

/* The same in code of its own, for blocks that are not as usual. */
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

/* Of a format whose weights are an f16 scale by a small integer: the integer is exact in f16, and the product rounds once. */
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

/* The formats of 32 columns: BLOCK bytes each, the f16 scale first, the other integers' bits from INTEGERS on. */
template <unsigned BLOCK, unsigned INTEGERS> struct SmallBlocks {
    static constexpr unsigned BLOCK_BYTES = BLOCK, COLUMNS = 32, BYTES = SEGMENT_COLUMNS / COLUMNS * BLOCK;
    static constexpr bool ARE_HALVES = false;

    /* The block that columns 16 `step` .. of a part are in, and its scale twice. */
    static __device__ __forceinline__ const char *block(const Segment &segment, unsigned part, unsigned step) {
        return segment.own + (2 * part + step / 2) * BLOCK;
    }
    static __device__ __forceinline__ uint32_t scale(const Segment &segment, unsigned part, unsigned step) {
        return low_twice(half_at(block(segment, part, step)));
    }

    /* The nibbles of a block: low ones before high ones. */
    template <Lanes L> static __device__ __forceinline__ uint2 nibbles(const char *block, unsigned step, unsigned quad) {
        return field(spread_bytes<L, 2>(block + INTEGERS, quad), step % 2 * 4, 0x000f000f);
    }

    /* The same with fifth bits, from the word at `fifth` on. */
    template <Lanes L>
    static __device__ __forceinline__ uint2 with_fifth(const char *block, unsigned fifth, unsigned step, unsigned quad) {
        const uint32_t bits = half_at(block + fifth) | half_at(block + fifth + 2) << 16;
        return nibbles<L>(block, step, quad) | spread_bits<L, 4>(bits >> step % 2 * 16, quad);
    }
};

/* Nibbles less 8. */
struct Q4_0 : SmallBlocks<18, 2> {
    static constexpr int LESS = 8;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(half_at(block(segment, part, step))), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return nibbles<L>(block(segment, part, step), step, quad);
    }
    /* High nibbles, where they stand, are 16 times what they stand for. */
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        constexpr uint32_t LESS_1032 = 0xe408e408, LESS_72 = 0xd480d480;
        const uint2 pairs = spread_bytes<L, 2>(block(segment, part, step) + 2, quad);
        if (step % 2 == 0) {
            return {half2_add(above_1024(pairs.x, 0x000f000f), LESS_1032),
                    half2_add(above_1024(pairs.y, 0x000f000f), LESS_1032)};
        }
        return {half2_fma(above_1024(pairs.x, 0x00f000f0), H_16TH, LESS_72),
                half2_fma(above_1024(pairs.y, 0x00f000f0), H_16TH, LESS_72)};
    }
};

/* Nibbles, and a minimum. */
struct Q4_1 : SmallBlocks<20, 4> {
    static constexpr int LESS = 0;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const char *at = block(segment, part, step);
        return {widen_bits(half_at(at)), widen_bits(half_at(at + 2))};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return nibbles<L>(block(segment, part, step), step, quad);
    }
};

/* Five bits less 16. */
struct Q5_0 : SmallBlocks<22, 6> {
    static constexpr int LESS = 16;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(half_at(block(segment, part, step))), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return with_fifth<L>(block(segment, part, step), 2, step, quad);
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        constexpr uint32_t LESS_1040 = 0xe410e410;
        const uint2 pairs = integers<L>(segment, part, step, quad);
        return {half2_add(pairs.x | H_1024, LESS_1040), half2_add(pairs.y | H_1024, LESS_1040)};
    }
};

/* Five bits, and a minimum. */
struct Q5_1 : SmallBlocks<24, 8> {
    static constexpr int LESS = 0;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const char *at = block(segment, part, step);
        return {widen_bits(half_at(at)), widen_bits(half_at(at + 2))};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return with_fifth<L>(block(segment, part, step), 4, step, quad);
    }
};

/* Signed bytes. */
struct Q8_0 : SmallBlocks<34, 2> {
    static constexpr int LESS = 128;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(half_at(block(segment, part, step))), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return spread_bytes<L, 2>(block(segment, part, step) + 2 + step % 2 * 16, quad, 0, 0x80808080);
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        constexpr uint32_t LESS_1152 = 0xe480e480;
        const char *bytes = block(segment, part, step) + 2 + step % 2 * 16;
        const uint2 pairs = spread_bytes<L, 2>(bytes, quad, H_1024 >> 8, 0x80808080);
        return {half2_add(pairs.x, LESS_1152), half2_add(pairs.y, LESS_1152)};
    }
};

/* The formats of 256 columns. */
template <unsigned BLOCK> struct LargeBlocks {
    static constexpr unsigned BLOCK_BYTES = BLOCK, COLUMNS = 256, BYTES = BLOCK;
    static constexpr bool ARE_HALVES = false;
};

/* Two bits, and for each 16 a nibble of scale and one of minimum. */
struct Q2_K : LargeBlocks<84> {
    static constexpr int LESS = 0;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const uint32_t packed = byte_at(segment.shared + 4 * part + step);
        return {widen_bits(half_at(segment.shared + 80)) * float(packed & 15),
                -(widen_bits(half_at(segment.shared + 82)) * float(packed >> 4))};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const char *bytes = segment.own + 16 + part / 2 * 32 + step % 2 * 16;
        return field(spread_bytes<L, 4>(bytes, quad), part % 2 * 4 + step / 2 * 2, 0x00030003);
    }
};

/* Three bits less 4, and for each 16 six bits of scale less 32. */
struct Q3_K : LargeBlocks<110> {
    static constexpr int LESS = 4;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const char *scales = segment.shared + 96;
        const uint32_t low = byte_at(scales + part % 2 * 4 + step) >> part / 2 * 4 & 15;
        const uint32_t high = byte_at(scales + 8 + step) >> part * 2 & 3;
        return {widen_bits(half_at(segment.shared + 108)) * float(int(low | high << 4) - 32), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const uint2 low = spread_bytes<L, 2>(segment.own + 32 + part / 2 * 32 + step % 2 * 16, quad);
        const uint2 third = spread_bytes<L, 2>(segment.own + step % 2 * 16, quad);
        return field(low, part % 2 * 4 + step / 2 * 2, 0x00030003) |
               field({third.x << 2, third.y << 2}, 2 * part + step / 2, 0x00040004);
    }
};

/*
 * The scales of two neighbouring groups of 32 columns, those of a part, and their minima, each in 16 bits: six bits each, as
 * Q4_K and Q5_K pack them.
 */
__device__ __forceinline__ uint2 scales_and_minima(uint4 header, unsigned part) {
    const uint32_t select = part % 2 == 0 ? 0x4140 : 0x4342, low = part < 2 ? 0x003f003f : 0x000f000f;
    const uint32_t scales = pick_bytes(header.y, 0, select), minima = pick_bytes(header.z, 0, select);
    const uint32_t rest = pick_bytes(header.w, 0, select), high = part < 2 ? 0 : 0x00300030;
    return {((part < 2 ? scales : rest) & low) | (scales >> 2 & high),
            ((part < 2 ? minima : rest >> 4) & low) | (minima >> 2 & high)};
}

/* The line of a group of 32 columns, by the first four words of its block. */
__device__ __forceinline__ Line line_of_header(uint4 header, unsigned part, unsigned step) {
    const uint2 pairs = scales_and_minima(header, part);
    const unsigned shift = step / 2 * 16;
    return {widen_bits(header.x & 0xffff) * float(pairs.x >> shift & 0xff),
            -(widen_bits(header.x >> 16) * float(pairs.y >> shift & 0xff))};
}

/* Nibbles, and for each 32 six bits of scale and of minimum. */
struct Q4_K : LargeBlocks<144> {
    static constexpr int LESS = 0;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return line_of_header(*reinterpret_cast<const uint4 *>(segment.shared), part, step);
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const char *bytes = segment.own + 16 + part * 32 + step % 2 * 16;
        return field(spread_bytes<L, 4>(bytes, quad), step / 2 * 4, 0x000f000f);
    }
};

/* Five bits, and for each 32 six bits of scale and of minimum. */
struct Q5_K : LargeBlocks<176> {
    static constexpr int LESS = 0;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return line_of_header(*reinterpret_cast<const uint4 *>(segment.shared), part, step);
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const uint2 low = spread_bytes<L, 4>(segment.own + 48 + part * 32 + step % 2 * 16, quad);
        const uint2 fifth = spread_bytes<L, 4>(segment.shared + 16 + step % 2 * 16, quad);
        return field(low, step / 2 * 4, 0x000f000f) |
               field({fifth.x << 4, fifth.y << 4}, 2 * part + step / 2, 0x00100010);
    }
};

/* Six bits less 32, and for each 16 a signed byte of scale. */
struct Q6_K : LargeBlocks<210> {
    static constexpr int LESS = 32;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const int scale = static_cast<int8_t>(byte_at(segment.shared + 192 + 4 * part + step));
        return {widen_bits(half_at(segment.shared + 208)) * float(scale), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const uint2 low = spread_bytes<L, 2>(segment.own + part / 2 * 64 + step * 16, quad);
        const uint2 high = spread_bytes<L, 2>(segment.shared + 128 + part / 2 * 32 + step % 2 * 16, quad);
        return field(low, part % 2 * 4, 0x000f000f) |
               field({high.x << 4, high.y << 4}, part % 2 * 4 + step / 2 * 2, 0x00300030);
    }
};

/*
 * Of Q4_K. A weight is scale d q - minimum dmin, with d and dmin f16 and the others integers. With k, the integer next to
 * minimum dmin / d, and the rest r = minimum dmin - k d it is d (scale q - k) - r: the integer in brackets and r are exact in
 * f16, and what is left is one multiply-add.
 *
 * That holds where d is below 4, and dmin is 0 or from d to 16 d, as in every block that a quantiser writes: k is at most
 * 1008, the integer at most 2048; all are multiples of what d is in units of, and r is less than 2048 of these. The other
 * blocks go by way of f32, with all that are decoded beside them; so the bits are always those of f32 rounded.
 *
 * The bits of q are read as f16 where they stand, which is q / 2^24, or q / 2^20 for a high nibble. So the scale is taken
 * times 2^10 or 2^6, the integers in brackets come as parts of 2^14, and d is taken times 2^14.
 */
struct PreparedQ4_K {
    /* d twice, times 2^14; of the part's two groups: scales times 2^10 and 2^6, -k / 2^14 and -r. */
    uint32_t d, scales, less, rest;
    bool is_usual;

    /* What the parts of a block share. */
    struct Header {
        uint32_t d, dmin, ratio, d_2_14;
        bool is_usual;

        __device__ __forceinline__ Header(uint32_t both) : d(low_twice(both)), dmin(high_twice(both)) {
            constexpr uint32_t H_2_14 = 0x74007400;
            const float scale = widen_bits(both & 0xffff), minimum = widen_bits(both >> 16);
            /* All weights of a block of zeros are 0. */
            const float times = both == 0 ? 0 : quotient(minimum, scale);
            ratio = pack<f16>(times, times), d_2_14 = half2_mul(d, H_2_14);
            /* The quotient of two f16 that are not equal is not next to 1. */
            is_usual = of_warp(both == 0 || (scale > 0 && scale < 4 && times <= 16 && (times > 0.9999f || both >> 16 == 0)));
        }
    };

    __device__ __forceinline__ PreparedQ4_K() {}
    __device__ __forceinline__ PreparedQ4_K(const Segment &segment, unsigned part) {
        const uint4 header = *reinterpret_cast<const uint4 *>(segment.shared);
        const uint2 pairs = scales_and_minima(header, part);
        *this = PreparedQ4_K(Header(header.x), pairs.x | H_1024, pairs.y | H_1024);
    }

    /* Of scales and minima of two groups, which are added to 1024. */
    __device__ __forceinline__ PreparedQ4_K(const Header &header, uint32_t scales_1024, uint32_t minima_1024) {
        constexpr uint32_t H_2_10_AND_2_6 = 0x54006400, H_LESS_1024 = 0xe400e400, H_PART = 0x04000400;
        is_usual = header.is_usual, d = header.d_2_14;
        scales = half2_mul(half2_add(scales_1024, H_LESS_1024), H_2_10_AND_2_6);
        const uint32_t minima = half2_add(minima_1024, H_LESS_1024);
        /* From 1024 to 2048 f16 are integers. */
        const uint32_t k_1024 = half2_fma(minima, header.ratio, H_1024);
        less = half2_fma(half2_neg(k_1024), H_PART, H_16TH);
        const uint32_t rounded = half2_mul(header.dmin, minima), lost = half2_fma(header.dmin, minima, half2_neg(rounded));
        rest = half2_sub(half2_neg(half2_fma(less, d, rounded)), lost);
    }

    /* All parts of a segment. */
    static __device__ __forceinline__ void all(const Segment &segment, PreparedQ4_K (&of)[4]) {
        const uint4 words = *reinterpret_cast<const uint4 *>(segment.shared);
        const Header header(words.x);
        /* The first four groups, then the others. */
        const uint32_t scales[2] = {words.y & 0x3f3f3f3f, (words.w & 0x0f0f0f0f) | (words.y >> 2 & 0x30303030)};
        const uint32_t minima[2] = {words.z & 0x3f3f3f3f, (words.w >> 4 & 0x0f0f0f0f) | (words.z >> 2 & 0x30303030)};
#pragma unroll
        for (unsigned part = 0; part < 4; ++part) {
            const uint32_t select = part % 2 == 0 ? 0x4140 : 0x4342;
            of[part] = PreparedQ4_K(header, pick_bytes(scales[part / 2], H_1024 >> 8, select),
                                    pick_bytes(minima[part / 2], H_1024 >> 8, select));
        }
    }

    __device__ __forceinline__ PreparedQ4_K of_lane(unsigned lane) const {
        PreparedQ4_K of;
        of.is_usual = is_usual;
        of.d = of_quad(d, lane), of.scales = of_quad(scales, lane);
        of.less = of_quad(less, lane), of.rest = of_quad(rest, lane);
        return of;
    }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
        spread([&](unsigned step) { return spread_bytes<L, 4>(segment.own + 16 + part * 32 + step * 16, quad); }, w);
    }

    /*
     * The same of Lanes::NEIGHBOURS, from `lane_at` on. Of each four columns the first two are the first pair, or, where the
     * pairs are APART, the first and the third.
     */
    static __device__ __forceinline__ unsigned lane_at(unsigned part, unsigned quad) { return part * 32 + quad * 4; }
    template <bool APART> __device__ __forceinline__ void run_lane(const char *mine, unsigned, bool, uint2 (&w)[4]) const {
        const auto bytes_of = [&](unsigned step) -> uint2 {
            if (APART) {
                const uint32_t word = *reinterpret_cast<const uint32_t *>(mine + 16 + step * 16);
                return {word, word >> 8};
            }
            return spread_bytes<Lanes::NEIGHBOURS, 4>(mine + 16 + step * 16, 0);
        };
        spread(bytes_of, w);
    }

    template <typename Bytes> __device__ __forceinline__ void spread(const Bytes &bytes_of, uint2 (&w)[4]) const {
        const auto low = [&](uint32_t q) {
            return half2_fma(half2_fma(q & 0x000f000f, low_twice(scales), low_twice(less)), d, low_twice(rest));
        };
        const auto high = [&](uint32_t q) {
            return half2_fma(half2_fma(q & 0x00f000f0, high_twice(scales), high_twice(less)), d, high_twice(rest));
        };
#pragma unroll
        for (unsigned step = 0; step < 2; ++step) {
            const uint2 bytes = bytes_of(step);
            w[step] = {low(bytes.x), low(bytes.y)};
            w[2 + step] = {high(bytes.x), high(bytes.y)};
        }
    }
};

/*
 * Of Q6_K. A weight is d scale (q - 32). d scale has up to 18 bits: it is kept as two f16, the second with what the first
 * lost, at most 6 bits. By an integer of 5 that is exact, and one multiply-add is left. Blocks whose d is 256 or more go by
 * way of f32, since the product of d and scale may exceed f16.
 */
struct PreparedQ6_K {
    /* Of the part: d scale, and what that lost, of columns 0 to 31 and 32 to 63. */
    uint32_t scale[2], lost[2];
    bool is_usual;

    __device__ __forceinline__ PreparedQ6_K() {}
    __device__ __forceinline__ PreparedQ6_K(const Segment &segment, unsigned part) {
        constexpr uint32_t LESS_1152 = 0xe480e480;
        const uint32_t bits = half_at(segment.shared + 208), d = low_twice(bits);
        is_usual = of_warp((bits & 0x7fff) < 0x5c00);
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const uint32_t bytes = half_at(segment.shared + 192 + 4 * part + 2 * i) ^ 0x8080;
            const uint32_t scales = half2_add(pick_bytes(bytes, H_1024 >> 8, 0x4140), LESS_1152);
            scale[i] = half2_mul(d, scales);
            lost[i] = half2_fma(d, scales, half2_neg(scale[i]));
        }
    }

    /* All parts of a segment. */
    static __device__ __forceinline__ void all(const Segment &segment, PreparedQ6_K (&of)[4]) {
#pragma unroll
        for (unsigned part = 0; part < 4; ++part) {
            of[part] = PreparedQ6_K(segment, part);
        }
    }

    __device__ __forceinline__ PreparedQ6_K of_lane(unsigned lane) const {
        PreparedQ6_K of;
        of.is_usual = is_usual;
        of.scale[0] = of_quad(scale[0], lane), of.scale[1] = of_quad(scale[1], lane);
        of.lost[0] = of_quad(lost[0], lane), of.lost[1] = of_quad(lost[1], lane);
        return of;
    }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
        const char *lows = segment.own + part / 2 * 64, *highs = segment.shared + 128 + part / 2 * 32;
        spread<false>(lows, highs, part, [&](const char *sixteen) { return lane_bytes<L>(sixteen, quad); }, w);
    }

    /* The same of Lanes::NEIGHBOURS, from `lane_at` on; whether all is at multiples of 4. */
    static __device__ __forceinline__ unsigned lane_at(unsigned part, unsigned quad) { return part / 2 * 64 + quad * 4; }
    template <bool APART>
    __device__ __forceinline__ void run_lane(const char *mine, unsigned part, bool by_words, uint2 (&w)[4]) const {
        const auto bytes_of = [&](const char *sixteen) {
            return by_words ? lane_bytes<Lanes::NEIGHBOURS, 4>(sixteen, 0) : lane_bytes<Lanes::NEIGHBOURS>(sixteen, 0);
        };
        spread<APART>(mine, mine + (128 - part / 2 * 32), part, bytes_of, w);
    }

    template <bool APART, typename Bytes>
    __device__ __forceinline__ void spread(const char *lows, const char *highs, unsigned part, const Bytes &bytes_of,
                                           uint2 (&w)[4]) const {
        const uint32_t high[2] = {bytes_of(highs), bytes_of(highs + 16)};
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            constexpr uint32_t LESS_1056 = 0xe420e420;
            const uint32_t of_16 = scale[step / 2], lost_16 = lost[step / 2];
            const uint32_t by = step % 2 == 0 ? low_twice(of_16) : high_twice(of_16);
            const uint32_t by_lost = step % 2 == 0 ? low_twice(lost_16) : high_twice(lost_16);
            const uint32_t four = bytes_of(lows + step * 16) >> part % 2 * 4;
            /* The upper two bits of each byte come from two that are the same for all. */
            const unsigned to = (4 - part % 2 * 4 - step / 2 * 2) & 31;
            const uint32_t bytes = (four & 0x0f0f0f0f) | (rotate_left(high[step % 2], to) & 0x30303030);
            const auto weights = [&](uint32_t pair) {
                const uint32_t q = half2_add(pair, LESS_1056);
                return half2_fma(q, by, half2_mul(q, by_lost));
            };
            w[step] = {weights(pick_bytes(bytes, H_1024 >> 8, APART ? 0x4240 : 0x4140)),
                       weights(pick_bytes(bytes, H_1024 >> 8, APART ? 0x4341 : 0x4342))};
        }
    }
};

/*
 * A format: its bytes, its values in f32, bit for bit the definition's, and in f16. What is prepared for blocks that are not
 * as usual is nothing: these are run by `run_unusual`, and so may others be, to the same bits.
 */
template <typename F, typename Part, bool COMMON = false> struct Decoded : F {
    using Format = F;
    using Prepared = Part;
    /* Whether anything is prepared, and whether the format is one that files have most of their weights in. */
    static constexpr bool IS_PREPARED = sizeof(Part) > 1, IS_COMMON = COMMON;

    /* A lane's columns of 16 `step` .. of a part. */
    template <Lanes L>
    static __device__ __forceinline__ float4 values(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return line_values<Format, L>(segment, part, step, quad);
    }

    /* A part, with what lane `from` of the quad has prepared of it. */
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
template <> struct Blocks<DJINN_Q4_0> : Decoded<Q4_0, ByScale<Q4_0>, true> {};
template <> struct Blocks<DJINN_Q4_1> : Decoded<Q4_1, ByLine<Q4_1>> {};
template <> struct Blocks<DJINN_Q5_0> : Decoded<Q5_0, ByScale<Q5_0>> {};
template <> struct Blocks<DJINN_Q5_1> : Decoded<Q5_1, ByLine<Q5_1>> {};
template <> struct Blocks<DJINN_Q8_0> : Decoded<Q8_0, ByScale<Q8_0>, true> {};
template <> struct Blocks<DJINN_Q2_K> : Decoded<Q2_K, ByLine<Q2_K>> {};
template <> struct Blocks<DJINN_Q3_K> : Decoded<Q3_K, ByLine<Q3_K>> {};
template <> struct Blocks<DJINN_Q4_K> : Decoded<Q4_K, PreparedQ4_K, true> {};
template <> struct Blocks<DJINN_Q5_K> : Decoded<Q5_K, ByLine<Q5_K>> {};
template <> struct Blocks<DJINN_Q6_K> : Decoded<Q6_K, PreparedQ6_K, true> {};

} // namespace djinn

#endif
