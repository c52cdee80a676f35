/*
 * GGML's formats whose codes of 4 bits choose levels from a table. djinn-srg, src/encoding/block/tables.rs, defines the
 * layouts.
 */
#ifndef DJINN_BLOCKS_LEVELS_CUH
#define DJINN_BLOCKS_LEVELS_CUH

#include "blocks_large.cuh"
#include "blocks_small.cuh"

namespace djinn {

/* A table of 16 levels, a byte each: A has those of codes 0 to 3 from its lowest byte on, B those of 4 to 7, and so on. */
template <uint32_t A, uint32_t B, uint32_t C, uint32_t D> struct Levels {
    /* The levels of the codes in four bytes. .x has those of the first two bytes: low nibble, high nibble, low, high. */
    static __device__ __forceinline__ uint2 of(uint32_t codes) {
        /* `pick_bytes` chooses from eight bytes; a code's upper bit chooses between the table's halves. */
        const uint32_t upper = 0x32103210 | (codes >> 1 & 0x44444444);
        const auto four = [&](unsigned shift) {
            const uint32_t which = codes >> shift & 0x7777;
            return pick_bytes(pick_bytes(A, B, which), pick_bytes(C, D, which), upper >> shift);
        };
        return {four(0), four(16)};
    }
};

/* Levels from -127 to 113, stored plus 128. */
using Iq4Levels = Levels<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5>;

/*
 * Floats of 4 bits, doubled: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. They are upper bytes of f16 whose lower byte is 0.
 */
using Mxfp4Levels = Levels<0x42403c00, 0x4a484644, 0xc2c0bc00, 0xcac8c6c4>;

/* The levels of a lane's low or high nibbles as f16. */
__device__ __forceinline__ uint2 iq4_halves(uint32_t codes, bool high) {
    constexpr uint32_t LESS_1152 = 0xe480e480;
    const uint2 levels = Iq4Levels::of(codes);
    const uint32_t select = high ? 0x4341 : 0x4240;
    return {half2_add(pick_bytes(levels.x, H_1024 >> 24, select), LESS_1152),
            half2_add(pick_bytes(levels.y, H_1024 >> 24, select), LESS_1152)};
}

/* An f16 scale, and nibbles. */
struct IQ4_NL : SmallBlocks<18, 2> {
    static constexpr bool ARE_HALVES = true;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(half_at(block(segment, part, step))), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return iq4_halves(lane_bytes<L, 2>(block(segment, part, step) + 2, quad), step % 2 != 0);
    }
};

/*
 * An f16 scale; an integer scale, minus 32, for every 32 columns: the upper two bits of all, then the lower four; nibbles.
 */
struct IQ4_XS : LargeBlocks<136> {
    static constexpr bool ARE_HALVES = true;

    /* The integers of scale of a part's two groups of 32 columns, each in 16 bits. */
    static __device__ __forceinline__ uint32_t scales(const Segment &segment, unsigned part) {
        const uint32_t low = byte_at(segment.shared + 4 + part), high = half_at(segment.shared + 2) >> 4 * part;
        return (low & 0x0f) | (high & 3) << 4 | (low & 0xf0) << 12 | (high & 12) << 18;
    }
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const int integer = int(scales(segment, part) >> step / 2 * 16 & 0xff) - 32;
        return {widen_bits(half_at(segment.shared)) * float(integer), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return iq4_halves(lane_bytes<L, 4>(segment.own + 8 + part * 32 + step / 2 * 16, quad), step % 2 != 0);
    }
};

/*
 * As for Q6_K: d scale has up to 16 bits, and is kept as two f16, the rounded product and what the rounding lost, at most 16
 * of d's units. The latter times a level, of 7 bits, is exact. Blocks whose d is 2048 or more go by way of f32.
 */
struct PreparedIQ4_XS {
    /* For the part's two groups of 32 columns. */
    uint32_t scale, lost;
    /* Pads to the 16 bytes that lanes exchange. */
    uint32_t unused;
    bool is_usual;

    __device__ __forceinline__ PreparedIQ4_XS() {}
    __device__ __forceinline__ PreparedIQ4_XS(const Segment &segment, unsigned part) : unused(0) {
        constexpr uint32_t LESS_1056 = 0xe420e420;
        const uint32_t bits = half_at(segment.shared), d = low_twice(bits);
        is_usual = of_warp((bits & 0x7fff) < 0x6800);
        const uint32_t scales = half2_add(IQ4_XS::scales(segment, part) | H_1024, LESS_1056);
        scale = half2_mul(d, scales);
        lost = half2_fma(d, scales, half2_neg(scale));
    }

    __device__ __forceinline__ PreparedIQ4_XS of_lane(unsigned lane) const {
        PreparedIQ4_XS of;
        of.is_usual = is_usual;
        of.scale = of_quad(scale, lane), of.lost = of_quad(lost, lane);
        return of;
    }

    /* What prepares each part of a segment. */
    static __device__ __forceinline__ auto each(const Segment &segment) {
        return [segment](unsigned part) { return PreparedIQ4_XS(segment, part); };
    }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
        spread([&](unsigned group) { return lane_bytes<L, 4>(segment.own + 8 + part * 32 + group * 16, quad); }, w);
    }

    /* The same for Lanes::NEIGHBOURS; `mine` and the pairs as in PreparedQ4_K. */
    static __device__ __forceinline__ unsigned lane_at(unsigned part, unsigned quad) { return part * 32 + quad * 4; }
    template <bool APART> __device__ __forceinline__ void run_lane(const char *mine, unsigned, bool, uint2 (&w)[4]) const {
        const auto codes_of = [&](unsigned group) {
            const uint32_t codes = lane_bytes<Lanes::NEIGHBOURS, 4>(mine + 8 + group * 16, 0);
            return APART ? pick_bytes(codes, 0, 0x3120) : codes;
        };
        spread(codes_of, w);
    }

    /* In a group of 32 columns, low nibbles are 16 columns before high ones. */
    template <typename Codes> __device__ __forceinline__ void spread(const Codes &codes_of, uint2 (&w)[4]) const {
#pragma unroll
        for (unsigned group = 0; group < 2; ++group) {
            const uint32_t by = group == 0 ? low_twice(scale) : high_twice(scale);
            const uint32_t by_lost = group == 0 ? low_twice(lost) : high_twice(lost);
            const uint32_t codes = codes_of(group);
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const uint2 levels = iq4_halves(codes, half != 0);
                w[2 * group + half] = {half2_fma(levels.x, by, half2_mul(levels.x, by_lost)),
                                       half2_fma(levels.y, by, half2_mul(levels.y, by_lost))};
            }
        }
    }
};

/* An exponent e, with 2^(e - 128) half the scale; nibbles. */
struct MXFP4 : SmallBlocks<17, 1> {
    static constexpr bool ARE_HALVES = true;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        const uint32_t exponent = byte_at(block(segment, part, step));
        return {float_of_bits(exponent < 2 ? 0x200000 << exponent : (exponent - 1) << 23), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const uint2 levels = Mxfp4Levels::of(uneven_bytes<L>(segment.own, (2 * part + step / 2) * 17 + 1, quad));
        const uint32_t select = step % 2 == 0 ? 0x2404 : 0x3414;
        return {pick_bytes(levels.x, 0, select), pick_bytes(levels.y, 0, select)};
    }
};

/*
 * Decodes MXFP4 with two powers of two. Their product is half the scale, unless the result is 0 or infinite anyway. A level
 * times the first one is exact, so the result is rounded once.
 */
struct ByPowers : ByLine<MXFP4> {
    using ByLine::ByLine;

    __device__ __forceinline__ const ByPowers &of_lane(unsigned) const { return *this; }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const int exponent = int(byte_at(MXFP4::block(segment, part, step))) - 128;
            const int first = within(exponent, -14, 12), second = within(exponent - first, -15, 15);
            const uint32_t by = uint32_t(first + 15) * 0x4000400, then = uint32_t(second + 15) * 0x4000400;
            const uint2 levels = MXFP4::halves<L>(segment, part, step, quad);
            w[step] = {half2_mul(half2_mul(levels.x, by), then), half2_mul(half2_mul(levels.y, by), then)};
        }
    }

  private:
    static __device__ __forceinline__ int within(int value, int least, int most) {
        return value < least ? least : value > most ? most : value;
    }
};

template <> struct Blocks<DJINN_IQ4_NL> : Decoded<IQ4_NL, ByScale<IQ4_NL>> {};
template <> struct Blocks<DJINN_IQ4_XS> : Decoded<IQ4_XS, PreparedIQ4_XS> {};
template <> struct Blocks<DJINN_MXFP4> : Decoded<MXFP4, ByPowers> {};

} // namespace djinn

#endif
