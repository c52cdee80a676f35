/*
 * GGML's formats with blocks of 32 columns and evenly spaced levels.
 */
#ifndef DJINN_BLOCKS_SMALL_CUH
#define DJINN_BLOCKS_SMALL_CUH

#include "blocks.cuh"

namespace djinn {

/* Blocks of 32 columns in BLOCK bytes: the f16 scale first, the integers' lower bits from INTEGERS on. */
template <unsigned BLOCK, unsigned INTEGERS> struct SmallBlocks {
    static constexpr unsigned BLOCK_BYTES = BLOCK, COLUMNS = 32, BYTES = SEGMENT_COLUMNS / COLUMNS * BLOCK;
    static constexpr bool ARE_HALVES = false;

    /* The block of a part's step, and its scale in both halves of a register. */
    static __device__ __forceinline__ const char *block(const Segment &segment, unsigned part, unsigned step) {
        return segment.own + (2 * part + step / 2) * BLOCK;
    }
    static __device__ __forceinline__ uint32_t scale(const Segment &segment, unsigned part, unsigned step) {
        return low_twice(half_at(block(segment, part, step)));
    }

    /* The nibbles of a block. Low ones come before high ones. */
    template <Lanes L> static __device__ __forceinline__ uint2 nibbles(const char *block, unsigned step, unsigned quad) {
        return field(spread_bytes<L, 2>(block + INTEGERS, quad), step % 2 * 4, 0x000f000f);
    }

    /* The nibbles with their fifth bits, which are in the word at `fifth`. */
    template <Lanes L>
    static __device__ __forceinline__ uint2 with_fifth(const char *block, unsigned fifth, unsigned step, unsigned quad) {
        const uint32_t bits = half_at(block + fifth) | half_at(block + fifth + 2) << 16;
        return nibbles<L>(block, step, quad) | spread_bits<L, 4>(bits >> step % 2 * 16, quad);
    }
};

/* Nibbles minus 8. */
struct Q4_0 : SmallBlocks<18, 2> {
    static constexpr int LESS = 8;
    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(half_at(block(segment, part, step))), -0.0f};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 integers(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        return nibbles<L>(block(segment, part, step), step, quad);
    }
    /* A high nibble is read in place, as 16 times its value. */
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

/* Nibbles and a minimum. */
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

/* Integers of five bits, minus 16. */
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

/* Integers of five bits, and a minimum. */
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

template <> struct Blocks<DJINN_Q4_0> : Decoded<Q4_0, ByScale<Q4_0>, true> {};
template <> struct Blocks<DJINN_Q4_1> : Decoded<Q4_1, ByLine<Q4_1>> {};
template <> struct Blocks<DJINN_Q5_0> : Decoded<Q5_0, ByScale<Q5_0>> {};
template <> struct Blocks<DJINN_Q5_1> : Decoded<Q5_1, ByLine<Q5_1>> {};
template <> struct Blocks<DJINN_Q8_0> : Decoded<Q8_0, ByScale<Q8_0>, true> {};

} // namespace djinn

#endif
