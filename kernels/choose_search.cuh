/*
 * How choose.cu finds the last token that top-k or top-p keeps, and the best score among those that are left.
 */
#ifndef DJINN_CHOOSE_SEARCH_CUH
#define DJINN_CHOOSE_SEARCH_CUH

#include "choose_row.cuh"

namespace djinn {

template <unsigned RANKS> struct ChooserSearch : ChooserRow<RANKS> {
    using Row = ChooserRow<RANKS>;
    using Row::shared, Row::rank, Row::best, Row::inverse;
    using Row::each_group, Row::each_logit, Row::of_block, Row::of_row, Row::show;

    /* The logarithm of a weight relative to the best token's. */
    __device__ float log_weight(float x) const { return (x - best) * inverse; }

    static __device__ uint64_t weight_of(float log_weight) { return __float2ull_rz(__expf(log_weight) * 0x1p40f); }

    /* Keys order like logits. */
    static __device__ uint32_t key_of(float x) {
        const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
        return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    }

    /* The logit of a key, clamped to those that are not NaN. */
    static __device__ float logit_of(uint32_t key) {
        key = min(max(key, 0x007fffffu), 0xff800000u);
        return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
    }

    /* Better tokens have higher ranks. */
    static __device__ uint64_t rank_of(unsigned token, float x) {
        return uint64_t(key_of(x)) << TOKEN_BITS | ((1u << TOKEN_BITS) - 1 - token);
    }

    /*
     * Counts the tokens from rank `cut` on, or adds their weights, by the digit of `width` bits after `prefix`. Tokens with
     * no weight add none.
     */
    __device__ void fill(bool weighs, uint64_t cut, uint64_t prefix, unsigned shift, unsigned width) {
        for (unsigned bucket = threadIdx.x; bucket < BUCKETS; bucket += CHOOSE_THREADS) {
            shared.counts[bucket] = shared.low[bucket] = shared.high[bucket] = 0;
        }
        __syncthreads();
        /* Most tokens are outside, which shows in their logits. */
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
            /* The first digit's buckets have many tokens, and need no count when weights are added. */
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

    /* By one warp: finds the bucket of the block's share in which the sum from above reaches `target`. */
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
     * The rank of the last token to keep, best first, of those from `cut` on: with it their number reaches `target` or, if
     * that is 0, their weights reach `top_p` of all. It may be a lower rank that no token has.
     */
    __device__ uint64_t find_last(uint64_t target, float top_p, uint64_t cut) {
        const bool weighs = target == 0;
        uint64_t prefix = 0, above = 0;
        unsigned shift = 32 + TOKEN_BITS;
        while (true) {
            /* Digits: 11, 11 and 10 bits of the logit, then 11 and 11 of the token. */
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

    /* Random bits of the four tokens from 4 group on: Philox4x32-10. */
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

    /* The token with the best score, of those from `cut` on. `top`, the best token, is always one of them. */
    __device__ unsigned race(uint64_t cut, unsigned top) {
        const float min_p = __uint_as_float(shared.draw[4]);
        const float least = fmaxf(logit_of(uint32_t(cut >> TOKEN_BITS)), best + REACH / inverse);
        const uint4 bits = random_bits(top / 4);
        const unsigned at = top % 4;
        Scored mine = {score(0.0f, uniform(at == 0 ? bits.x : at == 1 ? bits.y : at == 2 ? bits.z : bits.w)), top};
        each_group([&](unsigned at, const float(&x)[4]) {
            const float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
            /* A random number adds less than this. */
            if (!(most >= least && log_weight(most) + 23.0f > mine.score)) {
                return;
            }
            const uint4 bits = random_bits(at / 4);
            const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const float weight = log_weight(x[i]), random = uniform(words[i]);
                /* -ln(1 - u) is at least u, so this is at least the score. */
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
};

} // namespace djinn

#endif
