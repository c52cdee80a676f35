/*
 * linear and expert_linear over encoded weights, to the bits of the product over decoded rows. A format says where the
 * bytes of a segment are, and gives a lane its columns of a run.
 *
 * For up to 16 rows, on all cards: as linear.cu's kernels on the tensor cores, and launched as these. The PARTIALS warps
 * of a group have the same 8 or 16 rows of the weight. They copy segments of these to a ring in shared memory, and each
 * decodes and multiplies its run of a segment. A row's arithmetic depends on k alone.
 *
 * For more rows, and experts with a workspace, on Hopper: linear_tiles.cuh.
 */
#ifndef DJINN_LINEAR_ENCODED_CUH
#define DJINN_LINEAR_ENCODED_CUH

#include "encoded.cuh"
#include "linear_lanes.cuh"
#include "linear_tiles.cuh"

#include <atomic>
#include <type_traits>

namespace djinn {

/* Threads of a group, and groups of a block at most. */
constexpr unsigned GROUP_THREADS = 32 * PARTIALS, MOST_GROUPS = 8;

/* Rows of the weight that the tensor cores multiply at once. */
constexpr unsigned WARP_ROWS = 16;

/* Copies a plane of ROWS rows, from `first` of a share on, segment by segment. By the threads of a group. */
template <typename Format, unsigned PLANE, unsigned ROWS> struct Fetcher {
    static constexpr unsigned CHUNKS = Format::CHUNKS[PLANE], PLACE = Format::PLACE[PLANE], ALL = ROWS * CHUNKS;
    static constexpr unsigned N = (ALL + GROUP_THREADS - 1) / GROUP_THREADS, STEP = Format::STEP[PLANE];
    /* Chunks of a thread are whole rows apart. */
    static constexpr bool ALIKE = GROUP_THREADS % CHUNKS == 0;
    /* Of the next segment, where segments begin at multiples of 16 bytes; else of the first. */
    const char *from[N];
    /* Where a thread's chunks go, from a stage that is given as `less` bytes before; where they are in a plane. */
    unsigned to[N], at[N];

    __device__ __forceinline__ Fetcher(const djinn_linear_args &a, const Share &share, unsigned first,
                                       unsigned thread, unsigned less) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            /* Rows past the block's repeat its last. */
            const unsigned chunk = thread + i * GROUP_THREADS, row = min(first + chunk / CHUNKS, share.rows - 1);
            at[i] = ALIKE && i > 0 ? at[0] : Format::template begin<PLANE>(a.k) + chunk % CHUNKS * 16;
            from[i] = static_cast<const char *>(share.weight) + size_t(row) * a.row_bytes + at[i];
            to[i] = ALIKE && i > 0 ? to[0] + i * (GROUP_THREADS / CHUNKS) * Format::PITCH
                                   : keep(chunk / CHUNKS * Format::PITCH + PLACE + chunk % CHUNKS * 16 - less);
        }
    }

    /* The next segment, of number `segment`; the last one of a row may have fewer columns. */
    __device__ __forceinline__ void fetch(unsigned stage, unsigned segment, bool is_last, unsigned row_bytes,
                                          unsigned thread) {
#pragma unroll
        for (unsigned i = 0; i < N; ++i) {
            const char *source = from[i];
            if (STEP % 16 != 0 || is_last) {
                /* What is read past it is of the same row. */
                const unsigned there = at[i] + segment * STEP / 16 * 16;
                source += int(min(there, row_bytes - 16) - (STEP % 16 != 0 ? at[i] : there));
            }
            if ((i + 1) * GROUP_THREADS <= ALL || thread < ALL - i * GROUP_THREADS) {
                copy_async_to(stage + to[i], source);
            }
            if constexpr (STEP % 16 == 0) {
                from[i] += STEP;
            }
        }
    }
};

/*
 * 16 rows of the weight for each group, or 8 where it is NARROW, by up to 8 TILES rows of x. Weights are the wide operand
 * of the tensor cores, as in linear_hopper.cuh: a lane has columns of two rows, 8 apart, or of one.
 */
template <typename Format, unsigned TILES, bool NARROW> struct EncodedLanes {
    static_assert(TILES <= 2);
    using T = typename Format::Type;
    static constexpr unsigned STEPS = RUN / 16, ROWS = NARROW ? 8 : 16, STAGE = ROWS * Format::PITCH, COLUMNS = 8 * TILES;
    static constexpr unsigned STAGES = Format::STAGES * (NARROW ? 2 : 1), RING = STAGES * STAGE;
    /* Bytes of a group: its ring, and what is kept near of its rows. The ring becomes room for the partial sums. */
    static constexpr unsigned NEAR = ROWS * Format::NEAR, BYTES = RING + NEAR;
    static_assert(RING >= sizeof(float) * PARTIALS * COLUMNS * ROWS);

    /* A fragment of 16 rows of the weight by one of 8 rows of x. */
    static __device__ __forceinline__ void multiply_wide(float (&sums)[4], const uint2 &low, const uint2 &high,
                                                         const Four &x) {
        multiply<T>(sums, Four{low.x, low.y}, Four{high.x, high.y}, {x.low, x.high});
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const SomeRows &rows, unsigned most) {
        extern __shared__ uint4 shared[];
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        const unsigned partial = warp % PARTIALS, group = warp / PARTIALS, thread = threadIdx.x % GROUP_THREADS;
        const unsigned groups = blockDim.x / GROUP_THREADS, first = group * ROWS;
        const Share share = share_of(a, most, blockIdx.x, a.row_bytes);
        const auto row_at = [&](unsigned at) {
            return static_cast<const char *>(share.weight) + size_t(min(first + at, share.rows - 1)) * a.row_bytes;
        };
        /* Rings, then what is kept near of rows, then x. */
        const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(shared)), mine = row * Format::PITCH;
        const unsigned ring = base + group * RING, near = base + groups * RING + group * NEAR;
        char *staged = reinterpret_cast<char *>(shared) + groups * BYTES;

        if constexpr (NEAR > 0) {
            constexpr unsigned EACH = Format::NEAR / 16;
            static_assert(ROWS * EACH <= GROUP_THREADS);
            if (thread < ROWS * EACH) {
                const unsigned from = Format::near(a.k) + thread % EACH * 16;
                copy_async_to(near + thread * 16, row_at(thread / EACH) + min(from, a.row_bytes - 16));
            }
        }
        commit_copies();
        Fetcher<Format, 0, ROWS> planes(a, share, first, thread, mine);
        Fetcher<Format, Format::PLANES - 1, ROWS> others(a, share, first, thread, mine);
        /* Columns that come before those that no copy is for: all are for the group. */
        unsigned column = partial * RUN;
        const unsigned columns = a.k + column;
        /* A segment, whose run for this warp begins at a column, to the stage in which this lane's row is at `to`. */
        const auto fetch = [&](unsigned to, unsigned column) {
            const auto planes_of = [&](bool is_last) {
                planes.fetch(to, column / (PARTIALS * RUN), is_last, a.row_bytes, thread);
                if constexpr (Format::PLANES > 1) {
                    others.fetch(to, column / (PARTIALS * RUN), is_last, a.row_bytes, thread);
                }
            };
            if (column + PARTIALS * RUN < columns) {
                planes_of(false);
            } else if (column < columns) {
                planes_of(true);
            }
            commit_copies();
        };
        unsigned at = keep(ring + mine), before = at + RING - STAGE;
        const unsigned past = at + RING;
#pragma unroll 1
        for (unsigned i = 0; i + 1 < STAGES; ++i) {
            fetch(at + i * STAGE, column + i * PARTIALS * RUN);
        }
        if (rows.slots == nullptr) {
            await_previous();
        }
        wait_copies<STAGES - 1>();
        stage<T>(a, rows, staged, blockDim.x);
        typename Format::Rows of(a, row_at(row), row_at(NARROW ? row : row + 8), shared_at(near), row);

        float sums[TILES][4] = {};
        unsigned x[TILES];
        const unsigned barrier = keep(group + 1);
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            /* Rows past the last repeat it, and their sums are not stored. */
            const unsigned from = min(row + 8 * tile, rows.count() - 1);
            x[tile] = keep(shared_address(staged) + from * staged_pitch(a.k) + (column + quad * 4) * 2);
        }
#pragma unroll 1
        for (; column < columns; column += PARTIALS * RUN) {
            wait_copies<STAGES - 2>();
            /* What others copied is there, and they are done with the stage before. */
            asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(GROUP_THREADS) : "memory");
            fetch(before, column + (STAGES - 1) * PARTIALS * RUN);
            /* A last segment may have no run for this warp. */
            if (column < a.k) {
                uint2 weights[2][STEPS] = {};
                of.template decode<Lanes::NEIGHBOURS, ROWS / 8>(shared_at(at), column, partial, quad, weights);
#pragma unroll
                for (unsigned step = 0; step < STEPS; ++step) {
#pragma unroll
                    for (unsigned tile = 0; tile < TILES; ++tile) {
                        const Four of_x = *reinterpret_cast<const Four *>(shared_at(x[tile] + step * 32));
                        multiply_wide(sums[tile], weights[0][step], weights[1][step], of_x);
                    }
                }
            }
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
                x[tile] += PARTIALS * RUN * 2;
            }
            before = at;
            at = at + STAGE == past ? at + STAGE - RING : at + STAGE;
        }
        wait_copies<0>();
        /* The partial sums take the place of the weights. */
        float *parts = reinterpret_cast<float *>(shared);
        const unsigned width = groups * ROWS;
        __syncthreads();
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned i = 0; i < ROWS / 4; ++i) {
                const unsigned x_row = tile * 8 + quad * 2 + i % 2;
                parts[(partial * COLUMNS + x_row) * width + first + i / 2 * 8 + row] = sums[tile][i];
            }
        }
        add_partials(a, rows, parts, width, COLUMNS * width, share, blockDim.x);
    }
};

/* By blocks with `share` rows of the weight. Rows are in order if `order` is null; else a block takes `most` slots. */
template <typename Format, unsigned TILES, bool NARROW>
__global__ void __launch_bounds__(GROUP_THREADS *MOST_GROUPS)
    djinn_linear_encoded(const __grid_constant__ djinn_expert_linear_args a, unsigned share, unsigned most) {
    SomeRows rows = {a.linear.rows, nullptr, 1};
    if (a.order == nullptr) {
        release_next();
    } else {
        const Routed slots = slots_of(a, blockIdx.y * most, most);
        rows = {slots.slot_count, slots.slots, slots.slots_per_row};
    }
    if (rows.count() > 0) {
        EncodedLanes<Format, TILES, NARROW>::run(a.linear, rows, share);
    }
}

/* Groups that a block has room for beside `rows` rows of x. */
template <typename Format> unsigned encoded_groups(unsigned rows, unsigned k, unsigned room) {
    const unsigned staged = rows * staged_pitch(k), left = staged < room ? room - staged : 0;
    const unsigned fit = left / EncodedLanes<Format, 2, false>::BYTES;
    return fit < MOST_GROUPS ? fit : MOST_GROUPS;
}

/* Rows of x that a block has room for beside one group, up to MOST_ROWS. */
template <typename Format> unsigned encoded_rows(unsigned k) {
    const unsigned room = all_devices()[current_device()].block_shared;
    unsigned rows = MOST_ROWS;
    while (rows > 0 && encoded_groups<Format>(rows, k, room) == 0) {
        --rows;
    }
    return rows;
}

/* Up to `most` rows at once, in order or of the slots' groups. */
template <typename Format> int launch_encoded(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const DeviceFacts &device = all_devices()[current_device()];
    const djinn_linear_args &a = args.linear;
    const unsigned rows = a.rows < most ? a.rows : most;
    /* Where two blocks have room on a multiprocessor, one computes while the next one's first weights arrive. */
    constexpr unsigned FEW = MOST_GROUPS / 2;
    const unsigned half = device.block_shared / 2 - 1024;
    const bool pairs = encoded_groups<Format>(rows, a.k, half) >= FEW;
    const unsigned groups = pairs ? FEW : encoded_groups<Format>(rows, a.k, device.block_shared);
    const Division division = divide(a, device.multiprocessors, 16 * groups);
    const unsigned few = ceil_div(division.share, 8), used = ceil_div(division.share, 16);
    const unsigned staged = rows * staged_pitch(a.k);
    /* Where each multiprocessor has one block, it has more warps with fewer rows each. */
    const unsigned narrow_bytes = few * EncodedLanes<Format, 2, true>::BYTES + staged;
    const bool spread = division.blocks <= device.multiprocessors;
    const bool narrow = spread && few <= MOST_GROUPS && narrow_bytes <= device.block_shared;
    void (*const kernels[2][2])(djinn_expert_linear_args, unsigned, unsigned) = {
        {djinn_linear_encoded<Format, 1, false>, djinn_linear_encoded<Format, 1, true>},
        {djinn_linear_encoded<Format, 2, false>, djinn_linear_encoded<Format, 2, true>}};
    /* By device, the context in which the kernels may use as much shared memory as there is. */
    static std::atomic<unsigned> allowed[MOST_DEVICES];
    const unsigned context = contexts().load();
    std::atomic<unsigned> &known = allowed[current_device()];
    if (known.load() != context) {
        for (const auto &both : kernels) {
            for (const auto kernel : both) {
                const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
                const cudaError_t code = cudaFuncSetAttribute(kernel, limit, int(device.block_shared));
                if (code != cudaSuccess) {
                    return code;
                }
            }
        }
        known.store(context);
    }
    const unsigned needed = narrow ? narrow_bytes : used * EncodedLanes<Format, 2, false>::BYTES + staged;
    /* Where each multiprocessor is to have a block, none has room for two. */
    const unsigned shared = spread && needed <= half ? half + 2048 : needed;
    const dim3 grid(division.blocks, args.order == nullptr ? 1 : ceil_div(a.rows, rows));
    const unsigned threads = GROUP_THREADS * (narrow ? few : used);
    return launch(kernels[rows > 8][narrow], grid, threads, shared, stream, args, division.share, rows);
}

/* What serves an encoding: rows of x for which `few` can, its launch, and that for up to MOST_GROUP rows on Hopper. */
struct EncodedKernels {
    unsigned (*rows)(unsigned k);
    int (*few)(const djinn_expert_linear_args &args, unsigned most, void *stream);
    int (*many)(const djinn_expert_linear_args &args, const Batch &batch, void *stream);
};

/* Of a block format; null of another encoding. */
const EncodedKernels *block_kernels(uint32_t encoding);

template <typename Few, typename Many> constexpr EncodedKernels encoded_kernels() {
    return {encoded_rows<Few>, launch_encoded<Few>, launch_tiles_of<Many>};
}

} // namespace djinn

#endif
