/*
 * attention, row by row: out[r, h, :] = softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= positions[r], or
 * the last `window` of them.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], out f32 [rows, heads head_dim]; pages in kv.cuh.
 * CPU reference: djinn-device, kernels/reference.rs, `attention`.
 *
 * The context is cut every SPLIT positions, from position 0 on. Each split gives a maximum, a sum and a vector
 * for each head; they are merged in order of position, by the block itself or, where splits are spread over
 * blocks, by the last of them to end, with the same arithmetic. So the result depends on neither the batch nor
 * the workspace. Splits before a row's window are left out; in the one in which it begins, hidden positions read the
 * first that is seen instead, with a weight of zero.
 * The loads of a split start before its scores are computed, those of values included, as far as registers allow.
 * Launch: blocks of 256 threads; x over rows times groups of up to 4 query heads that share a key head, y over
 * splits, from the first that the row sees. 8 lanes share a position, in steps of 16 bytes where head_dim allows; a
 * block takes 32 positions at once. Blocks beyond a row's context end at once. Beside the tiled path, blocks take
 * several rows.
 */
#include "attention.cuh"

namespace djinn {

constexpr unsigned THREADS = 256, WARPS = THREADS / 32;
constexpr unsigned LANES = 8;
constexpr unsigned SPLIT = 128;
constexpr unsigned SWEEP = THREADS / LANES;
constexpr unsigned MOST_DIM = 256;
/* Where a workspace holds so few rows that more launches were needed, splits are not spread. */
constexpr unsigned MOST_LAUNCHES = 8;

/* Where most rows are left to the tiled path, a block looks at so many. */
constexpr unsigned MOST_PER_BLOCK = 8;

/* Blocks that spread splits may have in common: rows times groups of heads. */
constexpr unsigned MOST_GROUPS = DJINN_SPLIT_ROWS * 256;

/* How many blocks of each group have ended; zero between launches, which take turns. */
__device__ unsigned ended[MOST_GROUPS];

/* What one launch covers. */
struct Part {
    unsigned first_row;
    unsigned rows;
    /* Heads that share a key head, in groups of the kernel's HEADS. */
    unsigned groups;
    /* Splits that a row may see, if they are spread over blocks; 0 if each block takes all of them. */
    unsigned splits;
    /* Rows that a block takes one after the other. */
    unsigned rows_per_block;
    /* Leave rows in long runs to the tiled path. */
    bool skip_runs;
};

/* Maximum, sum and weighted element of the first positions, extended by those of the next. */
__device__ __forceinline__ void merge(float &top, float &sum, float &x, float next_top, float next_sum,
                                      float next_x) {
    const float both = fmaxf(top, next_top), keep = expf(top - both), take = expf(next_top - both);
    sum = __fmaf_rn(sum, keep, __fmul_rn(next_sum, take));
    x = __fmaf_rn(x, keep, __fmul_rn(next_x, take));
    top = both;
}

/* Splits of a context. */
__host__ __device__ __forceinline__ unsigned splits_of(unsigned length) { return (length + SPLIT - 1) / SPLIT; }

/* The slope of a head, rounded to bf16. The exponent is exact, and no slope is near a tie: `exp2f` need not be. */
__device__ __forceinline__ float slope_of(unsigned head, unsigned heads) {
    const unsigned power = 1u << (31 - __clz(heads));
    const float step = head < power ? -8.0f : -4.0f;
    const unsigned i = head < power ? head + 1 : 2 * (head - power) + 1;
    return widen(narrow<bf16>(exp2f(step * float(i) / float(power))));
}

/* The bias of the key at a position. */
__device__ __forceinline__ float bias_at(float slope, unsigned position) {
    return widen(narrow<bf16>(slope * widen(narrow<bf16>(float(position)))));
}

/* The partial result of a row and head: maximum, sum, vector. Splits count from the first that the row sees. */
__device__ __forceinline__ float *partial(const djinn_attention_args &a, const Part &part, unsigned row, unsigned head,
                                          unsigned split) {
    const size_t index = (size_t(row - part.first_row) * a.heads + head) * part.splits + split;
    return a.workspace + index * (a.kv.head_dim + 2);
}

/* N elements at once, CHUNKS times 8 lanes, for up to HEADS heads. */
template <typename T, unsigned N, unsigned CHUNKS, unsigned HEADS> struct Rows {
    static constexpr unsigned DIM = LANES * CHUNKS * N;
    /* Registers of sums, and of a position's elements. */
    static constexpr unsigned SUMS = CHUNKS * N * HEADS;
    static constexpr unsigned EACH = CHUNKS * (N * sizeof(T) > 4 ? N * sizeof(T) / 4 : 1);
    /* Positions under way at once, and blocks that a multiprocessor holds: as registers allow. */
    static constexpr unsigned UNROLL = 4 * EACH + SUMS <= 64 ? 4 : 2 * EACH + SUMS <= 64 ? 2 : 1;
    static_assert(SPLIT % (UNROLL * SWEEP) == 0);
    static constexpr unsigned BLOCKS = SUMS + EACH <= 80 ? 2 : 1;
    static constexpr unsigned OUTPUTS = (HEADS * DIM + THREADS - 1) / THREADS;
    /* All values of a split are under way before its scores are known. */
    static constexpr bool AHEAD = UNROLL * SWEEP == SPLIT && 2 * UNROLL * EACH + SUMS <= 96;

    struct Shared {
        float query[HEADS][DIM];
        const T *key[SPLIT];
        float score[HEADS][SPLIT];
        float top[HEADS], sum[HEADS];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[HEADS], own[HEADS];
        float part[WARPS][HEADS * DIM];
    };

    /* The thread's elements of the positions under way: of every SWEEPth one. */
    struct Batch {
        Pack<T, N> at[UNROLL][CHUNKS];

        /* All loads start before any is used, and before shared memory is written, which they might refer to. */
        __device__ __forceinline__ void load(const Shared &shared, unsigned first, unsigned count, unsigned dim,
                                             size_t offset) {
            const unsigned lane = threadIdx.x % LANES;
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                const unsigned position = first + u * SWEEP;
                if (position < count) {
                    const T *from = shared.key[position] + offset;
                    __builtin_assume(__isGlobal(from));
#pragma unroll
                    for (unsigned c = 0; c < CHUNKS; ++c) {
                        if ((lane + LANES * c) * N < dim) {
                            at[u][c] = djinn::load<T, N>(from + (lane + LANES * c) * N);
                        }
                    }
                }
            }
        }
    };

    /*
     * Scores of the positions `hidden .. count` of a split, which starts at `base`. The bias of the row's own position
     * is taken from all, so that biases cost no precision where weights are greatest.
     */
    static __device__ __forceinline__ void score(Shared &shared, const djinn_attention_args &a, unsigned base,
                                                 unsigned hidden, unsigned count) {
        const unsigned dim = a.kv.head_dim;
#pragma unroll 1
        for (unsigned begin = threadIdx.x / LANES; begin < SPLIT; begin += UNROLL * SWEEP) {
            Batch keys;
            keys.load(shared, begin, count, dim, 0);
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                score_one(shared, a, keys.at[u], base, begin + u * SWEEP, hidden, count);
            }
        }
    }

    /* The score of one position. */
    static __device__ __forceinline__ void score_one(Shared &shared, const djinn_attention_args &a,
                                                     const Pack<T, N> (&key)[CHUNKS], unsigned base, unsigned position,
                                                     unsigned hidden, unsigned count) {
        const unsigned lane = threadIdx.x % LANES;
        const bool live = position < count;
        float dots[HEADS] = {};
#pragma unroll
        for (unsigned c = 0; c < CHUNKS; ++c) {
            const unsigned at = (lane + LANES * c) * N;
            if (live && at < a.kv.head_dim) {
#pragma unroll
                for (unsigned i = 0; i < N; ++i) {
#pragma unroll
                    for (unsigned h = 0; h < HEADS; ++h) {
                        dots[h] = __fmaf_rn(shared.query[h][at + i], widen(key[c].at[i]), dots[h]);
                    }
                }
            }
        }
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned step = LANES / 2; step > 0; step /= 2) {
                dots[h] += __shfl_xor_sync(0xffffffffu, dots[h], step);
            }
            if (lane == 0) {
                if (a.alibi != 0) {
                    const float bias = bias_at(shared.slope[h], base + position) - shared.own[h];
                    dots[h] = __fadd_rn(dots[h], bias);
                }
                const bool seen = live && position >= hidden;
                shared.score[h][position] = seen ? __fmul_rn(dots[h], a.scale) : -INFINITY;
            }
        }
    }

    /* Scores to weights, with their maximum and sum; a warp a head. */
    static __device__ __forceinline__ void weigh(Shared &shared) {
        const unsigned head = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (head >= HEADS) {
            return;
        }
        float scores[SPLIT / 32], top = -INFINITY, sum = 0;
#pragma unroll
        for (unsigned i = 0; i < SPLIT / 32; ++i) {
            scores[i] = shared.score[head][lane + 32 * i];
            top = fmaxf(top, scores[i]);
        }
        top = warp_max(top);
#pragma unroll
        for (unsigned i = 0; i < SPLIT / 32; ++i) {
            scores[i] = expf(scores[i] - top);
            shared.score[head][lane + 32 * i] = scores[i];
            sum += scores[i];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            shared.top[head] = top;
            shared.sum[head] = sum;
        }
    }

    /* Each warp's weighted sum of values, of which the first batch is loaded if AHEAD. */
    static __device__ __forceinline__ void gather(Shared &shared, Batch &values, unsigned count, unsigned dim,
                                                  size_t value) {
        const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / 32;
        float sums[HEADS][CHUNKS * N] = {};
#pragma unroll 1
        for (unsigned begin = threadIdx.x / LANES; begin < count; begin += UNROLL * SWEEP) {
            if (!AHEAD) {
                values.load(shared, begin, count, dim, value);
            }
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                const unsigned position = begin + u * SWEEP;
#pragma unroll
                for (unsigned c = 0; c < CHUNKS; ++c) {
                    if (position < count && (lane + LANES * c) * N < dim) {
#pragma unroll
                        for (unsigned h = 0; h < HEADS; ++h) {
                            const float weight = shared.score[h][position];
#pragma unroll
                            for (unsigned i = 0; i < N; ++i) {
                                float &sum = sums[h][c * N + i];
                                sum = __fmaf_rn(weight, widen(values.at[u][c].at[i]), sum);
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned i = 0; i < CHUNKS * N; ++i) {
                float sum = sums[h][i];
                sum += __shfl_xor_sync(0xffffffffu, sum, LANES);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2 * LANES);
                if (threadIdx.x % 32 < LANES) {
                    shared.part[warp][h * DIM + (lane + LANES * (i / N)) * N + i % N] = sum;
                }
            }
        }
    }

    static __device__ void run(const djinn_attention_args &a, const Part &part) {
        __shared__ Shared shared;
        const unsigned per_row = a.kv.kv_heads * part.groups, which = blockIdx.x % per_row;
        const unsigned begin = part.first_row + blockIdx.x / per_row * part.rows_per_block;
        const unsigned end = min(begin + part.rows_per_block, part.first_row + part.rows);
        for (unsigned row = begin; row < end; ++row) {
            run_row(a, part, shared, row, which);
        }
    }

    static __device__ __forceinline__ void run_row(const djinn_attention_args &a, const Part &part, Shared &shared,
                                                   unsigned row, unsigned which) {
        const unsigned dim = a.kv.head_dim;
        const unsigned shared_by = a.heads / a.kv.kv_heads, kv_head = which / part.groups;
        const unsigned in_group = which % part.groups * HEADS, head = kv_head * shared_by + in_group;
        const unsigned heads = min(HEADS, shared_by - in_group);
        const unsigned length = a.positions[row] + 1, splits = splits_of(length), sequence = a.row_seq[row];
        const unsigned visible = first_seen(a, length - 1), start = visible / SPLIT;
        const unsigned first = part.splits == 0 ? start : start + blockIdx.y;
        const unsigned last = part.splits == 0 ? splits : first + 1;
        if (first >= splits || (part.skip_runs && is_long(a, sequence, row, 1))) {
            return;
        }
        /* The row before is done with the shared memory. */
        __syncthreads();
        const float *queries = a.qkv + (size_t(row) * (a.heads + 2 * a.kv.kv_heads) + head) * dim;
        for (unsigned i = threadIdx.x; i < HEADS * DIM; i += THREADS) {
            const unsigned h = i / DIM, at = i % DIM;
            shared.query[h][at] = h < heads && at < dim ? queries[size_t(h) * dim + at] : 0;
        }
        if (a.alibi != 0 && threadIdx.x < HEADS) {
            /* Heads past the last have queries of zero, and any slope. */
            const float slope = slope_of(min(head + threadIdx.x, a.heads - 1), a.heads);
            shared.slope[threadIdx.x] = slope;
            shared.own[threadIdx.x] = bias_at(slope, length - 1);
        }
        float tops[OUTPUTS] = {}, sums[OUTPUTS] = {}, results[OUTPUTS] = {};
        for (unsigned split = first; split < last; ++split) {
            const unsigned base = split * SPLIT, count = min(SPLIT, length - base);
            const unsigned hidden = visible > base ? visible - base : 0;
            if (threadIdx.x < count) {
                shared.key[threadIdx.x] = key_at<T>(a.kv, sequence, base + max(threadIdx.x, hidden), kv_head);
            }
            __syncthreads();
            Batch values;
            if (AHEAD) {
                values.load(shared, threadIdx.x / LANES, count, dim, value_offset(a.kv));
            }
            score(shared, a, base, hidden, count);
            __syncthreads();
            weigh(shared);
            __syncthreads();
            gather(shared, values, count, dim, value_offset(a.kv));
            __syncthreads();
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; ++o) {
                const unsigned i = o * THREADS + threadIdx.x;
                if (i >= HEADS * DIM) {
                    continue;
                }
                float x = shared.part[0][i];
#pragma unroll
                for (unsigned warp = 1; warp < WARPS; ++warp) {
                    x += shared.part[warp][i];
                }
                const float top = shared.top[i / DIM], sum = shared.sum[i / DIM];
                if (split == first) {
                    tops[o] = top, sums[o] = sum, results[o] = x;
                } else {
                    merge(tops[o], sums[o], results[o], top, sum, x);
                }
            }
        }
        /* `work(output, head of the group, element)` for the outputs that the thread holds. */
        const auto each_output = [&](auto work) {
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; ++o) {
                const unsigned i = o * THREADS + threadIdx.x, h = i / DIM, at = i % DIM;
                if (i < HEADS * DIM && h < heads && at < dim) {
                    work(o, h, at);
                }
            }
        };
        if (part.splits != 0) {
            each_output([&](unsigned o, unsigned h, unsigned at) {
                float *to = partial(a, part, row, head + h, first - start);
                to[2 + at] = results[o];
                if (at == 0) {
                    to[0] = tops[o], to[1] = sums[o];
                }
            });
            const unsigned group = (row - part.first_row) * a.kv.kv_heads * part.groups + which;
            if (!is_last(ended[group], splits - start)) {
                return;
            }
            each_output([&](unsigned o, unsigned h, unsigned at) {
                /* Unrolled, so that loads run ahead of the merges. */
#pragma unroll 4
                for (unsigned split = 0; split < splits - start; ++split) {
                    /* Past the first-level cache: other multiprocessors wrote them. */
                    const float *from = partial(a, part, row, head + h, split);
                    const float top = __ldcg(from), sum = __ldcg(from + 1), x = __ldcg(from + 2 + at);
                    if (split == 0) {
                        tops[o] = top, sums[o] = sum, results[o] = x;
                    } else {
                        merge(tops[o], sums[o], results[o], top, sum, x);
                    }
                }
            });
        }
        each_output([&](unsigned o, unsigned h, unsigned at) {
            a.out[(size_t(row) * a.heads + head + h) * dim + at] = __fdiv_rn(results[o], sums[o]);
        });
    }

    /* Whether this is the last of `blocks` blocks to come here; it then sees what the others wrote before. */
    static __device__ __forceinline__ bool is_last(unsigned &count, unsigned blocks) {
        __shared__ bool last;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(&count, 1) + 1 == blocks;
            if (last) {
                count = 0;
            }
        }
        __syncthreads();
        __threadfence();
        return last;
    }
};

} // namespace djinn

#define DJINN_KERNEL(suffix, T)                                                                              \
    template <unsigned N, unsigned CHUNKS, unsigned HEADS>                                                   \
    __global__ void __launch_bounds__(djinn::THREADS, djinn::Rows<T, N, CHUNKS, HEADS>::BLOCKS)              \
        djinn_attention_##suffix(const __grid_constant__ djinn_attention_args a,                             \
                                 const __grid_constant__ djinn::Part part) {                                 \
        djinn::enter();                                                                                      \
        djinn::Rows<T, N, CHUNKS, HEADS>::run(a, part);                                                      \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

using Kernel = void (*)(djinn_attention_args, Part);

/* A kernel and the heads that it takes at once. */
struct Choice {
    Kernel kernel;
    unsigned heads;
};

#define DJINN_BY_HEADS(kernel, n, chunks)                                                                    \
    (shared_by == 1   ? Choice{kernel<n, chunks, 1>, 1}                                                      \
     : shared_by == 2 ? Choice{kernel<n, chunks, 2>, 2}                                                      \
                      : Choice{kernel<n, chunks, 4>, 4})

/* head_dim is a multiple of n: up to 8 n chunks, twice and four times as many. */
#define DJINN_BY_DIM(kernel, n, chunks)                                                                      \
    (dim <= 8 * n * chunks    ? DJINN_BY_HEADS(kernel, n, chunks)                                            \
     : dim <= 16 * n * chunks ? DJINN_BY_HEADS(kernel, n, 2 * chunks)                                        \
                              : DJINN_BY_HEADS(kernel, n, 4 * chunks))

Choice choose(const djinn_attention_args &a) {
    const unsigned shared_by = a.heads / a.kv.kv_heads, dim = a.kv.head_dim;
    switch (a.kv.dtype) {
    case DJINN_F32:
        return dim % 4 == 0 ? DJINN_BY_DIM(djinn_attention_f32, 4, 2) : Choice{djinn_attention_f32<1, 32, 1>, 1};
    case DJINN_F16:
        return dim % 8 == 0 ? DJINN_BY_DIM(djinn_attention_f16, 8, 1) : Choice{djinn_attention_f16<1, 32, 1>, 1};
    case DJINN_BF16:
        return dim % 8 == 0 ? DJINN_BY_DIM(djinn_attention_bf16, 8, 1) : Choice{djinn_attention_bf16<1, 32, 1>, 1};
    default: return Choice{nullptr, 1};
    }
}

/* Splits that a row may see of the longest context that the page table holds. */
unsigned most_splits(const djinn_attention_args &a) {
    const uint64_t positions = uint64_t(a.kv.table_width) * a.kv.page_tokens;
    const unsigned all = ceil_div(positions, SPLIT);
    /* A window that begins in the last position of a split reaches furthest. */
    const uint64_t seen = a.window == 0 ? all : 1 + ceil_div(uint64_t(a.window) - 1, SPLIT);
    return seen < all ? unsigned(seen) : all;
}

uint64_t row_bytes(const djinn_attention_args &a) {
    return uint64_t(most_splits(a)) * a.heads * (a.kv.head_dim + 2) * sizeof(float);
}

/* Rows that a launch with spread splits takes; 0 if splits are not spread. */
unsigned rows_at_once(const djinn_attention_args &a) {
    const unsigned splits = most_splits(a);
    if (a.workspace == nullptr || splits <= 1 || splits > 65535 || a.rows > DJINN_SPLIT_ROWS ||
        uint64_t(a.rows) * a.heads > MOST_GROUPS) {
        return 0;
    }
    const uint64_t fit = a.workspace_bytes / row_bytes(a);
    const unsigned rows = fit < a.rows ? unsigned(fit) : a.rows;
    return rows != 0 && ceil_div(a.rows, rows) <= MOST_LAUNCHES ? rows : 0;
}

} // namespace djinn

extern "C" uint64_t djinn_attention_workspace(const djinn_attention_args *args) {
    const bool spread = djinn::most_splits(*args) > 1;
    const uint64_t most = DJINN_SPLIT_ROWS, rows = args->rows < most ? args->rows : most;
    return spread ? rows * djinn::row_bytes(*args) : 0;
}

extern "C" int djinn_attention(const djinn_attention_args *args, void *stream) {
    const djinn_attention_args &a = *args;
    if (a.kv.kv_heads == 0 || a.heads % a.kv.kv_heads != 0 || a.kv.head_dim == 0 ||
        a.kv.head_dim > djinn::MOST_DIM) {
        return cudaErrorInvalidValue;
    }
    const djinn::Choice choice = djinn::choose(a);
    if (choice.kernel == nullptr) {
        return cudaErrorInvalidValue;
    }
    const bool runs = djinn::serves_runs(a);
    if (runs) {
        const int code = djinn::attention_runs(a, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    const unsigned at_once = djinn::rows_at_once(a), step = at_once == 0 ? a.rows : at_once;
    const unsigned groups = djinn::ceil_div(a.heads / a.kv.kv_heads, choice.heads);
    for (unsigned row = 0; row < a.rows; row += step) {
        djinn::Part part = {row, a.rows - row < step ? a.rows - row : step, groups, 0, 1, runs};
        if (runs && at_once == 0) {
            part.rows_per_block = djinn::MOST_PER_BLOCK;
        }
        dim3 grid(djinn::ceil_div(part.rows, part.rows_per_block) * a.kv.kv_heads * groups);
        if (at_once != 0) {
            part.splits = grid.y = djinn::most_splits(a);
        }
        const int code = djinn::launch(choice.kernel, grid, djinn::THREADS, 0, stream, a, part);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}
