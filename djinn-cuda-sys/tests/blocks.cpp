// kernels/block_formats.cuh, compiled for the host: what it decodes against fixtures and against itself in f32. The device's
// operations on pairs of f16 are written out here, and a quad's lanes run one after the other.
//
//     blocks FOLDER      the folder of djinn-models' fixtures `quant`
//
// Says what differs; the status is then 1.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#define DJINN_ENCODED_CUH
#define __device__
#define __forceinline__ inline
#define __noinline__
#include "djinn.h"

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};

namespace djinn {

enum class Lanes { NEIGHBOURS, HALVES };
struct f16;

double value_of(uint32_t f16_bits) {
    const int exponent = f16_bits >> 10 & 31, mantissa = f16_bits & 1023;
    const double value = exponent == 0    ? std::ldexp(mantissa, -24)
                         : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                          : std::ldexp(1024 + mantissa, exponent - 25);
    return (f16_bits & 0x8000) != 0 ? -value : value;
}

// To nearest, ties to even.
uint32_t bits_of(double value) {
    const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (!(size < 65520)) {
        return sign | (std::isnan(value) ? 0x7e00 : 0x7c00);
    }
    const int exponent = size < std::ldexp(1, -14) ? -14 : std::ilogb(size);
    const auto mantissa = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    // A mantissa that was rounded up to the next power of two carries into the exponent.
    return sign | (((exponent + 14) << 10) + mantissa);
}

template <typename Work> uint32_t both(const Work &work) { return bits_of(work(0)) | bits_of(work(16)) << 16; }
uint32_t half2_fma(uint32_t a, uint32_t b, uint32_t c) {
    return both([&](int at) { return std::fma(value_of(a >> at & 0xffff), value_of(b >> at & 0xffff), value_of(c >> at & 0xffff)); });
}
uint32_t half2_mul(uint32_t a, uint32_t b) {
    return both([&](int at) { return value_of(a >> at & 0xffff) * value_of(b >> at & 0xffff); });
}
uint32_t half2_neg(uint32_t a) { return a ^ 0x80008000; }
uint32_t half2_add(uint32_t a, uint32_t b) { return half2_fma(a, 0x3c003c00, b); }
uint32_t half2_sub(uint32_t a, uint32_t b) { return half2_add(a, half2_neg(b)); }
uint32_t low_twice(uint32_t pair) { return (pair & 0xffff) * 0x10001; }
uint32_t high_twice(uint32_t pair) { return (pair >> 16) * 0x10001; }
float widen_bits(uint32_t f16_bits) { return float(value_of(f16_bits)); }
float float_of_bits(uint32_t f32_bits) {
    float value;
    std::memcpy(&value, &f32_bits, sizeof value);
    return value;
}
float fused(float a, float b, float c) { return std::fma(a, b, c); }
template <typename T> uint32_t pack(float a, float b) { return bits_of(a) | bits_of(b) << 16; }
// As far off as the device's may be.
float quotient(float a, float b) { return a / b * (1 + 2.4e-7f); }
uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t picked = 0;
    for (int i = 0; i < 4; ++i) {
        picked |= uint32_t(bytes >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    }
    return picked;
}
uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t c) { return (a & mask) | c; }
uint32_t rotate_left(uint32_t a, unsigned bits) { return bits == 0 ? a : a << bits | a >> (32 - bits); }
bool of_warp(bool value) { return value; }

// Lanes run twice: first they say what they have, then they are told what others have.
struct Quad {
    std::vector<uint32_t> said[4];
    unsigned lane = 0, next = 0;
    bool listening = true;
} quad_state;
uint32_t of_quad(uint32_t value, unsigned lane) {
    if (quad_state.listening) {
        quad_state.said[quad_state.lane].push_back(value);
        return value;
    }
    return quad_state.said[lane][quad_state.next++];
}

} // namespace djinn

#include "block_formats.cuh"

using namespace djinn;

unsigned wrong = 0;

// f16 bits, where zeros are equal.
bool is_same(uint32_t a, uint32_t b) { return a == b || ((a | b) & 0x7fff) == 0; }

// A part of a segment by four lanes, against values of its columns where they are given.
template <djinn_encoding E, Lanes L> void check_part(const char *name, const char *segment, unsigned part, const float *values) {
    uint2 w[4][4];
    for (auto &said : quad_state.said) {
        said.clear();
    }
    for (const bool listening : {true, false}) {
        for (unsigned quad = 0; quad < 4; ++quad) {
            quad_state.listening = listening, quad_state.lane = quad, quad_state.next = 0;
            const typename Blocks<E>::Prepared prepared(segment, quad);
            Blocks<E>::template run<L>(prepared, part, segment, part, quad, w[quad]);
        }
    }
    for (unsigned quad = 0; quad < 4; ++quad) {
        for (unsigned step = 0; step < 4; ++step) {
            const float4 v = Blocks<E>::template values<L>(segment, part, step, quad);
            const float found[] = {v.x, v.y, v.z, v.w};
            const unsigned first = L == Lanes::NEIGHBOURS ? 4 * quad : 2 * quad;
            const unsigned second = first + (L == Lanes::NEIGHBOURS ? 2 : 8);
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned column = part * 64 + step * 16 + (i < 2 ? first : second) + i % 2;
                const uint32_t pair = i < 2 ? w[quad][step].x : w[quad][step].y, bits = pair >> i % 2 * 16 & 0xffff;
                const bool is_value = values == nullptr || std::memcmp(&values[column], &found[i], 4) == 0;
                if ((!is_value || !is_same(bits, bits_of(found[i]))) && ++wrong <= 20) {
                    std::printf("%s, column %u: %g in f32, %g in f16\n", name, column, found[i], value_of(bits));
                }
            }
        }
    }
}

// What a product of few rows does: a segment is prepared at once, and each lane begins at its own place.
template <djinn_encoding E> void check_ahead(const char *name, const char *segment) {
    using Prepared = typename Blocks<E>::Prepared;
    const auto each = Prepared::each(segment);
    const Prepared of[4] = {each(0), each(1), each(2), each(3)};
    for (unsigned i = 0; i < 16 && of[0].is_usual; ++i) {
        const unsigned part = i / 4, quad = i % 4;
        const char *mine = segment + Prepared::lane_at(part, quad);
        uint2 neighbours[4], apart[4], even[4];
        of[part].template run_lane<false>(mine, part, true, neighbours);
        of[part].template run_lane<true>(mine, part, true, apart);
        of[part].template run_lane<false>(mine, part, false, even);
        for (unsigned step = 0; step < 4; ++step) {
            const float4 v = Blocks<E>::template values<Lanes::NEIGHBOURS>(segment, part, step, quad);
            const uint32_t want[] = {bits_of(v.x), bits_of(v.y), bits_of(v.z), bits_of(v.w)};
            const auto are = [&](const uint2 &w, unsigned second, unsigned third) {
                return is_same(w.x & 0xffff, want[0]) && is_same(w.x >> 16, want[second]) &&
                       is_same(w.y & 0xffff, want[third]) && is_same(w.y >> 16, want[3]);
            };
            if (!(are(neighbours[step], 1, 2) && are(apart[step], 2, 1) && are(even[step], 1, 2)) && ++wrong <= 20) {
                std::printf("%s, part %u, step %u, lane %u: prepared ahead\n", name, part, step, quad);
            }
        }
    }
}

template <djinn_encoding E> void check_segment(const char *name, const char *segment, const float *values) {
    for (unsigned part = 0; part < 4; ++part) {
        check_part<E, Lanes::NEIGHBOURS>(name, segment, part, values);
        check_part<E, Lanes::HALVES>(name, segment, part, values);
    }
    if constexpr (Blocks<E>::IS_PREPARED) {
        check_ahead<E>(name, segment);
    }
}

// Blocks, followed by their values.
template <djinn_encoding E> void check_fixture(const std::string &folder, const char *name) {
    using Format = Blocks<E>;
    std::ifstream file(folder + "/" + name + ".bin", std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    constexpr size_t EACH = SEGMENT_COLUMNS / Format::COLUMNS, BOTH = Format::BLOCK_BYTES + 4 * Format::COLUMNS;
    const size_t blocks = bytes.size() / BOTH;
    if (blocks < EACH || bytes.size() % BOTH != 0) {
        std::printf("%s/%s.bin: no fixture\n", folder.c_str(), name);
        ++wrong;
        return;
    }
    for (size_t block = 0; block + EACH <= blocks; ++block) {
        alignas(16) char segment[Format::BYTES];
        float values[SEGMENT_COLUMNS];
        std::memcpy(segment, &bytes[block * Format::BLOCK_BYTES], sizeof segment);
        std::memcpy(values, &bytes[blocks * Format::BLOCK_BYTES + block * Format::COLUMNS * 4], sizeof values);
        check_segment<E>(name, segment, values);
    }
}

// Blocks of the formats that are decoded without f32 as quantisers write them, d of all sizes and dmin 0 or up to 16 d, and a
// third of others.
template <djinn_encoding E> void check_usual(const char *name, unsigned d_at, unsigned dmin_at) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> within(0, 1);
    unsigned usual = 0;
    for (unsigned i = 0; i < 400; ++i) {
        alignas(16) char segment[Blocks<E>::BYTES];
        for (char &byte : segment) {
            byte = char(random());
        }
        const bool any = i % 3 == 0;
        const uint16_t d = bits_of(std::exp2(within(random) * (any ? 39 : 26) - 24));
        const double usual_ratio = i % 9 == 1 ? i % 2 * 16 : 1 + 15 * within(random);
        const double ratio = any ? std::exp2(within(random) * 10 - 4) : usual_ratio;
        const uint16_t bits[] = {d, uint16_t(bits_of(value_of(d) * ratio))};
        std::memcpy(segment + d_at, &bits[0], 2);
        if (dmin_at != d_at) {
            std::memcpy(segment + dmin_at, &bits[1], 2);
        }
        usual += typename Blocks<E>::Prepared(segment, 0).is_usual;
        check_segment<E>(name, segment, nullptr);
    }
    if (usual < 200) {
        std::printf("%s: only %u blocks were decoded without f32\n", name, usual);
        ++wrong;
    }
}

// Every scale: results below f16, of all its sizes, and above.
void check_exponents() {
    std::mt19937 random(9);
    for (unsigned exponent = 0; exponent < 256; ++exponent) {
        alignas(16) char segment[Blocks<DJINN_MXFP4>::BYTES];
        for (unsigned i = 0; i < sizeof segment; ++i) {
            segment[i] = char(i % MXFP4::BLOCK_BYTES == 0 ? exponent : random());
        }
        check_segment<DJINN_MXFP4>("MXFP4", segment, nullptr);
    }
}

int main(int, char **arguments) {
#define CHECK(format) check_fixture<DJINN_##format>(arguments[1], #format);
    DJINN_FOR_BLOCKS(CHECK)
    check_usual<DJINN_Q4_K>("Q4_K", 0, 2);
    check_usual<DJINN_Q6_K>("Q6_K", 208, 208);
    check_usual<DJINN_IQ4_XS>("IQ4_XS", 0, 0);
    check_exponents();
    return wrong == 0 ? 0 : 1;
}
