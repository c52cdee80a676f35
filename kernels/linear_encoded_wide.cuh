/*
 * Products over encoded weights on Hopper (sm_90a) for more rows than linear_encoded.cu takes, computed as in linear_wide.cuh,
 * with the bits of the product over decoded rows. These are never in device memory. This is faster than decoding them before
 * as long as rows are few; with many, shared memory is the limit, and each pair of groups of rows decodes the weight again.
 *
 * Launch: as there, with clusters whose two blocks have the same rows of the weight. Instead of a warp that copies it there
 * are some that copy and decode it, while the others multiply. Each block decodes half of the rows into its ring, and copies
 * them from there to the other's.
 *
 * A `Format` has the `Type` that rows are decoded to; the rows of its `Tiles`, and the time of a `wave` of them, as in
 * WideChoice; the `Maps` of a tile of the weight; and `Rows<COUNT>`, what a warp decodes of a run.
 */
#ifndef DJINN_LINEAR_ENCODED_WIDE_CUH
#define DJINN_LINEAR_ENCODED_WIDE_CUH

#include "linear_wide_launch.cuh"

namespace djinn {

/* Rows of x that TMA copies at once. */
constexpr unsigned X_BOX = WIDE_ROWS / 2;

/* Tensor maps of the weight's tiles, of x, and of what is stored. */
template <typename Format> struct EncodedWideMaps {
    typename Format::Maps weights[DJINN_LINEAR_TILES];
    CUtensorMap x, out;
};

/*
 * The warps that decode a tile with N rows of the weight. Teams take runs in turn. A member has some rows of its team's run,
 * from a ring of its own, and keeps beside what it needs of the whole tile. Copying and waiting take a warp longer than
 * decoding 16 rows, so more teams decode more runs; but the ring of stages must hold the runs of all teams.
 */
template <typename Format, unsigned N> struct Decoding {
    static constexpr unsigned TEAMS = N == 64 ? 4 : 2, MEMBERS = N == 128 ? 4 : 2, WARPS = TEAMS * MEMBERS;
    static constexpr unsigned ROWS = N / SHARING / MEMBERS, THREADS = COMPUTING + 32 * WARPS;
    /* Registers of these threads, and of those that multiply. */
    static constexpr unsigned REGISTERS = 56, OF_OTHERS = WARPS == 8 ? 200 : 224, AT_LAUNCH = 65536 / THREADS / 8 * 8;
    static_assert(THREADS * AT_LAUNCH == COMPUTING * OF_OTHERS + 32 * WARPS * REGISTERS, "or threads wait for ever for them");
    using Rows = typename Format::template Rows<ROWS>;
    /* TMA's 64-byte swizzle repeats after so many bytes. */
    static constexpr unsigned REPEATS = 512;
    static constexpr unsigned STAGE = (Rows::COPIED + REPEATS - 1) / REPEATS * REPEATS, STAGES = 2;
    static constexpr unsigned OF_WARP = STAGES * STAGE + Rows::KEPT, BYTES = WARPS * OF_WARP;
    static_assert(ROWS % 16 == 0 && BYTES % BLOCK_ALIGN == 0);
};

template <typename Format, unsigned N, bool GATED, typename Parts = WideFrame>
struct EncodedWideTiles : WideTiles<typename Format::Type, N, true, GATED, Decoding<Format, N>::BYTES, Parts> {
    using Encoded = Decoding<Format, N>;
    using Rows = typename Encoded::Rows;
    using Wide = WideTiles<typename Format::Type, N, true, GATED, Encoded::BYTES, Parts>;
    using typename Wide::Slot, typename Wide::Tile;
    using Wide::a, Wide::f, Wide::rank, Wide::ring, Wide::step;
    using Wide::STAGE, Wide::STAGES, Wide::X_BYTES;

    static constexpr unsigned ROWS = Encoded::ROWS;
    /* A team waits for the last use of its next stage; others must not use it again before. */
    static_assert(STAGES >= Encoded::TEAMS);

    struct Barriers : Wide::Barriers {
        Barrier encoded[Encoded::WARPS][Encoded::STAGES];
    };

    __device__ __forceinline__ explicit EncodedWideTiles(const Wide &wide) : Wide(wide) {}

    /* A run of a tile, by the number of runs before it, in the order in which tiles are computed. */
    struct Cursor {
        unsigned pair, run = 0, partial = 0, taken = 0;

        /* Goes on by some runs. Returns whether it is of another tile. Past the last one, `pair` is past the pairs. */
        __device__ __forceinline__ bool advance(const EncodedWideTiles &of, unsigned by) {
            constexpr unsigned APART = Wide::SIDE_BY_SIDE ? 1 : PARTIALS;
            const unsigned all = of.a.k / RUN;
            bool is_new = false;
            taken += by, run += by * APART;
            while (taken >= all) {
                taken -= all, pair += of.step;
                run = taken * APART, partial = 0;
                is_new = true;
            }
            while (run >= all) {
                run -= APART * runs_of(of.a, partial) - 1, ++partial;
            }
            return is_new;
        }
    };

    /* Where a row of a tile is stored. Past the end of its piece: the last one. */
    __device__ __forceinline__ const char *row_at(const Tile &tile, unsigned row) const {
        const unsigned before = (Wide::ROUTED ? tile.piece % tiles_of(a) : tile.piece) * a.tile_rows;
        const unsigned rows = GATED ? a.tile_rows : min(a.tile_rows, a.n - before);
        return static_cast<const char *>(a.weights[tile.piece]) + size_t(min(tile.row_of_piece + row, rows - 1)) * a.row_bytes;
    }

    /*
     * Copies a run of x to a stage that also gets the other block's half of the weight. Boxes past the end of x are left out:
     * filling them with zeros takes TMA longer than copying.
     */
    __device__ __forceinline__ void copy_x(char *to, const CUtensorMap &x, unsigned run, const Tile &tile,
                                           Barrier &ready) const {
        const unsigned row = tile.row;
        const unsigned boxes = row >= tile.end ? 0 : min((tile.end - row + X_BOX - 1) / X_BOX, WIDE_ROWS / X_BOX);
        ready.arrive_expecting((boxes * X_BOX + N / SHARING) * BLOCK_ROW);
        for (unsigned box = 0; box < boxes; ++box) {
            copy_box(to + box * X_BOX * BLOCK_ROW, x, run * RUN, row + box * X_BOX, ready);
        }
    }

    /* Copies and decodes all runs of a warp's team. */
    __device__ __forceinline__ void decode(const EncodedWideMaps<Format> &maps, Barriers &barriers, char *encoded,
                                           unsigned warp, unsigned lane) {
        const unsigned team = warp / Encoded::MEMBERS, member = warp % Encoded::MEMBERS, first = member * ROWS;
        char *const own = encoded + warp * Encoded::OF_WARP;
        char *const part = ring + X_BYTES + (rank * (N / SHARING) + first) * BLOCK_ROW;
        Rows rows(lane, own + Encoded::STAGES * Encoded::STAGE);
        /* From an address here to that in the other block. */
        const unsigned other = address_at(shared_address(ring), rank ^ 1) - shared_address(ring);
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        /* The next run to be copied, and the next one to be decoded. */
        Cursor ahead{Wide::first_pair()};
        ahead.advance(*this, team);
        Cursor at = ahead;
        Tile tile(a, f, min(at.pair, f.parts - 1), rank), next = tile;
        const auto copy_next = [&](unsigned stage) {
            if (ahead.pair < f.parts && lane == 0) {
                Barrier &ready = barriers.encoded[warp][stage];
                ready.arrive_expecting(Rows::COPIED);
                Rows::copy(own + stage * Encoded::STAGE, maps.weights[next.piece], a.k, ahead.run, next.row_of_piece + first,
                           ready);
            }
            if (ahead.advance(*this, Encoded::TEAMS)) {
                next = Tile(a, f, min(ahead.pair, f.parts - 1), rank);
            }
        };
#pragma unroll 1
        for (unsigned stage = 0; stage < Encoded::STAGES; ++stage) {
            copy_next(stage);
        }
        if (member == 0) {
            await_previous();
            admit_bulk_copies();
        }
        __syncwarp();
        Slot slot;
        for (unsigned i = 0; i < team; ++i) {
            slot.advance();
        }
        unsigned stage = 0, parity = 0;
        bool is_new = true;
#pragma unroll 1
        while (at.pair < f.parts) {
            const auto stored_at = [&](unsigned row) { return row_at(tile, first + row); };
            if (is_new) {
                rows.begin(a, stored_at);
            }
            const char *const from = own + stage * Encoded::STAGE;
            Barrier &ready = barriers.ready[slot.at];
            barriers.encoded[warp][stage].wait(parity);
            const auto loaded = rows.load(from, at.run);
            barriers.free[slot.at].wait(slot.parity ^ 1);
            if (member == 0 && lane == 0) {
                copy_x(ring + slot.at * STAGE, maps.x, at.run, tile, ready);
            }
            rows.decode(part + slot.at * STAGE, loaded, from, a, at.run, stored_at);
            /* Ends the reads of the encoded stage as well. */
            admit_shared_writes();
            __syncwarp();
            if (lane == 0) {
                const unsigned mine = shared_address(part) + slot.at * STAGE;
                copy_to_cluster(mine + other, mine, ROWS * BLOCK_ROW, shared_address(&ready) + other);
                ready.arrive();
            }
            copy_next(stage);
            is_new = at.advance(*this, Encoded::TEAMS);
            if (is_new) {
                tile = Tile(a, f, min(at.pair, f.parts - 1), rank);
            }
            for (unsigned i = 0; i < Encoded::TEAMS; ++i) {
                slot.advance();
            }
            if (++stage == Encoded::STAGES) {
                stage = 0, parity ^= 1;
            }
        }
        /* Until then the other block arrives at this block's barriers. The team whose turn it would be knows all slots. */
        const unsigned tiles = (f.parts - Wide::first_pair() + step - 1) / step;
        for (unsigned i = 0; i < STAGES && team == tiles * (a.k / RUN) % Encoded::TEAMS; ++i) {
            barriers.free[slot.at].wait(slot.parity ^ 1);
            slot.advance();
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const EncodedWideMaps<Format> &maps,
                                               const Parts &f) {
        extern __shared__ char memory[];
        __shared__ Barriers barriers;
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, rank = cluster_rank();
        char *ring = memory + (BLOCK_ALIGN - shared_address(memory) % BLOCK_ALIGN) % BLOCK_ALIGN;
        char *encoded = ring + STAGES * STAGE, *staging = encoded + Encoded::BYTES;
        char *spilled = staging + COMPUTING / 32 * Wide::STAGING;
        EncodedWideTiles work(Wide{a,
                                   f,
                                   barriers,
                                   ring,
                                   reinterpret_cast<float4 *>(spilled),
                                   reinterpret_cast<float *>(staging + warp * Wide::STAGING),
                                   rank,
                                   gridDim.x / SHARING});
        release_next();
        init_barriers(STAGES, [&](unsigned i) {
            barriers.ready[i].init_by_warp(1 + Encoded::MEMBERS);
            barriers.free[i].init_by_warp(SHARING * COMPUTING / 32);
        });
        init_barriers(Encoded::WARPS * Encoded::STAGES, [&](unsigned i) {
            barriers.encoded[i / Encoded::STAGES][i % Encoded::STAGES].init_by_warp(1);
        });
        cluster_sync();
        if (warp >= COMPUTING / 32) {
            give_registers<Encoded::REGISTERS>();
            work.decode(maps, barriers, encoded, warp - COMPUTING / 32, lane);
            await_previous();
        } else {
            take_registers<Encoded::OF_OTHERS>();
            await_previous();
            work.compute(maps.out, __shfl_sync(0xffffffffu, warp / 4, 0), warp % 4, lane);
        }
    }
};

} // namespace djinn

template <typename Format, unsigned N, bool GATED>
__global__ void __launch_bounds__(djinn::Decoding<Format, N>::THREADS, 1)
    djinn_linear_encoded_wide(const __grid_constant__ djinn_linear_args a,
                              const __grid_constant__ djinn::EncodedWideMaps<Format> maps,
                              const __grid_constant__ djinn::WideFrame f) {
    DJINN_ON_HOPPER(djinn::EncodedWideTiles<Format, N, GATED>::run(a, maps, f));
}

/* For experts: the slots of `f.range`, whose rows of x were gathered. */
template <typename Format, unsigned N>
__global__ void __launch_bounds__(djinn::Decoding<Format, N>::THREADS, 1)
    djinn_expert_linear_encoded_wide(const __grid_constant__ djinn_expert_linear_args a,
                                     const __grid_constant__ djinn::EncodedWideMaps<Format> maps,
                                     const __grid_constant__ djinn::RoutedFrame f) {
    using Parts = djinn::RoutedParts<DJINN_LINEAR_TILES>;
    using Tiles = djinn::EncodedWideTiles<Format, N, false, Parts>;
    __shared__ Parts parts;
    if (parts.find(a, f.range, f.outer, Tiles::GROUPS_OF_PAIR * djinn::WIDE_ROWS, Tiles::first_pair())) {
        DJINN_ON_HOPPER(Tiles::run(a.linear, maps, parts));
    }
}

namespace djinn {

/* A kernel, and the threads of its blocks. */
template <typename Format> struct EncodedWideChoice : WideChoice<EncodedWideMaps<Format>> {
    unsigned threads;
};

template <typename Format, unsigned N, bool GATED> EncodedWideChoice<Format> encoded_wide_choice() {
    return {{djinn_linear_encoded_wide<Format, N, GATED>, GATED ? N / 2 : N, Decoding<Format, N>::ROWS, true, Format::wave(N)},
            Decoding<Format, N>::THREADS};
}

/* The kernel for a product among those with tiles of N rows, allowed its shared memory. Gated tiles have 128 rows or more. */
template <typename Format, unsigned... N>
cudaError_t choose_encoded_wide(const djinn_linear_args &a, EncodedWideChoice<Format> &choice,
                                std::integer_sequence<unsigned, N...>) {
    const EncodedWideChoice<Format> plain[] = {encoded_wide_choice<Format, N, false>()...};
    const EncodedWideChoice<Format> gated[] = {encoded_wide_choice<Format, (N < 128 ? 128 : N), true>()...};
    static Allowed allowed;
    const cudaError_t code = allow_once(allowed, a.weight_dtype, [&] {
        const cudaError_t code = allow_all(plain);
        return code == cudaSuccess ? allow_all(gated) : code;
    });
    choice = a.gated_rounded != nullptr ? least_of(gated, a, wide_clusters()) : least_of(plain, a, wide_clusters());
    return code;
}
template <typename Format> cudaError_t choose_encoded_wide(const djinn_linear_args &a, EncodedWideChoice<Format> &choice) {
    return choose_encoded_wide(a, choice, typename Format::Tiles());
}

template <typename Format> int linear_encoded_wide(const djinn_linear_args &args, void *stream) {
    const djinn_linear_args a = args.gated_rounded != nullptr ? gate_of(args) : args;
    EncodedWideChoice<Format> choice;
    const cudaError_t code = choose_encoded_wide(a, choice);
    if (code != cudaSuccess) {
        return code;
    }
    WideFrame frame = wide_frame(a, choice);
    EncodedWideMaps<Format> maps;
    const auto encode = [&](unsigned tile, unsigned rows) {
        return maps.weights[tile].encode(a.weights[tile], rows, a.row_bytes, choice.box);
    };
    if (!encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, X_BOX) ||
        !encode_tiles(a, a.gated_rounded != nullptr ? 2 : 1, encode)) {
        return cudaErrorInvalidValue;
    }
    frame.bulk = is_whole(a, choice.width) && encode_out(maps.out, a, choice.width);
    if (a.adds != 0 && (frame.bulk == 0 || !can_add(a, choice))) {
        return cudaErrorInvalidValue;
    }
    const unsigned clusters = wide_clusters(), used = frame.parts < clusters ? frame.parts : clusters;
    return launch_clusters(SHARING, choice.kernel, dim3(used * SHARING), choice.threads, MOST_SHARED, stream, a, maps, frame);
}

/* Experts' tiles have 128 rows of the weight: with more, some cards would have too few tiles of a small weight. */
template <typename Format> int expert_linear_encoded_wide(const djinn_expert_linear_args &args, SlotRange range, void *stream) {
    constexpr unsigned N = 128;
    const djinn_linear_args &a = args.linear;
    const auto kernel = djinn_expert_linear_encoded_wide<Format, N>;
    static Allowed allowed;
    const cudaError_t code = allow_once(allowed, a.weight_dtype, [&] { return allow_shared(kernel, MOST_SHARED); });
    if (code != cudaSuccess) {
        return code;
    }
    EncodedWideMaps<Format> maps = {};
    const auto encode = [&](unsigned tile, unsigned rows) {
        return maps.weights[tile].encode(a.weights[tile], rows, a.row_bytes, Decoding<Format, N>::ROWS);
    };
    const unsigned rows = range.end - range.first;
    if (!encode_map(maps.x, args.workspace, a.weight_dtype, rows, a.k, X_BOX) || !encode_tiles(a, args.chosen, encode)) {
        return cudaErrorInvalidValue;
    }
    const RoutedFrame frame{shares_of(a, N), range};
    const dim3 grid(SHARING * routed_clusters(args, frame, SHARING * WIDE_ROWS));
    return launch_clusters(SHARING, kernel, grid, Decoding<Format, N>::THREADS, MOST_SHARED, stream, args, maps, frame);
}

template <typename Format> bool encoded_wide_adds(const djinn_linear_args &a) {
    EncodedWideChoice<Format> choice;
    return choose_encoded_wide(a, choice) == cudaSuccess && can_add(a, choice);
}

template <typename Format> uint64_t encoded_wide_cycles(const djinn_linear_args &a) {
    EncodedWideChoice<Format> choice;
    return choose_encoded_wide(a, choice) == cudaSuccess ? wide_cycles(a, choice, wide_clusters()) : UINT64_MAX;
}

template <typename Format>
constexpr EncodedWide ENCODED_WIDE = {linear_encoded_wide<Format>, expert_linear_encoded_wide<Format>,
                                      encoded_wide_adds<Format>, encoded_wide_cycles<Format>};

} // namespace djinn

#endif
