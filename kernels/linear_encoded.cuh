/*
 * linear and expert_linear over encoded weights, for up to 16 rows. The bits are those of the product over decoded rows. On
 * Hopper only if x fits in no block of linear_blocks.cuh or linear_lossless.cuh.
 *
 * 16 rows of the weight are the wide operand of the tensor cores; x, in shared memory, is the narrow one, as in
 * linear_hopper.cuh. A group is PARTIALS warps, one for each partial sum, which share EACH units of 8 rows. They copy some
 * segments of these rows to a ring of stages. Each warp decodes its part of every segment of a stage, into the registers
 * that feed the products. One warp in turn prepares what a format prepares, such as scales, for all, a stage ahead.
 * A block first rounds all of x to shared memory.
 * Launch: one block on each multiprocessor takes equal shares of the weight's rows, in turn.
 *
 * A format has: `Type` of a decoded weight; LANES, a lane's columns; the segments of a stage, the boxes that they are copied
 * in, where a box begins in a row, and the pitch of a box's rows (an odd multiple of 16 bytes, so that lanes that read 4 bytes
 * of 8 rows have no bank conflicts); `lane_at`, where a lane's place in a row begins; `Rows`, what it keeps of a share's rows,
 * which `expect` starts to read and `begin` waits for; `prepare`; `run` and `run_unusual`, which decode a unit's part of a
 * segment; `mend`, called after them.
 */
#ifndef DJINN_LINEAR_ENCODED_CUH
#define DJINN_LINEAR_ENCODED_CUH

#include "encoded.cuh"
#include "linear_lanes.cuh"
#include "linear_tiles.cuh"

namespace djinn {

/* Threads of a group, and the most groups of a block. */
constexpr unsigned GROUP_THREADS = 32 * PARTIALS, MOST_GROUPS = 7;

/* The most stages of a group's ring, and the most bytes of a box's row. */
constexpr unsigned MOST_COPIED = 8, MOST_BOX = 512;

/* The pitch of x's rows in shared memory, in bytes: lanes that read two rows of 64 bytes have no bank conflicts. */
__host__ __device__ inline unsigned encoded_pitch(unsigned k) { return k * 2 + 64; }

/*
 * The weight's rows of a share, the number of shares, stages of a ring, the most slots of a portion, and the slots of a launch.
 * `ahead` (of linear_lossless.cuh): how many stages are copied at once while the ring is first filled.
 */
struct EncodedFrame {
    uint32_t share, shares, stages, ahead, most;
    SlotRange range;
};

__device__ __forceinline__ void wait_copies_but(unsigned most) {
    switch (most) {
    case 0: return wait_copies<0>();
    case 1: return wait_copies<1>();
    case 2: return wait_copies<2>();
    case 3: return wait_copies<3>();
    case 4: return wait_copies<4>();
    case 5: return wait_copies<5>();
    default: return wait_copies<MOST_COPIED - 2>();
    }
}

/*
 * Rounds x to shared memory, by the first `threads` threads of a block. Each lane of a quad has two fours of every 32
 * columns, stored together: columns as lanes have them of the weight. APART: a four of neighbours is stored as its first and
 * third, then its second and fourth column.
 */
template <typename T, Lanes L, bool APART>
__device__ __forceinline__ void stage_fours(const djinn_linear_args &a, const SomeRows &rows, unsigned staged,
                                            unsigned threads) {
    static_assert(L == Lanes::NEIGHBOURS || !APART);
    constexpr unsigned BATCH = 4;
    const unsigned chunks = a.k / 8, all = rows.count() * chunks;
    for (unsigned first = threadIdx.x; first < all; first += BATCH * threads) {
        float4 x[BATCH][2];
#pragma unroll
        for (unsigned i = 0; i < BATCH; ++i) {
            const unsigned at = first + i * threads;
            if (at < all) {
                const float *from = a.x + size_t(rows.in(at / chunks)) * a.k + at % chunks * 8;
                x[i][0] = *reinterpret_cast<const float4 *>(from);
                x[i][1] = *reinterpret_cast<const float4 *>(from + 4);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < BATCH; ++i) {
            const unsigned at = first + i * threads, chunk = at % chunks;
            if (at < all) {
                const unsigned to = staged + at / chunks * encoded_pitch(a.k) + chunk / 4 * 64 + chunk / 2 % 2 * 8;
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const float4 &v = x[i][half];
                    if constexpr (L == Lanes::HALVES) {
                        const unsigned lanes = to + half * 32 + chunk % 2 * 4;
                        *reinterpret_cast<uint32_t *>(shared_at(lanes)) = pack<T>(v.x, v.y);
                        *reinterpret_cast<uint32_t *>(shared_at(lanes + 16)) = pack<T>(v.z, v.w);
                    } else {
                        *reinterpret_cast<uint2 *>(shared_at(to + chunk % 2 * 32 + half * 16)) =
                            APART ? uint2{pack<T>(v.x, v.z), pack<T>(v.y, v.w)} : uint2{pack<T>(v.x, v.y), pack<T>(v.z, v.w)};
                    }
                }
            }
        }
    }
}

/* A lane's columns of x, of two successive 16. */
struct alignas(16) Fours {
    Four at[2];
};

/* EACH units of 8 rows of the weight for each group, times up to 8 TILES rows of x. */
template <typename Format, unsigned EACH, unsigned TILES> struct EncodedLanes {
    using T = typename Format::Type;
    using Products = UnitProducts<T, EACH, TILES>;
    using Sums = typename Products::Sums;
    using Weights = typename Products::Weights;
    static constexpr unsigned EACH_UNITS = EACH, SEGMENT = PARTIALS * RUN;

    /* Segments of a stage, and the boxes that they are copied in. */
    static constexpr bool PREPARES = Format::PREPARES;
    static constexpr unsigned ROWS = 8 * EACH, SEGMENTS = Format::segments(EACH), BOXES = Format::boxes(SEGMENTS);
    static constexpr unsigned PITCH = Format::PITCH, BOX = (ROWS * PITCH + 127) / 128 * 128;
    static_assert(PITCH % 32 == 16 && PITCH <= MOST_BOX);
    /* A stage: the boxes; what is prepared, 16 bytes for each part of each row's segment; whether all is usual. */
    static constexpr unsigned ITEMS = ROWS * SEGMENTS, SCALES = BOXES * BOX;
    static constexpr unsigned USUAL = SCALES + (PREPARES ? PARTIALS * ITEMS * 16 : 0), STAGE = USUAL + (PREPARES ? 128 : 0);
    /* A stage is prepared while the one before is multiplied. */
    static constexpr unsigned LEAST_STAGES = PREPARES ? 3 : 2;
    /* What a group needs besides its ring: partial sums. */
    static constexpr unsigned BESIDE = PARTIALS * 8 * TILES * ROWS * sizeof(float);

    /* Multiplies a run of the units' rows by the run of x that is `at` bytes on. */
    static __device__ __forceinline__ void multiply_all(Sums &sums, const Weights &w, const unsigned (&x)[TILES], unsigned at) {
        Fours both[TILES];
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
                if (step % 2 == 0) {
                    both[tile] = *reinterpret_cast<const Fours *>(shared_at(x[tile] + at + step * 32));
                }
                Products::multiply_step(sums, w, step, tile, both[tile].at[step % 2]);
            }
        }
    }

    /* What a group copies next: its rows of the block's shares, stage by stage. */
    struct Copies {
        const djinn_linear_args &a;
        const EncodedFrame &f;
        const SomeRows &rows;
        unsigned segments, first, thread;
        /* Stages left, the current share, the next segment in it, and the thread's row. */
        unsigned left, index = blockIdx.x, segment = 0;
        const char *from = nullptr;

        static constexpr unsigned ROW_THREADS = GROUP_THREADS / ROWS;

        __device__ __forceinline__ Copies(const djinn_linear_args &a, const EncodedFrame &f, const SomeRows &rows,
                                          unsigned segments, unsigned first, unsigned thread, unsigned left)
            : a(a), f(f), rows(rows), segments(segments), first(first), thread(thread), left(left) {
            seek();
        }

        /* Past the share's end, its last row is repeated. */
        __device__ __forceinline__ void seek() {
            const Share share = share_of(a, rows.weights(), f.share, index, a.row_bytes, rows.tile);
            const unsigned row = min(first + thread / ROW_THREADS, share.rows - 1);
            from = static_cast<const char *>(share.weight) + size_t(row) * a.row_bytes;
        }

        /* Copies the next stage. */
        __device__ __forceinline__ void fetch(unsigned to) {
            if (left > 0) {
#pragma unroll
                for (unsigned box = 0; box < BOXES; ++box) {
                    const unsigned at = Format::begin(segment, box, a.k) / 16 * 16;
                    const unsigned row = to + box * BOX + thread / ROW_THREADS * PITCH;
                    /* Row sizes are multiples of 16. */
                    for (unsigned i = thread % ROW_THREADS * 16; i < PITCH && at + i < a.row_bytes; i += ROW_THREADS * 16) {
                        copy_async_to(row + i, from + at + i);
                    }
                }
                --left, segment += SEGMENTS;
                if (segment >= segments && left > 0) {
                    segment = 0, index += gridDim.x;
                    seek();
                }
            }
            commit_copies();
        }
    };

    static __device__ __forceinline__ void meet(unsigned barrier) {
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(GROUP_THREADS) : "memory");
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const SomeRows &rows, const EncodedFrame &f) {
        extern __shared__ uint4 shared[];
        /* A shuffle, so that the compiler knows it to be uniform. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        const unsigned lane = threadIdx.x % 32, row = lane / 4, quad = keep(lane % 4);
        const unsigned part = warp % PARTIALS, group = warp / PARTIALS, thread = threadIdx.x % GROUP_THREADS;
        const unsigned groups = blockDim.x / GROUP_THREADS, first = group * ROWS, barrier = keep(group + 1);
        const unsigned segments = (a.k + SEGMENT - 1) / SEGMENT, stages = (segments + SEGMENTS - 1) / SEGMENTS;
        const unsigned whole = a.k / (SEGMENTS * SEGMENT), ring_bytes = f.stages * STAGE;
        const unsigned begin = (shared_address(shared) + 127) / 128 * 128, each = ring_bytes + BESIDE;
        const unsigned ring = begin + group * each, end = keep(ring + ring_bytes);
        char *staged = shared_at(begin + groups * each);
        const auto after = [&](unsigned at) { return at + STAGE == end ? end - ring_bytes : at + STAGE; };
        if (a.fresh != 0) {
            await_previous();
        }
        unsigned left = (f.shares - blockIdx.x + gridDim.x - 1) / gridDim.x * stages;
        Copies copies(a, f, rows, segments, first, thread, left);
#pragma unroll 1
        for (unsigned i = 0; i + 1 < f.stages; ++i) {
            copies.fetch(ring + i * STAGE);
        }
        Share share = share_of(a, rows.weights(), f.share, blockIdx.x, a.row_bytes, rows.tile);
        typename Format::template Rows<EACH> of;
        of.expect(a, share, first + row, quad);
        if (rows.slots == nullptr) {
            await_previous();
        }
        stage_fours<T, Format::LANES, false>(a, rows, shared_address(staged), blockDim.x);
        __syncthreads();
        if constexpr (PREPARES) {
            wait_copies_but(f.stages - 2);
            meet(barrier);
            if (part == 0) {
                Format::template prepare<EncodedLanes>(ring, 0, lane);
            }
        }
        of.begin(part, quad);
        const unsigned record = keep(row * PITCH + Format::lane_at(part, quad));
        const unsigned scales = keep(SCALES + (part * ITEMS + row) * 16);
        unsigned at = keep(ring), before = end - STAGE;
#pragma unroll 1
        for (unsigned index = blockIdx.x; index < f.shares; index += gridDim.x) {
            Sums sums = {};
            /* Rows past the last repeat it; their sums are not stored. */
            unsigned x[TILES];
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
                const unsigned of_row = min(row + 8 * tile, rows.count() - 1);
                x[tile] = keep(shared_address(staged) + of_row * encoded_pitch(a.k) + part * RUN * 2 + quad * 16);
            }
#pragma unroll 1
            for (unsigned stage = 0; stage < stages; ++stage, --left) {
                wait_copies_but(f.stages - LEAST_STAGES);
                /* Now all that the group's warps copied and prepared is there, and all are done with the stage before. */
                meet(barrier);
                copies.fetch(before);
                const unsigned next = after(at);
                bool is_usual = stage < whole;
                if constexpr (PREPARES) {
                    if ((stage + group) % PARTIALS == part && left > 1) {
                        Format::template prepare<EncodedLanes>(next, stage + 1 == stages ? 0 : stage + 1, lane);
                    }
                    is_usual = is_usual && *reinterpret_cast<const uint32_t *>(shared_at(at + USUAL)) != 0;
                }
                if (is_usual) {
#pragma unroll
                    for (unsigned i = 0; i < SEGMENTS; ++i) {
                        Weights w;
#pragma unroll
                        for (unsigned unit = 0; unit < EACH; ++unit) {
                            Format::template run<EncodedLanes>(of, at + record + unit * 8 * PITCH,
                                                               at + scales + (i * ROWS + unit * 8) * 16, stage, i, unit, part,
                                                               quad, w[unit]);
                        }
                        Format::template mend<EncodedLanes>(of, stage, i, part, quad, w);
                        multiply_all(sums, w, x, i * SEGMENT * 2);
                    }
                } else {
#pragma unroll 1
                    for (unsigned i = 0; (stage * SEGMENTS + i) * SEGMENT + part * RUN < a.k && i < SEGMENTS; ++i) {
                        Weights w;
#pragma unroll
                        for (unsigned unit = 0; unit < EACH; ++unit) {
                            Format::template run_unusual<EncodedLanes>(of, at + (unit * 8 + row) * PITCH, stage, i, unit, part,
                                                                       quad, w[unit]);
                        }
                        Format::template mend<EncodedLanes>(of, stage, i, part, quad, w);
                        multiply_all(sums, w, x, i * SEGMENT * 2);
                    }
                }
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    x[tile] += SEGMENTS * SEGMENT * 2;
                }
                before = at, at = next;
            }
            const Share done = share;
            const bool is_last = index + gridDim.x >= f.shares;
            if (!is_last) {
                share = share_of(a, rows.weights(), f.share, index + gridDim.x, a.row_bytes, rows.tile);
                of.expect(a, share, first + row, quad);
            }
            finish(a, rows, done, sums, reinterpret_cast<float *>(shared_at(end)), first, part,
                   lane, barrier);
            if (!is_last) {
                of.begin(part, quad);
            }
        }
        wait_copies<0>();
    }

    /* Adds a group's partial sums in order, and stores. Another barrier follows before the next sums are written. */
    static __device__ __forceinline__ void finish(const djinn_linear_args &a, const SomeRows &rows, const Share &share,
                                                  const Sums &sums, float *parts, unsigned first, unsigned part,
                                                  unsigned lane, unsigned barrier) {
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned i = 0; i < 2 * EACH; ++i) {
                const unsigned x_row = tile * 8 + lane % 4 * 2 + i % 2;
                parts[(part * 8 * TILES + x_row) * ROWS + i / 2 * 8 + lane / 4] = sums[i / 4][tile][i % 4];
            }
        }
        meet(barrier);
        for (unsigned i = part * 32 + lane; i < rows.count() * ROWS; i += GROUP_THREADS) {
            const unsigned j = share.first + first + i % ROWS;
            if (first + i % ROWS < share.rows) {
                float sum = parts[i];
#pragma unroll
                for (unsigned other = 1; other < PARTIALS; ++other) {
                    sum += parts[other * 8 * TILES * ROWS + i];
                }
                a.out[size_t(rows.out(i / ROWS)) * a.out_width + a.out_column + j] = sum + bias_of(a, j);
            }
        }
    }
};

/* Rows are in order if `order` is null; else a block takes a portion of up to `most` slots. */
template <typename Format, unsigned EACH, unsigned TILES>
__global__ void __launch_bounds__(GROUP_THREADS *MOST_GROUPS)
    djinn_linear_encoded(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ EncodedFrame f) {
    SomeRows rows(a.linear);
    if (a.order == nullptr) {
        release_next();
    } else {
        rows = slots_of_block(a, blockIdx.y, f.most, f.range);
    }
    if (rows.count() > 0) {
        EncodedLanes<Format, EACH, TILES>::run(a.linear, rows, f);
    }
}

} // namespace djinn

#endif
