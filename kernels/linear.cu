/*
 * linear: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j].
 * Shapes: x f32 [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * Reference: djinn-device, src/reference.rs, `linear`.
 *
 * expert_linear: the same, bit for bit, for the slots of some experts. Expert e has the slots order[starts[e] .. starts[e +
 * 1]]. Slot s is row s of out, from row s / slots_per_row of x.
 * Shapes: x f32 [slots / slots_per_row, k], weights [n, k], order u32 [slots], starts u32 [experts + 1], out f32 [slots,
 * out_width].
 * Launch: as below, with y over portions of up to 16 slots of an expert, enough for all slots. Blocks of those past the last
 * end at once. No block reads weights before the previous kernel is done, which tells the slots.
 * Reference: djinn-device, src/reference/routing.rs, `expert_linear`.
 *
 * For up to 16 rows or slots, where the time is that of reading the weight. linear_hopper.cu takes more rows, and products
 * of 4 rows or more with much x, where it serves them. Elsewhere, more rows take one launch for each 16.
 *
 * f16 and bf16 with k a multiple of 64: tensor cores. x is rounded to the weight's type, so with f16 weights x must be in
 * f16's range. Products accumulate in f32.
 * Launch: one block for each multiprocessor (or twice, thrice ... as many), with equal shares of the weight's rows, in
 * units of 8. A warp computes a partial sum of EACH units. It copies its own pieces (a run of a unit, 1 KiB) to its ring in
 * shared memory, so that many loads are in flight and no barrier is needed. The first copies start before the previous
 * kernel is done, since no kernel writes weights. The partial sums are added in order. A row's arithmetic depends on k
 * alone, not on other rows or n.
 *
 * Otherwise: a warp for each row of the weight, 8 warps a block. A lane takes every 32nd group of elements, and the lanes'
 * sums are added in a tree.
 */
#include "linear_tensor.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/*
 * Every block of the kernels for tensor cores rounds all of x, and reads it from shared memory for each unit of the weight.
 * From this many rows and elements of x on, linear_hopper.cu's kernels take less time, though they begin and end later
 * (docs/design/pass.md).
 */
constexpr unsigned ROUNDED_ROWS = 4, ROUNDED_ELEMENTS = 16384;

/* For the plain kernels. */
constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = 32 * WARPS;

/* Takes up to ROWS rows of x. Elements are read N at once; k is a multiple of N. */
template <typename T, unsigned N, unsigned ROWS, typename Rows>
__device__ __forceinline__ void linear_plain(const djinn_linear_args &a, const Rows &rows) {
    const unsigned lane = threadIdx.x % 32, j = blockIdx.x * WARPS + threadIdx.x / 32;
    if (j >= a.n) {
        return;
    }
    const T *weight = static_cast<const T *>(rows.weights()[j / a.tile_rows + rows.tile]) + size_t(j % a.tile_rows) * a.k;
    unsigned from[ROWS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
        from[r] = rows.in(min(r, rows.count() - 1));
    }
    float sums[ROWS] = {};
#pragma unroll 4
    for (unsigned at = lane * N; at < a.k; at += 32 * N) {
        const auto w = load<T, N>(weight + at);
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) {
            /* Rows in order are computed again, to save registers. */
            const unsigned row = Rows::ROUTED ? from[r] : min(r, rows.count() - 1);
            const auto x = load<float, N>(a.x + size_t(row) * a.k + at);
#pragma unroll
            for (unsigned i = 0; i < N; ++i) {
                sums[r] = __fmaf_rn(widen(w.at[i]), x.at[i], sums[r]);
            }
        }
    }
    const float bias = bias_of(a, j);
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && r < rows.count()) {
            a.out[size_t(rows.out(r)) * a.out_width + a.out_column + j] = sum + bias;
        }
    }
}

} // namespace djinn

#define DJINN_TENSOR(suffix, T)                                                                              \
    template <unsigned GROUPS, unsigned EACH, unsigned TILES, bool STAGED>                                   \
    __global__ void __launch_bounds__(32 * djinn::PARTIALS * GROUPS)                                         \
        djinn_linear_tensor_##suffix(const __grid_constant__ djinn_linear_args a, unsigned share) {          \
        djinn::Tensor<T, GROUPS, EACH, TILES, djinn::InOrder, STAGED>::run(a, {a}, share);                   \
    }                                                                                                        \
    template <unsigned GROUPS, unsigned EACH, unsigned TILES, bool STAGED>                                   \
    __global__ void __launch_bounds__(32 * djinn::PARTIALS * GROUPS)                                         \
        djinn_expert_linear_tensor_##suffix(const __grid_constant__ djinn_expert_linear_args a,              \
                                            unsigned share) {                                                \
        const djinn::Routed rows = djinn::slots_of(a, blockIdx.y, 8 * TILES, {0, a.linear.rows});            \
        if (rows.count() > 0) {                                                                                \
            djinn::Tensor<T, GROUPS, EACH, TILES, djinn::Routed, STAGED>::run(a.linear, rows, share);        \
        }                                                                                                    \
    }
DJINN_TENSOR(f16, djinn::f16)
DJINN_TENSOR(bf16, djinn::bf16)

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned N, unsigned ROWS>                                                                     \
    __global__ void __launch_bounds__(djinn::THREADS)                                                        \
        djinn_linear_##suffix(const __grid_constant__ djinn_linear_args a) {                                 \
        djinn::enter();                                                                                      \
        djinn::linear_plain<T, N, ROWS, djinn::InOrder>(a, {a});                                        \
    }                                                                                                        \
    template <unsigned N, unsigned ROWS>                                                                     \
    __global__ void __launch_bounds__(djinn::THREADS)                                                        \
        djinn_expert_linear_##suffix(const __grid_constant__ djinn_expert_linear_args a) {                   \
        const djinn::Routed rows = djinn::slots_of(a, blockIdx.y, djinn::MOST_ROWS, {0, a.linear.rows});     \
        if (rows.count() > 0) {                                                                                \
            djinn::linear_plain<T, N, ROWS, djinn::Routed>(a.linear, rows);                                  \
        }                                                                                                    \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

/* What a launch needs besides its arguments: sizes, the most rows of x that a block computes, and the grid's height. */
struct Plan {
    const djinn_linear_args &sizes;
    unsigned rows, portions;

    /* Shared memory for these rows of x. */
    unsigned staged_bytes() const { return rows * staged_pitch(sizes.k); }
};

/* The kernel for up to 16 rows. */
#define DJINN_BY_ROWS(kernel, n, rows)                                                                       \
    ((rows) <= 1   ? kernel<n, 1>                                                                            \
     : (rows) <= 2 ? kernel<n, 2>                                                                            \
     : (rows) <= 4 ? kernel<n, 4>                                                                            \
     : (rows) <= 8 ? kernel<n, 8>                                                                            \
                   : kernel<n, 16>)

/* The plain kernel `name` for a dtype, a number of columns and a number of rows. */
#define DJINN_PLAIN(name, a)                                                                                 \
    switch ((a).weight_dtype) {                                                                              \
    case DJINN_F32:                                                                                          \
        return (a).k % 4 == 0 ? DJINN_BY_ROWS(name##_f32, 4, (a).rows) : DJINN_BY_ROWS(name##_f32, 1, (a).rows); \
    case DJINN_F16: return DJINN_BY_ROWS(name##_f16, 1, (a).rows);                                           \
    case DJINN_BF16: return DJINN_BY_ROWS(name##_bf16, 1, (a).rows);                                         \
    default: return nullptr;                                                                                 \
    }

/* The arguments' type tells: rows in order, or routed. */
template <typename Args> using PlainKernel = void (*)(Args);
template <typename Args> using TensorKernel = void (*)(Args, unsigned);

template <typename Args> PlainKernel<Args> plain_kernel(const djinn_linear_args &a);
template <> PlainKernel<djinn_linear_args> plain_kernel<djinn_linear_args>(const djinn_linear_args &a) {
    DJINN_PLAIN(djinn_linear, a)
}
template <> PlainKernel<djinn_expert_linear_args> plain_kernel<djinn_expert_linear_args>(const djinn_linear_args &a) {
    DJINN_PLAIN(djinn_expert_linear, a)
}

template <typename T, unsigned GROUPS, unsigned EACH, unsigned TILES, bool STAGED, typename Args>
TensorKernel<Args> tensor_kernel() {
    constexpr bool HALF = std::is_same_v<T, f16>;
    if constexpr (std::is_same_v<Args, djinn_linear_args>) {
        return HALF ? djinn_linear_tensor_f16<GROUPS, EACH, TILES, STAGED>
                    : djinn_linear_tensor_bf16<GROUPS, EACH, TILES, STAGED>;
    } else {
        return HALF ? djinn_expert_linear_tensor_f16<GROUPS, EACH, TILES, STAGED>
                    : djinn_expert_linear_tensor_bf16<GROUPS, EACH, TILES, STAGED>;
    }
}

template <typename T, unsigned GROUPS, unsigned EACH, unsigned TILES, bool STAGED, typename Args>
int launch_tensor(const Args &args, const Plan &plan, const Division &division, unsigned staged, void *stream) {
    /* Shared memory and threads do not depend on where the rows are. */
    using Kind = Tensor<T, GROUPS, EACH, TILES, InOrder, STAGED>;
    static_assert(Kind::SHARED_BYTES <= MOST_RING);
    const TensorKernel<Args> kernel = tensor_kernel<T, GROUPS, EACH, TILES, STAGED, Args>();
    /* By device: the context in which the kernel was allowed all shared memory of a block. */
    static std::atomic<unsigned> allowed[MOST_DEVICES];
    const unsigned context = contexts().load();
    std::atomic<unsigned> &known = allowed[current_device()];
    if (known.load() != context) {
        const cudaError_t code = allow_shared(kernel, all_devices()[current_device()].block_shared);
        if (code != cudaSuccess) {
            return code;
        }
        known.store(context);
    }
    /* If each multiprocessor gets one block, there is no room for two: the next launch's blocks would not spread. */
    const DeviceFacts &facts = all_devices()[current_device()];
    const unsigned needed = unsigned(Kind::SHARED_BYTES) + staged, alone = facts.block_shared / 2 + 1024;
    const bool is_one = division.blocks * plan.portions <= unsigned(facts.multiprocessors);
    const unsigned shared = is_one && needed < alone ? alone : needed;
    return launch(kernel, dim3(division.blocks, plan.portions), Kind::THREADS, shared, stream, args, division.share);
}

template <typename T, unsigned GROUPS, unsigned EACH, bool STAGED, typename Args>
int launch_units(const Args &args, const Plan &plan, const Division &division, void *stream) {
    const unsigned staged = STAGED ? plan.staged_bytes() : 0;
    return plan.rows <= 8 ? launch_tensor<T, GROUPS, EACH, 1, STAGED>(args, plan, division, staged, stream)
                          : launch_tensor<T, GROUPS, EACH, 2, STAGED>(args, plan, division, staged, stream);
}

template <typename T, bool STAGED, typename Args>
int launch_few_units(const Args &args, const Plan &plan, const Division &division, void *stream) {
    switch (ceil_div(division.share, 8)) {
    case 1: return launch_units<T, 1, 1, STAGED>(args, plan, division, stream);
    case 2: return launch_units<T, 2, 1, STAGED>(args, plan, division, stream);
    case 3: return launch_units<T, 3, 1, STAGED>(args, plan, division, stream);
    case 4: return launch_units<T, 4, 1, STAGED>(args, plan, division, stream);
    case 5:
        if (MOST_RING <= all_devices()[current_device()].block_shared) {
            return launch_units<T, 5, 1, STAGED>(args, plan, division, stream);
        }
        [[fallthrough]];
    default: return launch_units<T, 3, 2, STAGED>(args, plan, division, stream);
    }
}

/* Whether a block has room for `rows` rows of x, up to MOST_ROWS. */
bool stages(unsigned rows, unsigned k) {
    rows = rows < MOST_ROWS ? rows : MOST_ROWS;
    return MOST_RING + rows * staged_pitch(k) <= unsigned(all_devices()[current_device()].block_shared);
}

/*
 * Takes up to 16 rows, or slots of a portion, on the tensor cores. Blocks with few units run two on a multiprocessor: one
 * computes while the next one's first weights arrive. If x leaves no room for two, a block takes more units.
 */
template <typename T, typename Args> int linear_tensor(const Args &args, const Plan &plan, void *stream) {
    const DeviceFacts &device = all_devices()[current_device()];
    const bool staged = stages(plan.rows, plan.sizes.k);
    const bool alone = staged && MOST_RING + plan.staged_bytes() > device.block_shared / 2;
    /* More of them take less time where portions run side by side. */
    const unsigned most = 8 * (alone ? 15 : plan.portions > 1 ? 8 : 6);
    const Division division = divide(plan.sizes, blocks_of_portion(args, device.multiprocessors, most), most);
    const unsigned units = ceil_div(division.share, 8);
    if (!staged) {
        return launch_few_units<T, false>(args, plan, division, stream);
    }
    return units <= 6    ? launch_few_units<T, true>(args, plan, division, stream)
           : units <= 8  ? launch_units<T, 4, 2, true>(args, plan, division, stream)
           : units <= 10 ? launch_units<T, 5, 2, true>(args, plan, division, stream)
           : units <= 12 ? launch_units<T, 4, 3, true>(args, plan, division, stream)
                         : launch_units<T, 5, 3, true>(args, plan, division, stream);
}

/* Whether a product wants x rounded, where linear_hopper.cu serves it. */
bool wants_rounded(unsigned rows, unsigned k, unsigned encoding) {
    const bool many = rows > MOST_ROWS || (rows >= ROUNDED_ROWS && uint64_t(rows) * k >= ROUNDED_ELEMENTS);
    switch (encoding) {
    case DJINN_PLAIN: return many || !stages(rows, k);
    /* Lossless weights are multiplied by rounded rows only. */
    case DJINN_LOSSLESS: return true;
    default: return rows > most_unrounded(encoding, k);
    }
}

template <typename Args> int linear_rows(const Args &args, const Plan &plan, void *stream) {
    const djinn_linear_args &a = plan.sizes;
    if (a.k % 64 == 0 && a.weight_dtype == DJINN_F16) {
        return linear_tensor<f16>(args, plan, stream);
    }
    if (a.k % 64 == 0 && a.weight_dtype == DJINN_BF16) {
        return linear_tensor<bf16>(args, plan, stream);
    }
    const PlainKernel<Args> kernel = plain_kernel<Args>(a);
    if (kernel == nullptr) {
        return cudaErrorInvalidValue;
    }
    return launch(kernel, dim3(ceil_div(a.n, WARPS), plan.portions), THREADS, 0, stream, args);
}

} // namespace djinn

extern "C" void djinn_forget_contexts(void) { djinn::contexts().fetch_add(1); }

extern "C" int djinn_linear(const djinn_linear_args *args, void *stream) {
    const bool tiled = args->tile_rows > 0 && (args->n - 1) / args->tile_rows < DJINN_LINEAR_TILES;
    if ((args->bias != nullptr && args->bias_dtype > DJINN_BF16) || args->n == 0 || !tiled) {
        return cudaErrorInvalidValue;
    }
    const djinn_linear_args &a = *args;
    /* What can be gated or added: plain weights, and those that are decoded meanwhile. */
    const bool meanwhile = a.rows > djinn::MOST_GROUP && djinn::encoded_wide(a.encoding, a.weight_dtype) != nullptr;
    const bool at_once = a.bias == nullptr && a.rounded != nullptr && (a.encoding == DJINN_PLAIN || meanwhile);
    if (a.gated_rounded != nullptr) {
        if (!at_once || !djinn_linear_gated(a.rows, a.k, a.n, a.tile_rows, a.weight_dtype)) {
            return cudaErrorInvalidValue;
        }
    }
    if (a.adds != 0) {
        const float *const out = a.out + a.out_column;
        const bool can = djinn_linear_adds(a.rows, a.k, a.n, a.tile_rows, a.weight_dtype, a.encoding, a.out_width, out);
        if (!at_once || a.gated_rounded != nullptr || !can) {
            return cudaErrorInvalidValue;
        }
    }
    if (args->encoding != DJINN_PLAIN) {
        return djinn::linear_encoded(*args, stream);
    }
    if (args->rounded != nullptr && djinn::serves_hopper(args->k, args->weight_dtype)) {
        return djinn::linear_hopper(*args, stream);
    }
    for (unsigned row = 0; row < args->rows; row += djinn::MOST_ROWS) {
        djinn_linear_args part = *args;
        part.rows = args->rows - row < djinn::MOST_ROWS ? args->rows - row : djinn::MOST_ROWS;
        part.x += size_t(row) * args->k;
        part.out += size_t(row) * args->out_width;
        const int code = djinn::linear_rows(part, djinn::Plan{part, part.rows, 1}, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

extern "C" int djinn_linear_rounded(uint32_t rows, uint32_t k, uint32_t weight_dtype, uint32_t encoding) {
    return djinn::serves_hopper(k, weight_dtype) && djinn::wants_rounded(rows, k, encoding);
}

extern "C" int djinn_expert_linear(const djinn_expert_linear_args *args, void *stream) {
    constexpr unsigned MOST_PORTIONS = 65535;
    const djinn_linear_args &a = args->linear;
    const bool sized = a.n > 0 && a.rows > 0 && a.tile_rows > 0 && args->slots_per_row > 0;
    const unsigned tiles = sized ? djinn::tiles_of(a) : 0;
    const bool tiled = sized && tiles <= DJINN_LINEAR_TILES && uint64_t(args->chosen) * tiles <= DJINN_EXPERT_TILES;
    const bool there = args->chosen > 0 && args->chosen <= args->experts;
    /* Few slots of an expert take less room, so that more blocks run at once. */
    const bool apart = djinn::are_apart(*args);
    const unsigned most = apart ? 8 : djinn::MOST_ROWS, rows = a.rows < most ? a.rows : most;
    const unsigned portions = djinn::portions_of(args->chosen, a.rows, rows <= 8 ? 8 : djinn::MOST_ROWS);
    if (a.bias != nullptr || !tiled || !there || portions > MOST_PORTIONS) {
        return cudaErrorInvalidValue;
    }
    if (a.encoding != DJINN_PLAIN) {
        return djinn::expert_linear_encoded(*args, stream);
    }
    /* Few slots need no launch that gathers them. */
    const bool many = a.rows >= djinn::MOST_ROWS || !djinn::stages(rows, a.k);
    const bool fits = args->workspace_bytes / 2 / djinn::MOST_GROUP >= a.k;
    if (many && fits && djinn::serves_hopper(a.k, a.weight_dtype)) {
        return djinn::expert_linear_hopper(*args, stream);
    }
    return djinn::linear_rows(*args, djinn::Plan{a, rows, portions}, stream);
}
