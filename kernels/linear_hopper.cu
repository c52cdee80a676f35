/*
 * linear on Hopper (sm_90a) for up to 128 rows that are given rounded (`djinn_linear_rounded`): out[r, out_column + j] = sum
 * over i of x[r, i] weight[j, i], plus bias[j], with one read of the weight, and the bits that each row has alone in
 * linear.cu. For f16 and bf16, k a multiple of 64.
 * Shapes: rounded, weight's type [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Reference: djinn-device, src/reference.rs, `linear`.
 *
 * expert_linear, for any number of slots: a first launch gathers and rounds the rows of x of the experts' slots, one block a
 * slot. Then clusters take, as above, parts in turn: a share of an expert's weight and up to 64 of its slots. They copy the
 * next part's weight while one ends, whichever expert it is of. Since the previous kernel may have found the slots, none reads
 * weights before it is done. Where experts have more slots than 32 on average, or some dozen and small weights, linear_wide.cu
 * takes the gathered rows.
 * Shapes: as in linear.cu.
 * Reference: djinn-device, src/reference/routing.rs, `expert_linear`.
 *
 * Rows of the weight are the wide operand of WGMMA (64 at once), rows of x the narrow one (N). A product of 16 columns adds
 * the same bits to a sum whatever N is, and the same as a product of linear.cu's.
 *
 * Launch: clusters of a block for each partial sum, one block on each multiprocessor that a cluster can have. Clusters take
 * equal shares of the weight's rows, up to 64 TILES, in turn. In each block one producer warp copies the weight to a ring of
 * stages of one run each, from before the previous kernel is done on, and that of the next share while the current one ends;
 * another copies x; a warpgroup for each 64 rows multiplies. At the end of a share the partial sums of warps w of all
 * warpgroups go to the block of rank w, which adds them in order.
 */
#include "linear_hopper.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

constexpr unsigned GATHER_THREADS = 256;

/*
 * Rounds the row of x of the slot at a place, if it is one of the experts', to the block's row of the workspace. If not all
 * experts are computed, a thread looks at one or none: lanes get different arguments one after another.
 */
template <typename T> __device__ __forceinline__ void gather(const djinn_expert_linear_args &a, unsigned place) {
    static_assert(GATHER_THREADS >= DJINN_EXPERT_TILES);
    enter();
    const unsigned row = a.order[place] / a.slots_per_row, k = a.linear.k;
    if (a.chosen < a.experts) {
        bool is_ours = false;
        if (threadIdx.x < a.chosen) {
            const uint32_t *const starts = a.starts + a.ids[threadIdx.x];
            is_ours = starts[0] <= place && place < starts[1];
        }
        if (!__syncthreads_or(is_ours)) {
            return;
        }
    }
    const float4 *x = reinterpret_cast<const float4 *>(a.linear.x + size_t(row) * k);
    uint2 *to = reinterpret_cast<uint2 *>(static_cast<T *>(a.workspace) + size_t(blockIdx.x) * k);
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < k / 4; i += GATHER_THREADS) {
        to[i] = {pack<T>(x[i].x, x[i].y), pack<T>(x[i].z, x[i].w)};
    }
}

} // namespace djinn

#define DJINN_HOPPER(suffix, T)                                                                              \
    template <unsigned N, unsigned TILES, bool GATED>                                                        \
    __global__ void __launch_bounds__(128 * TILES + 64, 1)                                                   \
        djinn_linear_hopper_##suffix(const __grid_constant__ djinn_linear_args a,                            \
                                     const __grid_constant__ djinn::Maps maps,                               \
                                     const __grid_constant__ djinn::Frame f) {                               \
        using Weight = djinn::PlainWeight<T, GATED>;                                                         \
        DJINN_ON_HOPPER(djinn::Hopper<Weight, N, TILES, djinn::AllRows>::run(a, {}, maps, f));               \
    }                                                                                                        \
    template <unsigned N, unsigned TILES>                                                                    \
    __global__ void __launch_bounds__(128 * TILES + 64, 1)                                                   \
        djinn_expert_linear_hopper_##suffix(const __grid_constant__ djinn_expert_linear_args a,              \
                                            const __grid_constant__ djinn::TileMaps maps,                    \
                                            const __grid_constant__ djinn::Frame f) {                        \
        using Parts = djinn::RoutedParts<DJINN_EXPERT_TILES>;                                                \
        __shared__ Parts parts;                                                                              \
        if (parts.find(a, f.range, f.shares, N, blockIdx.x / djinn::PARTIALS)) {                             \
            DJINN_ON_HOPPER(djinn::Hopper<djinn::PlainWeight<T>, N, TILES, Parts>::run(a.linear, parts, maps, f)); \
        }                                                                                                    \
    }                                                                                                        \
    /* Gathers the rows of x of slots from place `first` on, rounded, one a block: [gridDim.x, k]. */         \
    __global__ void __launch_bounds__(djinn::GATHER_THREADS)                                                 \
        djinn_gather_##suffix(const __grid_constant__ djinn_expert_linear_args a, unsigned first) {          \
        djinn::gather<T>(a, first + blockIdx.x);                                                             \
    }
DJINN_HOPPER(f16, djinn::f16)
DJINN_HOPPER(bf16, djinn::bf16)

namespace djinn {

template <typename Args, typename T> using PlainChoice = HopperChoice<PlainWeight<T>, Args>;

template <typename Args, typename T, unsigned N, unsigned TILES> PlainChoice<Args, T> hopper_choice() {
    constexpr bool HALF = std::is_same_v<T, f16>;
    constexpr unsigned BYTES = sizeof(typename Hopper<PlainWeight<T>, N, TILES, AllRows>::Sums);
    if constexpr (std::is_same_v<Args, djinn_linear_args>) {
        return {HALF ? djinn_linear_hopper_f16<N, TILES, false> : djinn_linear_hopper_bf16<N, TILES, false>, TILES, BYTES};
    } else {
        return {HALF ? djinn_expert_linear_hopper_f16<N, TILES> : djinn_expert_linear_hopper_bf16<N, TILES>, TILES, BYTES};
    }
}

template <typename Args, typename T, unsigned N> PlainChoice<Args, T> choose_tiles(unsigned tiles) {
    switch (tiles) {
    case 1: return hopper_choice<Args, T, N, 1>();
    case 2: return hopper_choice<Args, T, N, 2>();
    case 3: return hopper_choice<Args, T, N, 3>();
    default: return hopper_choice<Args, T, N, MOST_TILES>();
    }
}

template <typename Args, typename T> PlainChoice<Args, T> choose_hopper(unsigned n, unsigned tiles) {
    if constexpr (std::is_same_v<Args, djinn_linear_args>) {
        if (n == MOST_GROUP) {
            return choose_tiles<Args, T, MOST_GROUP>(tiles);
        }
    }
    switch (n) {
    case 8: return choose_tiles<Args, T, 8>(tiles);
    case 16: return choose_tiles<Args, T, 16>(tiles);
    case 32: return choose_tiles<Args, T, 32>(tiles);
    default: return choose_tiles<Args, T, 64>(tiles);
    }
}

unsigned clusters_at_once() {
    /* The number plus 1; 0 until it is known. */
    static std::atomic<unsigned> known[MOST_DEVICES];
    const int device = current_device();
    unsigned found = known[device].load();
    if (found == 0) {
        found = 1;
        const auto largest = choose_hopper<djinn_linear_args, f16>(128, 4);
        LaunchConfig launch({PARTIALS}, 128 * largest.tiles + 64, MOST_SHARED, nullptr, PARTIALS);
        int clusters = 0;
        if (all_devices()[device].is_hopper && map_encoder() != nullptr && allow_shared(largest.kernel, MOST_SHARED) == cudaSuccess &&
            cudaOccupancyMaxActiveClusters(&clusters, largest.kernel, &launch.config) == cudaSuccess && clusters > 0) {
            found += clusters;
        } else {
            /* The other path is taken then: the next launch must not see this failure. */
            cudaGetLastError();
        }
        known[device].store(found);
    }
    return found - 1;
}

bool serves_hopper(uint32_t k, uint32_t weight_dtype) {
    return k % RUN == 0 && (weight_dtype == DJINN_F16 || weight_dtype == DJINN_BF16) && clusters_at_once() > 0;
}

template <typename Args>
int launch_plain(const Args &args, const djinn_linear_args &a, const Batch &batch, void *stream) {
    const unsigned at_once = clusters_at_once(), experts = expected_experts(args);
    const unsigned share = batch.experts == 0 ? choose_share(a, at_once, MOST_TILES)
                                              : choose_routed_share(a, experts, at_once, MOST_TILES * TILE_ROWS);
    const unsigned tiles = ceil_div(share, TILE_ROWS);
    if (a.weight_dtype == DJINN_F16) {
        return launch_hopper(choose_hopper<Args, f16>(batch.n, tiles), args, a, batch, share, stream);
    }
    return launch_hopper(choose_hopper<Args, bf16>(batch.n, tiles), args, a, batch, share, stream);
}

/* A gated product of up to MOST_GROUP / 2 rows. Gate and up have half of the warpgroups each. */
template <typename T, unsigned N> int launch_gated_by(const djinn_linear_args &a, void *stream) {
    constexpr bool HALF = std::is_same_v<T, f16>;
    constexpr unsigned BYTES = sizeof(typename Hopper<PlainWeight<T>, N, MOST_TILES, AllRows>::Sums);
    const HopperChoice<PlainWeight<T, true>, djinn_linear_args> chosen{
        HALF ? djinn_linear_hopper_f16<N, MOST_TILES, true> : djinn_linear_hopper_bf16<N, MOST_TILES, true>, MOST_TILES, BYTES};
    const djinn_linear_args gate = gate_of(a);
    const unsigned at_once = clusters_at_once(), most = MOST_TILES / 2 * TILE_ROWS;
    const unsigned share = ceil_div(gate.n, at_once * ceil_div(gate.n, at_once * most));
    return launch_hopper(chosen, gate, gate, Batch{a.rounded, a.rows, N}, share, stream);
}

template <typename T> int launch_gated(const djinn_linear_args &a, void *stream) {
    switch (plain_columns(a.rows)) {
    case 8: return launch_gated_by<T, 8>(a, stream);
    case 16: return launch_gated_by<T, 16>(a, stream);
    case 32: return launch_gated_by<T, 32>(a, stream);
    default: return launch_gated_by<T, 64>(a, stream);
    }
}

bool is_wide(uint32_t rows, uint32_t n) {
    return rows > MOST_GROUP || (rows > MOST_GROUP / 2 && n > clusters_at_once() * 3 * TILE_ROWS);
}

int linear_hopper(const djinn_linear_args &a, void *stream) {
    if (is_wide(a.rows, a.n)) {
        return linear_wide(a, stream);
    }
    if (a.gated_rounded != nullptr) {
        return a.weight_dtype == DJINN_F16 ? launch_gated<f16>(a, stream) : launch_gated<bf16>(a, stream);
    }
    return launch_plain(a, a, Batch{a.rounded, a.rows, plain_columns(a.rows)}, stream);
}

int gather_slots(const djinn_expert_linear_args &args, SlotRange range, void *stream) {
    const auto gather = args.linear.weight_dtype == DJINN_F16 ? djinn_gather_f16 : djinn_gather_bf16;
    return launch(gather, range.end - range.first, GATHER_THREADS, 0, stream, args, range.first);
}

/*
 * Whether linear_wide.cu computes some dozen slots of each expert sooner: where a weight has few rows. As measured.
 */
static bool are_small(const djinn_expert_linear_args &a) {
    return expected_experts(a) >= 8 && shares_of(a.linear, MOST_TILES * TILE_ROWS) <= clusters_at_once() / 3;
}

int expert_linear_hopper(const djinn_expert_linear_args &a, void *stream) {
    return by_batches(a, portion_slots(a, MOST_GROUP), are_few_runs(a), stream, [&](const djinn_expert_linear_args &some, const Batch &batch) {
        const bool wide = batch.n == MOST_GROUP || (batch.n == MOST_GROUP / 2 && are_small(some));
        return wide ? expert_linear_wide(some, batch.range(), stream) : launch_plain(some, some.linear, batch, stream);
    });
}

} // namespace djinn

extern "C" uint32_t djinn_linear_rows(void) {
    return djinn::clusters_at_once() > 0 ? uint32_t(DJINN_LINEAR_ROWS) : djinn::MOST_ROWS;
}
