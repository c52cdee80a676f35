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

constexpr unsigned CHOOSE_THREADS = 512, CHOOSE_WARPS = CHOOSE_THREADS / 32;
/* Blocks of a cluster. */
constexpr unsigned CHOOSE_RANKS = 8;
constexpr unsigned BUCKETS = 2048;
constexpr unsigned TOKEN_BITS = 22;
/* As in `Draw` of djinn-device. */
constexpr unsigned CHOOSES = 1, WANTS_LOGPROB = 2, DRAW_WORDS = 16, DRAWN_WORDS = 44, MOST_BEST = 20;
/* Words of a row of draws. */
enum { REPETITION = 8, FREQUENCY, PRESENCE, BEST, FIRST_CHANGE, CHANGES, ALLOWED, LATEST };
constexpr float REACH = -26.5f;
constexpr unsigned NO_TOKEN = 0xffffffffu;

/* What threads and blocks exchange. */
struct alignas(16) Parcel {
    uint32_t words[4];
};

/* The greatest logit that is not NaN, and whether one is NaN. */
struct Best {
    float most;
    uint32_t nan;
    static __device__ Best merge(const Best &a, const Best &b) { return {fmaxf(a.most, b.most), a.nan | b.nan}; }
};

/* The lowest of some tokens. */
struct First {
    uint32_t token;
    static __device__ First merge(const First &a, const First &b) { return {min(a.token, b.token)}; }
};

struct Scored {
    float score;
    uint32_t token;

    static __device__ Scored merge(const Scored &a, const Scored &b) {
        return a.score > b.score || (a.score == b.score && a.token <= b.token) ? a : b;
    }
};

/* Weights are added as integers, in units of 2^-40, so that a sum does not depend on the order. */
struct Total {
    uint64_t total;
    static __device__ Total merge(const Total &a, const Total &b) { return {a.total + b.total}; }
};

/* The bucket with the last token, the sum above it, and the number of its tokens. */
struct Found {
    uint64_t above;
    uint32_t bucket, count;
};

template <unsigned RANKS> struct ChooseShared {
    uint32_t counts[BUCKETS], low[BUCKETS], high[BUCKETS];
    /* The block's share of the buckets, merged over all blocks. */
    uint64_t merged[BUCKETS / RANKS];
    Parcel warps[CHOOSE_WARPS];
    /* Read by other blocks. Two, since one is written while the other may still be read. */
    Parcel block[2], found;
    uint32_t draw[DRAW_WORDS];
    /* How many of the most probable tokens this block has. */
    uint32_t best;
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

template <unsigned RANKS, typename T> __device__ __forceinline__ T parcel_at(const Parcel &parcel, unsigned rank) {
    Parcel copy = {};
#pragma unroll
    for (unsigned i = 0; i < (sizeof(T) + 3) / 4; ++i) {
        copy.words[i] = word_at<RANKS>(&parcel.words[i], rank);
    }
    return unpack<T>(copy);
}

template <typename Change> __device__ __forceinline__ void change_at(float *word, unsigned rank, Change change) {
    const unsigned at = address_at(shared_address(word), rank);
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(change(value)) : "memory");
}

/* A row, as one of its blocks sees it. */
template <unsigned RANKS> struct ChooserRow {
    ChooseShared<RANKS> &shared;
    float *logits;
    /* The block's run in shared memory, or null. */
    float *staged;
    /* `first` is a multiple of 4; each block but the last has `share` tokens. */
    unsigned rank, first, end, share, vocab;
    /* Whether rows begin at multiples of 16 bytes. */
    bool aligned;
    /* The bits of allowed tokens, for a row in global memory, or null. */
    const uint32_t *allowed = nullptr;
    /* Which of the two parcels is next. */
    unsigned turn = 0;
    float best = 0.0f, inverse = 0.0f;

    /* Merges the values of the block's threads; every thread gets the result. */
    template <typename T> __device__ T of_block(T mine) {
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) {
            Parcel other = pack_up(mine);
#pragma unroll
            for (unsigned i = 0; i < (sizeof(T) + 3) / 4; ++i) {
                other.words[i] = __shfl_xor_sync(0xffffffffu, other.words[i], lane);
            }
            mine = T::merge(mine, unpack<T>(other));
        }
        __syncthreads();
        if (threadIdx.x % 32 == 0) {
            shared.warps[threadIdx.x / 32] = pack_up(mine);
        }
        __syncthreads();
        T all = unpack<T>(shared.warps[0]);
        for (unsigned warp = 1; warp < CHOOSE_WARPS; ++warp) {
            all = T::merge(all, unpack<T>(shared.warps[warp]));
        }
        return all;
    }

    template <typename T> __device__ const Parcel &show(T block) {
        Parcel &slot = shared.block[turn];
        turn ^= 1;
        if (threadIdx.x == 0) {
            slot = pack_up(block);
        }
        meet<RANKS>();
        return slot;
    }

    /* Merges the values of all threads of all blocks; every thread gets the result. */
    template <typename T> __device__ T of_row(T mine) {
        const T block = of_block(mine);
        if constexpr (RANKS == 1) {
            return block;
        } else {
            const Parcel &slot = show(block);
            T all = parcel_at<RANKS, T>(slot, 0);
#pragma unroll
            for (unsigned other = 1; other < RANKS; ++other) {
                all = T::merge(all, parcel_at<RANKS, T>(slot, other));
            }
            return all;
        }
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
            const Pack<float, 4> x = staged != nullptr ? load<float, 4>(staged + (at - first)) : group_at(at);
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

    /* Reads the block's run for the first time. */
    __device__ Best find_best() {
        constexpr unsigned AT_ONCE = 4, STEP = 4 * CHOOSE_THREADS;
        Best mine = {-INFINITY, 0};
        for (unsigned at = first + 4 * threadIdx.x; at < end; at += AT_ONCE * STEP) {
            Pack<float, 4> x[AT_ONCE];
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i) {
                x[i] = at + i * STEP < end ? group_at(at + i * STEP) : Pack<float, 4>{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
            }
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i) {
                if (staged != nullptr && at + i * STEP < end) {
                    store(staged + (at + i * STEP - first), x[i]);
                }
#pragma unroll
                for (const float logit : x[i].at) {
                    mine.most = fmaxf(mine.most, logit);
                    mine.nan |= logit != logit ? 1u : 0u;
                }
            }
        }
        return of_row(mine);
    }

    /* The first token whose logit is `most`; or, if `or_nan`, is NaN. */
    __device__ unsigned find_first(float most, bool or_nan) {
        First mine = {NO_TOKEN};
        each_group([&](unsigned at, const float(&x)[4]) {
            const bool here = x[0] == most || x[1] == most || x[2] == most || x[3] == most;
            if (mine.token != NO_TOKEN || !(here || or_nan)) {
                return;
            }
#pragma unroll
            for (int i = 3; i >= 0; --i) {
                if (x[i] == most || (or_nan && x[i] != x[i])) {
                    mine.token = at + i;
                }
            }
        });
        return of_row(mine).token;
    }
};

} // namespace djinn

#endif
