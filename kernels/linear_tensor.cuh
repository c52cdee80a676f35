/*
 * linear for up to 16 rows or slots on the tensor cores. linear.cu describes the launch.
 */
#ifndef DJINN_LINEAR_TENSOR_CUH
#define DJINN_LINEAR_TENSOR_CUH

#include "linear_lanes.cuh"

namespace djinn {

/*
 * GROUPS times EACH units of 8 rows of the weight, times up to 8 TILES rows of x, which `Rows` finds. STAGED: the block
 * first rounds these to shared memory. Else each warp loads and rounds what it needs as it goes, and waits for memory.
 */
template <typename T, unsigned GROUPS, unsigned EACH, unsigned TILES, typename Rows, bool STAGED> struct Tensor {
    static_assert(TILES <= 2);
    static constexpr unsigned WARPS = PARTIALS * GROUPS, THREADS = 32 * WARPS;
    /* 16-byte chunks of a run, and its steps of 16 columns, of which a lane takes 4 each. */
    static constexpr unsigned CHUNKS = RUN / 8, STEPS = RUN / 16;
    /* Rows of a piece (8 rows) that the lanes copy at once. */
    static constexpr unsigned AT_ONCE = 32 / CHUNKS, COPIES = 8 / AT_ONCE;
    static constexpr unsigned PIECE = 8 * CHUNKS, PIECE_BYTES = sizeof(uint4) * PIECE;
    /* Pieces in a warp's ring: about 100 KiB for all warps. */
    static constexpr unsigned PIECES = WARPS == 4 ? 24 : 100 / WARPS;
    /* The most pieces in flight while the ring is first filled: the previous kernel's loads queue behind them. */
    static constexpr unsigned WINDOW = PIECES / 4 > 2 ? PIECES / 4 : 2;
    static constexpr unsigned UNITS = GROUPS * EACH, COLUMNS = 8 * TILES, ROWS = 8 * UNITS;
    static constexpr size_t RING_BYTES = sizeof(uint4) * WARPS * PIECES * PIECE;
    static constexpr size_t SUMS_BYTES = sizeof(float) * PARTIALS * COLUMNS * ROWS;
    static constexpr size_t SHARED_BYTES = RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES;

    /* The place of a chunk of a piece's row: lanes that read two chunks of four rows have no bank conflicts. */
    static __device__ __forceinline__ unsigned place(unsigned row, unsigned chunk) {
        return row * CHUNKS + (chunk ^ row % 4 * 2);
    }

    struct Fetcher {
        /* The lane's places in the ring's first piece. */
        unsigned to[COPIES];
        /* The lane's sources in the next run. Rows past the block's repeat its last. */
        const char *next[EACH][COPIES];
        unsigned runs;

        __device__ Fetcher(const djinn_linear_args &a, uint4 *ring, const Share &share, unsigned partial,
                           unsigned group, unsigned lane, unsigned runs)
            : runs(runs) {
            const unsigned row = lane / CHUNKS, chunk = lane % CHUNKS;
            const T *base = static_cast<const T *>(share.weight) + partial * RUN + chunk * 8;
#pragma unroll
            for (unsigned i = 0; i < COPIES; ++i) {
                const unsigned at = row + i * AT_ONCE;
                to[i] = keep(unsigned(__cvta_generic_to_shared(ring + place(at, chunk))));
#pragma unroll
                for (unsigned unit = 0; unit < EACH; ++unit) {
                    const unsigned from = min((group * EACH + unit) * 8 + at, share.rows - 1);
                    next[unit][i] = reinterpret_cast<const char *>(base + size_t(from) * a.k);
                }
            }
        }

        /* Copies the next piece, of `unit`, to a slot of the ring. */
        __device__ __forceinline__ void fetch(unsigned unit, unsigned slot) {
            constexpr size_t STRIDE = PARTIALS * RUN * sizeof(T);
            if (runs > 0) {
#pragma unroll
                for (unsigned i = 0; i < COPIES; ++i) {
                    copy_async_to(to[i] + slot * PIECE_BYTES, next[unit][i]);
                    next[unit][i] += STRIDE;
                }
            }
            commit_copies();
            if (unit + 1 == EACH) {
                runs -= runs > 0;
            }
        }
    };

    /* The lane's elements of a run of x: for each step and tile, four neighbouring columns of a row. */
    struct Columns {
        float4 at[STEPS][TILES];

        /* `from`: the lane's row of x in each tile. */
        __device__ __forceinline__ void load(const djinn_linear_args &a, const Rows &rows,
                                             const unsigned (&from)[TILES], unsigned column, unsigned row,
                                             bool inside) {
#pragma unroll
            for (unsigned step = 0; step < STEPS; ++step) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    at[step][tile] = make_float4(0, 0, 0, 0);
                    if (inside && row + 8 * tile < rows.count()) {
                        const float *x = a.x + size_t(from[tile]) * a.k + column + step * 16;
                        at[step][tile] = *reinterpret_cast<const float4 *>(x);
                    }
                }
            }
        }

        __device__ __forceinline__ Four rounded(unsigned step, unsigned tile) const {
            const float4 &x = at[step][tile];
            return {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
        }
    };

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Rows &rows, unsigned most) {
        extern __shared__ uint4 shared[];
        char *staged = reinterpret_cast<char *>(shared) + SHARED_BYTES;
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        const unsigned partial = warp % PARTIALS, group = warp / PARTIALS;
        const Share share = share_of<T>(a, rows.weights(), most, blockIdx.x, rows.tile);
        const unsigned runs = runs_of(a, partial);
        uint4 *ring = shared + warp * PIECES * PIECE;
        if constexpr (!Rows::ROUTED) {
            release_next();
            if (a.fresh != 0) {
                await_previous();
            }
        }
        Fetcher fetcher(a, ring, share, partial, group, lane, runs);
#pragma unroll
        for (unsigned i = 0; i + 1 < PIECES; ++i) {
            if (i >= WINDOW) {
                wait_copies<WINDOW - 1>();
            }
            fetcher.fetch(i % EACH, i);
        }
        if constexpr (!Rows::ROUTED) {
            await_previous();
        }
        if constexpr (STAGED) {
            stage<T>(a, rows, staged, THREADS);
        }

        unsigned from[TILES];
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            from[tile] = rows.in(row + 8 * tile);
        }
        float sums[EACH][4] = {};
        const auto column_of = [&](unsigned i) { return (i * PARTIALS + partial) * RUN + quad * 4; };
        /* The lane's part of each step in the ring's first piece. */
        unsigned weight_at[STEPS];
#pragma unroll
        for (unsigned step = 0; step < STEPS; ++step) {
            const uint4 *chunk = ring + place(row, step * 2 + quad / 2);
            weight_at[step] = unsigned(__cvta_generic_to_shared(reinterpret_cast<const uint2 *>(chunk) + quad % 2));
        }
        /* x is loaded one run ahead. */
        Columns x;
        if constexpr (!STAGED) {
            x.load(a, rows, from, column_of(0), row, runs > 0);
        }
#pragma unroll 1
        for (unsigned i = 0, slot = 0; i < runs; ++i) {
            Four parts[STEPS][2] = {};
#pragma unroll
            for (unsigned step = 0; step < STEPS; ++step) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    if constexpr (!STAGED) {
                        parts[step][tile] = x.rounded(step, tile);
                    } else if (row + 8 * tile < rows.count()) {
                        const unsigned at = (row + 8 * tile) * staged_pitch(a.k) + (column_of(i) + step * 16) * 2;
                        parts[step][tile] = *reinterpret_cast<const Four *>(staged + at);
                    }
                }
            }
            if constexpr (!STAGED) {
                x.load(a, rows, from, column_of(i + 1), row, i + 1 < runs);
            }
#pragma unroll
            for (unsigned unit = 0; unit < EACH; ++unit) {
                wait_copies<PIECES - 2>();
                __syncwarp();
                uint2 weights[STEPS];
#pragma unroll
                for (unsigned step = 0; step < STEPS; ++step) {
                    weights[step] = *reinterpret_cast<const uint2 *>(shared_at(weight_at[step] + slot * PIECE_BYTES));
                }
                /* Refills the slot of the piece before, which all lanes have read. */
                fetcher.fetch((unit + PIECES - 1) % EACH, slot == 0 ? PIECES - 1 : slot - 1);
                slot = slot + 1 == PIECES ? 0 : slot + 1;
#pragma unroll
                for (unsigned step = 0; step < STEPS; ++step) {
                    multiply<T>(sums[unit], parts[step][0], parts[step][1], weights[step]);
                }
            }
        }
        wait_copies<0>();
        /* The partial sums replace the weights. */
        float *parts = reinterpret_cast<float *>(shared);
        __syncthreads();
#pragma unroll
        for (unsigned unit = 0; unit < EACH; ++unit) {
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    const unsigned at = (group * EACH + unit) * 8 + quad * 2 + i;
                    parts[(partial * COLUMNS + tile * 8 + row) * ROWS + at] = sums[unit][tile * 2 + i];
                }
            }
        }
        __syncthreads();
        add_partials(a, rows, parts, ROWS, COLUMNS * ROWS, share, 0, threadIdx.x, THREADS);
    }
};

} // namespace djinn

#endif
