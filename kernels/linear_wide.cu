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
 *
 * expert_linear, for slots whose rows of x were gathered, rounded, by linear_hopper.cu: tiles of the slots of an expert, in
 * pairs with the same slots. Each block finds the pairs first. Rows are stored where their slots are, not by TMA.
 * Shapes: as in linear.cu.
 * Reference: djinn-device, src/reference/routing.rs, `expert_linear`.
 */
#include "linear_wide_launch.cuh"

#define DJINN_WIDE(suffix, T)                                                                                \
    template <unsigned N, bool SAME_WEIGHT, bool GATED>                                                      \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_linear_wide_##suffix(const __grid_constant__ djinn_linear_args a,                              \
                                   const __grid_constant__ djinn::WideMaps maps,                             \
                                   const __grid_constant__ djinn::WideFrame f) {                             \
        DJINN_ON_HOPPER(djinn::WideTiles<T, N, SAME_WEIGHT, GATED>::run(a, maps, f));                        \
    }                                                                                                        \
    template <unsigned N>                                                                                    \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_expert_linear_wide_##suffix(const __grid_constant__ djinn_expert_linear_args a,                \
                                          const __grid_constant__ djinn::RoutedMaps maps,                    \
                                          const __grid_constant__ djinn::RoutedFrame f) {                    \
        using Parts = djinn::RoutedParts<DJINN_EXPERT_TILES>;                                                \
        using Tiles = djinn::WideTiles<T, N, false, false, 0, Parts>;                                        \
        __shared__ Parts parts;                                                                              \
        if (parts.find(a, f.range, f.outer, djinn::WIDE_ROWS, Tiles::first_pair())) {                        \
            DJINN_ON_HOPPER(Tiles::run(a.linear, maps, parts));                                              \
        }                                                                                                    \
    }
DJINN_WIDE(f16, djinn::f16)
DJINN_WIDE(bf16, djinn::bf16)

namespace djinn {

using PlainChoice = WideChoice<WideMaps>;

template <unsigned N, bool SAME_WEIGHT, bool GATED = false> static PlainChoice wide_choice(uint32_t dtype, unsigned wave) {
    return {dtype == DJINN_F16 ? djinn_linear_wide_f16<N, SAME_WEIGHT, GATED> : djinn_linear_wide_bf16<N, SAME_WEIGHT, GATED>,
            GATED ? N / 2 : N, SAME_WEIGHT || GATED ? N / 2 : N, SAME_WEIGHT, wave};
}

/* How a product is computed: by which kernel, or by linear_split.cu; and the cycles that it should take. */
struct WidePlan {
    PlainChoice choice;
    WideFrame frame;
    unsigned clusters;
    bool split;
    uint64_t cycles;
};

static cudaError_t plan_wide(const djinn_linear_args &a, WidePlan &plan) {
    const uint32_t dtype = a.weight_dtype;
    /* Times as measured. */
    const PlainChoice plain[] = {wide_choice<64, true>(dtype, 180),   wide_choice<96, true>(dtype, 210),
                                 wide_choice<128, true>(dtype, 260),  wide_choice<160, true>(dtype, 312),
                                 wide_choice<192, true>(dtype, 362),  wide_choice<224, true>(dtype, 420),
                                 wide_choice<256, true>(dtype, 480),  wide_choice<64, false>(dtype, 185),
                                 wide_choice<128, false>(dtype, 265), wide_choice<192, false>(dtype, 367),
                                 wide_choice<224, false>(dtype, 430), wide_choice<256, false>(dtype, 490)};
    const PlainChoice gated[] = {wide_choice<128, true, true>(dtype, 260), wide_choice<224, true, true>(dtype, 420),
                                 wide_choice<128, false, true>(dtype, 265), wide_choice<224, false, true>(dtype, 430)};
    static Allowed allowed;
    const cudaError_t code = allow_once(allowed, dtype, [&] {
        cudaError_t code = allow_all(plain);
        code = code == cudaSuccess ? allow_all(gated) : code;
        return code == cudaSuccess ? cudaError_t(allow_split(dtype)) : code;
    });
    if (code != cudaSuccess) {
        return code;
    }
    plan.clusters = wide_clusters();
    plan.choice = a.gated_rounded != nullptr ? least_of(gated, a, plan.clusters) : least_of(plain, a, plan.clusters);
    plan.frame = wide_frame(a, plan.choice);
    plan.cycles = wide_cycles(a, plan.choice, plan.clusters);
    const bool can_split = a.rows > MOST_GROUP && a.gated_rounded == nullptr;
    plan.split = can_split && split_cycles(a) < plan.cycles;
    plan.cycles = plan.split ? split_cycles(a) : plan.cycles;
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
    const PlainChoice &choice = plan.choice;
    WideFrame &frame = plan.frame;
    WideMaps maps;
    const auto encode = [&](unsigned tile, unsigned rows) {
        return encode_map(maps.weights[tile], a.weights[tile], a.weight_dtype, rows, a.k, choice.box);
    };
    const unsigned x_box = choice.same_weight ? WIDE_ROWS : WIDE_ROWS / SHARING;
    if (!encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, x_box) ||
        !encode_tiles(a, a.gated_rounded != nullptr ? 2 : 1, encode)) {
        return cudaErrorInvalidValue;
    }
    frame.bulk = is_whole(a, choice.width) && encode_out(maps.out, a, choice.width);
    if (a.adds != 0 && (frame.bulk == 0 || !can_add(a, choice))) {
        return cudaErrorInvalidValue;
    }
    const unsigned used = frame.parts < plan.clusters ? frame.parts : plan.clusters;
    return launch_clusters(SHARING, choice.kernel, dim3(used * SHARING), WIDE_THREADS, MOST_SHARED, stream, a, maps, frame);
}

/*
 * A kernel for experts, and its tiles' rows of the weight; the time of a pair for k = 4096, as in `plan_wide`, and what it
 * takes whatever k is, since no product runs while slots are stored. The latter is fitted to times of Mixtral's and Qwen3's
 * shapes.
 */
struct ExpertsChoice {
    void (*kernel)(djinn_expert_linear_args, RoutedMaps, RoutedFrame);
    unsigned width, wave, beside;

    RoutedFrame frame(const djinn_linear_args &a, SlotRange range) const {
        return {ceil_div(shares_of(a, width), SHARING), range};
    }
};

template <unsigned N> static ExpertsChoice experts_choice(uint32_t dtype, unsigned wave, unsigned beside) {
    return {dtype == DJINN_F16 ? djinn_expert_linear_wide_f16<N> : djinn_expert_linear_wide_bf16<N>, N, wave, beside};
}

int expert_linear_wide(const djinn_expert_linear_args &args, SlotRange range, void *stream) {
    const djinn_linear_args &a = args.linear;
    const uint32_t dtype = a.weight_dtype;
    const ExpertsChoice choices[] = {experts_choice<256>(dtype, 490, 48), experts_choice<128>(dtype, 265, 10)};
    constexpr unsigned SHARED = MOST_SHARED - PARTS_SHARED;
    static Allowed allowed;
    if (const cudaError_t code = allow_once(allowed, dtype, [&] { return allow_all(choices, SHARED); }); code != cudaSuccess) {
        return code;
    }
    /* Half of an expert's last portion has slots, on average. */
    const unsigned rows = range.end - range.first, portions = ceil_div(rows, WIDE_ROWS) + expected_experts(args) / 2;
    const auto cost = [&](const ExpertsChoice &choice) {
        const unsigned waves = ceil_div(uint64_t(choice.frame(a, range).outer) * portions, wide_clusters());
        return waves * (uint64_t(choice.wave) * a.k + choice.beside * 4096);
    };
    const ExpertsChoice &choice = cost(choices[0]) <= cost(choices[1]) ? choices[0] : choices[1];
    RoutedMaps maps = {};
    if (!encode_map(maps.x, args.workspace, a.weight_dtype, rows, a.k, WIDE_ROWS / SHARING) ||
        !encode_experts(maps, args, choice.width)) {
        return cudaErrorInvalidValue;
    }
    const RoutedFrame frame = choice.frame(a, range);
    const dim3 grid(SHARING * routed_clusters(args, frame, WIDE_ROWS));
    return launch_clusters(SHARING, choice.kernel, grid, WIDE_THREADS, SHARED, stream, args, maps, frame);
}

uint64_t wide_product_cycles(const djinn_linear_args &a) {
    WidePlan plan;
    return plan_wide(a, plan) == cudaSuccess ? plan.cycles : 0;
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
                                      uint32_t encoding, uint32_t out_width, const float *out) {
    if (!djinn::serves_hopper(k, dtype) || !djinn::is_wide(rows, n)) {
        return 0;
    }
    djinn_linear_args a{};
    a.rows = rows, a.k = k, a.n = n, a.tile_rows = tile_rows, a.weight_dtype = dtype, a.out_width = out_width;
    a.out = const_cast<float *>(out);
    if (encoding != DJINN_PLAIN) {
        const djinn::EncodedWide *const wide = djinn::encoded_wide(encoding, dtype);
        return wide != nullptr && wide->adds(a);
    }
    djinn::WidePlan plan;
    return djinn::plan_wide(a, plan) == cudaSuccess && !plan.split && djinn::can_add(a, plan.choice);
}
