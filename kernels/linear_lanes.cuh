/*
 * What the kernels of `linear` for few rows share, on all cards: products of rows of x with 8 rows of the weight, from
 * fragments in registers.
 */
#ifndef DJINN_LINEAR_LANES_CUH
#define DJINN_LINEAR_LANES_CUH

#include "linear.cuh"

namespace djinn {

/* Four columns of a row of x, rounded: two registers of a fragment. */
struct alignas(8) Four {
    uint32_t low, high;
};

/* sum[16, 8] += x[16, 16] weight[8, 16]^T. `first` has rows 0 to 7 of x, `second` rows 8 to 15. */
template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[4], const Four &first, const Four &second, const uint2 &weight);
#define DJINN_MULTIPLY_LANES(T, name)                                                                        \
    template <>                                                                                              \
    __device__ __forceinline__ void multiply<T>(float (&sum)[4], const Four &first, const Four &second,      \
                                                const uint2 &weight) {                                       \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, "                 \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                                  \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                         \
            : "r"(first.low), "r"(second.low), "r"(first.high), "r"(second.high), "r"(weight.x), "r"(weight.y)); \
    }
DJINN_MULTIPLY_LANES(f16, "f16")
DJINN_MULTIPLY_LANES(bf16, "bf16")
#undef DJINN_MULTIPLY_LANES

/* EACH units of 8 rows of a weight, as the wide operand of the tensor cores, times up to 8 TILES rows of x. */
template <typename T, unsigned EACH, unsigned TILES> struct UnitProducts {
    static_assert(EACH == 1 || EACH % 2 == 0);
    /* Pairs of units, which are multiplied at once. */
    static constexpr unsigned PAIRS = (EACH + 1) / 2;

    using Sums = float[PAIRS][TILES][4];
    /* A lane's columns of a run, in the row of each unit that it has: four of every 16. */
    using Weights = uint2[EACH][4];

    /* Multiplies 16 columns: the lane's four of them in 8 rows of x. */
    static __device__ __forceinline__ void multiply_step(Sums &sums, const Weights &w, unsigned step, unsigned tile,
                                                         const Four &x) {
#pragma unroll
        for (unsigned pair = 0; pair < PAIRS; ++pair) {
            /* With one unit, the upper 8 rows are arbitrary; their sums are not stored. */
            const uint2 low = w[2 * pair][step];
            uint2 high;
            if constexpr (EACH == 1) {
                asm("" : "=r"(high.x), "=r"(high.y));
            } else {
                high = w[2 * pair + 1][step];
            }
            multiply<T>(sums[pair][tile], {low.x, low.y}, {high.x, high.y}, {x.low, x.high});
        }
    }
};

/* The most bytes of all rings of a tensor kernel's block. */
constexpr unsigned MOST_RING = 100 * 1024;

/* The pitch of x's rows in shared memory, in bytes: lanes that read four rows of 32 bytes have no bank conflicts. */
__host__ __device__ inline unsigned staged_pitch(unsigned k) { return k * 2 + 32; }

/* Rounds x to shared memory, by all threads of a block. */
template <typename T, typename Rows>
__device__ __forceinline__ void stage(const djinn_linear_args &a, const Rows &rows, char *staged, unsigned threads) {
    constexpr unsigned BATCH = 4;
    const unsigned chunks = a.k / 8, all = rows.count() * chunks;
    for (unsigned first = threadIdx.x; first < all; first += BATCH * threads) {
        float4 x[BATCH][2];
#pragma unroll
        for (unsigned i = 0; i < BATCH; ++i) {
            const unsigned at = min(first + i * threads, all - 1);
            const float *from = a.x + size_t(rows.in(at / chunks)) * a.k + at % chunks * 8;
            x[i][0] = *reinterpret_cast<const float4 *>(from);
            x[i][1] = *reinterpret_cast<const float4 *>(from + 4);
        }
#pragma unroll
        for (unsigned i = 0; i < BATCH; ++i) {
            const unsigned at = min(first + i * threads, all - 1);
            char *to = staged + at / chunks * staged_pitch(a.k) + at % chunks * 16;
            *reinterpret_cast<uint4 *>(to) = {pack<T>(x[i][0].x, x[i][0].y), pack<T>(x[i][0].z, x[i][0].w),
                                              pack<T>(x[i][1].x, x[i][1].y), pack<T>(x[i][1].z, x[i][1].w)};
        }
    }
    __syncthreads();
}

/*
 * Adds partial sums in order, and stores. `shared` has each partial sum, `size` apart: for each row of x, `width` rows of the
 * weight, those of the share from `first` on. Called by each `thread` of some `threads`, once all of these have stored theirs.
 * These may be of some rows of x only, from `first_x` on: as many as take `size`.
 */
template <typename Rows>
__device__ __forceinline__ void add_partials(const djinn_linear_args &a, const Rows &rows, const float *shared,
                                             unsigned width, unsigned size, const Share &share, unsigned first, unsigned thread,
                                             unsigned threads, unsigned first_x = 0) {
    const unsigned end = min(rows.count() * width, first_x * width + size);
    for (unsigned i = thread; first_x * width + i < end; i += threads) {
        const unsigned x_row = first_x + i / width, row = first + i % width;
        if (row < share.rows) {
            float sum = shared[i];
#pragma unroll
            for (unsigned other = 1; other < PARTIALS; ++other) {
                sum += shared[other * size + i];
            }
            const unsigned j = share.first + row;
            a.out[size_t(rows.out(x_row)) * a.out_width + a.out_column + j] = sum + bias_of(a, j);
        }
    }
}

} // namespace djinn

#endif
