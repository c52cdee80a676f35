/*
 * What choose.cu does with a row of logits: a block goes through its run of them, and the blocks of a cluster merge what
 * they found.
 */
#ifndef DJINN_CHOOSE_ROW_CUH
#define DJINN_CHOOSE_ROW_CUH

#include "cluster.cuh"

#include <cfloat>
#include <cstring>

namespace djinn {

/* Three blocks fit on a multiprocessor, with 16,032 tokens each in shared memory. */
constexpr unsigned CHOOSE_THREADS = 384, CHOOSE_WARPS = CHOOSE_THREADS / 32, CHOOSE_BLOCKS = 3;
/* Blocks of a cluster. */
constexpr unsigned CHOOSE_RANKS = 8;
/* Buckets of a histogram, of each octave of weights and of digits of 11 bits; tokens of a bucket that can be listed. */
constexpr unsigned BUCKETS = 2560, OCTAVE = 64, DIGITS = 2048, MOST_LISTED = 512, LISTED_PARTS = 256;
constexpr unsigned TOKEN_BITS = 22;
/* As in `Draw` of djinn-device. */
constexpr unsigned CHOOSES = 1, WANTS_LOGPROB = 2, DRAW_WORDS = 16, DRAWN_WORDS = 44, MOST_BEST = 20;
/* Words of a row of draws. */
enum { REPETITION = 8, FREQUENCY, PRESENCE, BEST, FIRST_CHANGE, CHANGES, ALLOWED, LATEST };
constexpr float REACH = -26.5f;
constexpr unsigned NO_TOKEN = 0xffffffffu;

/* Keys order like logits; NaN has the greatest. */
__device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The logit of a key, clamped to those that are not NaN. */
__device__ __forceinline__ float logit_of(uint32_t key) {
    key = min(max(key, 0x007fffffu), 0xff800000u);
    return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

/* NaN if one is. */
__device__ __forceinline__ float greater_or_nan(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

/* What threads and blocks exchange. */
struct alignas(16) Parcel {
    uint32_t words[4];
};

/* The values below can be merged, in any order; one without values changes nothing. */

/* The greatest key, and the first token that has it. */
struct Best {
    uint32_t key = 0, token = NO_TOKEN;
    static __device__ Best merge(const Best &a, const Best &b) {
        return a.key > b.key || (a.key == b.key && a.token <= b.token) ? a : b;
    }
};

/* The lowest of some tokens. */
struct First {
    uint32_t token = NO_TOKEN;
    static __device__ First merge(const First &a, const First &b) { return {min(a.token, b.token)}; }
};

struct Scored {
    float score = -INFINITY;
    uint32_t token = NO_TOKEN;

    static __device__ Scored merge(const Scored &a, const Scored &b) {
        return a.score > b.score || (a.score == b.score && a.token <= b.token) ? a : b;
    }
};

/* Weights are added as integers, so that a sum does not depend on the order. */
struct Total {
    uint64_t total = 0;
    static __device__ Total merge(const Total &a, const Total &b) { return {a.total + b.total}; }
};

/* The bucket with the last token, what its tokens' sum has to reach, and a number that they do not exceed. */
struct Found {
    uint64_t target;
    uint32_t bucket, count;
};

template <unsigned RANKS> struct ChooseShared {
    union {
        uint32_t sums[BUCKETS];
        struct {
            /* The ranks of this block's tokens in a bucket. */
            uint64_t own[MOST_LISTED];
            /* Sums of parts of the bucket; then the ranks in one part, and what these tokens add. */
            uint32_t parts[LISTED_PARTS];
            uint64_t last[32];
            uint32_t values[32];
        } listed;
    };
    /* What exceeds 32 bits of the sums: it takes more tokens than a block of a cluster has. */
    uint32_t carries[RANKS == 1 ? BUCKETS : 1];
    Parcel warps[CHOOSE_WARPS];
    /* From each block. Two, since one is written while the other may still be read. */
    Parcel blocks[2][RANKS];
    /* From the block that found it. */
    Parcel found, last;
    uint32_t draw[DRAW_WORDS];
    /* How many tokens of a bucket, or of the most probable ones, this block has; and how many the last part. */
    uint32_t count, in_part;
    /* The latest token's logit before its change in global memory, or NaN. */
    float latest;
};

template <typename T> __device__ __forceinline__ Parcel pack_up(const T &value) {
    static_assert(sizeof(T) <= sizeof(Parcel), "a parcel holds it");
    Parcel parcel = {};
    memcpy(&parcel, &value, sizeof(T));
    return parcel;
}

template <typename T> __device__ __forceinline__ T unpack(const Parcel &parcel) {
    T value;
    memcpy(&value, &parcel, sizeof(T));
    return value;
}

/* A barrier of all threads of all blocks of the row. They then see what the others wrote. */
template <unsigned RANKS> __device__ __forceinline__ void meet() {
    if constexpr (RANKS > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

template <unsigned RANKS> __device__ __forceinline__ uint32_t word_at(const uint32_t *word, unsigned rank) {
    if constexpr (RANKS > 1) {
        uint32_t value;
        asm volatile("ld.shared::cluster.u32 %0, [%1];"
                     : "=r"(value)
                     : "r"(address_at(shared_address(word), rank))
                     : "memory");
        return value;
    } else {
        return *word;
    }
}

template <unsigned RANKS> __device__ __forceinline__ uint64_t long_at(const uint64_t *at, unsigned rank) {
    const uint32_t *const words = reinterpret_cast<const uint32_t *>(at);
    return uint64_t(word_at<RANKS>(words + 1, rank)) << 32 | word_at<RANKS>(words, rank);
}

/* Writes a parcel at the same place in the block of that rank. */
template <unsigned RANKS> __device__ __forceinline__ void send(Parcel &to, unsigned rank, const Parcel &parcel) {
    if constexpr (RANKS > 1) {
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address_at(shared_address(&to), rank)),
                     "r"(parcel.words[0]), "r"(parcel.words[1]), "r"(parcel.words[2]), "r"(parcel.words[3])
                     : "memory");
    } else {
        to = parcel;
    }
}

template <typename Change> __device__ __forceinline__ void change_at(float *word, unsigned rank, Change change) {
    const unsigned at = address_at(shared_address(word), rank);
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(change(value)) : "memory");
}

/* A block's `ChooseShared`; in a cluster, then its run of the row. Found by name, so that each function knows where it is. */
extern __shared__ __align__(16) unsigned char choose_memory[];

/* A row, as one of its blocks sees it. */
template <unsigned RANKS> struct ChooserRow {
    float *logits;
    /* Whether the block's run is in shared memory. */
    static constexpr bool is_staged = RANKS > 1;
    /* `first` is a multiple of 4; each block but the last has `share` tokens. */
    unsigned rank, first, end, share, vocab;
    /* Whether rows begin at multiples of 16 bytes. */
    bool aligned;
    /* The bits of allowed tokens, for a row in global memory, or null. */
    const uint32_t *allowed = nullptr;
    /* Which of the two parcels is next. */
    unsigned turn = 0;
    float best = 0.0f, inverse = 0.0f;

    static __device__ ChooseShared<RANKS> &shared() { return *reinterpret_cast<ChooseShared<RANKS> *>(choose_memory); }
    static __device__ float *staged() { return reinterpret_cast<float *>(choose_memory + sizeof(ChooseShared<RANKS>)); }

    /* Merges the values of groups of COUNT lanes; every lane gets its group's. */
    template <unsigned COUNT, typename T> static __device__ T of_lanes(T mine) {
#pragma unroll
        for (unsigned by = COUNT / 2; by > 0; by /= 2) {
            Parcel other = pack_up(mine);
#pragma unroll
            for (unsigned i = 0; i < (sizeof(T) + 3) / 4; ++i) {
                other.words[i] = __shfl_xor_sync(0xffffffffu, other.words[i], by);
            }
            mine = T::merge(mine, unpack<T>(other));
        }
        return mine;
    }

    /* Shows a value of this block to all blocks of the row; `shown` has it after the next barrier. */
    template <typename T> __device__ void show(T block) {
        if (threadIdx.x < RANKS) {
            send<RANKS>(shared().blocks[turn][rank], threadIdx.x, pack_up(block));
        }
        turn ^= 1;
    }
    template <typename T> __device__ T shown(unsigned other) const { return unpack<T>(shared().blocks[turn ^ 1][other]); }

    /* Merges the values of all threads of all blocks; every thread gets the result. */
    template <typename T> __device__ T of_row(T mine) {
        static_assert(CHOOSE_WARPS <= 16, "half a warp merges the warps' values");
        mine = of_lanes<32>(mine);
        if (threadIdx.x % 32 == 0) {
            shared().warps[threadIdx.x / 32] = pack_up(mine);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            const unsigned warp = threadIdx.x % 16;
            show(of_lanes<16>(warp < CHOOSE_WARPS ? unpack<T>(shared().warps[warp]) : T()));
        } else {
            turn ^= 1;
        }
        meet<RANKS>();
        T all = shown<T>(0);
#pragma unroll
        for (unsigned other = 1; other < RANKS; ++other) {
            all = T::merge(all, shown<T>(other));
        }
        return all;
    }

    /* Four logits from a token on, or minus infinity past the end. */
    __device__ Pack<float, 4> group_at(unsigned at) const {
        Pack<float, 4> x;
        if (aligned) {
            x = load<float, 4>(logits + at);
        } else {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                x.at[i] = at + i < end ? logits[at + i] : -INFINITY;
            }
        }
        if (allowed != nullptr) {
            rule_out(x.at, allowed[at / 32] >> (at % 32));
        }
        return x;
    }

    static __device__ Pack<float, 4> nothing() { return {-INFINITY, -INFINITY, -INFINITY, -INFINITY}; }

    /* The same, once the block's run was read. */
    __device__ Pack<float, 4> run_at(unsigned at) const {
        return is_staged ? load<float, 4>(staged() + (at - first)) : group_at(at);
    }

    /* Rules out those of four tokens whose bits are 0. NaN and infinite logits stay. */
    static __device__ __forceinline__ void rule_out(float (&x)[4], uint32_t bits) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            x[i] = (bits >> i & 1) == 0 && fabsf(x[i]) < INFINITY ? -INFINITY : x[i];
        }
    }

    /* Calls `each` for all of this thread's groups of four tokens, which share a random counter, and their logits. */
    template <typename Each> __device__ void each_group(Each each) const {
#pragma unroll 2
        for (unsigned at = first + 4 * threadIdx.x; at < end; at += 4 * CHOOSE_THREADS) {
            const Pack<float, 4> x = run_at(at);
            each(at, x.at);
        }
    }

    /* Calls `each` with every token of this thread and its logit. */
    template <typename Each> __device__ void each_logit(Each each) const {
        each_group([&](unsigned at, const float(&x)[4]) {
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                each(at + i, x[i]);
            }
        });
    }

    /* Reads the block's run, for the first time if `stages`. */
    template <bool stages> __device__ Best find_best() {
        constexpr unsigned AT_ONCE = 4, STEP = 4 * CHOOSE_THREADS;
        float most = -INFINITY;
        unsigned group = first + 4 * threadIdx.x;
        for (unsigned at = first + 4 * threadIdx.x; at < end; at += AT_ONCE * STEP) {
            Pack<float, 4> x[AT_ONCE];
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i) {
                const unsigned from = at + i * STEP;
                x[i] = from >= end ? nothing() : stages ? group_at(from) : run_at(from);
            }
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i) {
                if (stages && is_staged && at + i * STEP < end) {
                    store(staged() + (at + i * STEP - first), x[i]);
                }
                const float most_here =
                    greater_or_nan(greater_or_nan(x[i].at[0], x[i].at[1]), greater_or_nan(x[i].at[2], x[i].at[3]));
                group = most_here > most ? at + i * STEP : group;
                most = greater_or_nan(most, most_here);
            }
        }
        Best mine = {key_of(most), NO_TOKEN};
        if constexpr (stages && RANKS > 1) {
            cluster_wait();
        }
        if (group < end) {
            const Pack<float, 4> x = run_at(group);
#pragma unroll
            for (int i = 3; i >= 0; --i) {
                mine.token = x.at[i] == most ? group + i : mine.token;
            }
        }
        return of_row(mine);
    }

    /* In a bad row, the first NaN, or logit that equals the greatest one if that is infinite. No finite one does then. */
    __device__ unsigned find_bad() {
        Best most;
        each_logit([&](unsigned, float x) { most.key = max(most.key, x == x ? key_of(x) : 0); });
        const float greatest = logit_of(of_row(most).key);
        First mine;
        each_logit([&](unsigned at, float x) {
            mine.token = x != x || (fabsf(x) == INFINITY && x == greatest) ? min(mine.token, at) : mine.token;
        });
        return of_row(mine).token;
    }
};

} // namespace djinn

#endif
