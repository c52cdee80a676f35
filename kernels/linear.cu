/*
 * linear: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j].
 * Shapes: x f32 [rows, k], weight [n, k], bias [n] or none, out f32 [rows, out_width].
 * CPU reference: djinn-device, kernels/reference.rs, `linear`.
 *
 * Meant for up to 16 rows, where the time is that of reading the weight; more rows take a launch for each 16.
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
#include "element.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Of the plain kernels. */
constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = 32 * WARPS;
constexpr unsigned MOST_ROWS = 16;

__device__ __forceinline__ float bias_of(const djinn_linear_args &a, unsigned j) {
    if (a.bias == nullptr) {
        return 0;
    }
    switch (a.bias_dtype) {
    case DJINN_F32: return static_cast<const f32 *>(a.bias)[j];
    case DJINN_F16: return widen(static_cast<const f16 *>(a.bias)[j]);
    default: return widen(static_cast<const bf16 *>(a.bias)[j]);
    }
}

/* Two f32 as a pair of T. */
template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<f16>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
template <> __device__ __forceinline__ uint32_t pack<bf16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* A pair of T as two f32. */
template <typename T> __device__ __forceinline__ float2 unpack(uint32_t pair);
template <> __device__ __forceinline__ float2 unpack<f16>(uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}
template <> __device__ __forceinline__ float2 unpack<bf16>(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* Four elements of a row of x: the pairs of their leading parts, and of what those leave. */
struct Split {
    uint32_t high[2], low[2];
};
template <typename T> __device__ __forceinline__ Split split(const float4 &x) {
    const uint32_t a = pack<T>(x.x, x.y), b = pack<T>(x.z, x.w);
    const float2 ra = unpack<T>(a), rb = unpack<T>(b);
    return {{a, b}, {pack<T>(x.x - ra.x, x.y - ra.y), pack<T>(x.z - rb.x, x.w - rb.y)}};
}

/*
 * sum[16, 8] += a[16, 16] b[16, 8]. Rows 0 to 7 of a are the leading parts of as many rows of x, rows 8 to 15 the
 * rest of them; columns of b are rows of the weight.
 */
template <typename T> __device__ __forceinline__ void multiply(float (&sum)[4], const Split &a, uint32_t b0, uint32_t b1);
#define DJINN_MULTIPLY(T, name)                                                                              \
    template <>                                                                                              \
    __device__ __forceinline__ void multiply<T>(float (&sum)[4], const Split &a, uint32_t b0, uint32_t b1) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, "                 \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                                  \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                         \
            : "r"(a.high[0]), "r"(a.low[0]), "r"(a.high[1]), "r"(a.low[1]), "r"(b0), "r"(b1));               \
    }
DJINN_MULTIPLY(f16, "f16")
DJINN_MULTIPLY(bf16, "bf16")

/* Up to 8 UNITS rows of the weight by up to 8 TILES rows of x. */
template <typename T, unsigned UNITS, unsigned TILES> struct Tensor {
    static constexpr unsigned WARPS = 16, THREADS = 32 * WARPS;
    /* Columns of a run, its 16-byte chunks, and its parts of 32 columns, from which a lane takes 8. */
    static constexpr unsigned RUN = 64, CHUNKS = RUN / 8, PARTS = RUN / 32;
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

        __device__ Fetcher(const djinn_linear_args &a, uint4 *ring, unsigned first, unsigned rows, unsigned warp,
                           unsigned lane, unsigned runs)
            : ring(ring), runs(runs) {
            const unsigned row = lane / CHUNKS, chunk = lane % CHUNKS;
            const size_t row_bytes = size_t(a.k) * sizeof(T);
            const T *weight = static_cast<const T *>(a.weight) + size_t(first) * a.k + warp * RUN + chunk * 8;
            const char *base = reinterpret_cast<const char *>(weight);
            copy_bytes = AT_ONCE * row_bytes, unit_bytes = 8 * row_bytes, next = base + row * row_bytes;
#pragma unroll
            for (unsigned i = 0; i < COPIES; ++i) {
                const unsigned at = row + i * AT_ONCE;
                to[i] = at * CHUNKS + (chunk ^ at);
                last[i] = base + min((UNITS - 1) * 8 + at, rows - 1) * row_bytes;
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

        __device__ __forceinline__ void load(const djinn_linear_args &a, unsigned column, unsigned row, bool inside) {
#pragma unroll
            for (unsigned part = 0; part < PARTS; ++part) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    at[part][tile][0] = at[part][tile][1] = make_float4(0, 0, 0, 0);
                    if (inside && row + 8 * tile < a.rows) {
                        const float *x = a.x + size_t(row + 8 * tile) * a.k + column + part * 32;
                        at[part][tile][0] = *reinterpret_cast<const float4 *>(x);
                        at[part][tile][1] = *reinterpret_cast<const float4 *>(x + 4);
                    }
                }
            }
        }
    };

    static __device__ __forceinline__ void run(const djinn_linear_args &a, unsigned share) {
        extern __shared__ uint4 shared[];
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        /* The last block ends with the weight, and may compute rows of the one before as well, to the same bits. */
        const unsigned first = min(blockIdx.x * share, a.n - share);
        const unsigned all_runs = a.k / RUN, runs = all_runs > warp ? (all_runs - warp + WARPS - 1) / WARPS : 0;
        uint4 *ring = shared + warp * PIECES * PIECE;
        release_next();
        Fetcher fetcher(a, ring, first, share, warp, lane, runs);
#pragma unroll
        for (unsigned i = 0; i + 1 < PIECES; ++i) {
            fetcher.fetch(i % UNITS, i);
        }
        await_previous();

        float sums[UNITS][TILES][4] = {};
        const auto column_of = [&](unsigned i) { return (i * WARPS + warp) * RUN + quad * 8; };
        /* One tile leaves registers to load x a run ahead. */
        constexpr bool AHEAD = TILES == 1;
        Columns x;
        if (AHEAD) {
            x.load(a, column_of(0), group, runs > 0);
        }
        for (unsigned i = 0, slot = 0; i < runs; ++i) {
            if (!AHEAD) {
                x.load(a, column_of(i), group, true);
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
                x.load(a, column_of(i + 1), group, i + 1 < runs);
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
        reduce(a, reinterpret_cast<float *>(shared), sums, first, share);
    }

    /* Adds the warps' sums and stores them. They take the place of the weights. */
    static __device__ __forceinline__ void reduce(const djinn_linear_args &a, float *shared,
                                                  const float (&sums)[UNITS][TILES][4], unsigned first, unsigned rows) {
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
        for (unsigned i = threadIdx.x; i < a.rows * ROWS; i += THREADS) {
            const unsigned column = i / ROWS, row = i % ROWS;
            if (row >= rows) {
                continue;
            }
            float sum = parts[0][column][row];
#pragma unroll
            for (unsigned other = 1; other < WARPS; ++other) {
                sum += parts[other][column][row];
            }
            const unsigned j = first + row;
            a.out[size_t(column) * a.out_width + a.out_column + j] = sum + bias_of(a, j);
        }
    }
};

/* Up to ROWS rows of x; elements are read N at once, and k is a multiple of N. */
template <typename T, unsigned N, unsigned ROWS> __device__ void linear_plain(const djinn_linear_args &a) {
    enter();
    const unsigned lane = threadIdx.x % 32, j = blockIdx.x * WARPS + threadIdx.x / 32;
    if (j >= a.n) {
        return;
    }
    const T *weight = static_cast<const T *>(a.weight) + size_t(j) * a.k;
    float sums[ROWS] = {};
#pragma unroll 4
    for (unsigned at = lane * N; at < a.k; at += 32 * N) {
        const auto w = load<T, N>(weight + at);
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) {
            const auto x = load<float, N>(a.x + size_t(min(r, a.rows - 1)) * a.k + at);
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
        if (lane == 0 && r < a.rows) {
            a.out[size_t(r) * a.out_width + a.out_column + j] = sum + bias;
        }
    }
}

} // namespace djinn

#define DJINN_TENSOR(suffix, T)                                                                              \
    template <unsigned UNITS, unsigned TILES>                                                                \
    __global__ void __launch_bounds__(djinn::Tensor<T, UNITS, TILES>::THREADS)                              \
        djinn_linear_tensor_##suffix(const __grid_constant__ djinn_linear_args a, unsigned share) {          \
        djinn::Tensor<T, UNITS, TILES>::run(a, share);                                                       \
    }
DJINN_TENSOR(f16, djinn::f16)
DJINN_TENSOR(bf16, djinn::bf16)

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned N, unsigned ROWS>                                                                     \
    __global__ void __launch_bounds__(djinn::THREADS)                                                        \
        djinn_linear_##suffix(const __grid_constant__ djinn_linear_args a) {                                 \
        djinn::linear_plain<T, N, ROWS>(a);                                                                  \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

using Kernel = void (*)(djinn_linear_args);

/* The one for a number of rows up to 16. */
#define DJINN_BY_ROWS(kernel, n, rows)                                                                       \
    ((rows) <= 1   ? Kernel(kernel<n, 1>)                                                                    \
     : (rows) <= 2 ? Kernel(kernel<n, 2>)                                                                    \
     : (rows) <= 4 ? Kernel(kernel<n, 4>)                                                                    \
     : (rows) <= 8 ? Kernel(kernel<n, 8>)                                                                    \
                   : Kernel(kernel<n, 16>))

/* The plain kernel for a dtype, a number of columns and a number of rows. */
Kernel plain_kernel(const djinn_linear_args &a) {
    switch (a.weight_dtype) {
    case DJINN_F32:
        return a.k % 4 == 0 ? DJINN_BY_ROWS(djinn_linear_f32, 4, a.rows) : DJINN_BY_ROWS(djinn_linear_f32, 1, a.rows);
    case DJINN_F16: return DJINN_BY_ROWS(djinn_linear_f16, 1, a.rows);
    case DJINN_BF16: return DJINN_BY_ROWS(djinn_linear_bf16, 1, a.rows);
    default: return nullptr;
    }
}

/* Launches the tensor kernel for a number of units and tiles. */
template <typename T, unsigned UNITS, unsigned TILES>
int launch_tensor(const djinn_linear_args &a, unsigned share, void *stream) {
    void (*kernel)(djinn_linear_args, unsigned);
    if constexpr (std::is_same_v<T, f16>) {
        kernel = djinn_linear_tensor_f16<UNITS, TILES>;
    } else {
        kernel = djinn_linear_tensor_bf16<UNITS, TILES>;
    }
    using Kind = Tensor<T, UNITS, TILES>;
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
    return launch(kernel, ceil_div(a.n, share), Kind::THREADS, Kind::SHARED_BYTES, stream, a, share);
}

/* Up to 16 rows on the tensor cores. */
template <typename T> int linear_tensor(const djinn_linear_args &a, void *stream) {
    constexpr unsigned MOST_UNITS = 6;
    const unsigned blocks = all_devices()[current_device()].multiprocessors;
    const unsigned waves = ceil_div(a.n, uint64_t(blocks) * 8 * MOST_UNITS);
    const unsigned share = ceil_div(a.n, uint64_t(blocks) * waves);
    const bool narrow = a.rows <= 8;
    switch (ceil_div(share, 8)) {
    case 1: return narrow ? launch_tensor<T, 1, 1>(a, share, stream) : launch_tensor<T, 1, 2>(a, share, stream);
    case 2: return narrow ? launch_tensor<T, 2, 1>(a, share, stream) : launch_tensor<T, 2, 2>(a, share, stream);
    case 3: return narrow ? launch_tensor<T, 3, 1>(a, share, stream) : launch_tensor<T, 3, 2>(a, share, stream);
    case 4: return narrow ? launch_tensor<T, 4, 1>(a, share, stream) : launch_tensor<T, 4, 2>(a, share, stream);
    case 5: return narrow ? launch_tensor<T, 5, 1>(a, share, stream) : launch_tensor<T, 5, 2>(a, share, stream);
    default: return narrow ? launch_tensor<T, 6, 1>(a, share, stream) : launch_tensor<T, 6, 2>(a, share, stream);
    }
}

int linear_rows(const djinn_linear_args &a, void *stream) {
    if (a.k % 64 == 0 && a.weight_dtype == DJINN_F16) {
        return linear_tensor<f16>(a, stream);
    }
    if (a.k % 64 == 0 && a.weight_dtype == DJINN_BF16) {
        return linear_tensor<bf16>(a, stream);
    }
    const Kernel kernel = plain_kernel(a);
    if (kernel == nullptr) {
        return cudaErrorInvalidValue;
    }
    return launch(kernel, ceil_div(a.n, WARPS), THREADS, 0, stream, a);
}

} // namespace djinn

extern "C" int djinn_linear(const djinn_linear_args *args, void *stream) {
    if (args->bias != nullptr && args->bias_dtype > DJINN_BF16) {
        return cudaErrorInvalidValue;
    }
    for (unsigned row = 0; row < args->rows; row += djinn::MOST_ROWS) {
        djinn_linear_args part = *args;
        part.rows = args->rows - row < djinn::MOST_ROWS ? args->rows - row : djinn::MOST_ROWS;
        part.x += size_t(row) * args->k;
        part.out += size_t(row) * args->out_width;
        const int code = djinn::linear_rows(part, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}
