/*
 * Blocks for linear_encoded_wide.cuh, in the formats that files have most of their weights in.
 * Reference: djinn-srg, src/encoding/block.rs, rounded once to f16.
 */
#include "block_formats.cuh"
#include "linear_encoded_wide.cuh"

namespace djinn {

template <djinn_encoding E> struct BlockWide {
    using Type = f16;
    using Format = Blocks<E>;
    using Prepared = typename Format::Prepared;
    using Box = SegmentBox<Format>;
    /* As for lossless weights. */
    using Tiles = std::integer_sequence<unsigned, 64, 128>;
    static constexpr bool IS_LARGE = Format::BYTES > 200;
    static constexpr unsigned wave(unsigned rows) { return rows == 64 ? (IS_LARGE ? 280 : 250) : (IS_LARGE ? 470 : 400); }

    struct Maps {
        CUtensorMap segments;

        bool encode(const void *weight, uint32_t rows, uint32_t row_bytes, uint32_t box_rows) {
            return encode_bytes(segments, weight, rows, row_bytes, Box::PITCH, box_rows);
        }
    };

    /*
     * COUNT rows, in units of 8. A run is a part of a segment; whole segments are copied for each of their parts. Four lanes
     * take a row of each unit. Each lane prepares one of these rows, for the others as well.
     */
    template <unsigned COUNT> struct Rows {
        static constexpr unsigned UNITS = COUNT / 8, COPIED = COUNT * Box::PITCH, KEPT = 0;
        static_assert(UNITS <= 4, "a quad prepares all units");

        unsigned quad, row;

        /* Rows of successive quads are two apart, so that stores of half a warp have no bank conflicts. */
        __device__ __forceinline__ Rows(unsigned lane, char *) : quad(lane % 4), row(lane / 16 + lane / 4 % 4 * 2) {}

        static __device__ __forceinline__ void copy(char *to, const Maps &maps, unsigned, unsigned run, unsigned first,
                                                    Barrier &ready) {
            copy_box(to, maps.segments, Box::begin(run / PARTIALS) / 2, first, ready);
        }

        __device__ __forceinline__ const char *segment(const char *from, unsigned run, unsigned unit) const {
            return from + Box::shift(run / PARTIALS) + (row + unit * 8) * Box::PITCH;
        }

        __device__ __forceinline__ Prepared load(const char *from, unsigned run) const {
            return Prepared(segment(from, run, quad % UNITS), run % PARTIALS);
        }

        template <typename StoredAt>
        __device__ __forceinline__ void begin(const djinn_linear_args &, const StoredAt &) {}

        template <typename StoredAt>
        __device__ __forceinline__ void decode(char *to, const Prepared &mine, const char *from, const djinn_linear_args &,
                                               unsigned run, const StoredAt &) const {
            const unsigned part = run % PARTIALS;
            char *const line = to + row * BLOCK_ROW + quad % 2 * 8;
            const auto store = [&](unsigned unit, const uint2(&w)[4]) {
#pragma unroll
                for (unsigned step = 0; step < RUN / 16; ++step) {
                    const unsigned chunk = (2 * step + quad / 2) ^ row;
                    *reinterpret_cast<uint2 *>(line + unit * 8 * BLOCK_ROW + chunk * 16) = w[step];
                }
            };
            if (mine.is_usual) {
                /* What is stored may be what is loaded next, as far as the compiler knows, so all is loaded first. */
                uint2 w[UNITS][4];
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
                    mine.of_lane(unit).template run<Lanes::NEIGHBOURS>(segment(from, run, unit), part, quad, w[unit]);
                }
#pragma unroll
                for (unsigned unit = 0; unit < UNITS; ++unit) {
                    store(unit, w[unit]);
                }
            } else {
                uint2 w[4];
#pragma unroll 1
                for (unsigned unit = 0; unit < UNITS; ++unit) {
                    ByLine<typename Format::Format>().template run<Lanes::NEIGHBOURS>(segment(from, run, unit), part, quad, w);
                    store(unit, w);
                }
            }
        }
    };
};

template <djinn_encoding E> static const EncodedWide *block_wide() {
    if constexpr (Blocks<E>::IS_COMMON) {
        return &ENCODED_WIDE<BlockWide<E>>;
    } else {
        return nullptr;
    }
}

const EncodedWide *blocks_wide(uint32_t encoding) {
    switch (encoding) {
#define DJINN_BLOCKS_WIDE(format)                                                                            \
    case DJINN_##format: return block_wide<DJINN_##format>();
        DJINN_FOR_BLOCKS(DJINN_BLOCKS_WIDE)
#undef DJINN_BLOCKS_WIDE
    default: return nullptr;
    }
}

} // namespace djinn
