/*
 * linear: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j].
 * Shapes: x f32 [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * CPU reference: djinn-device, kernels/reference.rs, `linear`.
 *
 * expert_linear: the same, bit for bit, for the rows s of out that order[starts[expert] .. starts[expert + 1]]
 * lists, from rows s / slots_per_row of x.
 * Shapes: x f32 [slots / slots_per_row, k], weight [n, k], order u32 [slots], starts u32 [_], out f32
 * [slots, out_width].
 * Launch: as below, and y over groups of 16 slots, of which there may be as many as there are slots: most are
 * empty, and their blocks end at once. So no block reads weights before the previous kernel is done.
 * CPU reference: djinn-device, kernels/reference/routing.rs, `expert_linear`.
 *
 * For up to 16 rows, where the time is that of reading the weight. More rows are linear_wide.cu's where it serves them,
 * and else take a launch for each 16.
 *
 * f16 and bf16 with k a multiple of 64: tensor cores. x is split into a sum of two numbers of the weight's type,
 * which hold 22 (f16) or 16 (bf16) bits of it; so with f16 weights, x is limited to the range of f16. The two
 * parts of 8 rows of x fill the 16 rows of a matrix fragment, and products accumulate in f32.
 * Launch: one block of 16 warps for each multiprocessor (or twice, thrice ... as many), with equal shares of the
 * weight's rows, in units of 8. The warps take turns at runs of 64 columns; each copies its own pieces (a unit of
 * a run, 1 KiB) to a ring in shared memory, so that many loads are under way and no barrier is met. The first
 * copies start before the previous kernel is done, since no kernel writes weights. The warps' partial sums are
 * added in their order. A row's arithmetic depends on k alone: it is the same whatever the other rows and n are.
 *
 * Otherwise: a warp for each row of the weight, 8 warps a block; a lane takes every 32nd group of elements, and
 * the lanes' sums are added in a tree.
 */
#include "linear.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Of the plain kernels. */
constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = 32 * WARPS;

/* Of the tensor kernels. */
constexpr unsigned TENSOR_THREADS = 512;

/* Rows of x and of out: one after another. */
struct InOrder {
    static constexpr bool ROUTED = false;
    const djinn_linear_args &a;

    __device__ __forceinline__ unsigned count() const { return a.rows; }
    __device__ __forceinline__ unsigned in(unsigned i) const { return i; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return i; }
};

/* Rows of x and of out: those of up to 16 slots of an expert. */
struct Routed {
    static constexpr bool ROUTED = true;
    unsigned slot_count;
    const uint32_t *slots;
    unsigned slots_per_row;

    __device__ __forceinline__ unsigned count() const { return slot_count; }
    /* Past the last one, the last. */
    __device__ __forceinline__ unsigned in(unsigned i) const { return slots[min(i, slot_count - 1)] / slots_per_row; }
    __device__ __forceinline__ unsigned out(unsigned i) const { return slots[i]; }
};

/* The group of this block, once the previous kernel is done; perhaps of no slot. */
__device__ __forceinline__ Routed group_of(const djinn_expert_linear_args &a) {
    enter();
    const unsigned first = a.starts[a.expert] + blockIdx.y * MOST_ROWS, end = a.starts[a.expert + 1];
    return {first < end ? min(end - first, MOST_ROWS) : 0, a.order + first, a.slots_per_row};
}

/* Up to 8 UNITS rows of the weight by up to 8 TILES rows of x, which `Rows` finds. */
template <typename T, unsigned UNITS, unsigned TILES, typename Rows> struct Tensor {
    static constexpr unsigned THREADS = TENSOR_THREADS, WARPS = THREADS / 32;
    static_assert(WARPS == PARTIALS);
    /* A run's 16-byte chunks, and its parts of 32 columns, from which a lane takes 8. */
    static constexpr unsigned CHUNKS = RUN / 8, PARTS = RUN / 32;
    /* Of the 8 rows of a piece, those that the lanes copy at once. */
    static constexpr unsigned AT_ONCE = 32 / CHUNKS, COPIES = 8 / AT_ONCE;
    static constexpr unsigned PIECE = 8 * CHUNKS;
    /* Pieces in a warp's ring: 96 KiB for all warps. */
    static constexpr unsigned PIECES = 6;
    static constexpr unsigned COLUMNS = 8 * TILES, ROWS = 8 * UNITS;
    static constexpr size_t RING_BYTES = sizeof(uint4) * WARPS * PIECES * PIECE;
    static constexpr size_t SUMS_BYTES = sizeof(float) * WARPS * COLUMNS * ROWS;
    static constexpr size_t SHARED_BYTES = RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES;

    /* Copies a warp's pieces, unit by unit and run by run. */
    struct Fetcher {
        uint4 *ring;
        unsigned to[COPIES];
        /* The lane's source in the next piece; rows of the last unit that are past the block's repeat its last. */
        const char *next, *last[COPIES];
        size_t copy_bytes, unit_bytes;
        unsigned runs;

        __device__ Fetcher(const djinn_linear_args &a, uint4 *ring, const Share &share, unsigned warp, unsigned lane,
                           unsigned runs)
            : ring(ring), runs(runs) {
            const unsigned row = lane / CHUNKS, chunk = lane % CHUNKS;
            const size_t row_bytes = size_t(a.k) * sizeof(T);
            const T *weight = static_cast<const T *>(share.weight) + warp * RUN + chunk * 8;
            const char *base = reinterpret_cast<const char *>(weight);
            copy_bytes = AT_ONCE * row_bytes, unit_bytes = 8 * row_bytes, next = base + row * row_bytes;
#pragma unroll
            for (unsigned i = 0; i < COPIES; ++i) {
                const unsigned at = row + i * AT_ONCE;
                to[i] = at * CHUNKS + (chunk ^ at);
                last[i] = base + min((UNITS - 1) * 8 + at, share.rows - 1) * row_bytes;
            }
        }

        /* The next piece, which is of `unit`, to a slot of the ring. */
        __device__ __forceinline__ void fetch(unsigned unit, unsigned slot) {
            constexpr size_t STRIDE = WARPS * RUN * sizeof(T);
            if (runs > 0) {
#pragma unroll
                for (unsigned i = 0; i < COPIES; ++i) {
                    const char *from = unit + 1 == UNITS ? last[i] : next + i * copy_bytes;
                    copy_async(ring + slot * PIECE + to[i], from, true);
                }
            }
            commit_copies();
            if (unit + 1 < UNITS) {
                next += unit_bytes;
                return;
            }
            runs -= runs > 0;
            next += STRIDE - (UNITS - 1) * unit_bytes;
#pragma unroll
            for (unsigned i = 0; i < COPIES; ++i) {
                last[i] += STRIDE;
            }
        }
    };

    /* The lane's elements of a run of x: for each part 8 of the same columns in a row for each tile. */
    struct Columns {
        float4 at[PARTS][TILES][2];

        /* `from` are the lane's rows of x in each tile. */
        __device__ __forceinline__ void load(const djinn_linear_args &a, const Rows &rows,
                                             const unsigned (&from)[TILES], unsigned column, unsigned row,
                                             bool inside) {
#pragma unroll
            for (unsigned part = 0; part < PARTS; ++part) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    at[part][tile][0] = at[part][tile][1] = make_float4(0, 0, 0, 0);
                    if (inside && row + 8 * tile < rows.count()) {
                        const float *x = a.x + size_t(from[tile]) * a.k + column + part * 32;
                        at[part][tile][0] = *reinterpret_cast<const float4 *>(x);
                        at[part][tile][1] = *reinterpret_cast<const float4 *>(x + 4);
                    }
                }
            }
        }
    };

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Rows &rows, unsigned most) {
        extern __shared__ uint4 shared[];
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        const Share share = share_of<T>(a, most);
        const unsigned all_runs = a.k / RUN, runs = all_runs > warp ? (all_runs - warp + WARPS - 1) / WARPS : 0;
        uint4 *ring = shared + warp * PIECES * PIECE;
        if constexpr (!Rows::ROUTED) {
            release_next();
        }
        Fetcher fetcher(a, ring, share, warp, lane, runs);
#pragma unroll
        for (unsigned i = 0; i + 1 < PIECES; ++i) {
            fetcher.fetch(i % UNITS, i);
        }
        if constexpr (!Rows::ROUTED) {
            await_previous();
        }

        unsigned from[TILES];
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            from[tile] = rows.in(group + 8 * tile);
        }
        float sums[UNITS][TILES][4] = {};
        const auto column_of = [&](unsigned i) { return (i * WARPS + warp) * RUN + quad * 8; };
        /* One tile leaves registers to load x a run ahead. */
        constexpr bool AHEAD = TILES == 1;
        Columns x;
        if (AHEAD) {
            x.load(a, rows, from, column_of(0), group, runs > 0);
        }
        for (unsigned i = 0, slot = 0; i < runs; ++i) {
            if (!AHEAD) {
                x.load(a, rows, from, column_of(i), group, true);
            }
            Split parts[PARTS][TILES][2];
#pragma unroll
            for (unsigned part = 0; part < PARTS; ++part) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    parts[part][tile][0] = split<T>(x.at[part][tile][0]);
                    parts[part][tile][1] = split<T>(x.at[part][tile][1]);
                }
            }
            if (AHEAD) {
                x.load(a, rows, from, column_of(i + 1), group, i + 1 < runs);
            }
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
                wait_copies<PIECES - 2>();
                __syncwarp();
                uint4 weights[PARTS];
#pragma unroll
                for (unsigned part = 0; part < PARTS; ++part) {
                    weights[part] = ring[slot * PIECE + group * CHUNKS + ((part * 4 + quad) ^ group)];
                }
                /* To the slot of the piece before, which all lanes have read. */
                fetcher.fetch((unit + PIECES - 1) % UNITS, slot == 0 ? PIECES - 1 : slot - 1);
                slot = slot + 1 == PIECES ? 0 : slot + 1;
#pragma unroll
                for (unsigned part = 0; part < PARTS; ++part) {
#pragma unroll
                    for (unsigned tile = 0; tile < TILES; ++tile) {
                        multiply<T>(sums[unit][tile], parts[part][tile][0], weights[part].x, weights[part].y);
                        multiply<T>(sums[unit][tile], parts[part][tile][1], weights[part].z, weights[part].w);
                    }
                }
            }
        }
        wait_copies<0>();
        reduce(a, rows, reinterpret_cast<float *>(shared), sums, share);
    }

    /* Adds the warps' sums and stores them. They take the place of the weights. */
    static __device__ __forceinline__ void reduce(const djinn_linear_args &a, const Rows &rows, float *shared,
                                                  const float (&sums)[UNITS][TILES][4], const Share &share) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        auto &parts = *reinterpret_cast<float(*)[WARPS][COLUMNS][ROWS]>(shared);
        __syncthreads();
#pragma unroll
        for (unsigned unit = 0; unit < UNITS; ++unit) {
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    /* The leading parts' sum and the rest's. */
                    parts[warp][tile * 8 + group][unit * 8 + quad * 2 + i] =
                        sums[unit][tile][i] + sums[unit][tile][i + 2];
                }
            }
        }
        __syncthreads();
        for (unsigned i = threadIdx.x; i < rows.count() * ROWS; i += THREADS) {
            const unsigned column = i / ROWS, row = i % ROWS;
            if (row >= share.rows) {
                continue;
            }
            float sum = parts[0][column][row];
#pragma unroll
            for (unsigned other = 1; other < WARPS; ++other) {
                sum += parts[other][column][row];
            }
            const unsigned j = share.first + row;
            a.out[size_t(rows.out(column)) * a.out_width + a.out_column + j] = sum + bias_of(a, j);
        }
    }
};

/* Up to ROWS rows of x; elements are read N at once, and k is a multiple of N. */
template <typename T, unsigned N, unsigned ROWS, typename Rows>
__device__ __forceinline__ void linear_plain(const djinn_linear_args &a, const Rows &rows) {
    const unsigned lane = threadIdx.x % 32, j = blockIdx.x * WARPS + threadIdx.x / 32;
    if (j >= a.n) {
        return;
    }
    const T *weight = static_cast<const T *>(a.weights[j / a.tile_rows]) + size_t(j % a.tile_rows) * a.k;
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
            /* Rows in order are not worth registers. */
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
    template <unsigned UNITS, unsigned TILES>                                                                \
    __global__ void __launch_bounds__(djinn::TENSOR_THREADS)                                                 \
        djinn_linear_tensor_##suffix(const __grid_constant__ djinn_linear_args a, unsigned share) {          \
        djinn::Tensor<T, UNITS, TILES, djinn::InOrder>::run(a, {a}, share);                             \
    }                                                                                                        \
    template <unsigned UNITS, unsigned TILES>                                                                \
    __global__ void __launch_bounds__(djinn::TENSOR_THREADS)                                                 \
        djinn_expert_linear_tensor_##suffix(const __grid_constant__ djinn_expert_linear_args a,              \
                                            unsigned share) {                                                \
        const djinn::Routed rows = djinn::group_of(a);                                                       \
        if (rows.count() > 0) {                                                                                \
            djinn::Tensor<T, UNITS, TILES, djinn::Routed>::run(a.linear, rows, share);                       \
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
        const djinn::Routed rows = djinn::group_of(a);                                                       \
        if (rows.count() > 0) {                                                                                \
            djinn::linear_plain<T, N, ROWS, djinn::Routed>(a.linear, rows);                                  \
        }                                                                                                    \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

/* What a launch needs besides its arguments: sizes, of which `rows` choose the kernel, and the grid's height. */
struct Plan {
    const djinn_linear_args &sizes;
    unsigned groups;
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

/* By the arguments' type: in order, or routed. */
template <typename Args> using PlainKernel = void (*)(Args);
template <typename Args> using TensorKernel = void (*)(Args, unsigned);

template <typename Args> PlainKernel<Args> plain_kernel(const djinn_linear_args &a);
template <> PlainKernel<djinn_linear_args> plain_kernel<djinn_linear_args>(const djinn_linear_args &a) {
    DJINN_PLAIN(djinn_linear, a)
}
template <> PlainKernel<djinn_expert_linear_args> plain_kernel<djinn_expert_linear_args>(const djinn_linear_args &a) {
    DJINN_PLAIN(djinn_expert_linear, a)
}

template <typename T, unsigned UNITS, unsigned TILES, typename Args> TensorKernel<Args> tensor_kernel() {
    constexpr bool HALF = std::is_same_v<T, f16>;
    if constexpr (std::is_same_v<Args, djinn_linear_args>) {
        return HALF ? djinn_linear_tensor_f16<UNITS, TILES> : djinn_linear_tensor_bf16<UNITS, TILES>;
    } else {
        return HALF ? djinn_expert_linear_tensor_f16<UNITS, TILES> : djinn_expert_linear_tensor_bf16<UNITS, TILES>;
    }
}

/* Launches the tensor kernel for a number of units and tiles. */
template <typename T, unsigned UNITS, unsigned TILES, typename Args>
int launch_tensor(const Args &args, const Plan &plan, const Division &division, void *stream) {
    /* Memory and threads do not depend on where the rows are. */
    using Kind = Tensor<T, UNITS, TILES, InOrder>;
    const TensorKernel<Args> kernel = tensor_kernel<T, UNITS, TILES, Args>();
    /* Devices on which the kernel may use so much shared memory. */
    static std::atomic<uint64_t> allowed{0};
    const uint64_t device = uint64_t(1) << current_device();
    if ((allowed.load() & device) == 0) {
        const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
        const cudaError_t code = cudaFuncSetAttribute(kernel, limit, int(Kind::SHARED_BYTES));
        if (code != cudaSuccess) {
            return code;
        }
        allowed.fetch_or(device);
    }
    const dim3 grid(division.blocks, plan.groups);
    return launch(kernel, grid, Kind::THREADS, Kind::SHARED_BYTES, stream, args, division.share);
}

/* Launches the tensor kernel for a number of units. */
template <typename T, unsigned UNITS, typename Args>
int launch_units(const Args &args, const Plan &plan, const Division &division, void *stream) {
    return plan.sizes.rows <= 8 ? launch_tensor<T, UNITS, 1>(args, plan, division, stream)
                                : launch_tensor<T, UNITS, 2>(args, plan, division, stream);
}

/* Up to 16 rows, or slots of a group, on the tensor cores. */
template <typename T, typename Args> int linear_tensor(const Args &args, const Plan &plan, void *stream) {
    constexpr unsigned MOST_UNITS = 6;
    const unsigned blocks = all_devices()[current_device()].multiprocessors;
    const Division division = divide(plan.sizes, blocks, 8 * MOST_UNITS);
    switch (ceil_div(division.share, 8)) {
    case 1: return launch_units<T, 1>(args, plan, division, stream);
    case 2: return launch_units<T, 2>(args, plan, division, stream);
    case 3: return launch_units<T, 3>(args, plan, division, stream);
    case 4: return launch_units<T, 4>(args, plan, division, stream);
    case 5: return launch_units<T, 5>(args, plan, division, stream);
    default: return launch_units<T, 6>(args, plan, division, stream);
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
    return launch(kernel, dim3(ceil_div(a.n, WARPS), plan.groups), THREADS, 0, stream, args);
}

} // namespace djinn

extern "C" int djinn_linear(const djinn_linear_args *args, void *stream) {
    const bool tiled = args->tile_rows > 0 && (args->n - 1) / args->tile_rows < DJINN_LINEAR_TILES;
    if ((args->bias != nullptr && args->bias_dtype > DJINN_BF16) || args->n == 0 || !tiled) {
        return cudaErrorInvalidValue;
    }
    const bool wide = args->rows > djinn::MOST_ROWS && djinn::serves_wide(*args);
    const unsigned step = wide ? DJINN_LINEAR_ROWS : djinn::MOST_ROWS;
    for (unsigned row = 0; row < args->rows; row += step) {
        djinn_linear_args part = *args;
        part.rows = args->rows - row < step ? args->rows - row : step;
        part.x += size_t(row) * args->k;
        part.out += size_t(row) * args->out_width;
        part.is_split = args->is_split != 0 && args->rows <= step;
        const int code = part.rows > djinn::MOST_ROWS ? djinn::linear_wide(part, stream)
                                                      : djinn::linear_rows(part, djinn::Plan{part, 1}, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

extern "C" int djinn_expert_linear(const djinn_expert_linear_args *args, void *stream) {
    constexpr unsigned MOST_GROUPS = 65535;
    const unsigned groups = djinn::ceil_div(args->linear.rows, djinn::MOST_ROWS);
    const bool tiled = args->linear.tile_rows != args->linear.n || args->linear.n == 0;
    if (args->linear.bias != nullptr || tiled || args->slots_per_row == 0 || groups > MOST_GROUPS) {
        return cudaErrorInvalidValue;
    }
    return djinn::linear_rows(*args, djinn::Plan{args->linear, groups}, stream);
}
