/*
 * What the two paths of attention share: which rows belong to which.
 */
#ifndef DJINN_ATTENTION_CUH
#define DJINN_ATTENTION_CUH

#include "kv.cuh"

namespace djinn {

/* Whether some rows may take the tiled path. */
inline bool serves_runs(const djinn_attention_args &a) {
    const bool fits = a.kv.dtype != DJINN_F32 && (a.kv.head_dim == 64 || a.kv.head_dim == 128);
    return fits && a.exact == 0 && a.alibi == 0 && a.rows > DJINN_PREFILL_RUN;
}

/* The first position that a row at `position` sees. */
__host__ __device__ __forceinline__ unsigned first_seen(const djinn_attention_args &a, unsigned position) {
    return a.window == 0 || position < a.window ? 0 : position + 1 - a.window;
}

/* The tiled path, for rows in runs of more than DJINN_PREFILL_RUN; leaves the others alone. */
int attention_runs(const djinn_attention_args &a, void *stream);

/* How many of up to 32 rows from `row` on, in steps of `step`, belong to `sequence`. For a whole warp. */
__device__ __forceinline__ unsigned rows_of(const djinn_attention_args &a, unsigned sequence, long long row, int step) {
    const long long mine = row + step * static_cast<long long>(threadIdx.x % 32);
    const bool same = mine >= 0 && mine < a.rows && a.row_seq[mine] == sequence;
    const unsigned others = __ballot_sync(0xffffffffu, !same);
    return others == 0 ? 32 : __ffs(others) - 1;
}

/* Whether a run of `rows` rows from `first` on extends to more than DJINN_PREFILL_RUN. For a whole warp. */
__device__ __forceinline__ bool is_long(const djinn_attention_args &a, unsigned sequence, unsigned first,
                                        unsigned rows) {
    static_assert(DJINN_PREFILL_RUN <= 32, "one look in either direction is enough");
    const unsigned before = rows_of(a, sequence, static_cast<long long>(first) - 1, -1);
    const unsigned after = rows_of(a, sequence, static_cast<long long>(first) + rows, 1);
    return before + rows + after > DJINN_PREFILL_RUN;
}

} // namespace djinn

#endif
