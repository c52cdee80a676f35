/*
 * linear on Hopper (sm_90a) for more rows than linear_hopper.cu takes, or a large weight, where there are tiles enough for
 * the card (where not: linear_split.cu): out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j], with
 * the bits that each row has alone in linear.cu. For f16 and bf16, k a multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Gated: of the weight's rows, gate and up by halves, gated[r, j] = silu(gate[r, j]) up[r, j], and the same rounded.
 * Shapes: gated f32 [rows, n / 2] or none, gated_rounded, weight's type [rows, n / 2].
 * Reference: djinn-device, src/reference.rs, `linear`, `silu_mul`.
 *
 * A tile of out is 128 rows of x by N rows of the weight. Each of two warpgroups multiplies 64 rows of x, the wide operand
 * of WGMMA; a product has the same bits whichever operand is the wide one. With up to 96 rows of the weight, the partial
 * sums of linear.cuh are formed side by side, from runs in order. With more, they are formed one after the other, and each
 * is added to the total of those before.
 *
 * Launch: a persistent kernel with as many clusters of two blocks as the device runs at once, which take pairs of tiles in
 * turn. The tiles of a pair have the same rows of the weight, or the same rows of x; each block copies half of these to both
 * by multicast. In each block a producer thread copies weight and x to a ring of stages of one run each. A tile of a gated
 * product has rows of gate, then the same rows of up; of those that a pair shares, one block copies gate's and the other
 * up's. TMA stores what is whole, aligned and without a bias, or adds it to what out holds: no other block has the same
 * elements, so each sum is rounded once. A gated tile takes longest to store, so it is stored while the products of the next
 * one begin.
 */
#include "linear_wide.cuh"

#include <atomic>

#define DJINN_WIDE(suffix, T)                                                                                \
    template <unsigned N, bool SAME_WEIGHT, bool GATED>                                                      \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_linear_wide_##suffix(const __grid_constant__ djinn_linear_args a,                              \
                                   const __grid_constant__ djinn::WideMaps maps,                             \
                                   const __grid_constant__ djinn::WideFrame f) {                             \
        DJINN_ON_HOPPER(djinn::WideTiles<T, N, SAME_WEIGHT, GATED>::run(a, maps, f));                        \
    }
DJINN_WIDE(f16, djinn::f16)
DJINN_WIDE(bf16, djinn::bf16)

namespace djinn {

/* A kernel; a tile's columns of out, and the weight's rows that a block copies; and the time of a pair while others run. */
struct WideChoice {
    void (*kernel)(djinn_linear_args, WideMaps, WideFrame);
    unsigned width, box;
    bool same_weight;
    unsigned wave;
};

template <unsigned N, bool SAME_WEIGHT, bool GATED = false>
static WideChoice wide_choice(uint32_t dtype, unsigned wave) {
    return {dtype == DJINN_F16 ? djinn_linear_wide_f16<N, SAME_WEIGHT, GATED> : djinn_linear_wide_bf16<N, SAME_WEIGHT, GATED>,
            GATED ? N / 2 : N, SAME_WEIGHT || GATED ? N / 2 : N, SAME_WEIGHT, wave};
}

/* Pairs of tiles of a kernel. */
static WideFrame wide_frame(const djinn_linear_args &a, const WideChoice &choice) {
    const unsigned groups = ceil_div(a.rows, WIDE_ROWS), shares = shares_of(a, choice.width);
    return choice.same_weight ? WideFrame{shares * ceil_div(groups, SHARING), ceil_div(groups, SHARING), false}
                              : WideFrame{ceil_div(shares, SHARING) * groups, groups, false};
}

/* Lets kernels use their shared memory. Code is loaded when it is first asked about, and memory is measured after that. */
template <unsigned COUNT> static cudaError_t allow_all(const WideChoice (&choices)[COUNT]) {
    for (const WideChoice &choice : choices) {
        const cudaError_t code = allow_shared(choice.kernel, MOST_SHARED);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

/* The choice with the least time: the number of waves of pairs, times that of a wave. */
template <unsigned COUNT>
static WideChoice least_of(const WideChoice (&choices)[COUNT], const djinn_linear_args &a, unsigned clusters) {
    const auto cost = [&](const WideChoice &choice) { return ceil_div(wide_frame(a, choice).pairs, clusters) * choice.wave; };
    const WideChoice *best = choices;
    for (const WideChoice &choice : choices) {
        best = cost(choice) < cost(*best) ? &choice : best;
    }
    return *best;
}

/* Rows of the weight's last tile. */
static unsigned last_rows(const djinn_linear_args &a) { return a.n - (a.n - 1) / a.tile_rows * a.tile_rows; }

/* Whether TMA can store the output, in whole tiles. */
static bool is_whole(const djinn_linear_args &a, unsigned width) {
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
static bool can_add(const djinn_linear_args &a, const WideChoice &choice) {
    const bool apart = a.tile_rows % choice.width == 0 && last_rows(a) % choice.width == 0;
    const bool paired = choice.same_weight || shares_of(a, choice.width) % SHARING == 0;
    return is_whole(a, choice.width) && apart && paired;
}

/*
 * Describes the output to TMA, in boxes as WideTiles::store_bulk has them: out in f32, or a gated product in the weight's
 * type.
 */
static bool encode_out(CUtensorMap &map, const djinn_linear_args &a, unsigned width) {
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

/* How a product is computed: by which kernel, or by linear_split.cu. */
struct WidePlan {
    WideChoice choice;
    WideFrame frame;
    unsigned clusters;
    bool split;
};

/* Lets all kernels that a plan may choose use their shared memory, in the current context. */
template <unsigned PLAIN, unsigned GATED>
static cudaError_t allow_once(uint32_t dtype, const WideChoice (&plain)[PLAIN], const WideChoice (&gated)[GATED]) {
    /* By type and device: the context in which it was done. */
    static std::atomic<unsigned> allowed[2][MOST_DEVICES];
    std::atomic<unsigned> &known = allowed[dtype == DJINN_F16][current_device()];
    const unsigned context = contexts().load();
    if (known.load() == context) {
        return cudaSuccess;
    }
    cudaError_t code = allow_all(plain);
    code = code == cudaSuccess ? allow_all(gated) : code;
    code = code == cudaSuccess ? cudaError_t(allow_split(dtype)) : code;
    if (code == cudaSuccess) {
        known.store(context);
    }
    return code;
}

static cudaError_t plan_wide(const djinn_linear_args &a, WidePlan &plan) {
    const uint32_t dtype = a.weight_dtype;
    /* Times as measured. */
    const WideChoice plain[] = {wide_choice<64, true>(dtype, 180),   wide_choice<96, true>(dtype, 210),
                                wide_choice<128, true>(dtype, 260),  wide_choice<160, true>(dtype, 312),
                                wide_choice<192, true>(dtype, 362),  wide_choice<224, true>(dtype, 420),
                                wide_choice<256, true>(dtype, 480),  wide_choice<64, false>(dtype, 185),
                                wide_choice<128, false>(dtype, 265), wide_choice<192, false>(dtype, 367),
                                wide_choice<224, false>(dtype, 430), wide_choice<256, false>(dtype, 490)};
    const WideChoice gated[] = {wide_choice<128, true, true>(dtype, 260), wide_choice<224, true, true>(dtype, 420),
                                wide_choice<128, false, true>(dtype, 265), wide_choice<224, false, true>(dtype, 430)};
    const cudaError_t code = allow_once(dtype, plain, gated);
    if (code != cudaSuccess) {
        return code;
    }
    plan.clusters = all_devices()[current_device()].multiprocessors / SHARING;
    plan.choice = a.gated_rounded != nullptr ? least_of(gated, a, plan.clusters) : least_of(plain, a, plan.clusters);
    plan.frame = wide_frame(a, plan.choice);
    /* In cycles. The times are for k = 4096; a part of a wave takes as long whatever k is. */
    const uint64_t wave = uint64_t(plan.choice.wave) * 160 * a.k / 4096 + 8000;
    plan.split = a.rows > MOST_GROUP && a.gated_rounded == nullptr &&
                 split_cycles(a) < ceil_div(plan.frame.pairs, plan.clusters) * wave;
    return cudaSuccess;
}

int linear_wide(const djinn_linear_args &args, void *stream) {
    const djinn_linear_args a = args.gated_rounded != nullptr ? gate_of(args) : args;
    WidePlan plan;
    const cudaError_t code = plan_wide(a, plan);
    if (code != cudaSuccess) {
        return code;
    }
    if (plan.split) {
        return linear_split(a, stream);
    }
    const auto [kernel, width, box, same_weight, _] = plan.choice;
    WideFrame &frame = plan.frame;
    WideMaps maps;
    const unsigned tiles = ceil_div(args.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, same_weight ? WIDE_ROWS : WIDE_ROWS / SHARING);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : args.n - tile * a.tile_rows;
        encoded = encoded && encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, box);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    frame.bulk = is_whole(a, width) && encode_out(maps.out, a, width);
    if (a.adds != 0 && (frame.bulk == 0 || !can_add(a, plan.choice))) {
        return cudaErrorInvalidValue;
    }
    const unsigned used = frame.pairs < plan.clusters ? frame.pairs : plan.clusters;
    return launch_clusters(SHARING, kernel, dim3(used * SHARING), WIDE_THREADS, MOST_SHARED, stream, a, maps, frame);
}

} // namespace djinn

extern "C" uint32_t djinn_linear_gated(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t dtype) {
    /* Columns of the widest tile. */
    constexpr uint32_t WIDEST = 224 / 2;
    const uint32_t width = n / 2, tile = tile_rows < width ? tile_rows : width;
    const bool apart = tile_rows >= n || (tile_rows <= width && width % tile == 0);
    const bool halves = n % 8 == 0 && tile % 4 == 0 && tile >= WIDEST && apart;
    const bool at_once = halves && n <= uint64_t(DJINN_LINEAR_TILES) * tile;
    const bool few = rows <= djinn::MOST_GROUP / 2 && djinn_linear_rounded(rows, k, dtype, DJINN_PLAIN);
    return at_once && djinn::serves_hopper(k, dtype) && (few || djinn::is_wide(rows, n));
}

extern "C" uint32_t djinn_linear_adds(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t dtype,
                                      uint32_t out_width, const float *out) {
    if (!djinn::serves_hopper(k, dtype) || !djinn::is_wide(rows, n)) {
        return 0;
    }
    djinn_linear_args a{};
    a.rows = rows, a.k = k, a.n = n, a.tile_rows = tile_rows, a.weight_dtype = dtype, a.out_width = out_width;
    a.out = const_cast<float *>(out);
    djinn::WidePlan plan;
    return djinn::plan_wide(a, plan) == cudaSuccess && !plan.split && djinn::can_add(a, plan.choice);
}
