/*
 * attention, row by row: out[r, h, :] = softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= positions[r], or
 * the last `window` of them.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], out f32 [rows, heads head_dim]; pages in kv.cuh.
 * CPU reference: djinn-device, kernels/reference.rs, `attention`.
 *
 * The context is cut every SPLIT positions, from position 0 on. Each split gives a maximum, a sum and a vector
 * for each head; they are merged in order of position, by the block itself or, where splits are spread over
 * blocks, by the last of them to end, with the same arithmetic. Within a split each warp takes an equal share of the
 * positions, and the shares' results are added in order. So the result depends on neither the batch nor the workspace.
 * Splits and tiles before a row's window are left out; hidden positions of a tile stand for one that is seen, with a
 * weight of zero.
 * Warps meet only at the end of a split. Each takes tiles of keys and values in registers: the next keys are under way
 * while values are weighted, the next values while keys are multiplied. Sixteen such warps fill a multiprocessor, and
 * keep the memory busy while some of them begin or end.
 * Launch: x over rows times groups of up to 4 query heads that share a key head, y over splits, from the first that
 * the row sees. Blocks beyond a row's context end at once. Beside the tiled path, blocks take several rows.
 */
#include "attention.cuh"

namespace djinn {

constexpr unsigned SPLIT = 256;
/* Threads that a multiprocessor holds, with 128 registers each. */
constexpr unsigned RESIDENT = 512;
/* Threads of a block. Where heads share keys, blocks are fewer and take longer: more warps share a split. */
constexpr unsigned threads_for(unsigned heads) { return heads == 1 ? 128 : 256; }
constexpr unsigned blocks_for(unsigned heads) { return RESIDENT / threads_for(heads); }
constexpr unsigned MOST_DIM = 256;
constexpr float LOG2_E = 1.4426950408889634f;
/* Weights may be up to 2 to this power. */
constexpr float MOST_ABOVE = 8;
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

/* 2 to the power of x; zero where that is subnormal. */
__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/*
 * Some positions' sum of weights and weighted element, where a score of `top` has a weight of one; of none at first.
 * Scores are logarithms to base 2.
 */
struct Result {
    float top = -INFINITY, sum = 0, x = 0;

    /* Adds the positions that follow, which are some. */
    __device__ __forceinline__ void merge(const Result &next) {
        const float both = fmaxf(top, next.top);
        const float keep = power_of_two(top - both), take = power_of_two(next.top - both);
        sum = __fmaf_rn(sum, keep, __fmul_rn(next.sum, take));
        x = __fmaf_rn(x, keep, __fmul_rn(next.x, take));
        top = both;
    }
};

/*
 * N elements of T, in words as they were loaded: single elements that live from one round of a loop to the next would
 * be taken apart, and waited for, in the first.
 */
template <typename T, unsigned N> struct Raw {
    uint32_t words[(N * sizeof(T) + 3) / 4];

    __device__ __forceinline__ void load(const T *from) {
        if constexpr (N * sizeof(T) < 4) {
            words[0] = *reinterpret_cast<const uint16_t *>(from);
        } else {
            const auto pack = djinn::load<uint32_t, N * sizeof(T) / 4>(reinterpret_cast<const uint32_t *>(from));
#pragma unroll
            for (unsigned i = 0; i < N * sizeof(T) / 4; ++i) {
                words[i] = pack.at[i];
            }
        }
    }

    __device__ __forceinline__ float at(unsigned i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[i]);
        } else {
            const uint32_t word = words[i / 2];
            return i % 2 == 0 ? low(word, T{}) : high(word, T{});
        }
    }

    static __device__ __forceinline__ float low(uint32_t word, f16) { return __low2float(halves(word)); }
    static __device__ __forceinline__ float high(uint32_t word, f16) { return __high2float(halves(word)); }
    static __device__ __forceinline__ float low(uint32_t word, bf16) { return __uint_as_float(word << 16); }
    static __device__ __forceinline__ float high(uint32_t word, bf16) { return __uint_as_float(word & 0xffff0000u); }
    static __device__ __forceinline__ __half2 halves(uint32_t word) {
        return *reinterpret_cast<const __half2 *>(&word);
    }
};

/* `a` or `b`; never as a branch. */
__device__ __forceinline__ float select(bool first, float a, float b) {
    float x;
    asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
        : "=f"(x)
        : "f"(a), "f"(b), "r"(unsigned(first)));
    return x;
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

/* The partial result of a row and head: `top`, `sum`, vector. Splits count from the first that the row sees. */
__device__ __forceinline__ float *partial(const djinn_attention_args &a, const Part &part, unsigned row, unsigned head,
                                          unsigned split) {
    const size_t index = (size_t(row - part.first_row) * a.heads + head) * part.splits + split;
    return a.workspace + index * (a.kv.head_dim + 2);
}

/*
 * Kernels for rows of up to DIM elements, loaded N at once, and up to HEADS heads that share a key head. LANES lanes
 * share a position, so a warp takes AT_ONCE of them at once.
 */
template <typename T, unsigned N, unsigned DIM, unsigned HEADS> struct Rows {
    static constexpr unsigned THREADS = threads_for(HEADS), WARPS = THREADS / 32;
    /* Positions of a split that a warp takes. */
    static constexpr unsigned SHARE = SPLIT / WARPS;
    static constexpr unsigned LANES = DIM / N < 32 ? DIM / N : 32, AT_ONCE = 32 / LANES;
    static constexpr unsigned CHUNKS = DIM / (LANES * N);
    /* Registers of a position's elements, and of queries or results. */
    static constexpr unsigned EACH = CHUNKS * (N * sizeof(T) > 4 ? N * sizeof(T) / 4 : 1);
    static constexpr unsigned WIDTH = CHUNKS * N * HEADS;
    /* Positions of a tile for LANES lanes, as registers allow: keys, values and scores beside queries and results. */
    static constexpr bool fits(unsigned unroll) { return 2 * unroll * EACH + 2 * WIDTH + unroll * HEADS <= 88; }
    static constexpr unsigned UNROLL = fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
    static constexpr unsigned TILE = UNROLL * AT_ONCE;
    /* Scores of a tile that LANES lanes compute, and lanes that share one in the end. */
    static constexpr unsigned SCORES = UNROLL * HEADS, SAME = LANES / SCORES;
    static_assert(SHARE % TILE == 0 && SCORES <= LANES);
    static constexpr unsigned OUTPUTS = (HEADS * DIM + THREADS - 1) / THREADS;
    /* Splits that are merged at once in the end. */
    static constexpr unsigned AT_END = OUTPUTS <= 8 ? 16 / OUTPUTS : 1;

    struct Shared {
        const T *key[WARPS][SHARE];
        /* With biases: each head's slope, and the bias of the row's own position. */
        float slope[HEADS], own[HEADS];
        /* What each warp found; a maximum of -INFINITY if it saw no position. */
        float top[WARPS][HEADS], sum[WARPS][HEADS];
        float part[WARPS][HEADS * DIM];
        /* Of all splits so far; thread i holds every THREADSth from i on. */
        Result result[HEADS * DIM];
    };

    /* Queries are aligned to 16 bytes alone, whatever the elements of keys are. */
    static constexpr unsigned PIECE = N < 4 ? N : 4;
    using Query = Pack<float, PIECE>[HEADS][CHUNKS * N / PIECE];

    /* The lane's elements of a tile of keys or values. */
    struct Tile {
        Raw<T, N> at[UNROLL][CHUNKS];

        /* Of the positions from key[0] on. Lanes past the end of a row read its start: their queries are zero. */
        __device__ __forceinline__ void load(const T *const *key, unsigned dim, size_t offset) {
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                const T *from = key[u * AT_ONCE + threadIdx.x % 32 / LANES] + offset;
                __builtin_assume(__isGlobal(from));
#pragma unroll
                for (unsigned c = 0; c < CHUNKS; ++c) {
                    const unsigned element = element_of(c);
                    at[u][c].load(from + (element < dim ? element : 0));
                }
            }
        }
    };

    /* The first of the lane's elements of a chunk. */
    static __device__ __forceinline__ unsigned element_of(unsigned chunk) {
        return (threadIdx.x % LANES + LANES * chunk) * N;
    }

    /*
     * The warp's share of a split, from position `base` on, of which the row sees `begin .. end`; none if empty.
     */
    static __device__ __forceinline__ void take_share(const djinn_attention_args &a, Shared &shared, const Query &query,
                                                      unsigned sequence, unsigned kv_head, unsigned base,
                                                      unsigned begin, unsigned end) {
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.head_dim;
        if (begin >= end) {
            if (lane < HEADS) {
                shared.top[warp][lane] = -INFINITY;
                shared.sum[warp][lane] = 0;
            }
#pragma unroll 1
            for (unsigned i = lane; i < HEADS * DIM; i += 32) {
                shared.part[warp][i] = 0;
            }
            return;
        }
        const T **key = shared.key[warp];
#pragma unroll
        for (unsigned i = lane; i < SHARE; i += 32) {
            key[i] = key_at<T>(a.kv, sequence, min(max(base + i, begin), end - 1), kv_head);
        }
        __syncwarp();
        const size_t value = value_offset(a.kv);
        /* The score of a tile that the lane ends up with: of its group's `mine`th position, for a head. */
        const unsigned score = lane % LANES / SAME, mine = score % UNROLL, my_head = score / UNROLL;
        /*
         * As in Result: `top` of the lane's head, `sum` of its scores, `results` of its group of LANES lanes. Scores
         * may be up to MOST_ABOVE above `top`, so that it rarely changes after the first tile.
         */
        float top = -INFINITY, sum = 0, results[HEADS][CHUNKS * N] = {};
        const float scale = __fmul_rn(a.scale, LOG2_E);
        unsigned first = (begin - base) / TILE * TILE;
        const unsigned last = (end - 1 - base) / TILE * TILE;
        Tile keys, values;
        keys.load(key + first, dim, 0);
        values.load(key + first, dim, value);
#pragma unroll 1
        for (; first <= last; first += TILE) {
            float scores[SCORES] = {};
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (unsigned i = 0; i < CHUNKS * N; ++i) {
                    const float x = keys.at[u][i / N].at(i % N);
#pragma unroll
                    for (unsigned h = 0; h < HEADS; ++h) {
                        float &dot = scores[h * UNROLL + u];
                        dot = __fmaf_rn(query[h][i / PIECE].at[i % PIECE], x, dot);
                    }
                }
            }
            if (first < last) {
                keys.load(key + first + TILE, dim, 0);
            }
            float weight = sum_of_lanes(scores);
            const unsigned position = base + first + mine * AT_ONCE + lane / LANES;
            if (a.alibi != 0) {
                /*
                 * The bias of the row's own position is taken from all, so that biases cost no precision where weights
                 * are greatest.
                 */
                weight = __fadd_rn(weight, bias_at(shared.slope[my_head], position) - shared.own[my_head]);
            }
            weight = position >= begin && position < end ? __fmul_rn(weight, scale) : -INFINITY;
            if (__any_sync(0xffffffffu, weight > top + MOST_ABOVE)) {
                float next = fmaxf(top, weight);
#pragma unroll
                for (unsigned step = 16; step > 0; step /= 2) {
                    if (step >= LANES || (step >= SAME && step < SAME * UNROLL)) {
                        next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, step));
                    }
                }
                const float keep = power_of_two(top - next);
                top = next;
                sum = __fmul_rn(sum, keep);
#pragma unroll
                for (unsigned h = 0; h < HEADS; ++h) {
                    const float keep_h = __shfl_sync(0xffffffffu, keep, h * UNROLL * SAME);
#pragma unroll
                    for (unsigned i = 0; i < CHUNKS * N; ++i) {
                        results[h][i] = __fmul_rn(results[h][i], keep_h);
                    }
                }
            }
            weight = power_of_two(weight - top);
            sum = __fadd_rn(sum, weight);
#pragma unroll
            for (unsigned u = 0; u < UNROLL; ++u) {
                float weights[HEADS];
#pragma unroll
                for (unsigned h = 0; h < HEADS; ++h) {
                    weights[h] = __shfl_sync(0xffffffffu, weight, (h * UNROLL + u) * SAME, LANES);
                }
#pragma unroll
                for (unsigned i = 0; i < CHUNKS * N; ++i) {
                    const float x = values.at[u][i / N].at(i % N);
#pragma unroll
                    for (unsigned h = 0; h < HEADS; ++h) {
                        results[h][i] = __fmaf_rn(weights[h], x, results[h][i]);
                    }
                }
            }
            if (first < last) {
                values.load(key + first + TILE, dim, value);
            }
        }
#pragma unroll
        for (unsigned step = SAME; step < SAME * UNROLL; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        sum = sum_of_groups(sum);
        if (lane < LANES && mine == 0) {
            shared.top[warp][my_head] = top;
            shared.sum[warp][my_head] = sum;
        }
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned i = 0; i < CHUNKS * N; ++i) {
                const float x = sum_of_groups(results[h][i]);
                if (lane < LANES) {
                    shared.part[warp][h * DIM + element_of(i / N) + i % N] = x;
                }
            }
        }
    }

    /* Each of the scores summed over LANES lanes: SAME lanes get the first, as many the second, and so on. */
    static __device__ __forceinline__ float sum_of_lanes(float (&scores)[SCORES]) {
#pragma unroll
        for (unsigned step = LANES / 2; step > 0; step /= 2) {
            const unsigned rest = SCORES * step / LANES;
            if (rest == 0) {
                scores[0] += __shfl_xor_sync(0xffffffffu, scores[0], step);
                continue;
            }
            const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
            for (unsigned i = 0; i < rest; ++i) {
                const float theirs = select(upper, scores[i], scores[i + rest]);
                scores[i] = select(upper, scores[i + rest], scores[i]) + __shfl_xor_sync(0xffffffffu, theirs, step);
            }
        }
        return scores[0];
    }

    /* The sum over the warp's groups of LANES lanes. */
    static __device__ __forceinline__ float sum_of_groups(float x) {
#pragma unroll
        for (unsigned step = LANES; step < 32; step *= 2) {
            x += __shfl_xor_sync(0xffffffffu, x, step);
        }
        return x;
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
        const float *queries = a.qkv + (size_t(row) * (a.heads + 2 * a.kv.kv_heads) + head) * dim;
        Query query;
#pragma unroll
        for (unsigned h = 0; h < HEADS; ++h) {
#pragma unroll
            for (unsigned i = 0; i < CHUNKS * N; i += PIECE) {
                const unsigned at = element_of(i / N) + i % N;
                const float *from = queries + size_t(h) * dim + at;
                query[h][i / PIECE] = h < heads && at < dim ? load<float, PIECE>(from) : Pack<float, PIECE>{};
            }
        }
        if (a.alibi != 0 && threadIdx.x < HEADS) {
            /* Heads past the last have queries of zero, and any slope. */
            const float slope = slope_of(min(head + threadIdx.x, a.heads - 1), a.heads);
            shared.slope[threadIdx.x] = slope;
            shared.own[threadIdx.x] = bias_at(slope, length - 1);
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
        Result *const results = shared.result + threadIdx.x;
        each_output([&](unsigned o, unsigned, unsigned) { results[o * THREADS] = Result{}; });
#pragma unroll 1
        for (unsigned split = first; split < last; ++split) {
            const unsigned base = split * SPLIT + threadIdx.x / 32 * SHARE;
            /* The split or row before is done with the shared memory. */
            __syncthreads();
            take_share(a, shared, query, sequence, kv_head, base, max(base, visible), min(base + SHARE, length));
            __syncthreads();
            each_output([&](unsigned o, unsigned h, unsigned at) {
                Result whole;
#pragma unroll
                for (unsigned warp = 0; warp < WARPS; ++warp) {
                    whole.top = fmaxf(whole.top, shared.top[warp][h]);
                }
#pragma unroll
                for (unsigned warp = 0; warp < WARPS; ++warp) {
                    const float take = power_of_two(shared.top[warp][h] - whole.top);
                    whole.sum = __fmaf_rn(shared.sum[warp][h], take, whole.sum);
                    whole.x = __fmaf_rn(shared.part[warp][h * DIM + at], take, whole.x);
                }
                results[o * THREADS].merge(whole);
            });
        }
        /* A row that sees one split alone has its result already. */
        if (part.splits != 0 && splits - start > 1) {
            each_output([&](unsigned o, unsigned h, unsigned at) {
                const Result result = results[o * THREADS];
                float *to = partial(a, part, row, head + h, first - start);
                to[2 + at] = result.x;
                if (at == 0) {
                    to[0] = result.top, to[1] = result.sum;
                }
            });
            const unsigned group = (row - part.first_row) * a.kv.kv_heads * part.groups + which;
            if (!is_last(ended[group], splits - start)) {
                return;
            }
            Result whole[OUTPUTS];
            const unsigned count = splits - start;
            for (unsigned split = 0; split < count; split += AT_END) {
                /* All loads start before any is used. */
                Result next[AT_END][OUTPUTS];
#pragma unroll
                for (unsigned s = 0; s < AT_END; ++s) {
#pragma unroll
                    for (unsigned o = 0; o < OUTPUTS; ++o) {
                        const unsigned i = o * THREADS + threadIdx.x, h = min(i / DIM, heads - 1);
                        /* Past the first-level cache: other multiprocessors wrote them. */
                        const float *from = partial(a, part, row, head + h, min(split + s, count - 1));
                        next[s][o] = {__ldcg(from), __ldcg(from + 1), __ldcg(from + 2 + min(i % DIM, dim - 1))};
                    }
                }
#pragma unroll
                for (unsigned s = 0; s < AT_END; ++s) {
#pragma unroll
                    for (unsigned o = 0; o < OUTPUTS && split + s < count; ++o) {
                        whole[o].merge(next[s][o]);
                    }
                }
            }
            each_output([&](unsigned o, unsigned, unsigned) { results[o * THREADS] = whole[o]; });
        }
        each_output([&](unsigned o, unsigned h, unsigned at) {
            const Result result = results[o * THREADS];
            a.out[(size_t(row) * a.heads + head + h) * dim + at] = __fdiv_rn(result.x, result.sum);
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
    template <unsigned N, unsigned DIM, unsigned HEADS>                                                      \
    __global__ void __launch_bounds__(djinn::threads_for(HEADS), djinn::blocks_for(HEADS))                   \
        djinn_attention_##suffix(const __grid_constant__ djinn_attention_args a,                             \
                                 const __grid_constant__ djinn::Part part) {                                 \
        djinn::enter();                                                                                      \
        djinn::Rows<T, N, DIM, HEADS>::run(a, part);                                                      \
    }
DJINN_FOR_DTYPES(DJINN_KERNEL)

namespace djinn {

using Kernel = void (*)(djinn_attention_args, Part);

/* A kernel and the heads that it takes at once. */
struct Choice {
    Kernel kernel;
    unsigned heads;
};

#define DJINN_BY_HEADS(kernel, n, most_dim)                                                                  \
    (shared_by == 1   ? Choice{kernel<n, most_dim, 1>, 1}                                    \
     : shared_by == 2 ? Choice{kernel<n, most_dim, 2>, 2}                                   \
                      : Choice{kernel<n, most_dim, 4>, 4})

/* head_dim is a multiple of n. */
#define DJINN_BY_DIM(kernel, n)                                                                              \
    (dim <= 64    ? DJINN_BY_HEADS(kernel, n, 64)                                                            \
     : dim <= 128 ? DJINN_BY_HEADS(kernel, n, 128)                                                           \
                  : DJINN_BY_HEADS(kernel, n, MOST_DIM))

Choice choose(const djinn_attention_args &a) {
    const unsigned shared_by = a.heads / a.kv.kv_heads, dim = a.kv.head_dim;
    switch (a.kv.dtype) {
    case DJINN_F32:
        return dim % 4 == 0 ? DJINN_BY_DIM(djinn_attention_f32, 4) : Choice{djinn_attention_f32<1, MOST_DIM, 1>, 1};
    case DJINN_F16:
        return dim % 8 == 0 ? DJINN_BY_DIM(djinn_attention_f16, 8) : Choice{djinn_attention_f16<1, MOST_DIM, 1>, 1};
    case DJINN_BF16:
        return dim % 8 == 0 ? DJINN_BY_DIM(djinn_attention_bf16, 8) : Choice{djinn_attention_bf16<1, MOST_DIM, 1>, 1};
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
        const int code = djinn::launch(choice.kernel, grid, djinn::threads_for(choice.heads), 0, stream, a, part);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}
