/*
 * linear and expert_linear over blocks: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j]. The bits
 * are those of the product over the rows that `decode` gives in f16.
 * Shapes: as in linear.cu; weight [n] rows of row_bytes, a multiple of 16; k a multiple of 64.
 * Launch: linear_blocks.cuh, linear_encoded.cuh, linear_tiles.cuh.
 * Reference: djinn-device, src/reference.rs, `linear`, of the decoded weight.
 */
#include "linear_blocks.cuh"

namespace djinn {

/* A format for linear_encoded.cuh. If scales are prepared, a lane prepares one segment of a row at a time. */
template <djinn_encoding E> struct BlockLanes {
    using Type = f16;
    using Format = Blocks<E>;
    using Prepared = typename Format::Prepared;
    static constexpr Lanes LANES = Lanes::NEIGHBOURS;
    static constexpr bool PREPARES = Format::IS_PREPARED, IS_COMMON = Format::IS_COMMON;
    static constexpr unsigned segments(unsigned each) { return PREPARES && each == 1 ? 4 : 2; }
    /* A box has up to two segments. It begins at a multiple of 16, up to SHIFT bytes before the first. */
    static constexpr unsigned AT_ONCE = 2 * Format::BYTES + 14 <= MOST_BOX ? 2 : 1;
    static constexpr unsigned BYTES = AT_ONCE * Format::BYTES, SHIFT = 16 - common_divisor(16, BYTES);
    static constexpr unsigned PITCH = (BYTES + SHIFT + 15) / 16 * 16 | 16;
    static constexpr unsigned boxes(unsigned segments) { return segments / AT_ONCE; }
    static __device__ __forceinline__ unsigned begin(unsigned segment, unsigned box, unsigned) {
        return (segment + box * AT_ONCE) * Format::BYTES;
    }
    static __device__ __forceinline__ unsigned lane_at(unsigned part, unsigned quad) { return Prepared::lane_at(part, quad); }

    template <unsigned EACH> struct Rows {
        __device__ __forceinline__ void expect(const djinn_linear_args &, const Share &, unsigned, unsigned) {}
        __device__ __forceinline__ void begin(unsigned, unsigned) {}
    };

    /* Where segment `i` of a stage begins, in bytes from the begin of its row in the stage. */
    template <typename Kernel> static __device__ __forceinline__ unsigned place(unsigned stage, unsigned i) {
        const unsigned box = i / AT_ONCE, shift = SHIFT == 0 ? 0 : begin(stage * Kernel::SEGMENTS, box, 0) % 16;
        return box * Kernel::BOX + shift + i % AT_ONCE * Format::BYTES;
    }

    /* Prepares a stage, by one warp. Bytes past a row's end are arbitrary: such a stage is not decoded as a usual one. */
    template <typename Kernel> static __device__ __forceinline__ void prepare(unsigned at, unsigned stage, unsigned lane) {
        bool is_usual = true;
#pragma unroll
        for (unsigned first = 0; first < Kernel::ITEMS; first += 32) {
            static_assert(Kernel::ITEMS % 32 == 0);
            const unsigned item = first + lane, row = at + item % Kernel::ROWS * PITCH;
            const char *from = shared_at(row + place<Kernel>(stage, item / Kernel::ROWS));
            prepare_parts<Prepared, PARTIALS>(from, [&](unsigned part, const Prepared &of) {
                *reinterpret_cast<uint4 *>(shared_at(at + Kernel::SCALES + (part * Kernel::ITEMS + item) * 16)) =
                    *reinterpret_cast<const uint4 *>(&of);
                is_usual = is_usual && of.is_usual;
            });
        }
        if (lane == 0) {
            *reinterpret_cast<uint32_t *>(shared_at(at + Kernel::USUAL)) = is_usual;
        }
    }

    /* Decodes a row. `mine` is the lane's place in it, `scales` the address of what was prepared of it. */
    template <typename Kernel>
    static __device__ __forceinline__ void run(const Rows<Kernel::EACH_UNITS> &, unsigned mine, unsigned scales, unsigned stage,
                                               unsigned i, unsigned, unsigned part, unsigned quad, uint2 (&w)[4]) {
        const char *from = shared_at(mine + place<Kernel>(stage, i));
        Prepared prepared;
        if constexpr (PREPARES) {
            *reinterpret_cast<uint4 *>(&prepared) = *reinterpret_cast<const uint4 *>(shared_at(scales));
            const bool by_words = BYTES % 4 == 0 && i % AT_ONCE * Format::BYTES % 4 == 0;
            prepared.template run_lane<false>(from, part, by_words, w);
        } else {
            prepared.template run<Lanes::NEIGHBOURS>(from, part, quad, w);
        }
    }

    /* Decodes a row that begins at `record` in its stage. */
    template <typename Kernel>
    static __device__ __forceinline__ void run_unusual(const Rows<Kernel::EACH_UNITS> &, unsigned record, unsigned stage,
                                                       unsigned i, unsigned, unsigned part, unsigned quad, uint2 (&w)[4]) {
        const Segment segment(shared_at(record + place<Kernel>(stage, i)));
        djinn::run_unusual<typename Format::Format, Lanes::NEIGHBOURS>(segment, part, quad, w);
    }

    template <typename Kernel>
    static __device__ __forceinline__ void mend(const Rows<Kernel::EACH_UNITS> &, unsigned, unsigned, unsigned, unsigned,
                                                const typename Kernel::Weights &) {}
};

/* A format for linear_tiles.cuh. */
template <djinn_encoding E> struct BlockTiles {
    using Type = f16;
    using Format = Blocks<E>;
    using Prepared = typename Format::Prepared;
    using Box = SegmentBox<Format>;
    static constexpr bool PREPARES = Format::IS_PREPARED;
    static constexpr unsigned BOXES = 1, PITCH = Box::PITCH;
    static __device__ __forceinline__ unsigned box_at(unsigned segment, unsigned, unsigned) { return Box::begin(segment); }
    static __device__ __forceinline__ unsigned shift(unsigned segment) { return Box::shift(segment); }

    struct Rows {
        __device__ __forceinline__ void expect(const djinn_linear_args &, const char *, const char *, unsigned) {}
        __device__ __forceinline__ void begin(unsigned, unsigned) {}
    };

    struct Stage {
        /* Where the lane's first row is, and what was prepared of it. The other row is 8 further. */
        unsigned row, scales;
        bool is_usual;

        __device__ __forceinline__ Stage(unsigned first, unsigned, unsigned segment, unsigned scales, unsigned flag)
            : row(first + Box::shift(segment)), scales(scales),
              is_usual(!PREPARES || *reinterpret_cast<const uint32_t *>(shared_at(flag)) != 0) {}

        /* Decodes one or two rows. */
        __device__ __forceinline__ void decode(const Rows &, unsigned halves, unsigned, unsigned part, unsigned quad,
                                               uint2 (&w)[2][4]) const {
            const auto usual = [&](unsigned half) {
                const Segment segment(shared_at(row + half * 8 * PITCH));
                Prepared prepared;
                if constexpr (PREPARES) {
                    *reinterpret_cast<uint4 *>(&prepared) = *reinterpret_cast<const uint4 *>(shared_at(scales + half * 8 * 16));
                }
                prepared.template run<Lanes::HALVES>(segment, part, quad, w[half]);
            };
            if (PREPARES && !is_usual) {
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const Segment segment(shared_at(row + half * 8 * PITCH));
                    ByLine<typename Format::Format>().template run<Lanes::HALVES>(segment, part, quad, w[half]);
                }
            } else if (halves == 1) {
                usual(0);
            } else {
                usual(0);
                usual(1);
            }
        }
    };
};

template <djinn_encoding E>
static constexpr EncodedKernels KERNELS = {DJINN_EXPERT_TILES,
                                           Blocks<E>::IS_COMMON ? BLOCKS_STREAMED : 0,
                                           encoded_rows<BlockLanes<E>>,
                                           launch_blocks<Blocks<E>, BlockLanes<E>>,
                                           launch_blocks_rounded<Blocks<E>, BlockTiles<E>>,
                                           rows_unrounded<Blocks<E>>};

const EncodedKernels *block_kernels(uint32_t encoding) {
    switch (encoding) {
#define DJINN_BLOCK_KERNELS(format)                                                                          \
    case DJINN_##format: return &KERNELS<DJINN_##format>;
        DJINN_FOR_BLOCKS(DJINN_BLOCK_KERNELS)
#undef DJINN_BLOCK_KERNELS
    default: return nullptr;
    }
}

} // namespace djinn
