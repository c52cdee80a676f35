/*
 * choose: a token of each row of logits, by the row's settings; djinn-device, src/choice.rs, has the definition.
 * Shapes: logits f32 [rows, vocab], draws u32 [rows, 16], drawn u32 [rows, 44], changes and earlier u32 words that rows of
 * draws refer to; all but logits may be pinned host memory.
 * Launch: 384 threads a block. On cards that have clusters (sm_90), a cluster of 8 blocks for each row, whose logits fit in
 * their shared memory; else a block for each row, which reads it again and again.
 * A block goes through its run of the row for each part of the work: the best logit; the sum of exponentials and the most
 * probable tokens, if these are wanted; the changes, and the best logit after them; the last token that top-k keeps, and the
 * last one that top-p keeps; and the best score. The blocks merge what they found in order of their ranks.
 *
 * Changes are made to the run in shared memory. A row that is not there is changed in global memory, token by token; the last
 * word of a change then holds the old logit, which is put back. What is not allowed is ruled out as it is read.
 *
 * To find a last token, a histogram of counts, or of weights, by the logarithm of the weight tells its bucket: 64 buckets an
 * octave. The bucket's tokens are listed, and every block finds the last one in the lists of all. A bucket of too many tokens
 * is first divided in 2,048 parts; if many tokens have one logit, a radix search over ranks follows: 32 bits that order the
 * logits, then 22 of the token, lower ones ranking higher.
 * Reference: djinn-device, src/reference/choice.rs, `choose`.
 */
#include "choose_search.cuh"

namespace djinn {

/* The choice of a row, by one of its blocks. */
template <unsigned RANKS> struct Chooser : ChooserSearch<RANKS> {
    using Row = ChooserRow<RANKS>;
    using Search = ChooserSearch<RANKS>;
    using Row::shared, Row::logits, Row::is_staged, Row::staged, Row::rank, Row::first, Row::end, Row::share, Row::vocab;
    using Row::allowed, Row::best, Row::inverse, Row::find_bad, Row::of_row, Row::each_logit;
    using Search::find_last, Search::race, Search::rank_of;

    /* Whether a row has no NaN, and its greatest logit is finite. */
    static __device__ bool is_sound(const Best &greatest) {
        return greatest.key > key_of(-INFINITY) && greatest.key < key_of(INFINITY);
    }

    __device__ float setting(unsigned at) const { return __uint_as_float(shared().draw[at]); }

    /* A token's logit after its change, with the same bits as `Draw::changed` in djinn-device. */
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

    /* Changes a token's logit. Returns the old one if it was changed in global memory. */
    __device__ float change(unsigned token, float bias, uint32_t count, bool seen) {
        if constexpr (RANKS > 1) {
            if constexpr (is_staged) {
                const unsigned owner = token / share;
                change_at(staged() + (token - owner * share), owner, [&](float x) { return changed(x, bias, count, seen); });
                return 0.0f;
            }
        }
        const float before = logits[token];
        logits[token] = changed(before, bias, count, seen);
        return before;
    }

    /* Rules out the tokens of the block's run in shared memory that are not allowed. */
    __device__ void rule_out_staged(const uint32_t *words) {
        /* The bits pass through shared memory, so that each is read once. */
        uint32_t *const bits = shared().sums;
        constexpr unsigned AT_ONCE = 32 * (BUCKETS - 1);
        for (unsigned from = first; from < end; from += AT_ONCE) {
            const unsigned until = min(end, from + AT_ONCE), word = from / 32, count = (until + 31) / 32 - word;
            __syncthreads();
            for (unsigned i = threadIdx.x; i < count; i += CHOOSE_THREADS) {
                bits[i] = words[word + i];
            }
            __syncthreads();
            for (unsigned at = from + 4 * threadIdx.x; at < until; at += 4 * CHOOSE_THREADS) {
                Pack<float, 4> x = load<float, 4>(staged() + (at - first));
                Row::rule_out(x.at, bits[at / 32 - word] >> (at % 32));
                store(staged() + (at - first), x);
            }
        }
    }

    /* The logarithm of the sum of exponentials, relative to the greatest logit's. */
    __device__ float find_log_total(float most) {
        Total mine;
        each_logit([&](unsigned, float x) { mine.total += __float2ull_rz(__expf(x - most) * 0x1p40f); });
        return logf(float(of_row(mine).total) * 0x1p-40f);
    }

    /* The token that was chosen before, unless the changes already count it. */
    __device__ unsigned latest(const uint32_t *earlier) const {
        const unsigned token = shared().draw[LATEST] != 0 ? earlier[shared().draw[LATEST] - 1] : NO_TOKEN;
        return token < vocab ? token : NO_TOKEN;
    }

    /* Makes the changes, apart from tokens that are ruled out as they are read. No thread reads the row meanwhile. */
    __device__ void make_changes(uint32_t *words, const uint32_t *earlier) {
        if (is_staged && shared().draw[ALLOWED] != 0) {
            rule_out_staged(words + (shared().draw[ALLOWED] - 1));
            meet<RANKS>();
        }
        uint4 *changes = reinterpret_cast<uint4 *>(words + shared().draw[FIRST_CHANGE]);
        const unsigned newest = latest(earlier);
        First known;
        for (unsigned i = rank * CHOOSE_THREADS + threadIdx.x; i < shared().draw[CHANGES]; i += RANKS * CHOOSE_THREADS) {
            const uint4 it = changes[i];
            if (it.x < vocab) {
                const bool again = it.x == newest;
                known.token = again ? newest : known.token;
                const uint32_t count = (it.z & 0x7fffffffu) + (again ? 1 : 0);
                const float before = change(it.x, __uint_as_float(it.y), count, again || it.z >> 31 != 0);
                if (!is_staged) {
                    changes[i].w = __float_as_uint(before);
                }
            }
        }
        if (newest != NO_TOKEN) {
            const bool is_known = of_row(known).token != NO_TOKEN;
            if (rank == 0 && threadIdx.x == 0) {
                shared().latest = is_known ? NAN : change(newest, 0.0f, 1, true);
            }
        }
        meet<RANKS>();
    }

    __device__ void undo_changes(uint32_t *words, const uint32_t *earlier) {
        uint4 *changes = reinterpret_cast<uint4 *>(words + shared().draw[FIRST_CHANGE]);
        for (unsigned i = rank * CHOOSE_THREADS + threadIdx.x; i < shared().draw[CHANGES]; i += RANKS * CHOOSE_THREADS) {
            const uint4 it = changes[i];
            if (it.x < vocab) {
                logits[it.x] = __uint_as_float(it.w);
                changes[i].w = 0;
            }
        }
        const unsigned newest = latest(earlier);
        if (newest != NO_TOKEN && rank == 0 && threadIdx.x == 0 && shared().latest == shared().latest) {
            logits[newest] = shared().latest;
        }
        meet<RANKS>();
    }

    /* Writes the most probable tokens to the row of results. The first block gets their number. */
    __device__ unsigned write_best(uint32_t *drawn, float most, float log_total) {
        const unsigned wanted = min(shared().draw[BEST], MOST_BEST);
        const uint64_t cut = wanted < vocab ? find_last(wanted, 0.0f, 0, 1.0f) : 0;
        const float least = logit_of(uint32_t(cut >> TOKEN_BITS));
        if (threadIdx.x == 0) {
            shared().count = 0;
        }
        meet<RANKS>();
        each_logit([&](unsigned at, float x) {
            if (x >= least && x > -INFINITY && rank_of(at, x) >= cut) {
                shared().listed.own[atomicAdd(&shared().count, 1u)] = rank_of(at, x);
            }
        });
        meet<RANKS>();
        unsigned count = 0;
        if (rank == 0) {
            uint64_t *ranks = shared().listed.own + MOST_LISTED / 2, mine = 0;
            for (unsigned other = 0; other < RANKS; ++other) {
                count += word_at<RANKS>(&shared().count, other);
            }
            const unsigned other = threadIdx.x / MOST_BEST, at = threadIdx.x % MOST_BEST;
            if (other < RANKS) {
                mine = at < word_at<RANKS>(&shared().count, other) ? long_at<RANKS>(&shared().listed.own[at], other) : 0;
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
        }
        meet<RANKS>();
        return count;
    }

    /*
     * Chooses, and writes the row of results, once the block's run was read. `more`: logits may have to be changed, and the
     * most probable tokens may be wanted.
     */
    template <bool more> __device__ void finish(Best greatest, uint32_t *drawn, uint32_t *changes, const uint32_t *earlier) {
        const uint32_t flags = shared().draw[0], top_k = shared().draw[2];
        const float top_p = setting(3), temperature = setting(1);
        inverse = 1.0f / fmaxf(temperature, 1e-30f);
        const float most = logit_of(greatest.key);
        best = most;
        unsigned token = greatest.token;
        bool sound = is_sound(greatest);
        const bool wants_logprob = (flags & WANTS_LOGPROB) != 0;
        float log_total = 0.0f;
        unsigned count = 0;
        bool is_changed = false;
        if constexpr (more) {
            if (sound && (wants_logprob || shared().draw[BEST] != 0)) {
                log_total = find_log_total(most);
            }
            if (sound && shared().draw[BEST] != 0) {
                count = write_best(drawn, most, log_total);
            }
            is_changed = sound && (shared().draw[CHANGES] | shared().draw[ALLOWED] | shared().draw[LATEST]) != 0;
            if (is_changed) {
                make_changes(changes, earlier);
                if (!is_staged && shared().draw[ALLOWED] != 0) {
                    allowed = changes + (shared().draw[ALLOWED] - 1);
                }
                const Best after = Row::template find_best<false>();
                best = logit_of(after.key);
                token = after.token;
                sound = is_sound(after);
            }
        }
        if (!sound) {
            token = find_bad();
        } else if (temperature != 0.0f && top_k != 1) {
            uint64_t cut = 0;
            if (top_k > 0 && top_k < vocab) {
                cut = find_last(top_k, 0.0f, 0, inverse);
                meet<RANKS>();
            }
            if (top_p < 1.0f) {
                cut = find_last(0, top_p, cut, inverse);
            }
            token = race(cut, token);
        }
        if constexpr (more) {
            if (is_changed && !is_staged) {
                undo_changes(changes, earlier);
            }
        } else if (sound && wants_logprob) {
            log_total = find_log_total(most);
        }
        if (rank == 0 && threadIdx.x == 0) {
            const bool chooses = (flags & CHOOSES) != 0;
            const float logit = is_changed && !sound ? best : logits[token];
            const float logprob = sound && wants_logprob ? logit - most - log_total : 0.0f;
            drawn[0] = !chooses ? 0 : sound ? 1 | count << 8 : 2;
            drawn[1] = chooses ? token : 0;
            drawn[2] = chooses ? __float_as_uint(logit) : 0;
            drawn[3] = chooses ? __float_as_uint(logprob) : 0;
        }
    }

    /* A function of its own, on a copy, so that other rows have more registers. */
    static __device__ __noinline__ void finish_more(Chooser copy, Best greatest, uint32_t *drawn, uint32_t *changes,
                                                    const uint32_t *earlier) {
        copy.template finish<true>(greatest, drawn, changes, earlier);
    }

    /* `word`, in the first threads, is one of the row's settings. It comes from the host while the logits are read. */
    __device__ void run(uint32_t word, uint32_t *drawn, uint32_t *changes, const uint32_t *earlier) {
        const Best greatest = Row::template find_best<true>();
        if (threadIdx.x < DRAW_WORDS) {
            shared().draw[threadIdx.x] = word;
        }
        __syncthreads();
        if ((shared().draw[BEST] | shared().draw[CHANGES] | shared().draw[ALLOWED] | shared().draw[LATEST]) != 0) {
            finish_more(*this, greatest, drawn, changes, earlier);
        } else {
            finish<false>(greatest, drawn, changes, earlier);
        }
    }
};

} // namespace djinn

template <unsigned RANKS>
__global__ void __launch_bounds__(djinn::CHOOSE_THREADS, djinn::CHOOSE_BLOCKS)
    djinn_choose_f32(const __grid_constant__ djinn_choose_args a, const unsigned share) {
#if __CUDA_ARCH__ < 900
    static_assert(RANKS > 0, "some blocks have the row");
    if constexpr (RANKS > 1) {
        return;
    } else
#endif
    {
        using namespace djinn;
        enter();
        /* No block writes to another's memory before that runs. */
        if constexpr (RANKS > 1) {
            cluster_arrive_relaxed();
        }
        const unsigned row = blockIdx.x / RANKS, rank = blockIdx.x % RANKS;
        uint32_t *drawn = a.drawn + size_t(row) * DRAWN_WORDS;
        const uint32_t word = threadIdx.x < DRAW_WORDS ? a.draws[size_t(row) * DRAW_WORDS + threadIdx.x] : 0;
        const unsigned first = min(rank * share, (a.vocab + 3) / 4 * 4), end = min(first + share, a.vocab);
        float *logits = a.logits + size_t(row) * a.vocab;
        Chooser<RANKS> chooser = {{{logits, rank, first, end, share, a.vocab, a.vocab % 4 == 0}}};
        chooser.run(word, drawn, a.changes, a.earlier);
    }
}

namespace djinn {

/* The bytes of dynamic shared memory of a block whose run has `share` tokens. */
template <unsigned RANKS> unsigned shared_bytes(unsigned share) {
    return sizeof(ChooseShared<RANKS>) + (RANKS > 1 ? share * sizeof(float) : 0);
}

/* A block's tokens, in whole groups of 4. */
template <unsigned RANKS> unsigned share_of(unsigned vocab) { return (ceil_div(vocab, RANKS) + 3) / 4 * 4; }

template <unsigned RANKS> int choose(const djinn_choose_args &a, void *stream) {
    const unsigned share = share_of<RANKS>(a.vocab);
    if (RANKS > 1) {
        /* The same for each launch: threads of two devices may set it at once. */
        const cudaError_t code = allow_shared(djinn_choose_f32<RANKS>, all_devices()[current_device()].block_shared);
        if (code != cudaSuccess) {
            return code;
        }
    }
    const unsigned bytes = shared_bytes<RANKS>(share);
    return launch_clusters(RANKS, djinn_choose_f32<RANKS>, a.rows * RANKS, CHOOSE_THREADS, bytes, stream, a, share);
}

} // namespace djinn

extern "C" int djinn_choose(const djinn_choose_args *args, void *stream) {
    using namespace djinn;
    const auto &device = all_devices()[current_device()];
    const bool fits = shared_bytes<CHOOSE_RANKS>(share_of<CHOOSE_RANKS>(args->vocab)) <= device.block_shared;
    return fits && device.overlaps ? choose<CHOOSE_RANKS>(*args, stream) : choose<1>(*args, stream);
}
