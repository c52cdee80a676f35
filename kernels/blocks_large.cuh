/*
 * GGML's formats with blocks of 256 columns and evenly spaced levels.
 */
#ifndef DJINN_BLOCKS_LARGE_CUH
#define DJINN_BLOCKS_LARGE_CUH

#include "blocks.cuh"

namespace djinn {

template <unsigned BLOCK> struct LargeBlocks {
    static constexpr unsigned BLOCK_BYTES = BLOCK, COLUMNS = 256, BYTES = BLOCK;
    static constexpr bool ARE_HALVES = false;
};

/* Integers of two bits; a scale and a minimum of four bits for every 16 columns. */
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

/* Integers of three bits, minus 4; a scale of six bits, minus 32, for every 16 columns. */
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

/* The scales and the minima of a part's two groups of 32 columns, each in 16 bits. Q4_K and Q5_K pack them in six bits. */
__device__ __forceinline__ uint2 scales_and_minima(uint4 header, unsigned part) {
    const uint32_t select = part % 2 == 0 ? 0x4140 : 0x4342, low = part < 2 ? 0x003f003f : 0x000f000f;
    const uint32_t scales = pick_bytes(header.y, 0, select), minima = pick_bytes(header.z, 0, select);
    const uint32_t rest = pick_bytes(header.w, 0, select), high = part < 2 ? 0 : 0x00300030;
    return {((part < 2 ? scales : rest) & low) | (scales >> 2 & high),
            ((part < 2 ? minima : rest >> 4) & low) | (minima >> 2 & high)};
}

__device__ __forceinline__ Line line_of_header(uint4 header, unsigned part, unsigned step) {
    const uint2 pairs = scales_and_minima(header, part);
    const unsigned shift = step / 2 * 16;
    return {widen_bits(header.x & 0xffff) * float(pairs.x >> shift & 0xff),
            -(widen_bits(header.x >> 16) * float(pairs.y >> shift & 0xff))};
}

/* Nibbles; a scale and a minimum of six bits for every 32 columns. */
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

/* Integers of five bits; a scale and a minimum of six bits for every 32 columns. */
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

/* Integers of six bits, minus 32; a signed byte of scale for every 16 columns. */
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
 * A weight of Q4_K is scale d q - minimum dmin, with d and dmin in f16 and the others integers. Let k be an integer close to
 * minimum dmin / d, and r = minimum dmin - k d. Then the weight is d (scale q - k) - r. The term in brackets and r are exact
 * in f16, which leaves one multiply-add.
 *
 * This holds if d is below 4, and dmin is 0 or from d to 16 d, as in every block that a quantiser writes. Then k is at most
 * 1008, the term in brackets at most 2048, and r is less than 2048 of d's units, of which all are multiples. Other blocks,
 * with all that are decoded beside them, go by way of f32; so the bits are always those of f32 rounded.
 *
 * The bits of q are read as f16 in place: as q / 2^24, or q / 2^20 for a high nibble. So the scale is taken times 2^10 or
 * 2^6, the term in brackets comes divided by 2^14, and d is taken times 2^14.
 */
struct PreparedQ4_K {
    /* d times 2^14 in both halves. Of the part's two groups: the scales times 2^10 and 2^6, -k / 2^14, and -r. */
    uint32_t d, scales, less, rest;
    bool is_usual;

    /* What the parts of a block share. */
    struct Header {
        uint32_t d, dmin, ratio, d_2_14;
        bool is_usual;

        __device__ __forceinline__ Header(uint32_t both) : d(low_twice(both)), dmin(high_twice(both)) {
            constexpr uint32_t H_2_14 = 0x74007400;
            const float scale = widen_bits(both & 0xffff), minimum = widen_bits(both >> 16);
            /* If d and dmin are 0, all weights are 0. */
            const float times = both == 0 ? 0 : quotient(minimum, scale);
            ratio = pack<f16>(times, times), d_2_14 = half2_mul(d, H_2_14);
            /* The quotient of two f16 that differ is not that close to 1. */
            is_usual = of_warp(both == 0 || (scale > 0 && scale < 4 && times <= 16 && (times > 0.9999f || both >> 16 == 0)));
        }
    };

    __device__ __forceinline__ PreparedQ4_K() {}
    __device__ __forceinline__ PreparedQ4_K(const Segment &segment, unsigned part) {
        const uint4 header = *reinterpret_cast<const uint4 *>(segment.shared);
        const uint2 pairs = scales_and_minima(header, part);
        *this = PreparedQ4_K(Header(header.x), pairs.x | H_1024, pairs.y | H_1024);
    }

    /* From the scales and minima of two groups, each with 1024 added. */
    __device__ __forceinline__ PreparedQ4_K(const Header &header, uint32_t scales_1024, uint32_t minima_1024) {
        constexpr uint32_t H_2_10_AND_2_6 = 0x54006400, H_LESS_1024 = 0xe400e400, H_PART = 0x04000400;
        is_usual = header.is_usual, d = header.d_2_14;
        scales = half2_mul(half2_add(scales_1024, H_LESS_1024), H_2_10_AND_2_6);
        const uint32_t minima = half2_add(minima_1024, H_LESS_1024);
        /* Between 1024 and 2048, f16 has integers only: this rounds to one. */
        const uint32_t k_1024 = half2_fma(minima, header.ratio, H_1024);
        less = half2_fma(half2_neg(k_1024), H_PART, H_16TH);
        const uint32_t rounded = half2_mul(header.dmin, minima), lost = half2_fma(header.dmin, minima, half2_neg(rounded));
        rest = half2_sub(half2_neg(half2_fma(less, d, rounded)), lost);
    }

    /* What prepares each part of a segment. */
    static __device__ __forceinline__ auto each(const Segment &segment) {
        const uint4 words = *reinterpret_cast<const uint4 *>(segment.shared);
        return [words, header = Header(words.x)](unsigned part) {
            /* Of groups 0 to 3, or of groups 4 to 7. */
            const uint32_t scales = part < 2 ? words.y & 0x3f3f3f3f : (words.w & 0x0f0f0f0f) | (words.y >> 2 & 0x30303030);
            const uint32_t minima =
                part < 2 ? words.z & 0x3f3f3f3f : (words.w >> 4 & 0x0f0f0f0f) | (words.z >> 2 & 0x30303030);
            const uint32_t select = part % 2 == 0 ? 0x4140 : 0x4342;
            return PreparedQ4_K(header, pick_bytes(scales, H_1024 >> 8, select), pick_bytes(minima, H_1024 >> 8, select));
        };
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
     * The same for Lanes::NEIGHBOURS; `mine` is `lane_at` bytes past the segment's begin. The first pair has the first two
     * of four columns, or the first and the third if APART.
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
 * A weight of Q6_K is d scale (q - 32). d scale has up to 18 bits. It is kept as two f16: the rounded product, and what the
 * rounding lost, at most 6 bits. The latter times q - 32, of 5 bits, is exact, which leaves one multiply-add. Blocks whose d
 * is 256 or more go by way of f32, since d scale may exceed f16's range.
 */
struct PreparedQ6_K {
    /* d scale, and what its rounding lost, for columns 0 to 31 and 32 to 63 of the part. */
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

    /* What prepares each part of a segment. */
    static __device__ __forceinline__ auto each(const Segment &segment) {
        return [segment](unsigned part) { return PreparedQ6_K(segment, part); };
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

    /* The same for Lanes::NEIGHBOURS; `mine` as in PreparedQ4_K. `by_words`: all is at multiples of 4. */
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
            /* The upper two bits of q are at the same place in each of these four bytes. */
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

template <> struct Blocks<DJINN_Q2_K> : Decoded<Q2_K, ByLine<Q2_K>> {};
template <> struct Blocks<DJINN_Q3_K> : Decoded<Q3_K, ByLine<Q3_K>> {};
template <> struct Blocks<DJINN_Q4_K> : Decoded<Q4_K, PreparedQ4_K, true> {};
template <> struct Blocks<DJINN_Q5_K> : Decoded<Q5_K, ByLine<Q5_K>> {};
template <> struct Blocks<DJINN_Q6_K> : Decoded<Q6_K, PreparedQ6_K, true> {};

} // namespace djinn

#endif
