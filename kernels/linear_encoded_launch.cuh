/*
 * Launches of linear_encoded.cuh: products of few rows over encoded weights.
 */
#ifndef DJINN_LINEAR_ENCODED_LAUNCH_CUH
#define DJINN_LINEAR_ENCODED_LAUNCH_CUH

#include "linear_encoded.cuh"

#include <atomic>

namespace djinn {

/* Shared memory of a group with that many stages. */
template <typename Format, unsigned EACH> constexpr unsigned bytes_of_group(unsigned stages) {
    using Kernel = EncodedLanes<Format, EACH, 2>;
    return stages * Kernel::STAGE + Kernel::BESIDE;
}

/* Groups that a block has room for beside `rows` rows of x, perhaps none. */
template <typename Format> unsigned groups_beside(unsigned rows, unsigned k) {
    constexpr unsigned LEAST = EncodedLanes<Format, 2, 2>::LEAST_STAGES, BYTES = bytes_of_group<Format, 2>(LEAST);
    static_assert(bytes_of_group<Format, 1>(LEAST) <= BYTES);
    const unsigned room = dynamic_shared(), staged = rows * encoded_pitch(k) + 128;
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
    /* Few units are spread over more warps, for common formats. */
    const unsigned each = Format::IS_COMMON && units <= groups ? 1 : 2;
    void (*kernel)(djinn_expert_linear_args, EncodedFrame) = djinn_linear_encoded<Format, 2, 2>;
    unsigned number = 0;
    if constexpr (Format::IS_COMMON) {
        if (each == 1) {
            kernel = rows <= 8 ? djinn_linear_encoded<Format, 1, 1> : djinn_linear_encoded<Format, 1, 2>;
        } else if (rows <= 8) {
            kernel = djinn_linear_encoded<Format, 2, 1>;
        }
        number = each * 2 + (rows <= 8) - 2;
    }
    /* By device: the context in which the kernel was allowed all shared memory of a block. */
    static std::atomic<unsigned> allowed[4][MOST_DEVICES];
    const unsigned context = contexts().load(), used = ceil_div(units, each);
    std::atomic<unsigned> &known = allowed[number][current_device()];
    if (known.load() != context) {
        const cudaError_t code = allow_shared(kernel, dynamic_shared());
        if (code != cudaSuccess) {
            return code;
        }
        known.store(context);
    }
    const auto bytes = [&](unsigned stages) {
        return 128 + used * (each == 1 ? bytes_of_group<Format, 1>(stages) : bytes_of_group<Format, 2>(stages)) + staged;
    };
    unsigned stages = EncodedLanes<Format, 2, 2>::LEAST_STAGES;
    while (stages < MOST_COPIED && bytes(stages + 1) <= dynamic_shared()) {
        ++stages;
    }
    /* One block for each multiprocessor: no second one fits beside it. */
    const unsigned alone = device.block_shared / 2 + 1024, shared = bytes(stages) < alone ? alone : bytes(stages);
    const unsigned blocks = division.blocks < device.multiprocessors ? division.blocks : device.multiprocessors;
    const unsigned experts = args.order == nullptr ? 0 : args.chosen;
    const dim3 grid(blocks, experts == 0 ? 1 : portions_of(experts, a.rows, rows));
    const EncodedFrame frame{division.share, division.blocks, stages, 0, rows, {0, a.rows}};
    return launch(kernel, grid, GROUP_THREADS * used, shared, stream, args, frame);
}

/*
 * Calls `run(part, batch)` for up to `rows` rows of x at a time, which are not rounded. For experts' slots it does so once, for
 * portions of as many.
 */
template <typename Run> int by_rows(const djinn_expert_linear_args &args, unsigned rows, const Run &run) {
    const djinn_linear_args &a = args.linear;
    if (args.order != nullptr) {
        return run(args, Batch{nullptr, a.rows, rows, args.chosen});
    }
    int code = cudaSuccess;
    for (unsigned row = 0; row < a.rows && code == cudaSuccess; row += rows) {
        djinn_expert_linear_args part = args;
        part.linear.rows = a.rows - row < rows ? a.rows - row : rows;
        part.linear.x = a.x + size_t(row) * a.k;
        part.linear.out = a.out + size_t(row) * a.out_width;
        code = run(part, Batch{nullptr, part.linear.rows, part.linear.rows});
    }
    return code;
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
    return by_rows(args, rows, [&](const djinn_expert_linear_args &part, const Batch &batch) {
        return launch_encoded_rows<Format>(part, batch.n, stream);
    });
}

/*
 * What serves an encoding: the rows of x that `few` can take at once, `few`, and `many` for up to MOST_GROUP rows, on
 * Hopper; there, more rows than `unrounded` should be given rounded. One launch of `few` takes up to `few_tiles` of experts, and
 * one of `many` all of them if portions have up to `many_slots`.
 */
struct EncodedKernels {
    unsigned few_tiles, many_slots;
    unsigned (*rows)(unsigned k);
    int (*few)(const djinn_expert_linear_args &args, unsigned most, void *stream);
    int (*many)(const djinn_expert_linear_args &args, const Batch &batch, void *stream);
    unsigned (*unrounded)(unsigned k);
};

/* The kernels of a block format; null for other encodings. */
const EncodedKernels *block_kernels(uint32_t encoding);

} // namespace djinn

#endif
