/*
 * attention, row by row: out[r, h, :] = softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= positions[r], or the
 * last `window` of them.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], out f32 [rows, heads head_dim]; pages in kv.cuh.
 * Reference: djinn-device, src/reference.rs, `attention`.
 *
 * The context is cut every SPLIT positions, from position 0 on, and SPAN splits are a span. Each split gives a maximum, a
 * sum and a vector for each head. Splits are merged in order, and then spans: by one block or, if they are spread over
 * blocks, by the last of these to end, with the same arithmetic. If rows are few and have many units, the last blocks merge
 * a part of a head each. Within a split each warp takes an equal share of the positions, and the shares' results are added in
 * order. So the result depends on neither the batch nor the workspace. Splits and tiles before a row's window are left out.
 *
 * Warps meet only at the end of a split, with the first keys and values of the next in flight. The warps of several blocks
 * fill a multiprocessor, and keep the memory busy while some blocks begin or end.
 *
 * Launch: a persistent kernel with as many blocks as the device runs at once. A unit is a row, a group of query heads that
 * share a key head, and one split, a span, or all splits. Each block takes an equal part of the units, one after the other.
 * If it has all units of a row and group, they need no merging between blocks. Beside long runs, which are left out, blocks
 * take units in turn. All that is found out, and the first keys and values are prefetched, while the kernel before still
 * runs.
 */
#include "attention_fragments.cuh"
#include "attention_lanes.cuh"

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned N, unsigned DIM, unsigned HEADS>                                                      \
    __global__ void __launch_bounds__(djinn::threads_for(HEADS), djinn::blocks_for(HEADS))                   \
        djinn_attention_lanes_##suffix(const __grid_constant__ djinn_attention_args a,                       \
                                       const __grid_constant__ djinn::Part part) {                           \
        djinn::release_next();                                                                               \
        djinn::Splits<djinn::Lanes<T, N, DIM, HEADS>>::run(a, part);                                         \
    }
DJINN_FOR_CACHE_DTYPES(DJINN_KERNEL)

#define DJINN_FRAGMENTS(suffix, T)                                                                           \
    template <unsigned DIM, unsigned HEADS>                                                                  \
    __global__ void __launch_bounds__(128, djinn::Fragments<T, DIM, HEADS>::BLOCKS)                          \
        djinn_attention_fragments_##suffix(const __grid_constant__ djinn_attention_args a,                   \
                                           const __grid_constant__ djinn::Part part) {                       \
        djinn::release_next();                                                                               \
        djinn::Splits<djinn::Fragments<T, DIM, HEADS>>::run(a, part);                                        \
    }
DJINN_FRAGMENTS(f16, djinn::f16)
DJINN_FRAGMENTS(bf16, djinn::bf16)
DJINN_FRAGMENTS(int8, djinn::int8)

namespace djinn {

constexpr unsigned MOST_DIM = DJINN_MOST_HEAD_DIM;

using Kernel = void (*)(djinn_attention_args, Part);

/*
 * A kernel, the heads that it takes at once, its threads and shared memory, and its blocks on a multiprocessor. If it is
 * `copying`, it loads keys and values to shared memory, and has no use for L1.
 */
struct Choice {
    Kernel kernel;
    unsigned heads, threads, bytes, blocks;
    bool copying;
};

template <typename Share> Choice choice(Kernel kernel) {
    using Shared = typename Splits<Share>::Shared;
    return {kernel, Share::HEADS, Share::THREADS, unsigned(sizeof(Shared) + alignof(Shared)), Share::BLOCKS, Share::GOES_ON};
}

template <unsigned DIM> Choice choose_lanes(unsigned shared_by) {
    return shared_by == 1   ? choice<Lanes<f32, 4, DIM, 1>>(djinn_attention_lanes_f32<4, DIM, 1>)
           : shared_by == 2 ? choice<Lanes<f32, 4, DIM, 2>>(djinn_attention_lanes_f32<4, DIM, 2>)
                            : choice<Lanes<f32, 4, DIM, 4>>(djinn_attention_lanes_f32<4, DIM, 4>);
}

template <typename T, unsigned DIM, unsigned HEADS> Choice choose_fragments() {
    constexpr bool HALF = std::is_same_v<T, f16>;
    return choice<Fragments<T, DIM, HEADS>>(IS_INT8<T> ? djinn_attention_fragments_int8<DIM, HEADS>
                                            : HALF     ? djinn_attention_fragments_f16<DIM, HEADS>
                                                       : djinn_attention_fragments_bf16<DIM, HEADS>);
}

template <typename T, unsigned DIM> Choice choose_fragments(unsigned shared_by) {
    const Choice eight = choose_fragments<T, DIM, 8>();
    const bool fits = eight.bytes <= all_devices()[current_device()].block_shared;
    return shared_by == 1              ? choose_fragments<T, DIM, 1>()
           : shared_by <= 4 || !fits ? choose_fragments<T, DIM, 4>()
                                       : eight;
}

template <typename T> Choice choose_fragments(unsigned dim, unsigned shared_by) {
    return dim <= 64    ? choose_fragments<T, 64>(shared_by)
           : dim <= 128 ? choose_fragments<T, 128>(shared_by)
                        : choose_fragments<T, MOST_DIM>(shared_by);
}

Choice choose(const djinn_attention_args &a) {
    const unsigned shared_by = a.heads / a.kv.kv_heads, dim = a.kv.head_dim;
    switch (a.kv.dtype) {
    case DJINN_F32:
        return dim % 4 != 0 ? choice<Lanes<f32, 1, MOST_DIM, 1>>(djinn_attention_lanes_f32<1, MOST_DIM, 1>)
               : dim <= 64  ? choose_lanes<64>(shared_by)
               : dim <= 128 ? choose_lanes<128>(shared_by)
                            : choose_lanes<MOST_DIM>(shared_by);
    case DJINN_F16:
        return dim % 8 != 0 ? choice<Lanes<f16, 1, MOST_DIM, 1>>(djinn_attention_lanes_f16<1, MOST_DIM, 1>)
                            : choose_fragments<f16>(dim, shared_by);
    case DJINN_BF16:
        return dim % 8 != 0 ? choice<Lanes<bf16, 1, MOST_DIM, 1>>(djinn_attention_lanes_bf16<1, MOST_DIM, 1>)
                            : choose_fragments<bf16>(dim, shared_by);
    case DJINN_INT8:
        return is_aligned_int8(a.kv) ? choose_fragments<int8>(dim, shared_by)
                                     : choice<Lanes<int8, 1, MOST_DIM, 1>>(djinn_attention_lanes_int8<1, MOST_DIM, 1>);
    default: return {};
    }
}

/*
 * Sets how many of a kernel's blocks a multiprocessor runs, and returns it. A copying kernel asks for so much shared memory
 * that no more fit, even if their registers would: all multiprocessors then run as many.
 */
unsigned fit_blocks(Choice &choice, const DeviceFacts &device) {
    /* A multiprocessor has 1 KiB more than a block may have, and keeps 1 KiB for each block. */
    constexpr unsigned KEPT = 1024, ROUNDED = 128;
    const unsigned shared = device.block_shared + KEPT, fit = shared / (choice.bytes + KEPT);
    choice.blocks = fit < 1 ? 1 : fit < choice.blocks ? fit : choice.blocks;
    const unsigned most = (shared / choice.blocks - KEPT - ROUNDED) / ROUNDED * ROUNDED;
    choice.bytes = choice.copying && most > choice.bytes ? most : choice.bytes;
    return choice.blocks;
}

/*
 * Units of `heads` heads whose partial results fit the workspace, for rows of `per_row` groups on a device that runs
 * `blocks` blocks at once. 0 if many rows may be left to the tiled path, since blocks look at each of their units.
 */
unsigned slots_of(const djinn_attention_args &a, unsigned heads, unsigned per_row, unsigned blocks, bool skip_runs) {
    const uint64_t groups = uint64_t(a.rows) * per_row, most = skip_runs ? 4 * uint64_t(blocks) : MOST_GROUPS + 1;
    if (a.workspace == nullptr || a.workspace_bytes <= BESIDE_ROWS || groups >= most) {
        return 0;
    }
    const uint64_t slots = (a.workspace_bytes - BESIDE_ROWS) / Slots::bytes(heads, a.kv.head_dim);
    return slots < UINT32_MAX ? unsigned(slots) : UINT32_MAX;
}

} // namespace djinn

extern "C" int djinn_attention(const djinn_attention_args *args, void *stream) {
    const djinn_attention_args &a = *args;
    if (a.kv.kv_heads == 0 || a.heads % a.kv.kv_heads != 0 || a.kv.head_dim == 0 ||
        a.kv.head_dim > djinn::MOST_DIM) {
        return cudaErrorInvalidValue;
    }
    djinn::Choice choice = djinn::choose(a);
    if (choice.kernel == nullptr) {
        return cudaErrorInvalidValue;
    }
    const djinn::DeviceFacts &device = djinn::all_devices()[djinn::current_device()];
    const unsigned blocks = device.multiprocessors * djinn::fit_blocks(choice, device);
    const bool on_hopper = djinn::serves_hopper_runs(a), runs = on_hopper || djinn::serves_runs(a);
    int code = djinn::allow_shared(choice.kernel, choice.bytes);
    if (runs && code == cudaSuccess) {
        code = on_hopper ? djinn::attention_hopper(a, stream) : djinn::attention_runs(a, stream);
    }
    if (code != cudaSuccess || a.rows == 0) {
        return code;
    }
    const unsigned shared_by = a.heads / a.kv.kv_heads, groups = djinn::ceil_div(shared_by, choice.heads);
    const unsigned per_row = a.kv.kv_heads * groups;
    const unsigned most_waiting = device.multiprocessors * (choice.blocks < 2 ? 1 : 2);
    const unsigned slots = djinn::slots_of(a, choice.heads, per_row, blocks, runs);
    djinn::Part part = {shared_by, groups, per_row, slots, device.multiprocessors, most_waiting, runs, {}};
    if (choice.copying && device.overlaps && !djinn::encode_planes(part.pages, a.kv, djinn::positions_at_once(a.kv))) {
        return cudaErrorInvalidValue;
    }
    const uint64_t units = uint64_t(a.rows) * per_row * (part.slots == 0 ? 1 : djinn::most_splits(a, djinn::SPLIT));
    return djinn::launch(choice.kernel, units < blocks ? unsigned(units) : blocks, choice.threads, choice.bytes, stream,
                         a, part);
}
