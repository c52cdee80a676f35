/*
 * Launches of linear_wide.cuh: which tiles a product is cut into, and how it is stored.
 */
#ifndef DJINN_LINEAR_WIDE_LAUNCH_CUH
#define DJINN_LINEAR_WIDE_LAUNCH_CUH

#include "linear_wide.cuh"

#include <atomic>

namespace djinn {

/* A kernel; a tile's columns of out, and the weight's rows that a block copies; and the time of a pair while others run. */
template <typename Maps> struct WideChoice {
    void (*kernel)(djinn_linear_args, Maps, WideFrame);
    unsigned width, box;
    bool same_weight;
    unsigned wave;
};

/* Pairs of tiles of a kernel. */
template <typename Maps> WideFrame wide_frame(const djinn_linear_args &a, const WideChoice<Maps> &choice) {
    const unsigned groups = ceil_div(a.rows, WIDE_ROWS), shares = shares_of(a, choice.width);
    return choice.same_weight ? WideFrame{shares * ceil_div(groups, SHARING), ceil_div(groups, SHARING), false}
                              : WideFrame{ceil_div(shares, SHARING) * groups, groups, false};
}

/* Lets kernels use their shared memory. Code is loaded when it is first asked about, and memory is measured after that. */
template <typename Choice, unsigned COUNT>
cudaError_t allow_all(const Choice (&choices)[COUNT], unsigned shared = MOST_SHARED) {
    for (const Choice &choice : choices) {
        const cudaError_t code = allow_shared(choice.kernel, shared);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

/* By type and device: the context in which kernels were allowed all shared memory of a block. */
using Allowed = std::atomic<unsigned>[2][MOST_DEVICES];

/* Calls `allow` for the kernels of a type, unless that was done in the current context. */
template <typename Allow> cudaError_t allow_once(Allowed &allowed, uint32_t dtype, const Allow &allow) {
    std::atomic<unsigned> &known = allowed[dtype == DJINN_F16][current_device()];
    const unsigned context = contexts().load();
    if (known.load() == context) {
        return cudaSuccess;
    }
    const cudaError_t code = allow();
    if (code == cudaSuccess) {
        known.store(context);
    }
    return code;
}

/* How many clusters of a block for each of two multiprocessors the current device runs at once. */
inline unsigned wide_clusters() { return all_devices()[current_device()].multiprocessors / SHARING; }

/* Clusters for experts, with up to `at_once` slots in a pair of tiles. */
inline unsigned routed_clusters(const djinn_expert_linear_args &args, const RoutedFrame &frame, unsigned at_once) {
    const uint64_t pairs = uint64_t(frame.outer) * portions_of(args.chosen, frame.range.end - frame.range.first, at_once);
    return pairs < wide_clusters() ? unsigned(pairs) : wide_clusters();
}

/* The choice with the least time: the number of waves of pairs, times that of a wave. */
template <typename Choice, unsigned COUNT>
Choice least_of(const Choice (&choices)[COUNT], const djinn_linear_args &a, unsigned clusters) {
    const auto cost = [&](const Choice &choice) { return ceil_div(wide_frame(a, choice).parts, clusters) * choice.wave; };
    const Choice *best = choices;
    for (const Choice &choice : choices) {
        best = cost(choice) < cost(*best) ? &choice : best;
    }
    return *best;
}

/*
 * The cycles of a choice's waves. The times of waves are for k = 4096; a part of a wave takes as long whatever k is.
 */
template <typename Maps>
uint64_t wide_cycles(const djinn_linear_args &a, const WideChoice<Maps> &choice, unsigned clusters) {
    const uint64_t wave = uint64_t(choice.wave) * 160 * a.k / 4096 + 8000;
    return ceil_div(wide_frame(a, choice).parts, clusters) * wave;
}

/* Rows of the weight's last tile. */
inline unsigned last_rows(const djinn_linear_args &a) { return a.n - (a.n - 1) / a.tile_rows * a.tile_rows; }

/* Whether TMA can store the output, in whole tiles. */
inline bool is_whole(const djinn_linear_args &a, unsigned width) {
    const bool gated = a.gated_rounded != nullptr;
    const unsigned last = last_rows(a);
    const void *const out = gated ? a.gated_rounded : a.out + a.out_column;
    /* What is stored begins at a multiple of 16 bytes: shares do, since a tile's last share ends with the tile. */
    const unsigned step = gated ? 8 : 4;
    const bool whole = a.tile_rows >= width && last >= width && a.tile_rows % step == 0 && last % step == 0;
    const bool alone = gated ? a.gated == nullptr : a.bias == nullptr;
    return whole && alone && reinterpret_cast<uintptr_t>(out) % 16 == 0 && (gated ? a.n : a.out_width) % step == 0;
}

/* Whether TMA can add the product to the output: each element is in one share alone, and each share in one pair. */
template <typename Maps> bool can_add(const djinn_linear_args &a, const WideChoice<Maps> &choice) {
    const bool apart = a.tile_rows % choice.width == 0 && last_rows(a) % choice.width == 0;
    const bool paired = choice.same_weight || shares_of(a, choice.width) % SHARING == 0;
    return is_whole(a, choice.width) && apart && paired;
}

/*
 * Describes the output to TMA, in boxes as WideTiles::store_bulk has them: out in f32, or a gated product in the weight's
 * type.
 */
inline bool encode_out(CUtensorMap &map, const djinn_linear_args &a, unsigned width) {
    const bool gated = a.gated_rounded != nullptr;
    void *const out = gated ? a.gated_rounded : a.out + a.out_column;
    const auto half = a.weight_dtype == DJINN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t row_bytes = gated ? uint64_t(a.n) * 2 : uint64_t(a.out_width) * sizeof(float);
    const cuuint64_t sizes[2] = {a.n, a.rows}, strides[1] = {row_bytes};
    const cuuint32_t box[2] = {bulk_columns(gated, width), BULK_ROWS}, steps[2] = {1, 1};
    return map_encoder()(&map, gated ? half : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, out, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, gated ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace djinn

#endif
