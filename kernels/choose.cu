/*
 * choose: a token of each row of logits, by the row's settings; djinn-device, src/choice.rs, has the definition.
 * Shapes: logits f32 [rows, vocab], draws u32 [rows, 16], drawn u32 [rows, 44], changes and earlier u32 words that rows of
 * draws refer to; all but logits may be pinned host memory.
 * Launch: 512 threads a block; a cluster of 8 blocks for each row on cards that have clusters (sm_90), elsewhere a
 * block. Each block has a run of the row, in shared memory where it fits, which it goes through again for each part of
 * the work: the best logit; the sum of exponentials and the most probable tokens, if these are wanted; the changes, and
 * the best logit after them; the last token that top-k keeps, and the last one that top-p keeps; and the best score. What
 * the blocks found is merged in order of their ranks.
 *
 * Changes are made to the run in shared memory. A row that does not fit there is changed where it lies, token by token:
 * the last word of a change then holds the logit, which is put back. What is not allowed is ruled out as it is read.
 *
 * A last token is found by a radix search over ranks: 32 bits in the order of the logits, then 22 of the tokens, lower
 * ones higher. A histogram by the digits of 11 bits holds counts, or weights. It
 * ends when the digit's bucket has one token, which is mostly after 3 digits.
 * Reference: djinn-device, src/reference/choice.rs, `choose`.
 */
#include "cluster.cuh"

#include <cfloat>
#include <cstring>

namespace djinn {

constexpr unsigned CHOOSE_THREADS = 512, CHOOSE_WARPS = CHOOSE_THREADS / 32;
/* Blocks of a cluster. */
constexpr unsigned CHOOSE_RANKS = 8;
constexpr unsigned BUCKETS = 2048;
constexpr unsigned TOKEN_BITS = 22;
/* As of `Draw` in djinn-device. */
constexpr unsigned CHOOSES = 1, WANTS_LOGPROB = 2, DRAW_WORDS = 16, DRAWN_WORDS = 44, MOST_BEST = 20;
/* Words of a row of draws. */
enum { REPETITION = 8, FREQUENCY, PRESENCE, BEST, FIRST_CHANGE, CHANGES, ALLOWED, LATEST };
constexpr float REACH = -26.5f;
constexpr unsigned NO_TOKEN = 0xffffffffu;

/* What threads and blocks pass on. */
struct alignas(16) Parcel {
    uint32_t words[4];
};

/* The greatest logit but for NaN, and whether one is NaN. */
struct Best {
    float most;
    uint32_t nan;
    static __device__ Best merge(const Best &a, const Best &b) { return {fmaxf(a.most, b.most), a.nan | b.nan}; }
};

/* The lowest token of some. */
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

/* Weights are added as integers, in units of 2^-40, so that no sum depends on its order. */
struct Total {
    uint64_t total;
    static __device__ Total merge(const Total &a, const Total &b) { return {a.total + b.total}; }
};

/* The bucket with the last token, what lies above it, and how many tokens it has. */
struct Found {
    uint64_t above;
    uint32_t bucket, count;
};

template <unsigned RANKS> struct ChooseShared {
    uint32_t counts[BUCKETS], low[BUCKETS], high[BUCKETS];
    /* The block's share of the buckets, of all blocks. */
    uint64_t merged[BUCKETS / RANKS];
    Parcel warps[CHOOSE_WARPS];
    /* What other blocks read: one is written while another may still be read. */
    Parcel block[2], found;
    uint32_t draw[DRAW_WORDS];
    /* How many of the most probable tokens the block has. */
    uint32_t best;
    /* The logit of the latest token, where it lies changed. */
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

/* Every thread of all blocks of the row waits for all others, and sees what they wrote. */
template <unsigned RANKS> __device__ __forceinline__ void meet() {
    if constexpr (RANKS > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

/* A word in the shared memory of the block of a rank. */
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

/* Changes a word in the shared memory of the block of a rank. */
template <typename Change> __device__ __forceinline__ void change_at(float *word, unsigned rank, Change change) {
    const unsigned at = address_at(shared_address(word), rank);
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(change(value)) : "memory");
}

/* One row, by one of its blocks. */
template <unsigned RANKS> struct Chooser {
    ChooseShared<RANKS> &shared;
    float *logits;
    /* The block's run in shared memory, or null. */
    float *staged;
    /* `first` is a multiple of 4; each block but the last has `share` tokens. */
    unsigned rank, first, end, share, vocab;
    /* Whether rows begin at multiples of 16 bytes. */
    bool aligned;
    /* What of a row that lies changed is allowed, or null. */
    const uint32_t *allowed = nullptr;
    /* Alternates between the two parcels. */
    unsigned turn = 0;
    float best = 0.0f, inverse = 0.0f;

    /* The block's part of a sum or the like, in every thread. */
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

    /* Shows the block's part to the others. */
    template <typename T> __device__ const Parcel &show(T block) {
        Parcel &slot = shared.block[turn];
        turn ^= 1;
        if (threadIdx.x == 0) {
            slot = pack_up(block);
        }
        meet<RANKS>();
        return slot;
    }

    /* Merges what all threads of all blocks have; every thread gets it. */
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

    /* Four logits from a token on; minus infinity beyond the end. */
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

    /* Rules out those of four tokens whose bits are 0. Logits that are no numbers stay. */
    static __device__ __forceinline__ void rule_out(float (&x)[4], uint32_t bits) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            x[i] = (bits >> i & 1) == 0 && fabsf(x[i]) < INFINITY ? -INFINITY : x[i];
        }
    }

    /* Calls `each` with four tokens that have one counter, and their logits, for all of this thread. */
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

    /* The first token whose logit is the greatest, or is NaN if there may be one. */
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

    /* Of a weight relative to the best token's. */
    __device__ float log_weight(float x) const { return (x - best) * inverse; }

    static __device__ uint64_t weight_of(float log_weight) { return __float2ull_rz(__expf(log_weight) * 0x1p40f); }

    /* Logits in their order. */
    static __device__ uint32_t key_of(float x) {
        const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
        return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    }

    /* The logit of a key, within those that are no NaN. */
    static __device__ float logit_of(uint32_t key) {
        key = min(max(key, 0x007fffffu), 0xff800000u);
        return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
    }

    /* Better tokens have higher ranks. */
    static __device__ uint64_t rank_of(unsigned token, float x) {
        return uint64_t(key_of(x)) << TOKEN_BITS | ((1u << TOKEN_BITS) - 1 - token);
    }

    /*
     * Counts tokens from `cut` on, or adds their weights, by the digit of `width` bits after `prefix`. Tokens without
     * weight are left out where it is added.
     */
    __device__ void fill(bool weighs, uint64_t cut, uint64_t prefix, unsigned shift, unsigned width) {
        for (unsigned bucket = threadIdx.x; bucket < BUCKETS; bucket += CHOOSE_THREADS) {
            shared.counts[bucket] = shared.low[bucket] = shared.high[bucket] = 0;
        }
        __syncthreads();
        /* Most tokens are outside, which their logits tell. */
        const uint64_t from = max(prefix << (shift + width), cut);
        const uint64_t to = (prefix << (shift + width)) + (uint64_t(1) << (shift + width)) - 1;
        float least = logit_of(uint32_t(from >> TOKEN_BITS));
        const float most = logit_of(uint32_t(min(to >> TOKEN_BITS, uint64_t(0xffffffffu))));
        if (weighs) {
            least = fmaxf(least, best - 28.0f / inverse);
        }
        const bool counts = shift + width < 32 + TOKEN_BITS;
        each_logit([&](unsigned i, float x) {
            if (!(x >= least && x <= most)) {
                return;
            }
            const uint64_t at = rank_of(i, x);
            if (at < from || at > to) {
                return;
            }
            const unsigned bucket = unsigned(at >> shift) & ((1u << width) - 1);
            /* The first digit's buckets have many tokens. */
            if (!weighs || counts) {
                atomicAdd(&shared.counts[bucket], 1u);
            }
            if (weighs) {
                const uint64_t weight = weight_of(log_weight(x));
                const uint32_t low = uint32_t(weight);
                const uint32_t before = atomicAdd(&shared.low[bucket], low);
                const uint32_t high = uint32_t(weight >> 32) + (before + low < before ? 1u : 0u);
                if (high != 0) {
                    atomicAdd(&shared.high[bucket], high);
                }
            }
        });
        meet<RANKS>();
    }

    /* By one warp: the bucket of the block's share in which the sum from above reaches `target`. */
    __device__ void find_bucket(uint64_t above, uint64_t target) {
        constexpr unsigned SHARE = BUCKETS / RANKS, EACH = SHARE / 32;
        const unsigned lane = threadIdx.x;
        const unsigned top = SHARE - lane * EACH;
        uint64_t own = 0;
        for (unsigned i = 1; i <= EACH; ++i) {
            own += shared.merged[top - i];
        }
        uint64_t until = own;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
            const uint64_t lower = __shfl_up_sync(0xffffffffu, until, by);
            until += lane >= by ? lower : 0;
        }
        above += until - own;
        if (above < target && above + own >= target) {
            unsigned at = top - 1;
            while (above + shared.merged[at] < target) {
                above += shared.merged[at--];
            }
            const unsigned bucket = rank * SHARE + at;
            uint32_t count = 0;
            for (unsigned other = 0; other < RANKS; ++other) {
                count += word_at<RANKS>(&shared.counts[bucket], other);
            }
            shared.found = pack_up(Found{above, bucket, count});
        }
    }

    /*
     * The rank of the last token, from the best on, with which the number of tokens reaches `target`, or, for a target of 0,
     * their weights reach `top_p` of all, of the tokens from `cut` on; or a lower rank that no token has.
     */
    __device__ uint64_t find_last(uint64_t target, float top_p, uint64_t cut) {
        const bool weighs = target == 0;
        uint64_t prefix = 0, above = 0;
        unsigned shift = 32 + TOKEN_BITS;
        while (true) {
            /* 11, 11 and 10 bits of the logit, then 11 and 11 of the token. */
            const unsigned width = shift == TOKEN_BITS + 10 ? 10 : 11;
            shift -= width;
            fill(weighs, cut, prefix, shift, width);
            constexpr unsigned SHARE = BUCKETS / RANKS;
            Total mine = {0};
            for (unsigned i = threadIdx.x; i < SHARE; i += CHOOSE_THREADS) {
                const unsigned bucket = rank * SHARE + i;
                uint64_t sum = 0;
#pragma unroll
                for (unsigned other = 0; other < RANKS; ++other) {
                    if (weighs) {
                        sum += word_at<RANKS>(&shared.low[bucket], other);
                        sum += uint64_t(word_at<RANKS>(&shared.high[bucket], other)) << 32;
                    } else {
                        sum += word_at<RANKS>(&shared.counts[bucket], other);
                    }
                }
                shared.merged[i] = sum;
                mine.total += sum;
            }
            const Parcel &slot = show(of_block(mine));
            uint64_t shares[RANKS], all = 0;
#pragma unroll
            for (unsigned other = 0; other < RANKS; ++other) {
                shares[other] = parcel_at<RANKS, Total>(slot, other).total;
                all += shares[other];
            }
            if (target == 0) {
                target = max(uint64_t(ceil(double(top_p) * double(all))), uint64_t(1));
            }
            uint64_t base = above;
            unsigned owner = RANKS - 1;
#pragma unroll
            for (unsigned other = RANKS - 1; other > 0; --other) {
                if (owner == other && base + shares[other] < target) {
                    base += shares[other];
                    owner = other - 1;
                }
            }
            if (rank == owner && threadIdx.x < 32) {
                find_bucket(base, target);
            }
            meet<RANKS>();
            const Found found = parcel_at<RANKS, Found>(shared.found, owner);
            prefix = prefix << width | found.bucket;
            above = found.above;
            const bool whole = !weighs && above + found.count == target;
            if (found.count == 1 || whole || shift == 0) {
                return max(cut, prefix << shift);
            }
        }
    }

    /* Random bits of the tokens from 4 group on: Philox4x32-10. */
    __device__ uint4 random_bits(unsigned group) const {
        uint32_t low = shared.draw[5], high = shared.draw[6];
        uint4 at = make_uint4(group, shared.draw[7], 0, 0);
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const uint32_t x = __umulhi(0xD2511F53u, at.x), x_low = 0xD2511F53u * at.x;
            const uint32_t z = __umulhi(0xCD9E8D57u, at.z), z_low = 0xCD9E8D57u * at.z;
            at = make_uint4(z ^ at.y ^ low, z_low, x ^ at.w ^ high, x_low);
            low += 0x9E3779B9u, high += 0xBB67AE85u;
        }
        return at;
    }

    /* Above 0 and below 1. */
    static __device__ float uniform(uint32_t bits) {
        return fminf(__uint2float_rn(bits) * 0x1p-32f + 0x1p-33f, 0.99999994f);
    }

    static __device__ float score(float weight, float uniform) { return weight - logf(-log1pf(-uniform)); }

    /* The best score of the tokens from `cut` on; `top`, the best token, is always among them. */
    __device__ unsigned race(uint64_t cut, unsigned top) {
        const float min_p = __uint_as_float(shared.draw[4]);
        const float least = fmaxf(logit_of(uint32_t(cut >> TOKEN_BITS)), best + REACH / inverse);
        const uint4 bits = random_bits(top / 4);
        const unsigned at = top % 4;
        Scored mine = {score(0.0f, uniform(at == 0 ? bits.x : at == 1 ? bits.y : at == 2 ? bits.z : bits.w)), top};
        each_group([&](unsigned at, const float(&x)[4]) {
            const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
            /* No random number adds more than this. */
            if (!(most >= least && log_weight(most) + 23.0f > mine.score)) {
                return;
            }
            const uint4 bits = random_bits(at / 4);
            const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const float weight = log_weight(x[i]), random = uniform(words[i]);
                /* -ln(1 - u) is no less than u, so that this is no less than the score. */
                const float bound = weight - 0.69314718f * __log2f(random) + 1e-3f;
                if (bound < mine.score || !(x[i] >= least) || rank_of(at + i, x[i]) < cut ||
                    (min_p > 0.0f && expf(weight) < min_p)) {
                    continue;
                }
                mine = Scored::merge(mine, {score(weight, random), at + i});
            }
        });
        return of_row(mine).token;
    }

    __device__ float setting(unsigned at) const { return __uint_as_float(shared.draw[at]); }

    /* A token's logit after its change; `Draw::changed` in djinn-device, with the same bits. */
    __device__ float changed(float x, float bias, uint32_t count, bool seen) const {
        const auto finite = [](float x) { return fminf(fmaxf(x, -FLT_MAX), FLT_MAX); };
        if (!(fabsf(x) < INFINITY)) {
            return x;
        }
        x = finite(__fadd_rn(x, bias));
        if (seen) {
            const float factor = setting(REPETITION);
            x = finite(x < 0.0f ? __fmul_rn(x, factor) : __fdiv_rn(x, factor));
        }
        if (count > 0) {
            x = finite(__fsub_rn(x, __fadd_rn(__fmul_rn(setting(FREQUENCY), float(count)), setting(PRESENCE))));
        }
        return x;
    }

    /* Changes a token's logit; gives the one before where it lies changed. */
    __device__ float change(unsigned token, float bias, uint32_t count, bool seen) {
        if constexpr (RANKS > 1) {
            if (staged != nullptr) {
                const unsigned owner = token / share;
                change_at(staged + (token - owner * share), owner, [&](float x) { return changed(x, bias, count, seen); });
                return 0.0f;
            }
        }
        const float before = logits[token];
        logits[token] = changed(before, bias, count, seen);
        return before;
    }

    /* Rules out what is not allowed of the block's run in shared memory. */
    __device__ void rule_out_staged(const uint32_t *words) {
        /* Its bits pass through shared memory, so that each is read once. */
        constexpr unsigned AT_ONCE = 32 * (BUCKETS - 1);
        for (unsigned from = first; from < end; from += AT_ONCE) {
            const unsigned until = min(end, from + AT_ONCE), word = from / 32, count = (until + 31) / 32 - word;
            __syncthreads();
            for (unsigned i = threadIdx.x; i < count; i += CHOOSE_THREADS) {
                shared.counts[i] = words[word + i];
            }
            __syncthreads();
            for (unsigned at = from + 4 * threadIdx.x; at < until; at += 4 * CHOOSE_THREADS) {
                Pack<float, 4> x = load<float, 4>(staged + (at - first));
                rule_out(x.at, shared.counts[at / 32 - word] >> (at % 32));
                store(staged + (at - first), x);
            }
        }
    }

    /* The logarithm of the sum of exponentials, relative to that of the greatest logit. */
    __device__ float find_log_total(float most) {
        Total mine = {0};
        each_logit([&](unsigned, float x) { mine.total += weight_of(x - most); });
        return logf(float(of_row(mine).total) * 0x1p-40f);
    }

    /* The token that was chosen before, if the changes do not count it. */
    __device__ unsigned latest(const uint32_t *earlier) const {
        const unsigned token = shared.draw[LATEST] != 0 ? earlier[shared.draw[LATEST] - 1] : NO_TOKEN;
        return token < vocab ? token : NO_TOKEN;
    }

    /* Makes the changes, but for what is ruled out as it is read. Nothing of the row is read meanwhile. */
    __device__ void make_changes(uint32_t *words, const uint32_t *earlier) {
        if (staged != nullptr && shared.draw[ALLOWED] != 0) {
            rule_out_staged(words + (shared.draw[ALLOWED] - 1));
            meet<RANKS>();
        }
        uint4 *changes = reinterpret_cast<uint4 *>(words + shared.draw[FIRST_CHANGE]);
        const unsigned newest = latest(earlier);
        First known = {NO_TOKEN};
        for (unsigned i = rank * CHOOSE_THREADS + threadIdx.x; i < shared.draw[CHANGES]; i += RANKS * CHOOSE_THREADS) {
            const uint4 it = changes[i];
            if (it.x < vocab) {
                const bool again = it.x == newest;
                known.token = again ? newest : known.token;
                const uint32_t count = (it.z & 0x7fffffffu) + (again ? 1 : 0);
                const float before = change(it.x, __uint_as_float(it.y), count, again || it.z >> 31 != 0);
                if (staged == nullptr) {
                    changes[i].w = __float_as_uint(before);
                }
            }
        }
        if (newest != NO_TOKEN) {
            const bool is_known = of_row(known).token != NO_TOKEN;
            if (rank == 0 && threadIdx.x == 0) {
                shared.latest = is_known ? NAN : change(newest, 0.0f, 1, true);
            }
        }
        meet<RANKS>();
    }

    /* Puts back what was changed where it lies. */
    __device__ void undo_changes(uint32_t *words, const uint32_t *earlier) {
        uint4 *changes = reinterpret_cast<uint4 *>(words + shared.draw[FIRST_CHANGE]);
        for (unsigned i = rank * CHOOSE_THREADS + threadIdx.x; i < shared.draw[CHANGES]; i += RANKS * CHOOSE_THREADS) {
            const uint4 it = changes[i];
            if (it.x < vocab) {
                logits[it.x] = __uint_as_float(it.w);
                changes[i].w = 0;
            }
        }
        const unsigned newest = latest(earlier);
        if (newest != NO_TOKEN && rank == 0 && threadIdx.x == 0 && shared.latest == shared.latest) {
            logits[newest] = shared.latest;
        }
        meet<RANKS>();
    }

    /* Writes the most probable tokens to the row of results, and gives their number to the first block. */
    __device__ unsigned write_best(uint32_t *drawn, float most, float log_total) {
        const unsigned wanted = min(shared.draw[BEST], MOST_BEST);
        const uint64_t cut = wanted < vocab ? find_last(wanted, 0.0f, 0) : 0;
        const float least = logit_of(uint32_t(cut >> TOKEN_BITS));
        if (threadIdx.x == 0) {
            shared.best = 0;
        }
        __syncthreads();
        each_logit([&](unsigned at, float x) {
            if (x >= least && x > -INFINITY && rank_of(at, x) >= cut) {
                shared.merged[atomicAdd(&shared.best, 1u)] = rank_of(at, x);
            }
        });
        meet<RANKS>();
        unsigned count = 0;
        if (rank == 0) {
            uint64_t *ranks = reinterpret_cast<uint64_t *>(shared.low), mine = 0;
            for (unsigned other = 0; other < RANKS; ++other) {
                count += word_at<RANKS>(&shared.best, other);
            }
            const unsigned other = threadIdx.x / MOST_BEST, at = threadIdx.x % MOST_BEST;
            if (other < RANKS && at < word_at<RANKS>(&shared.best, other)) {
                const uint32_t *words = reinterpret_cast<const uint32_t *>(&shared.merged[at]);
                mine = uint64_t(word_at<RANKS>(words + 1, other)) << 32 | word_at<RANKS>(words, other);
            }
            if (other < RANKS) {
                ranks[threadIdx.x] = mine;
            }
            __syncthreads();
            if (mine != 0) {
                unsigned better = 0;
                for (unsigned i = 0; i < RANKS * MOST_BEST; ++i) {
                    better += ranks[i] > mine ? 1 : 0;
                }
                drawn[4 + 2 * better] = (1u << TOKEN_BITS) - 1 - (uint32_t(mine) & ((1u << TOKEN_BITS) - 1));
                drawn[5 + 2 * better] = __float_as_uint(logit_of(uint32_t(mine >> TOKEN_BITS)) - most - log_total);
            }
            __syncthreads();
        }
        return count;
    }

    /*
     * Chooses, and writes the row of results, once the block's run was read. `more`: the logits may be changed, and the
     * most probable tokens be wanted.
     */
    template <bool more> __device__ void finish(Best greatest, uint32_t *drawn, uint32_t *changes, const uint32_t *earlier) {
        const uint32_t flags = shared.draw[0], top_k = shared.draw[2];
        const float top_p = setting(3), temperature = setting(1);
        inverse = 1.0f / fmaxf(temperature, 1e-30f);
        best = greatest.most;
        bool infinite = fabsf(best) == INFINITY, sound = greatest.nan == 0 && !infinite;
        const bool wants_logprob = (flags & WANTS_LOGPROB) != 0;
        float log_total = 0.0f;
        unsigned count = 0;
        bool is_changed = false;
        if constexpr (more) {
            if (sound && (wants_logprob || shared.draw[BEST] != 0)) {
                log_total = find_log_total(best);
            }
            if (sound && shared.draw[BEST] != 0) {
                count = write_best(drawn, best, log_total);
            }
            is_changed = sound && (shared.draw[CHANGES] | shared.draw[ALLOWED] | shared.draw[LATEST]) != 0;
            if (is_changed) {
                make_changes(changes, earlier);
                if (staged == nullptr && shared.draw[ALLOWED] != 0) {
                    allowed = changes + (shared.draw[ALLOWED] - 1);
                }
                Best mine = {-INFINITY, 0};
                each_logit([&](unsigned, float x) { mine.most = fmaxf(mine.most, x); });
                best = of_row(mine).most;
                infinite = fabsf(best) == INFINITY;
                sound = !infinite;
            }
        }
        /* A bad one is NaN, or the greatest if that is infinite: then no finite one equals it. */
        unsigned token = find_first(sound || infinite ? best : NAN, !sound);
        if (sound && temperature != 0.0f && top_k != 1) {
            uint64_t cut = 0;
            if (top_k > 0 && top_k < vocab) {
                cut = find_last(top_k, 0.0f, 0);
            }
            if (top_p < 1.0f) {
                cut = find_last(0, top_p, cut);
            }
            token = race(cut, token);
        }
        if constexpr (more) {
            if (is_changed && staged == nullptr) {
                undo_changes(changes, earlier);
            }
        } else if (sound && wants_logprob) {
            log_total = find_log_total(best);
        }
        if (rank == 0 && threadIdx.x == 0) {
            const bool chooses = (flags & CHOOSES) != 0;
            const float logit = is_changed && !sound ? best : logits[token];
            const float logprob = sound && wants_logprob ? logit - greatest.most - log_total : 0.0f;
            drawn[0] = !chooses ? 0 : sound ? 1 | count << 8 : 2;
            drawn[1] = chooses ? token : 0;
            drawn[2] = chooses ? __float_as_uint(logit) : 0;
            drawn[3] = chooses ? __float_as_uint(logprob) : 0;
        }
    }

    /* In a function of its own, on a copy: other rows have more registers so. */
    static __device__ __noinline__ void finish_more(Chooser copy, Best greatest, uint32_t *drawn, uint32_t *changes,
                                                    const uint32_t *earlier) {
        copy.template finish<true>(greatest, drawn, changes, earlier);
    }

    /* `word` is one of the row's settings, in the first threads: it comes from the host while the logits are read. */
    __device__ void run(uint32_t word, uint32_t *drawn, uint32_t *changes, const uint32_t *earlier) {
        const Best greatest = find_best();
        if (threadIdx.x < DRAW_WORDS) {
            shared.draw[threadIdx.x] = word;
        }
        __syncthreads();
        if ((shared.draw[BEST] | shared.draw[CHANGES] | shared.draw[ALLOWED] | shared.draw[LATEST]) != 0) {
            finish_more(*this, greatest, drawn, changes, earlier);
        } else {
            finish<false>(greatest, drawn, changes, earlier);
        }
    }
};

} // namespace djinn

template <unsigned RANKS>
__global__ void __launch_bounds__(djinn::CHOOSE_THREADS, 2)
    djinn_choose_f32(const __grid_constant__ djinn_choose_args a, const unsigned share, const bool stages) {
#if __CUDA_ARCH__ < 900
    static_assert(RANKS > 0, "some blocks have the row");
    if constexpr (RANKS > 1) {
        return;
    } else
#endif
    {
        using namespace djinn;
        __shared__ ChooseShared<RANKS> shared;
        extern __shared__ __align__(16) float staged[];
        enter();
        const unsigned row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS;
        uint32_t *drawn = a.drawn + size_t(row) * DRAWN_WORDS;
        const uint32_t word = threadIdx.x < DRAW_WORDS ? a.draws[size_t(row) * DRAW_WORDS + threadIdx.x] : 0;
        const unsigned first = min(rank * share, (a.vocab + 3) / 4 * 4), end = min(first + share, a.vocab);
        float *logits = a.logits + size_t(row) * a.vocab;
        float *run = stages ? staged : nullptr;
        Chooser<RANKS> chooser = {shared, logits, run, rank, first, end, share, a.vocab, a.vocab % 4 == 0};
        chooser.run(word, drawn, a.changes, a.earlier);
        /* No block ends while another one may read its memory. */
        if constexpr (RANKS > 1) {
            cluster_sync();
        }
    }
}

namespace djinn {

/* Launches one way. */
template <unsigned RANKS> int choose(const djinn_choose_args &a, void *stream) {
    /* Of each block, in whole groups. */
    const unsigned share = (ceil_div(a.vocab, RANKS) + 3) / 4 * 4;
    const unsigned room = all_devices()[current_device()].block_shared, bytes = share * sizeof(float);
    const bool stages = RANKS > 1 && room > sizeof(ChooseShared<RANKS>) && bytes <= room - sizeof(ChooseShared<RANKS>);
    if (stages) {
        const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
        const cudaError_t code = cudaFuncSetAttribute(djinn_choose_f32<RANKS>, attribute, int(bytes));
        if (code != cudaSuccess) {
            return code;
        }
    }
    return launch_clusters(RANKS, djinn_choose_f32<RANKS>, a.rows * RANKS, CHOOSE_THREADS, stages ? bytes : 0, stream, a,
                           share, stages);
}

} // namespace djinn

extern "C" int djinn_choose(const djinn_choose_args *args, void *stream) {
    using namespace djinn;
    const bool clusters = all_devices()[current_device()].overlaps;
    return clusters ? choose<CHOOSE_RANKS>(*args, stream) : choose<1>(*args, stream);
}
