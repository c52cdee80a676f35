/*
 * How choose.cu finds the last token that top-k or top-p keeps, and the best score among those that are left.
 */
#ifndef DJINN_CHOOSE_SEARCH_CUH
#define DJINN_CHOOSE_SEARCH_CUH

#include "choose_row.cuh"

namespace djinn {

template <unsigned RANKS> struct ChooserSearch : ChooserRow<RANKS> {
    using Row = ChooserRow<RANKS>;
    using Row::shared, Row::rank, Row::best, Row::inverse, Row::turn;
    using Row::first, Row::end, Row::run_at, Row::each_group, Row::each_logit, Row::of_row, Row::show;

    /* The logarithm of a weight relative to the best token's. */
    __device__ float log_weight(float x) const { return (x - best) * inverse; }

    /* The rank of a last token, and whose turn it is then. */
    struct Last {
        uint64_t rank;
        unsigned turn;
    };

    /* Better tokens have higher ranks. */
    static __device__ uint64_t rank_of(unsigned token, float x) {
        return uint64_t(key_of(x)) << TOKEN_BITS | ((1u << TOKEN_BITS) - 1 - token);
    }

    /*
     * The bucket of a logit, of OCTAVE in each octave of weights, and the rest in buckets, from -1/2 to 1/2. The lower the
     * logit, the greater are both.
     */
    struct Place {
        uint32_t bucket;
        float rest;

        __device__ Place(float below, float per_logit) {
            const float depth = below * per_logit, whole = depth + WHOLE;
            bucket = lowest_bits(whole);
            rest = depth - (whole - WHOLE);
        }

        /* 2^(-rest / OCTAVE) in units of 2^-16. The next term of the series is below 2^-25. */
        __device__ uint32_t weight() const {
            constexpr float SLOPE = -0.69314718f / OCTAVE;
            return lowest_bits(fmaf(fmaf(0.5f * SLOPE * SLOPE * 0x1p16f, rest, SLOPE * 0x1p16f), rest, 0x1p16f + WHOLE));
        }

        __device__ uint32_t part() const { return lowest_bits(fmaf(rest + 0.5f, float(PARTS - 1), WHOLE)); }

        /* Added, it leaves a whole number in the lowest bits: faster than a conversion. */
        static constexpr float WHOLE = 0x1p23f;
        static __device__ uint32_t lowest_bits(float whole) { return __float_as_uint(whole) - 0x4b000000u; }
    };
    static constexpr uint32_t PARTS = 2048, ANY = 0xffffffffu;

    /* The tokens that a search is about: those from rank `cut` on, in a bucket, in a part of it; and what each adds. */
    struct Subset {
        uint64_t cut;
        float best, per_logit, least;
        bool weighs;
        uint32_t bucket = ANY, part = ANY;

        /* `per_log`: how much of the logarithm of a weight a logit makes. */
        __device__ Subset(bool weighs, uint64_t cut, float best, float per_log)
            : cut(cut), best(best), per_logit(per_log * (float(OCTAVE) * 1.44269504f)),
              least(logit_of(uint32_t(cut >> TOKEN_BITS))), weighs(weighs) {}

        __device__ Place place(float x) const { return {best - x, per_logit}; }

        __device__ bool has(unsigned token, float x, const Place &place) const {
            return x >= least && (bucket == ANY || place.bucket == bucket) && (part == ANY || place.part() == part) &&
                   (cut == 0 || rank_of(token, x) >= cut);
        }

        __device__ uint32_t value(const Place &place) const { return weighs ? place.weight() : 1; }

        /* A number of tokens that is not exceeded where this is the sum of their values: weights are above 0.994 * 2^16. */
        __device__ uint32_t most_of(uint64_t sum) const { return uint32_t(weighs ? (sum >> 16) + (sum >> 23) + 1 : sum); }
    };

    /* Adds to a bucket of this block if that is `wanted`. */
    static __device__ void add(bool wanted, unsigned bucket, uint32_t value) {
        if constexpr (RANKS > 1) {
            /* Without a branch. */
            asm volatile("{\n"
                         ".reg .pred wanted;\n"
                         "setp.ne.u32 wanted, %0, 0;\n"
                         "@wanted red.shared::cta.add.u32 [%1], %2;\n"
                         "}" ::"r"(unsigned(wanted)),
                         "r"(shared_address(shared().sums) + 4 * bucket), "r"(value)
                         : "memory");
        } else if (wanted) {
            const uint32_t before = atomicAdd(&shared().sums[bucket], value);
            if (before + value < before) {
                atomicAdd(&shared().carries[bucket], 1u);
            }
        }
    }

    __device__ uint64_t sum_at(unsigned bucket) const {
        uint64_t sum = 0;
#pragma unroll
        for (unsigned other = 0; other < RANKS; ++other) {
            sum += word_at<RANKS>(&shared().sums[bucket], other);
        }
        return RANKS == 1 ? sum | uint64_t(shared().carries[bucket]) << 32 : sum;
    }

    /* Fills the buckets: `each` is called with every token of this thread and its logit. */
    template <typename Each> __device__ void fill(Each each) {
        for (unsigned bucket = 4 * threadIdx.x; bucket < BUCKETS; bucket += 4 * CHOOSE_THREADS) {
            const Pack<uint32_t, 4> none = {};
            store(shared().sums + bucket, none);
            if constexpr (RANKS == 1) {
                store(shared().carries + bucket, none);
            }
        }
        __syncthreads();
        each_logit(each);
        meet<RANKS>();
    }

    /* What buckets of octaves weigh, in units of 2^-40. Of the lowest, a unit may be missing. */
    struct Octaves {
        static __device__ uint64_t part(unsigned bucket) {
            return uint64_t(exp2f(-float(bucket % OCTAVE) / OCTAVE) * 0x1p24f);
        }
        __device__ uint64_t operator()(unsigned bucket, uint64_t sum) const {
            return (sum * part(bucket)) >> (bucket / OCTAVE);
        }
        /* The least sum that weighs so much. */
        __device__ uint64_t sum_of(unsigned bucket, uint64_t weight) const {
            return ((weight << (bucket / OCTAVE)) + part(bucket) - 1) / part(bucket);
        }
    };

    /* Sums as they are. */
    struct Plain {
        __device__ uint64_t operator()(unsigned, uint64_t sum) const { return sum; }
        __device__ uint64_t sum_of(unsigned, uint64_t sum) const { return sum; }
    };

    /*
     * Finds the bucket in which the sum from the first bucket on reaches `target` or, if that is 0, `top_p` of all; none if no
     * bucket has it.
     */
    template <typename Weights>
    __device__ Found reach(const Subset &subset, const Weights &weights, uint64_t target, float top_p = 0.0f) {
        constexpr unsigned SHARE = BUCKETS / RANKS, EACH = (SHARE + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
        const unsigned from = rank * SHARE + min(threadIdx.x * EACH, SHARE), to = min(from + EACH, (rank + 1) * SHARE);
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        uint64_t own[EACH], sum = 0;
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            own[i] = from + i < to ? weights(from + i, sum_at(from + i)) : 0;
            sum += own[i];
        }
        uint64_t until = sum;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
            const uint64_t lower = __shfl_up_sync(0xffffffffu, until, by);
            until += lane >= by ? lower : 0;
        }
        if (lane == 31) {
            shared().warps[warp] = pack_up(Total{until});
        }
        __syncthreads();
        uint64_t before = until - sum, share = 0, all = 0;
#pragma unroll
        for (unsigned other = 0; other < CHOOSE_WARPS; ++other) {
            const uint64_t its = unpack<Total>(shared().warps[other]).total;
            before += other < warp ? its : 0;
            share += its;
        }
        show(Total{share});
        meet<RANKS>();
#pragma unroll
        for (unsigned other = 0; other < RANKS; ++other) {
            const uint64_t its = Row::template shown<Total>(other).total;
            before += other < rank ? its : 0;
            all += its;
        }
        if (target == 0) {
            target = max(uint64_t(ceil(double(top_p) * double(all))), uint64_t(1));
        }
        if (all < target) {
            return {target, BUCKETS, 0};
        }
        if (before < target && before + sum >= target) {
            unsigned at = 0;
#pragma unroll
            for (unsigned i = 0; i + 1 < EACH; ++i) {
                if (at == i && before + own[i] < target) {
                    before += own[i];
                    at = i + 1;
                }
            }
            const unsigned bucket = from + at;
            const uint64_t left = weights.sum_of(bucket, target - before);
            const Parcel found = pack_up(Found{left, bucket, subset.most_of(sum_at(bucket))});
#pragma unroll
            for (unsigned other = 0; other < RANKS; ++other) {
                send<RANKS>(shared().found, other, found);
            }
        }
        meet<RANKS>();
        return unpack<Found>(shared().found);
    }

    /* Lists this block's tokens of a bucket. */
    __device__ void list(const Subset &subset) {
        shared().count = shared().in_part = 0;
        for (unsigned part = threadIdx.x; part < LISTED_PARTS; part += CHOOSE_THREADS) {
            shared().listed.parts[part] = 0;
        }
        __syncthreads();
        constexpr float MOST_AWAY = 0.51f;
        const float bucket = float(subset.bucket);
        each_group([&](unsigned at, const float(&x)[4]) {
            /* Most groups are elsewhere. */
            float away[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                away[i] = fabsf(fmaf(best - x[i], subset.per_logit, -bucket));
            }
            if (fminf(fminf(away[0], away[1]), fminf(away[2], away[3])) > MOST_AWAY) {
                return;
            }
            unsigned here = 0;
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                here |= away[i] <= MOST_AWAY ? 1u << i : 0;
            }
            for (; here != 0; here &= here - 1) {
                const unsigned i = __ffs(here) - 1;
                const float logit = i < 2 ? (i == 0 ? x[0] : x[1]) : (i == 2 ? x[2] : x[3]);
                if (subset.has(at + i, logit, subset.place(logit))) {
                    shared().listed.own[atomicAdd(&shared().count, 1u)] = rank_of(at + i, logit);
                }
            }
        });
        __syncthreads();
    }

    /*
     * The rank of the token with which the sum reaches the target, of MOST_LISTED tokens at most; or 0 if too many are too
     * close. Every block gets the tokens of all and finds it, in parts of the bucket.
     */
    __device__ uint64_t find_listed(const Subset &subset, uint64_t target) {
        list(subset);
        show(Total{shared().count});
        meet<RANKS>();
        constexpr unsigned EACH = (MOST_LISTED + CHOOSE_THREADS - 1) / CHOOSE_THREADS;
        uint64_t ranks[EACH];
        uint32_t values[EACH], parts[EACH];
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            unsigned other = 0, at = threadIdx.x + i * CHOOSE_THREADS;
#pragma unroll
            for (unsigned block = 0; block < RANKS; ++block) {
                const unsigned its = unsigned(Row::template shown<Total>(block).total);
                const bool is_later = other == block && at >= its;
                at -= is_later ? its : 0;
                other += is_later ? 1 : 0;
            }
            parts[i] = ANY;
            if (other < RANKS) {
                ranks[i] = long_at<RANKS>(&shared().listed.own[at], other);
                const Place place = subset.place(logit_of(uint32_t(ranks[i] >> TOKEN_BITS)));
                values[i] = subset.value(place);
                parts[i] = subset.part == ANY ? place.part() / (PARTS / LISTED_PARTS) : 0;
                atomicAdd(&shared().listed.parts[parts[i]], values[i]);
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            find_part(uint32_t(target));
        }
        __syncthreads();
        const Found found = unpack<Found>(shared().last);
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            if (parts[i] == found.bucket) {
                const unsigned at = atomicAdd(&shared().in_part, 1u);
                if (at < 32) {
                    shared().listed.last[at] = ranks[i];
                    shared().listed.values[at] = values[i];
                }
            }
        }
        __syncthreads();
        const unsigned count = shared().in_part;
        if (count > 32) {
            meet<RANKS>();
            return 0;
        }
        /* Each warp compares all of them with one of each lane. */
        const unsigned lane = threadIdx.x % 32;
        const uint64_t mine = shared().listed.last[min(lane, count - 1)];
        uint32_t above = 0;
        for (unsigned i = 0; i < count; ++i) {
            above += shared().listed.last[i] > mine ? shared().listed.values[i] : 0;
        }
        const bool is_last = above < found.target && above + shared().listed.values[min(lane, count - 1)] >= found.target;
        const unsigned last = __ffs(__ballot_sync(0xffffffffu, is_last)) - 1;
        return shared().listed.last[min(last, count - 1)];
    }

    /* By one warp: finds the part of listed tokens in which the sum reaches the target. */
    __device__ void find_part(uint32_t target) {
        constexpr unsigned EACH = LISTED_PARTS / 32;
        const uint32_t *const own = shared().listed.parts + EACH * threadIdx.x;
        uint32_t sum = 0;
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            sum += own[i];
        }
        uint32_t until = sum;
#pragma unroll
        for (unsigned by = 1; by < 32; by *= 2) {
            const uint32_t lower = __shfl_up_sync(0xffffffffu, until, by);
            until += threadIdx.x >= by ? lower : 0;
        }
        uint32_t before = until - sum;
        if (before < target && until >= target) {
            unsigned at = 0;
            while (before + own[at] < target) {
                before += own[at++];
            }
            shared().last = pack_up(Found{target - before, EACH * threadIdx.x + at, 0});
        }
    }

    /*
     * The same of any number of tokens, by a radix search over ranks: digits of 11, 11 and 10 bits of the logit, then of 11 and
     * 11 of the token.
     */
    static __device__ __noinline__ Last find_by_digits(ChooserSearch copy, const Subset subset, uint64_t target) {
        uint64_t prefix = 0;
        unsigned shift = 32 + TOKEN_BITS;
        while (shift > 0) {
            const unsigned width = shift == TOKEN_BITS + 10 ? 10 : 11, above = shift;
            shift -= width;
            copy.fill([&](unsigned i, float x) {
                const uint64_t at = rank_of(i, x);
                const Place place = subset.place(x);
                const unsigned digit = unsigned(at >> shift) & ((1u << width) - 1);
                add(at >> above == prefix && subset.has(i, x, place), DIGITS - 1 - digit, subset.value(place));
            });
            const Found found = copy.reach(subset, Plain(), target);
            prefix = prefix << width | (DIGITS - 1 - found.bucket);
            target = found.target;
        }
        return {prefix, copy.turn};
    }

    /*
     * The rank of the last token to keep, best first, of those from `cut` on: with it their number reaches `target` or, if
     * that is 0, their weights reach `top_p` of all. Other blocks may still read this block's list.
     */
    __device__ uint64_t find_last(uint64_t target, float top_p, uint64_t cut, float per_log) {
        const Last last = find_last_of(*this, target, top_p, cut, per_log);
        turn = last.turn;
        return last.rank;
    }

    /* A function of its own, on a copy: it is called up to three times. */
    static __device__ __noinline__ Last find_last_of(ChooserSearch copy, uint64_t target, float top_p, uint64_t cut,
                                                     float per_log) {
        return copy.search(target, top_p, cut, per_log);
    }

    /* Looks for the bucket, then in its list. */
    __device__ Last search(uint64_t target, float top_p, uint64_t cut, float per_log) {
        Subset subset(target == 0, cut, best, per_log);
        /* Branches outside of the loops. */
        if (!subset.weighs) {
            fill([&](unsigned i, float x) {
                const Place place = subset.place(x);
                add(place.bucket < BUCKETS, place.bucket, 1);
            });
        } else if (cut == 0) {
            fill([&](unsigned i, float x) {
                const Place place = subset.place(x);
                add(place.bucket < BUCKETS, place.bucket, place.weight());
            });
        } else {
            fill([&](unsigned i, float x) {
                const Place place = subset.place(x);
                if (x >= subset.least) {
                    add(place.bucket < BUCKETS && rank_of(i, x) >= cut, place.bucket, place.weight());
                }
            });
        }
        Found found = subset.weighs ? reach(subset, Octaves(), 0, top_p) : reach(subset, Plain(), target);
        if (found.bucket == BUCKETS) {
            return find_by_digits(*this, subset, target);
        }
        subset.bucket = found.bucket;
        if (found.count > MOST_LISTED) {
            /* In parts of the bucket. */
            fill([&](unsigned i, float x) {
                const Place place = subset.place(x);
                add(subset.has(i, x, place), place.part(), subset.value(place));
            });
            found = reach(subset, Plain(), found.target);
            subset.part = found.bucket;
        }
        const uint64_t last = found.count <= MOST_LISTED ? find_listed(subset, found.target) : 0;
        return last != 0 ? Last{last, turn} : find_by_digits(*this, subset, found.target);
    }

    /* Random bits of the four tokens from 4 group on: Philox4x32-10. */
    static __device__ uint4 random_bits(unsigned group, uint32_t low, uint32_t high, uint32_t position) {
        uint4 at = make_uint4(group, position, 0, 0);
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const uint32_t x = __umulhi(0xD2511F53u, at.x), x_low = 0xD2511F53u * at.x;
            const uint32_t z = __umulhi(0xCD9E8D57u, at.z), z_low = 0xCD9E8D57u * at.z;
            at = make_uint4(z ^ at.y ^ low, z_low, x ^ at.w ^ high, x_low);
            low += 0x9E3779B9u, high += 0xBB67AE85u;
        }
        return at;
    }

    static __device__ uint32_t word_of(const uint4 &bits, unsigned at) {
        return at < 2 ? (at == 0 ? bits.x : bits.y) : (at == 2 ? bits.z : bits.w);
    }

    /* Above 0 and below 1. */
    static __device__ float uniform(uint32_t bits) {
        return fminf(__uint2float_rn(bits) * 0x1p-32f + 0x1p-33f, 0.99999994f);
    }

    static __device__ float score(float weight, float uniform) { return weight - logf(-log1pf(-uniform)); }

    /* The token with the best score, of those from `cut` on. `token`, the best one, is always one of them. */
    __device__ unsigned race(uint64_t cut, unsigned token) {
        const float min_p = __uint_as_float(shared().draw[4]);
        const float least = fmaxf(logit_of(uint32_t(cut >> TOKEN_BITS)), best + REACH / inverse);
        /* Through reductions, so that the compiler knows them to be uniform. */
        const auto uniform_word = [&](unsigned at) { return __reduce_max_sync(0xffffffffu, shared().draw[at]); };
        const uint32_t low = uniform_word(5), high = uniform_word(6), position = uniform_word(7);
        const uint4 bits = random_bits(token / 4, low, high, position);
        Scored mine = {score(0.0f, uniform(word_of(bits, token % 4))), token};
        /* The best score of the warp's tokens. */
        float record = mine.score;
        const unsigned lane = threadIdx.x % 32;
        for (unsigned from = first + 4 * (threadIdx.x - lane); from < end; from += 4 * CHOOSE_THREADS) {
            const unsigned at = from + 4 * lane;
            const Pack<float, 4> x = at < end ? run_at(at) : Row::nothing();
            const float most = fmaxf(fmaxf(x.at[0], x.at[1]), fmaxf(x.at[2], x.at[3]));
            if (!__any_sync(0xffffffffu, most >= least)) {
                continue;
            }
            /* -ln(1 - u) is at least u: no score exceeds the record where u exceeds this. */
            const uint4 bits = random_bits(at / 4, low, high, position);
            const float bound = __expf(log_weight(most) - record + 1e-3f);
            const bool may = most >= least && uniform(min(min(bits.x, bits.y), min(bits.z, bits.w))) <= bound;
            if (!__any_sync(0xffffffffu, may)) {
                continue;
            }
            unsigned here = 0;
            here |= may && uniform(bits.x) <= bound ? 1 : 0;
            here |= may && uniform(bits.y) <= bound ? 2 : 0;
            here |= may && uniform(bits.z) <= bound ? 4 : 0;
            here |= may && uniform(bits.w) <= bound ? 8 : 0;
            /* Mostly one. */
            for (; here != 0; here &= here - 1) {
                const unsigned i = __ffs(here) - 1;
                const float logit = i < 2 ? (i == 0 ? x.at[0] : x.at[1]) : (i == 2 ? x.at[2] : x.at[3]);
                const float weight = log_weight(logit);
                if (logit >= least && rank_of(at + i, logit) >= cut && !(min_p > 0.0f && expf(weight) < min_p)) {
                    mine = Scored::merge(mine, {score(weight, uniform(word_of(bits, i))), at + i});
                }
            }
            record = logit_of(__reduce_max_sync(0xffffffffu, key_of(mine.score)));
        }
        return of_row(mine).token;
    }
};

} // namespace djinn

#endif
