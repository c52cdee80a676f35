/*
 * Launches of linear_encoded.cuh: products of few rows over encoded weights.
 */
#ifndef DJINN_LINEAR_ENCODED_LAUNCH_CUH
#define DJINN_LINEAR_ENCODED_LAUNCH_CUH

#include "linear_encoded.cuh"

#include <atomic>

namespace djinn {

/* Units of a group, for blocks of `units`: 1 if the block then has few enough groups, for common formats; else 2. */
template <typename Format> unsigned units_of_group(unsigned units) {
    return Format::IS_COMMON && units <= MOST_GROUPS ? 1 : 2;
}

/* Shared memory of a group with that many stages. */
template <typename Format, unsigned EACH> constexpr unsigned bytes_of_group(unsigned stages) {
    using Kernel = EncodedLanes<Format, EACH, 2>;
    return stages * Kernel::STAGE + Kernel::BESIDE;
}

/* Groups that a block has room for beside `rows` rows of x, perhaps none. */
template <typename Format> unsigned groups_beside(unsigned rows, unsigned k) {
    constexpr unsigned LEAST = EncodedLanes<Format, 2, 2>::LEAST_STAGES, BYTES = bytes_of_group<Format, 2>(LEAST);
    static_assert(bytes_of_group<Format, 1>(LEAST) <= BYTES);
    const unsigned room = all_devices()[current_device()].block_shared, staged = rows * encoded_pitch(k) + 128;
    const unsigned fit = staged < room ? (room - staged) / BYTES : 0;
    return fit < MOST_GROUPS ? fit : MOST_GROUPS;
}

/* The most rows of x at once; 0 if there is no room for a row. */
template <typename Format> unsigned encoded_rows(unsigned k) {
    return groups_beside<Format>(1, k) > 0 ? MOST_ROWS : 0;
}

/* Takes up to `rows` rows at once, in order or from an expert's slots. */
template <typename Format> int launch_encoded_rows(const djinn_expert_linear_args &args, unsigned rows, void *stream) {
    const DeviceFacts &device = all_devices()[current_device()];
    const djinn_linear_args &a = args.linear;
    const unsigned staged = rows * encoded_pitch(a.k), groups = groups_beside<Format>(rows, a.k);
    const Division division = divide(a, blocks_of_portion(args, device.multiprocessors, 16 * groups), 16 * groups);
    const unsigned units = ceil_div(division.share, 8);
    const unsigned each = units <= groups ? units_of_group<Format>(units) : 2;
    void (*kernel)(djinn_expert_linear_args, Maps, EncodedFrame) = djinn_linear_encoded<Format, 2, 2, false>;
    unsigned number = 0;
    if constexpr (Format::IS_COMMON) {
        if (each == 1) {
            kernel = rows <= 8 ? djinn_linear_encoded<Format, 1, 1, false> : djinn_linear_encoded<Format, 1, 2, false>;
        } else if (rows <= 8) {
            kernel = djinn_linear_encoded<Format, 2, 1, false>;
        }
        number = each * 2 + (rows <= 8) - 2;
    }
    /* By device: the context in which the kernel was allowed all shared memory of a block. */
    static std::atomic<unsigned> allowed[4][MOST_DEVICES];
    const unsigned context = contexts().load(), used = ceil_div(units, each);
    std::atomic<unsigned> &known = allowed[number][current_device()];
    if (known.load() != context) {
        const cudaError_t code = allow_shared(kernel, device.block_shared);
        if (code != cudaSuccess) {
            return code;
        }
        known.store(context);
    }
    const auto bytes = [&](unsigned stages) {
        return 128 + used * (each == 1 ? bytes_of_group<Format, 1>(stages) : bytes_of_group<Format, 2>(stages)) + staged;
    };
    unsigned stages = EncodedLanes<Format, 2, 2>::LEAST_STAGES;
    while (stages < MOST_COPIED && bytes(stages + 1) <= device.block_shared) {
        ++stages;
    }
    /* One block for each multiprocessor: no second one fits beside it. */
    const unsigned alone = device.block_shared / 2 + 1024, shared = bytes(stages) < alone ? alone : bytes(stages);
    const unsigned blocks = division.blocks < device.multiprocessors ? division.blocks : device.multiprocessors;
    const unsigned experts = args.order == nullptr ? 0 : args.chosen;
    const dim3 grid(blocks, experts == 0 ? 1 : portions_of(experts, a.rows, rows));
    const EncodedFrame frame{division.share, division.blocks, stages, 0, rows, {0, a.rows}};
    Maps maps = {};
    if (device.overlaps) {
        const auto encode = [&](unsigned tile, unsigned tile_rows) {
            constexpr unsigned PITCH = EncodedLanes<Format, 2, 2>::PITCH;
            return encode_bytes(maps.weights[tile], a.weights[tile], tile_rows, a.row_bytes, PITCH, 8 * each);
        };
        if (!encode_tiles(a, experts == 0 ? 1 : experts, encode)) {
            return cudaErrorInvalidValue;
        }
    }
    return launch(kernel, grid, GROUP_THREADS * used, shared, stream, args, maps, frame);
}

/* Takes up to `most` rows of x at once; fewer if more groups fit then and all takes less time. */
template <typename Format> int launch_encoded(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const djinn_linear_args &a = args.linear;
    const unsigned all = a.rows < most ? a.rows : most, at_once = all_devices()[current_device()].multiprocessors;
    unsigned rows = 1, best = 0;
    for (unsigned launches = 1; launches <= all; ++launches) {
        const unsigned each = ceil_div(all, launches), groups = groups_beside<Format>(each, a.k);
        if (groups == 0) {
            continue;
        }
        /* A wave costs the time of its groups, and about 2 more until the first bytes arrive. */
        const unsigned waves = ceil_div(a.n, uint64_t(at_once) * 16 * groups);
        const unsigned cost = launches * waves * (ceil_div(a.n, uint64_t(at_once) * 16 * waves) + 2);
        if (best == 0 || cost < best) {
            rows = each, best = cost;
        }
    }
    if (args.order != nullptr) {
        return launch_encoded_rows<Format>(args, rows, stream);
    }
    for (unsigned row = 0; row < a.rows; row += rows) {
        djinn_expert_linear_args part = args;
        part.linear.rows = a.rows - row < rows ? a.rows - row : rows;
        part.linear.x = a.x + size_t(row) * a.k;
        part.linear.out = a.out + size_t(row) * a.out_width;
        const int code = launch_encoded_rows<Format>(part, part.linear.rows, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

/* What blocks that stream x lose to the alignment of their rings. */
constexpr unsigned STREAMING_ALIGN = 128 + BLOCK_ALIGN;

/* Up to MOST_ROWS rows of x at once, given rounded, which are streamed. */
template <typename Format, unsigned EACH, unsigned TILES>
int launch_streamed(const djinn_expert_linear_args &args, const Batch &batch, const Division &division, void *stream) {
    const djinn_linear_args &a = args.linear;
    using Kernel = EncodedLanes<Format, EACH, TILES, true>;
    const DeviceFacts &device = all_devices()[current_device()];
    const auto kernel = djinn_linear_encoded<Format, EACH, TILES, true>;
    if (const cudaError_t code = allow_shared(kernel, MOST_SHARED); code != cudaSuccess) {
        return code;
    }
    const unsigned groups = ceil_div(division.share, Kernel::ROWS);
    const unsigned beside = STREAMING_ALIGN + groups * Kernel::BESIDE + Kernel::X_BYTES;
    const unsigned fit = (MOST_SHARED - beside) / (groups * Kernel::STAGE), stages = fit < MOST_COPIED ? fit : MOST_COPIED;
    const unsigned used = beside + groups * stages * Kernel::STAGE, alone = device.block_shared / 2 + 1024;
    Maps maps;
    const auto encode = [&](unsigned tile, unsigned rows) {
        return encode_bytes(maps.weights[tile], a.weights[tile], rows, a.row_bytes, Kernel::PITCH, Kernel::ROWS);
    };
    if (!encode_blocks(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, 8 * TILES, Kernel::SEGMENTS * PARTIALS) ||
        !encode_tiles(a, batch.weights(), encode)) {
        return cudaErrorInvalidValue;
    }
    const unsigned blocks = division.blocks < device.multiprocessors ? division.blocks : device.multiprocessors;
    const EncodedFrame frame{division.share, division.blocks, stages, 0, 8 * TILES, batch.range()};
    const unsigned threads = GROUP_THREADS * groups + Kernel::SUPPLYING, shared = used < alone ? alone : used;
    return launch(kernel, dim3(blocks, batch.portions(8 * TILES)), threads, shared, stream, args, maps, frame);
}

/* The most groups for which a ring of the least stages fits beside x. */
template <typename Format, unsigned EACH, unsigned TILES> constexpr unsigned streaming_groups() {
    using Kernel = EncodedLanes<Format, EACH, TILES, true>;
    constexpr unsigned EVERY = Kernel::LEAST_STAGES * Kernel::STAGE + Kernel::BESIDE;
    constexpr unsigned FIT = (MOST_SHARED - STREAMING_ALIGN - Kernel::X_BYTES) / EVERY;
    static_assert(FIT > 0);
    return FIT < MOST_GROUPS ? FIT : MOST_GROUPS;
}

template <typename Format, unsigned TILES>
int launch_streamed(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    constexpr unsigned MOST = 16 * streaming_groups<Format, 2, TILES>();
    const unsigned at_once = blocks_of_portion(args, all_devices()[current_device()].multiprocessors, MOST);
    const Division division = divide(args.linear, at_once, MOST);
    return division.share <= 8 * streaming_groups<Format, 1, TILES>()
               ? launch_streamed<Format, 1, TILES>(args, batch, division, stream)
               : launch_streamed<Format, 2, TILES>(args, batch, division, stream);
}

/* Up to MOST_GROUP rows at once, given rounded. Few rows are streamed with common formats. */
template <typename Few, typename Many>
int launch_rounded_rows(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    if constexpr (Few::IS_COMMON) {
        if (batch.n <= MOST_ROWS) {
            return batch.n <= 8 ? launch_streamed<Few, 1>(args, batch, stream) : launch_streamed<Few, 2>(args, batch, stream);
        }
    }
    return launch_tiles_of<Many>(args, batch, stream);
}

/*
 * What serves an encoding: the rows of x that `few` can take at once, `few`, and `many` for up to MOST_GROUP rows, on
 * Hopper; there, more rows than `unrounded` should be given rounded.
 */
struct EncodedKernels {
    unsigned (*rows)(unsigned k);
    int (*few)(const djinn_expert_linear_args &args, unsigned most, void *stream);
    int (*many)(const djinn_expert_linear_args &args, const Batch &batch, void *stream);
    unsigned unrounded;
};

/* The kernels of a block format; null for other encodings. */
const EncodedKernels *block_kernels(uint32_t encoding);

template <typename Few, typename Many> constexpr EncodedKernels encoded_kernels() {
    /* With up to three rows it takes less time to round all of x first than to stream it. */
    return {encoded_rows<Few>, launch_encoded<Few>, launch_rounded_rows<Few, Many>, Few::IS_COMMON ? 3 : FEW_ENCODED};
}

} // namespace djinn

#endif
