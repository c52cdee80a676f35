/*
 * Groups of 32 or 128 columns, as rows of GPTQ, AWQ and FP8 checkpoints are read: a scale, and integers of 4 bits or floats
 * of 8. djinn-srg, src/encoding/block/groups.rs, defines the layouts.
 */
#ifndef DJINN_BLOCKS_GROUPS_CUH
#define DJINN_BLOCKS_GROUPS_CUH

#include "blocks.cuh"

namespace djinn {

/* Groups of `GROUP` columns in `BLOCK` bytes. A segment begins at a multiple of 4. */
template <unsigned BLOCK, unsigned GROUP> struct Groups {
    static_assert(GROUP == 32 || GROUP == 128);
    static constexpr unsigned BLOCK_BYTES = BLOCK, COLUMNS = GROUP, BYTES = SEGMENT_COLUMNS / COLUMNS * BLOCK;
    static constexpr bool ARE_HALVES = true, IS_EVEN = BLOCK % 4 == 0;

    /* Where in the segment the group of a part's step begins, and the step's first column in the group. */
    static __device__ __forceinline__ unsigned block(unsigned part, unsigned step) {
        return (GROUP == 32 ? 2 * part + step / 2 : part / 2) * BLOCK;
    }
    static __device__ __forceinline__ unsigned column(unsigned part, unsigned step) {
        return GROUP == 32 ? step % 2 * 16 : part % 2 * 64 + step * 16;
    }

    /* The first four bytes of the group. */
    static __device__ __forceinline__ uint32_t head(const Segment &segment, unsigned part, unsigned step) {
        const unsigned at = block(part, step);
        return IS_EVEN ? *reinterpret_cast<const uint32_t *>(segment.own + at) : uneven_word(segment.own, at);
    }

    /* A lane's four of the 16 bytes that begin `at` bytes into the group. */
    template <Lanes L>
    static __device__ __forceinline__ uint32_t bytes(const Segment &segment, unsigned part, unsigned step, unsigned at,
                                                     unsigned quad) {
        at += block(part, step);
        return IS_EVEN ? lane_bytes<L, 4>(segment.own + at, quad) : uneven_bytes<L>(segment.own, at, quad);
    }
};

/*
 * An f16 scale, a zero point, nibbles. A nibble minus the zero point is exact in f16. Low nibbles are 16 columns before high
 * ones.
 */
template <unsigned BLOCK, unsigned GROUP> struct Int4 : Groups<BLOCK, GROUP> {
    using Base = Groups<BLOCK, GROUP>;

    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {widen_bits(Base::head(segment, part, step) & 0xffff), 0.0f};
    }
    static __device__ __forceinline__ uint32_t scale(const Segment &segment, unsigned part, unsigned step) {
        return low_twice(Base::head(segment, part, step));
    }
    /* A high nibble is read in place, as 16 times its value, like in Q4_0. */
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        constexpr uint32_t H_960 = 0x63806380;
        const unsigned first = BLOCK - GROUP / 2 + Base::column(part, step) / 32 * 16;
        const uint32_t four = Base::template bytes<L>(segment, part, step, first, quad);
        const uint2 pairs = {pick_bytes(four, 0, 0x4140), pick_bytes(four, 0, 0x4342)};
        /* -(1024 + zero point), in both halves. */
        const uint32_t less = pick_bytes(Base::head(segment, part, step), 0xe4, 0x4242);
        if (step % 2 == 0) {
            return {half2_add(above_1024(pairs.x, 0x000f000f), less), half2_add(above_1024(pairs.y, 0x000f000f), less)};
        }
        const uint32_t less_64 = half2_add(less, H_960);
        return {half2_fma(above_1024(pairs.x, 0x00f000f0), H_16TH, less_64),
                half2_fma(above_1024(pairs.y, 0x00f000f0), H_16TH, less_64)};
    }
};

/* An f32 scale, and floats of 8 bits. */
template <unsigned BLOCK, unsigned GROUP> struct Fp8 : Groups<BLOCK, GROUP> {
    using Base = Groups<BLOCK, GROUP>;

    static __device__ __forceinline__ Line line(const Segment &segment, unsigned part, unsigned step) {
        return {float_of_bits(Base::head(segment, part, step)), -0.0f};
    }
    /* The floats times 2^-8: sign, exponent and mantissa in their places of an f16, whose exponent bias is 15, not 7. */
    template <Lanes L>
    static __device__ __forceinline__ uint2 parts(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        const uint32_t four = Base::template bytes<L>(segment, part, step, 4 + Base::column(part, step), quad);
        const auto floats = [](uint32_t pair) { return masked_or(pair, 0x80008000, pair >> 1 & 0x3f803f80); };
        return {floats(pick_bytes(four, 0, 0x1404)), floats(pick_bytes(four, 0, 0x3424))};
    }
    template <Lanes L>
    static __device__ __forceinline__ uint2 halves(const Segment &segment, unsigned part, unsigned step, unsigned quad) {
        constexpr uint32_t H_256 = 0x5c005c00;
        const uint2 floats = parts<L>(segment, part, step, quad);
        return {half2_mul(floats.x, H_256), half2_mul(floats.y, H_256)};
    }
};

/*
 * For floats of 8 bits, by way of f32: float times scale may need more bits than f32 has, and is rounded to f32 first. The
 * scale is taken times 2^8, but at most the largest f32: a product with such a scale is 0 or infinite in f16.
 */
template <typename Format> struct ByFloat : ByLine<Format> {
    using ByLine<Format>::ByLine;

    __device__ __forceinline__ const ByFloat &of_lane(unsigned) const { return *this; }

    template <Lanes L>
    __device__ __forceinline__ void run(const Segment &segment, unsigned part, unsigned quad, uint2 (&w)[4]) const {
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const float scale = Format::line(segment, part, step).scale, by = clamped(scale * 256.0f);
            const auto weights = [&](uint32_t pair) {
                return pack<f16>(widen_bits(pair & 0xffff) * by, widen_bits(pair >> 16) * by);
            };
            const uint2 floats = Format::template parts<L>(segment, part, step, quad);
            w[step] = {weights(floats.x), weights(floats.y)};
        }
    }

  private:
    static __device__ __forceinline__ float clamped(float x) {
        constexpr float MOST = 3.40282347e38f;
        return x > MOST ? MOST : x < -MOST ? -MOST : x;
    }
};

using Int4G32 = Int4<19, 32>;
using Int4G128 = Int4<68, 128>;
using Fp8G32 = Fp8<36, 32>;
using Fp8G128 = Fp8<132, 128>;

template <> struct Blocks<DJINN_INT4_G32> : Decoded<Int4G32, ByScale<Int4G32>> {};
template <> struct Blocks<DJINN_INT4_G128> : Decoded<Int4G128, ByScale<Int4G128>, true> {};
template <> struct Blocks<DJINN_FP8_G32> : Decoded<Fp8G32, ByFloat<Fp8G32>> {};
template <> struct Blocks<DJINN_FP8_G128> : Decoded<Fp8G128, ByFloat<Fp8G128>, true> {};

} // namespace djinn

#endif
