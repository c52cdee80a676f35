/*
 * decode: rows of an encoded weight as plain 16-bit rows, for the products that take plain ones.
 * Shapes: encoded [rows] rows of row_bytes, out f16 or bf16 [rows, k]. For blocks, k is a multiple of the format's columns.
 * For the lossless encoding, out has the type that was encoded, and the same bits.
 * Reference: djinn-srg, src/encoding/block.rs, rounded once; djinn-lossless, `LosslessRow::decode`.
 *
 * Launch: blocks of 8 warps; a warp takes 2048 columns of a row. For block formats, all rows are one if they have no padding;
 * a warp copies its bytes to shared memory, before the previous kernel is done, and decodes a part of 8 segments at once. Of
 * lossless rows it decodes 512 columns at once.
 */
#include "decode.cuh"

namespace djinn {

constexpr unsigned DECODE_WARPS = 8, DECODE_THREADS = 32 * DECODE_WARPS;

/* Segments and columns that a warp takes. */
constexpr unsigned WARP_SEGMENTS = 8, WARP_COLUMNS = WARP_SEGMENTS * SEGMENT_COLUMNS;

/* What is decoded: rows of some columns, each in pieces of WARP_COLUMNS. */
struct DecodedRows {
    uint64_t columns, row_bytes;
    uint32_t rows, pieces;
};

template <djinn_encoding E, typename T>
__global__ void __launch_bounds__(DECODE_THREADS)
    djinn_decode_blocks(const __grid_constant__ djinn_decode_args a, const __grid_constant__ DecodedRows of) {
    using Format = Blocks<E>;
    constexpr unsigned BYTES = WARP_SEGMENTS * Format::BYTES;
    static_assert(BYTES % 16 == 0);
    __shared__ alignas(16) char staged[DECODE_WARPS][BYTES];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
    const uint32_t index = blockIdx.x * DECODE_WARPS + warp, row = index / of.pieces, piece = index % of.pieces;
    const uint64_t first = uint64_t(piece) * WARP_COLUMNS, at = uint64_t(piece) * BYTES;
    release_next();
    if (row < of.rows) {
        const uint64_t bytes = of.row_bytes - at;
        stage_bytes(staged[warp], static_cast<const char *>(a.encoded) + row * of.row_bytes + at,
                    bytes < BYTES ? unsigned(bytes) : BYTES, lane, 32);
        __syncwarp();
    }
    await_previous();
    if (row >= of.rows) {
        return;
    }
    const char *segment = staged[warp] + lane / 4 * Format::BYTES;
    const uint64_t start = first + lane / 4 * SEGMENT_COLUMNS;
    const typename Format::Prepared prepared(segment, quad);
#pragma unroll
    for (unsigned part = 0; part < 4; ++part) {
        uint2 w[4];
        if constexpr (std::is_same_v<T, f16>) {
            Format::template run<Lanes::NEIGHBOURS>(prepared, part, segment, part, quad, w);
        } else {
#pragma unroll
            for (unsigned step = 0; step < 4; ++step) {
                const float4 v = Format::template values<Lanes::NEIGHBOURS>(segment, part, step, quad);
                w[step] = {pack<T>(v.x, v.y), pack<T>(v.z, v.w)};
            }
        }
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const uint64_t column = start + part * 64 + step * 16;
            if (column < of.columns) {
                *reinterpret_cast<uint2 *>(static_cast<T *>(a.out) + row * of.columns + column + 4 * quad) = w[step];
            }
        }
    }
}

template <djinn_encoding E> int decode_blocks(const djinn_decode_args &a, void *stream) {
    using Format = Blocks<E>;
    if (!are_padded<Format>(a.k, a.row_bytes)) {
        return cudaErrorInvalidValue;
    }
    const uint32_t joined = blocks_bytes<Format>(a.k) == a.row_bytes ? a.rows : 1;
    const uint64_t columns = uint64_t(joined) * a.k;
    const DecodedRows of{columns, uint64_t(joined) * a.row_bytes, a.rows / joined, ceil_div(columns, WARP_COLUMNS)};
    const unsigned blocks = ceil_div(uint64_t(of.rows) * of.pieces, DECODE_WARPS);
    switch (a.dtype) {
    case DJINN_F16: return launch(djinn_decode_blocks<E, f16>, blocks, DECODE_THREADS, 0, stream, a, of);
    case DJINN_BF16: return launch(djinn_decode_blocks<E, bf16>, blocks, DECODE_THREADS, 0, stream, a, of);
    default: return cudaErrorInvalidValue;
    }
}

template <typename T>
__global__ void __launch_bounds__(DECODE_THREADS)
    djinn_decode_lossless(const __grid_constant__ djinn_decode_args a, uint32_t pieces) {
    enter();
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
    const uint64_t piece = uint64_t(blockIdx.x) * DECODE_WARPS + warp, row = piece / pieces;
    if (row >= a.rows) {
        return;
    }
    const char *from = static_cast<const char *>(a.encoded) + row * a.row_bytes;
    T *to = static_cast<T *>(a.out) + row * a.k;
    const unsigned start = unsigned(piece % pieces) * WARP_COLUMNS + lane / 4 * 64;
#pragma unroll
    for (unsigned first = start; first < start + WARP_COLUMNS; first += 8 * 64) {
        if (first >= a.k) {
            break;
        }
        uint2 w[4];
        lossless_run<T>(from, a.k, first, quad, w);
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            const unsigned column = first + step * 16 + lossless_column(quad);
            if (a.k % 4 == 0) {
                if (column < a.k) {
                    *reinterpret_cast<uint2 *>(to + column) = w[step];
                }
                continue;
            }
            const uint32_t pairs[2] = {w[step].x, w[step].y};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                if (column + i < a.k) {
                    reinterpret_cast<uint16_t *>(to)[column + i] = uint16_t(pairs[i / 2] >> i % 2 * 16);
                }
            }
        }
    }
}

int decode_lossless(const djinn_decode_args &a, void *stream) {
    const unsigned pieces = ceil_div(a.k, WARP_COLUMNS), blocks = ceil_div(uint64_t(a.rows) * pieces, DECODE_WARPS);
    switch (a.dtype) {
    case DJINN_F16: return launch(djinn_decode_lossless<f16>, blocks, DECODE_THREADS, 0, stream, a, pieces);
    case DJINN_BF16: return launch(djinn_decode_lossless<bf16>, blocks, DECODE_THREADS, 0, stream, a, pieces);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace djinn

extern "C" int djinn_decode(const djinn_decode_args *args, void *stream) {
    switch (args->encoding) {
    case DJINN_LOSSLESS: return djinn::decode_lossless(*args, stream);
#define DJINN_DECODE(format)                                                                                 \
    case DJINN_##format: return djinn::decode_blocks<DJINN_##format>(*args, stream);
        DJINN_FOR_BLOCKS(DJINN_DECODE)
#undef DJINN_DECODE
    default: return cudaErrorInvalidValue;
    }
}
