/*
 * attention in tiles, on the tensor cores, for rows in runs of more than DJINN_PREFILL_RUN of one sequence: out[r, h, :] =
 * softmax(q[r, h, :] K scale) V over positions 0 ..= positions[r], or the last `window` of them.
 * Shapes: as in attention.cu; f16, bf16 or aligned int8 pages, head_dim 64 or 128. int8 becomes f16 on its way to shared
 * memory.
 * Reference: djinn-device, src/reference.rs, `attention`.
 *
 * The method is FlashAttention-2 (Dao, 2023): the running maximum and sum of each row are kept while 64 keys and values at a
 * time pass through shared memory, two stages deep. Tiles of keys start at position 0. A tile that a row does not see, past
 * the row or before its window, changes none of its bits; so a row depends on its queries and its context alone. Tiles
 * before the window of every row are left out.
 * Launch: blocks of 4 warps; x over heads, y over tiles of 64 rows, 16 for each warp. A tile may hold several runs: they are
 * taken in turn, and rows outside the current one see nothing.
 */
#include "attention.cuh"

namespace djinn {

constexpr unsigned THREADS = 128;
constexpr unsigned TILE = 64;

/* For pages of `Stored`. */
template <typename Stored, unsigned DIM> struct Tiles {
    using T = Product<Stored>;
    /* Elements of a row in shared memory, padded so that fragments have no bank conflicts. */
    static constexpr unsigned PITCH = DIM + 8;
    static constexpr unsigned STEPS = DIM / 16;
    static constexpr unsigned BLOCKS = TILE / 8;

    struct Shared {
        T keys[2][TILE][PITCH];
        T values[2][TILE][PITCH];
    };

    /* A warp's 16 rows. A thread has rows `group` and `group + 8`. */
    struct Warp {
        uint32_t queries[STEPS][4];
        float out[DIM / 8][4];
        float top[2], sum[2];
        /* The positions of the current run that each row sees: from `from` on and before `sees`. */
        unsigned from[2], sees[2];
    };

    /* Starts the copy of a tile. Positions before `lowest` and from `length` on become zeros. */
    static __device__ __forceinline__ void fetch(Shared &shared, const djinn_kv_pages &kv, unsigned sequence,
                                                 unsigned kv_head, unsigned tile, unsigned lowest, unsigned length) {
        constexpr unsigned PIECE = PER_16_BYTES<Stored>, CHUNKS = DIM / PIECE;
#pragma unroll 4
        for (unsigned i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
            const unsigned slot = i / CHUNKS, at = i % CHUNKS * PIECE, position = tile * TILE + slot;
            const bool inside = position >= lowest && position < length;
            const unsigned read = inside ? position : lowest;
            const Stored *const vector = key_at<Stored>(kv, sequence, read, kv_head);
#pragma unroll
            for (unsigned part = 0; part < 2; ++part) {
                T *const to = &(part == 0 ? shared.keys : shared.values)[tile % 2][slot][at];
                const Stored *const from = vector + part * value_offset<Stored>(kv);
                if constexpr (IS_INT8<Stored>) {
                    const float scale = inside ? load_scale(scale_at(kv, from, read)) : 0;
                    store_widened(to, to + 8, *reinterpret_cast<const uint4 *>(from + at), HalfScale(scale));
                } else {
                    copy_async(to, from + at, inside);
                }
            }
        }
        commit_copies();
    }

    static __device__ __forceinline__ void load_queries(Warp &w, const djinn_attention_args &a, unsigned row) {
        const unsigned quad = threadIdx.x % 4;
        const size_t width = size_t(a.heads + 2 * a.kv.kv_heads) * DIM;
        /* Rows past the last repeat it, see nothing, and are not stored. */
        const float *upper = a.qkv + min(row, a.rows - 1) * width + size_t(blockIdx.x) * DIM + 2 * quad;
        const float *lower = a.qkv + min(row + 8, a.rows - 1) * width + size_t(blockIdx.x) * DIM + 2 * quad;
#pragma unroll
        for (unsigned s = 0; s < STEPS; ++s) {
#pragma unroll
            for (unsigned half = 0; half < 2; ++half) {
                const auto u = load<float, 2>(upper + s * 16 + half * 8);
                const auto l = load<float, 2>(lower + s * 16 + half * 8);
                w.queries[s][2 * half] = pack<T>(u.at[0], u.at[1]);
                w.queries[s][2 * half + 1] = pack<T>(l.at[0], l.at[1]);
            }
        }
    }

    static __device__ __forceinline__ void extend(Warp &w, const T (&keys)[TILE][PITCH], const T (&values)[TILE][PITCH],
                                                  unsigned base, float scale) {
        const unsigned lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
        float scores[BLOCKS][4] = {};
#pragma unroll
        for (unsigned b = 0; b < BLOCKS; ++b) {
            const uint32_t *row = reinterpret_cast<const uint32_t *>(&keys[b * 8 + group][0]) + quad;
#pragma unroll
            for (unsigned s = 0; s < STEPS; ++s) {
                multiply<T>(scores[b], w.queries[s], row[s * 8], row[s * 8 + 4]);
            }
        }
        float top[2] = {w.top[0], w.top[1]};
#pragma unroll
        for (unsigned b = 0; b < BLOCKS; ++b) {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned position = base + b * 8 + 2 * quad + i % 2;
                const bool seen = position >= w.from[i / 2] && position < w.sees[i / 2];
                scores[b][i] = seen ? scores[b][i] * scale : -INFINITY;
                top[i / 2] = fmaxf(top[i / 2], scores[b][i]);
            }
        }
        float keep[2], offset[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            top[i] = quad_max(top[i]);
            /* A row that has seen nothing yet has no maximum; any finite offset gives it zeros. */
            offset[i] = top[i] == -INFINITY ? 0 : top[i];
            keep[i] = exp2f(w.top[i] - offset[i]);
            w.top[i] = top[i];
            w.sum[i] *= keep[i];
        }
#pragma unroll
        for (unsigned d = 0; d < DIM / 8; ++d) {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                w.out[d][i] *= keep[i / 2];
            }
        }
#pragma unroll
        for (unsigned b = 0; b < BLOCKS; ++b) {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                scores[b][i] = exp2f(scores[b][i] - offset[i / 2]);
                w.sum[i / 2] += scores[b][i];
            }
        }
        /* This lane's row of the four matrices: 16 positions by 16 elements. */
        const unsigned matrix_row = lane % 16, matrix_column = lane / 16 * 8;
#pragma unroll
        for (unsigned s = 0; s < TILE / 16; ++s) {
            const uint32_t weights[4] = {pack<T>(scores[2 * s][0], scores[2 * s][1]),
                                         pack<T>(scores[2 * s][2], scores[2 * s][3]),
                                         pack<T>(scores[2 * s + 1][0], scores[2 * s + 1][1]),
                                         pack<T>(scores[2 * s + 1][2], scores[2 * s + 1][3])};
#pragma unroll
            for (unsigned d = 0; d < DIM / 16; ++d) {
                uint32_t v[4];
                load_matrices<true>(v, shared_address(&values[s * 16 + matrix_row][d * 16 + matrix_column]));
                multiply<T>(w.out[2 * d], weights, v[0], v[1]);
                multiply<T>(w.out[2 * d + 1], weights, v[2], v[3]);
            }
        }
    }

    static __device__ __forceinline__ void write(const Warp &w, const djinn_attention_args &a, unsigned row,
                                                 const bool (&mine)[2]) {
        const unsigned quad = threadIdx.x % 4;
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const float sum = quad_sum(w.sum[i]);
            if (!mine[i]) {
                continue;
            }
            const size_t to = (size_t(row + 8 * i) * a.heads + blockIdx.x) * DIM + 2 * quad;
#pragma unroll
            for (unsigned d = 0; d < DIM / 8; ++d) {
                const Pack<float, 2> x{w.out[d][2 * i] / sum, w.out[d][2 * i + 1] / sum};
                store_output(a.out, a.rounded, to + d * 8, x);
            }
        }
    }

    static __device__ void run(const djinn_attention_args &a) {
        extern __shared__ __align__(16) unsigned char bytes[];
        Shared &shared = *reinterpret_cast<Shared *>(bytes);
        /* The last tiles see the most, so they start first. */
        const unsigned first = (gridDim.y - 1 - blockIdx.y) * TILE, end = min(first + TILE, a.rows);
        const unsigned warp_first = first + threadIdx.x / 32 * 16, row = warp_first + threadIdx.x % 32 / 4;
        const unsigned kv_head = blockIdx.x / (a.heads / a.kv.kv_heads);
        const float scale = a.scale * LOG2_E;
        Warp w = {};
        w.top[0] = w.top[1] = -INFINITY;
        load_queries(w, a, row);
        bool mine[2] = {false, false};

        for (unsigned begin = first; begin < end;) {
            const unsigned sequence = a.row_seq[begin];
            /* A tile has 64 rows; `rows_of` sees 32. */
            unsigned rows = rows_of(a, sequence, begin, 1);
            rows += rows == 32 ? rows_of(a, sequence, begin + 32, 1) : 0;
            const unsigned stop = min(begin + rows, end);
            if (is_long(a, sequence, begin, stop - begin)) {
                const unsigned length = a.positions[stop - 1] + 1, tiles = (length + TILE - 1) / TILE;
                const unsigned lowest = first_seen(a, a.positions[begin]), start = lowest / TILE;
                /* What the warp's rows see in all. */
                unsigned from = 0, seen = 0;
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    const bool inside = row + 8 * i >= begin && row + 8 * i < stop;
                    w.from[i] = inside ? first_seen(a, a.positions[row + 8 * i]) : 0;
                    w.sees[i] = inside ? a.positions[row + 8 * i] + 1 : 0;
                    mine[i] |= inside;
                }
                if (warp_first < stop && warp_first + 16 > begin) {
                    from = first_seen(a, a.positions[max(warp_first, begin)]);
                    seen = a.positions[min(warp_first + 16, stop) - 1] + 1;
                }
                fetch(shared, a.kv, sequence, kv_head, start, lowest, length);
                for (unsigned tile = start; tile < tiles; ++tile) {
                    if (tile + 1 < tiles) {
                        fetch(shared, a.kv, sequence, kv_head, tile + 1, lowest, length);
                        wait_copies<1>();
                    } else {
                        wait_copies<0>();
                    }
                    __syncthreads();
                    if (tile * TILE < seen && (tile + 1) * TILE > from) {
                        extend(w, shared.keys[tile % 2], shared.values[tile % 2], tile * TILE, scale);
                    }
                    __syncthreads();
                }
            }
            begin = stop;
        }
        write(w, a, row, mine);
    }
};

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned DIM>                                                                                  \
    __global__ void __launch_bounds__(djinn::THREADS)                                                        \
        djinn_attention_prefill_##suffix(const __grid_constant__ djinn_attention_args a) {                   \
        djinn::enter();                                                                                      \
        djinn::Tiles<T, DIM>::run(a);                                                                        \
    }
DJINN_KERNEL(f16, djinn::f16)
DJINN_KERNEL(bf16, djinn::bf16)
DJINN_KERNEL(int8, djinn::int8)

namespace djinn {

using Kernel = void (*)(djinn_attention_args);

bool serves_runs(const djinn_attention_args &a) {
    const bool typed = a.kv.dtype == DJINN_INT8 ? is_aligned_int8(a.kv) : a.kv.dtype != DJINN_F32;
    const bool fits = typed && (a.kv.head_dim == 64 || a.kv.head_dim == 128);
    return fits && may_have_runs(a) && a.alibi == 0;
}

int attention_runs(const djinn_attention_args &a, void *stream) {
    const bool wide = a.kv.head_dim == 128;
    const Kernel f16_kernel = wide ? djinn_attention_prefill_f16<128> : djinn_attention_prefill_f16<64>;
    const Kernel bf16_kernel = wide ? djinn_attention_prefill_bf16<128> : djinn_attention_prefill_bf16<64>;
    const Kernel int8_kernel = wide ? djinn_attention_prefill_int8<128> : djinn_attention_prefill_int8<64>;
    const Kernel kernel = a.kv.dtype == DJINN_F16    ? f16_kernel
                          : a.kv.dtype == DJINN_BF16 ? bf16_kernel
                                                     : int8_kernel;
    const size_t bytes = wide ? sizeof(Tiles<f16, 128>::Shared) : sizeof(Tiles<f16, 64>::Shared);
    const cudaError_t code = allow_shared(kernel, bytes);
    if (code != cudaSuccess) {
        return code;
    }
    return launch(kernel, dim3(a.heads, ceil_div(a.rows, TILE)), THREADS, bytes, stream, a);
}

} // namespace djinn
