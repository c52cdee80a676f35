/*
 * What the paths of attention share: runs of rows, biases, partial results.
 */
#ifndef DJINN_ATTENTION_CUH
#define DJINN_ATTENTION_CUH

#include "cluster.cuh"
#include "kv.cuh"

namespace djinn {

constexpr float LOG2_E = 1.4426950408889634f;

/* Weights may be up to 2 to this power: the score that they are relative to need not be the maximum. */
constexpr float MOST_ABOVE = 8;

/* The first position that a row at `position` sees. */
__host__ __device__ __forceinline__ unsigned first_seen(const djinn_attention_args &a, unsigned position) {
    return a.window == 0 || position < a.window ? 0 : position + 1 - a.window;
}

/* Whether some rows may be in runs that are long enough for tiles. */
inline bool may_have_runs(const djinn_attention_args &a) { return a.short_runs == 0 && a.rows > DJINN_PREFILL_RUN; }

/* The tiled paths, for rows in runs of more than DJINN_PREFILL_RUN. They leave other rows alone. */
bool serves_hopper_runs(const djinn_attention_args &a);
int attention_hopper(const djinn_attention_args &a, void *stream);
bool serves_runs(const djinn_attention_args &a);
int attention_runs(const djinn_attention_args &a, void *stream);

/* How many of up to 32 rows from `row` on, in steps of `step`, belong to `sequence`. Called by a whole warp. */
__device__ __forceinline__ unsigned rows_of(const djinn_attention_args &a, unsigned sequence, long long row, int step) {
    const long long mine = row + step * static_cast<long long>(threadIdx.x % 32);
    const bool same = mine >= 0 && mine < a.rows && a.row_seq[mine] == sequence;
    const unsigned others = __ballot_sync(0xffffffffu, !same);
    return others == 0 ? 32 : __ffs(others) - 1;
}

/* Whether the run with `rows` rows from `first` on has more than DJINN_PREFILL_RUN rows in all. Called by a whole warp. */
__device__ __forceinline__ bool is_long(const djinn_attention_args &a, unsigned sequence, unsigned first,
                                        unsigned rows) {
    static_assert(DJINN_PREFILL_RUN <= 32, "one look in either direction is enough");
    const unsigned before = rows_of(a, sequence, static_cast<long long>(first) - 1, -1);
    const unsigned after = rows_of(a, sequence, static_cast<long long>(first) + rows, 1);
    return before + rows + after > DJINN_PREFILL_RUN;
}

/* The slope of a head, rounded to bf16. The exponent is exact and no slope is near a tie, so `exp2f` need not be exact. */
__device__ __forceinline__ float slope_of(unsigned head, unsigned heads) {
    const unsigned power = 1u << (31 - __clz(heads));
    const float step = head < power ? -8.0f : -4.0f;
    const unsigned i = head < power ? head + 1 : 2 * (head - power) + 1;
    return widen(narrow<bf16>(exp2f(step * float(i) / float(power))));
}

__device__ __forceinline__ float bias_at(float slope, unsigned position) {
    return widen(narrow<bf16>(slope * widen(narrow<bf16>(float(position)))));
}

/* 2 to the power of x, or zero if that is subnormal. */
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/* The maximum, and the sum, over the four lanes that hold a row of a fragment. */
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Loads four 8 x 8 matrices of 16-bit elements, transposed if wanted. Lane i has the address of row i % 8 of matrix i / 8. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(uint32_t (&to)[4], unsigned address) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(address)
                     : "memory");
    }
}

/* sum[16, 8] += a[16, 16] b[16, 8]. */
template <typename T>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<f16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<bf16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The splits of `length` positions that a row may see, for the longest context that the page table holds. */
inline unsigned most_splits(const djinn_attention_args &a, unsigned length) {
    const uint64_t positions = uint64_t(a.kv.table_width) * a.kv.page_tokens;
    const unsigned all = ceil_div(positions, length);
    /* A window that begins at the last position of a split reaches the most splits. */
    const uint64_t seen = a.window == 0 ? all : 1 + ceil_div(uint64_t(a.window) - 1, length);
    return seen < all ? unsigned(seen) : all;
}

/* Bytes of a row's partial results. BESIDE_ROWS: bytes besides those of rows. */
inline uint64_t row_bytes(const djinn_attention_args &a, unsigned splits) {
    return uint64_t(splits) * a.heads * (a.kv.head_dim + 2) * sizeof(float);
}
constexpr uint64_t BESIDE_ROWS = 32;

/* The rows whose partial results fit the workspace. */
inline uint64_t rows_that_fit(const djinn_attention_args &a, unsigned splits) {
    const bool fits = a.workspace != nullptr && a.workspace_bytes > BESIDE_ROWS;
    return fits ? (a.workspace_bytes - BESIDE_ROWS) / row_bytes(a, splits) : 0;
}

/* Partial results by row, head and split: first the maximum and sum of each, then the vector of each. */
struct Partials {
    float2 *facts;
    float *vectors;
    unsigned heads, dim, splits;

    __device__ __forceinline__ Partials(const djinn_attention_args &a, unsigned rows, unsigned splits)
        : heads(a.heads), dim(a.kv.head_dim), splits(splits) {
        /* Vectors begin at a multiple of 32 bytes. */
        const size_t count = (size_t(rows) * heads * splits + 3) / 4 * 4;
        facts = reinterpret_cast<float2 *>(a.workspace);
        vectors = a.workspace + 2 * count;
    }

    /* `split` counts from the first split that the row sees. */
    __device__ __forceinline__ size_t at(unsigned row, unsigned head, unsigned split) const {
        return (size_t(row) * heads + head) * splits + split;
    }
    __device__ __forceinline__ float *vector(size_t at) const { return vectors + at * dim; }
};

} // namespace djinn

#endif
