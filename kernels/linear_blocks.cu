/*
 * linear and expert_linear over GGML's blocks: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j],
 * with the bits of the product over the rows that decode gives in f16.
 * Shapes: as in linear.cu; weight [n] rows of row_bytes, a multiple of 16; k a multiple of 64.
 * Reference: djinn-device, src/reference.rs, `linear`, of the decoded weight.
 *
 * On Hopper more than a few rows go to linear_tiles.cuh. Here, for up to 16 rows: x is in shared memory, and the narrow
 * operand of the tensor cores; 16 rows of the weight are the wide one, as in linear_hopper.cu.
 * Launch: a block for each share of the weight's rows. The PARTIALS warps of a group share EACH units of 8 rows, one for each
 * partial sum. They copy some segments of these to a ring of stages; of a stage each warp decodes its part of every segment,
 * in the registers that feed the products. Each lane prepares the scales of one segment for its quad.
 */
#include "blocks.cuh"
#include "linear_encoded.cuh"

namespace djinn {

/* Threads of a group, and groups of a block at most. */
constexpr unsigned BLOCK_GROUP = 32 * PARTIALS, BLOCK_GROUPS = 7;

constexpr unsigned common_divisor(unsigned a, unsigned b) { return b == 0 ? a : common_divisor(b, a % b); }

/* EACH units of 8 rows of the weight for each group, by up to 8 TILES rows of x. */
template <djinn_encoding E, unsigned EACH, unsigned TILES> struct BlockLanes {
    static_assert(EACH <= 2);
    using Format = Blocks<E>;
    using Prepared = typename Format::Prepared;

    /* Segments of a stage: as many as a quad prepares at once. */
    static constexpr unsigned SEGMENTS = Format::IS_PREPARED ? 4 : 2, BYTES = SEGMENTS * Format::BYTES;
    /* A stage's bytes of a row begin up to SHIFT bytes after those that are copied, 16 at once. */
    static constexpr unsigned SHIFT = 16 - common_divisor(16, BYTES), CHUNKS = (BYTES + SHIFT + 15) / 16;
    /* Lanes that read at once, 4 bytes of 8 rows, meet no bank twice. */
    static constexpr unsigned ROWS = 8 * EACH, PITCH = 16 * (CHUNKS | 1), STAGE = ROWS * PITCH;
    static constexpr unsigned FIT = (EACH == 1 ? 14 : 26) * 1024 / STAGE, STAGES = FIT < 2 ? 2 : FIT, RING = STAGES * STAGE;
    static constexpr unsigned ROW_THREADS = BLOCK_GROUP / ROWS, COPIES = (CHUNKS + ROW_THREADS - 1) / ROW_THREADS;
    /* What a group's lanes prepare for one another: 16 bytes for each warp, row and segment. */
    static constexpr unsigned SCALES = Format::IS_PREPARED ? PARTIALS * ROWS * SEGMENTS * 16 : 0, GROUP_BYTES = RING + SCALES;
    /* The ring becomes room for the partial sums. */
    static_assert(RING >= sizeof(float) * PARTIALS * MOST_ROWS * ROWS);

    /* The products of a run of the units' rows, with that of x that is `at` bytes on. */
    static __device__ __forceinline__ void multiply_all(float (&sums)[TILES][4], const uint2 (&w)[EACH][4],
                                                        const unsigned (&x)[TILES], unsigned at) {
#pragma unroll
        for (unsigned step = 0; step < 4; ++step) {
            /* Of one unit, the other 8 rows are the same, and their sums are not stored. */
            const uint2 low = w[0][step], high = w[EACH - 1][step];
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
                const Four of_x = *reinterpret_cast<const Four *>(shared_at(x[tile] + at + step * 32));
                multiply<f16>(sums[tile], {low.x, low.y}, {high.x, high.y}, {of_x.low, of_x.high});
            }
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const SomeRows &rows, unsigned most) {
        extern __shared__ uint4 shared[];
        /* The same in all lanes, which the compiler is to know. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        const unsigned lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
        const unsigned part = warp % PARTIALS, group = warp / PARTIALS, thread = threadIdx.x % BLOCK_GROUP;
        const unsigned groups = blockDim.x / BLOCK_GROUP, first = group * ROWS;
        const unsigned segments = (a.k + SEGMENT_COLUMNS - 1) / SEGMENT_COLUMNS, stages = (segments + SEGMENTS - 1) / SEGMENTS;
        const Share share = share_of(a, most, blockIdx.x, a.row_bytes);
        char *ring = reinterpret_cast<char *>(shared) + group * GROUP_BYTES;
        char *staged = reinterpret_cast<char *>(shared) + groups * GROUP_BYTES;

        /* Threads of a row, which copy neighbouring chunks; rows past the block's repeat its last. */
        const unsigned of_row = thread / ROW_THREADS, chunk = thread % ROW_THREADS * 16;
        const char *from = static_cast<const char *>(share.weight) + size_t(min(first + of_row, share.rows - 1)) * a.row_bytes;
        const unsigned to = keep(shared_address(ring) + of_row * PITCH + chunk);
        const auto fetch = [&](unsigned stage, unsigned slot) {
            const unsigned at = stage * BYTES / 16 * 16 + chunk;
#pragma unroll
            for (unsigned i = 0; i < COPIES; ++i) {
                const bool is_last = (i + 1) * ROW_THREADS > CHUNKS;
                /* Rows end at a multiple of 16. */
                if (at + i * ROW_THREADS * 16 < a.row_bytes && (!is_last || chunk < (CHUNKS - i * ROW_THREADS) * 16)) {
                    copy_async_to(to + slot * STAGE + i * ROW_THREADS * 16, from + at + i * ROW_THREADS * 16);
                }
            }
            commit_copies();
        };
        if (a.fresh != 0) {
            await_previous();
        }
#pragma unroll
        for (unsigned i = 0; i + 1 < STAGES; ++i) {
            fetch(i, i);
        }
        if (rows.slots == nullptr) {
            await_previous();
        }
        stage<f16>(a, rows, staged, blockDim.x);

        float sums[TILES][4] = {};
        /* Rows of x past the last repeat it, and their sums are not stored. */
        unsigned x[TILES];
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
            const unsigned of_row = min(row + 8 * tile, rows.count() - 1);
            x[tile] = keep(shared_address(staged) + of_row * staged_pitch(a.k) + (part * RUN + quad * 4) * 2);
        }
        const unsigned scales = keep(shared_address(ring) + RING + ((part * ROWS) + row) * SEGMENTS * 16);
        const unsigned records = keep(shared_address(ring) + row * PITCH), barrier = keep(group + 1);
        unsigned slot = 0;
#pragma unroll 1
        for (unsigned stage = 0; stage < stages; ++stage) {
            wait_copies<STAGES - 2>();
            /* What the group's other warps copied is there, and they are done with the stage before. */
            asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(BLOCK_GROUP) : "memory");
            fetch(stage + STAGES - 1, slot == 0 ? STAGES - 1 : slot - 1);
            const unsigned record = keep(records + slot * STAGE + (SHIFT == 0 ? 0 : stage * BYTES % 16));
            const unsigned there = min(segments - stage * SEGMENTS, SEGMENTS), mine = min(quad, there - 1);
            bool is_usual = true;
            Prepared prepared;
#pragma unroll
            for (unsigned unit = 0; unit < EACH; ++unit) {
                prepared = Prepared(shared_at(record + unit * 8 * PITCH + mine * Format::BYTES), part);
                is_usual = is_usual && prepared.is_usual;
                if constexpr (Format::IS_PREPARED) {
                    *reinterpret_cast<uint4 *>(shared_at(scales + (unit * 8 * SEGMENTS + quad) * 16)) =
                        *reinterpret_cast<const uint4 *>(&prepared);
                }
            }
            __syncwarp();
            if (is_usual) {
#pragma unroll
                for (unsigned i = 0; i < SEGMENTS; ++i) {
                    if ((stage * SEGMENTS + i) * SEGMENT_COLUMNS + part * RUN < a.k) {
                        uint2 w[EACH][4];
#pragma unroll
                        for (unsigned unit = 0; unit < EACH; ++unit) {
                            if constexpr (Format::IS_PREPARED) {
                                *reinterpret_cast<uint4 *>(&prepared) = *reinterpret_cast<const uint4 *>(
                                    shared_at(scales + (unit * 8 * SEGMENTS + i) * 16));
                            }
                            const Segment segment(shared_at(record + unit * 8 * PITCH + i * Format::BYTES));
                            prepared.template run<Lanes::NEIGHBOURS>(segment, part, quad, w[unit]);
                        }
                        multiply_all(sums, w, x, i * SEGMENT_COLUMNS * 2);
                    }
                }
            } else {
#pragma unroll 1
                for (unsigned i = 0; i < SEGMENTS; ++i) {
                    if ((stage * SEGMENTS + i) * SEGMENT_COLUMNS + part * RUN < a.k) {
                        uint2 w[EACH][4];
#pragma unroll
                        for (unsigned unit = 0; unit < EACH; ++unit) {
                            const Segment segment(shared_at(record + unit * 8 * PITCH + i * Format::BYTES));
                            run_unusual<typename Format::Format, Lanes::NEIGHBOURS>(segment, part, quad, w[unit]);
                        }
                        multiply_all(sums, w, x, i * SEGMENT_COLUMNS * 2);
                    }
                }
            }
#pragma unroll
            for (unsigned tile = 0; tile < TILES; ++tile) {
                x[tile] += SEGMENTS * SEGMENT_COLUMNS * 2;
            }
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        wait_copies<0>();
        __syncthreads();
        float *parts = reinterpret_cast<float *>(shared);
        const unsigned width = groups * ROWS, size = MOST_ROWS * width;
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned i = 0; i < 2 * EACH; ++i) {
                const unsigned x_row = tile * 8 + quad * 2 + i % 2;
                if (x_row < rows.count()) {
                    parts[part * size + x_row * width + first + i / 2 * 8 + row] = sums[tile][i];
                }
            }
        }
        add_partials(a, rows, parts, width, size, share, blockDim.x);
    }
};

/* By blocks with `share` rows of the weight. Rows are in order if `order` is null; else a block takes `most` slots. */
template <djinn_encoding E, unsigned EACH, unsigned TILES>
__global__ void __launch_bounds__(BLOCK_GROUP *BLOCK_GROUPS)
    djinn_linear_blocks(const __grid_constant__ djinn_expert_linear_args a, unsigned share, unsigned most) {
    SomeRows rows = {a.linear.rows, nullptr, 1};
    if (a.order == nullptr) {
        release_next();
    } else {
        const Routed slots = slots_of(a, blockIdx.y * most, most);
        rows = {slots.slot_count, slots.slots, slots.slots_per_row};
    }
    if (rows.count() > 0) {
        BlockLanes<E, EACH, TILES>::run(a.linear, rows, share);
    }
}

/* Units of a group, of a weight whose blocks have `units`: 1 where that fits, of formats that are met often. */
template <djinn_encoding E> unsigned units_of_group(unsigned units) {
    return Blocks<E>::IS_COMMON && units <= BLOCK_GROUPS ? 1 : 2;
}

template <djinn_encoding E> unsigned bytes_of_group(unsigned each) {
    return each == 1 ? BlockLanes<E, 1, 2>::GROUP_BYTES : BlockLanes<E, 2, 2>::GROUP_BYTES;
}

/* Groups that a block has room for beside `rows` rows of x; perhaps none. */
template <djinn_encoding E> unsigned groups_beside(unsigned rows, unsigned k) {
    const unsigned room = all_devices()[current_device()].block_shared, staged = rows * staged_pitch(k);
    const unsigned fit = staged < room ? (room - staged) / bytes_of_group<E>(2) : 0;
    return fit < BLOCK_GROUPS ? fit : BLOCK_GROUPS;
}

/* Whether a block of one group has room for a row of x. */
template <djinn_encoding E> unsigned block_rows(unsigned k) {
    return groups_beside<E>(1, k) > 0 ? MOST_ROWS : 0;
}

/* Up to `rows` rows at once, in order or of the slots' groups. */
template <djinn_encoding E> int launch_block_rows(const djinn_expert_linear_args &args, unsigned rows, void *stream) {
    const DeviceFacts &device = all_devices()[current_device()];
    const djinn_linear_args &a = args.linear;
    const unsigned staged = rows * staged_pitch(a.k), groups = groups_beside<E>(rows, a.k);
    const Division division = divide(a, device.multiprocessors, 16 * groups);
    const unsigned units = ceil_div(division.share, 8), each = units <= groups ? units_of_group<E>(units) : 2;
    void (*kernel)(djinn_expert_linear_args, unsigned, unsigned) = djinn_linear_blocks<E, 2, 2>;
    unsigned number = 0;
    if constexpr (Blocks<E>::IS_COMMON) {
        if (each == 1) {
            kernel = rows <= 8 ? djinn_linear_blocks<E, 1, 1> : djinn_linear_blocks<E, 1, 2>;
        } else if (rows <= 8) {
            kernel = djinn_linear_blocks<E, 2, 1>;
        }
        number = each * 2 + (rows <= 8) - 2;
    }
    /* By device, the context in which a kernel may use as much shared memory as there is. */
    static std::atomic<unsigned> allowed[4][MOST_DEVICES];
    const unsigned context = contexts().load(), used = ceil_div(units, each);
    std::atomic<unsigned> &known = allowed[number][current_device()];
    if (known.load() != context) {
        const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
        const cudaError_t code = cudaFuncSetAttribute(kernel, limit, int(device.block_shared));
        if (code != cudaSuccess) {
            return code;
        }
        known.store(context);
    }
    /* Where each multiprocessor is to have a block, none has room for two. */
    const unsigned needed = used * bytes_of_group<E>(each) + staged, alone = device.block_shared / 2 + 1024;
    const unsigned shared = division.blocks <= device.multiprocessors && needed < alone ? alone : needed;
    const dim3 grid(division.blocks, args.order == nullptr ? 1 : ceil_div(a.rows, rows));
    return launch(kernel, grid, BLOCK_GROUP * used, shared, stream, args, division.share, rows);
}

/* Up to `most` rows of x at once, or fewer where that leaves room for more groups and takes less time. */
template <djinn_encoding E> int launch_blocks(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const djinn_linear_args &a = args.linear;
    const unsigned all = a.rows < most ? a.rows : most, at_once = all_devices()[current_device()].multiprocessors;
    unsigned rows = 1, best = 0;
    for (unsigned launches = 1; launches <= all; ++launches) {
        const unsigned each = ceil_div(all, launches), groups = groups_beside<E>(each, a.k);
        if (groups == 0) {
            continue;
        }
        /* A wave takes the time of its groups, and what passes until the first bytes are there. */
        const unsigned waves = ceil_div(a.n, uint64_t(at_once) * 16 * groups);
        const unsigned cost = launches * waves * (ceil_div(a.n, uint64_t(at_once) * 16 * waves) + 2);
        if (best == 0 || cost < best) {
            rows = each, best = cost;
        }
    }
    if (args.order != nullptr) {
        return launch_block_rows<E>(args, rows, stream);
    }
    for (unsigned row = 0; row < a.rows; row += rows) {
        djinn_expert_linear_args part = args;
        part.linear.rows = a.rows - row < rows ? a.rows - row : rows;
        part.linear.x = a.x + size_t(row) * a.k;
        part.linear.out = a.out + size_t(row) * a.out_width;
        const int code = launch_block_rows<E>(part, part.linear.rows, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

/* For linear_tiles.cuh. The lanes of a quad prepare a row of a segment each, if a stage has two. */
template <djinn_encoding E> struct BlockTiles {
    using Type = f16;
    using Format = Blocks<E>;
    static constexpr unsigned SEGMENTS = Format::IS_PREPARED ? 2 : 1, BOXES = 1;
    /* Boxes begin at multiples of 16 bytes, up to SHIFT before their segments. */
    static constexpr unsigned SHIFT = 16 - common_divisor(16, Format::BYTES);
    /* An odd number of 16 bytes: lanes that read at once, of 8 rows, meet no bank twice. */
    static constexpr unsigned PITCH = 16 * ((Format::BYTES + SHIFT + 15) / 16 | 1);
    static __device__ __forceinline__ unsigned box_at(unsigned segment, unsigned, unsigned) {
        return segment * Format::BYTES / 16 * 16;
    }

    struct Rows {
        __device__ __forceinline__ Rows(const djinn_linear_args &, const char *, const char *) {}
    };

    struct Stage {
        /* Of the first segment, and how far the next one is from it. */
        unsigned rows[2], apart;
        typename Format::Prepared mine;

        static __device__ __forceinline__ unsigned shift(unsigned segment) {
            return SHIFT == 0 ? 0 : segment * Format::BYTES % 16;
        }

        __device__ __forceinline__ Stage() {}
        __device__ __forceinline__ Stage(unsigned low, unsigned high, unsigned box, unsigned first, unsigned there,
                                         unsigned part, unsigned quad)
            : rows{low + shift(first), high + shift(first)}, apart(box + shift(first + 1) - shift(first)),
              mine(shared_at((quad % 2 == 0 ? rows[0] : rows[1]) + (quad / 2 < there ? quad / 2 : 0) * apart), part) {}

        /* Segment `i` of the stage, of one or two rows. */
        __device__ __forceinline__ void decode(const Rows &, unsigned halves, unsigned i, unsigned, unsigned part,
                                               unsigned quad, uint2 (&w)[2][4]) const {
            const auto usual = [&](unsigned half) {
                const Segment segment(shared_at(rows[half] + i * apart));
                mine.of_lane(2 * i + half).template run<Lanes::HALVES>(segment, part, quad, w[half]);
            };
            if (!mine.is_usual) {
#pragma unroll
                for (unsigned half = 0; half < 2; ++half) {
                    const Segment segment(shared_at(rows[half] + i * apart));
                    ByLine<typename Format::Format>().template run<Lanes::HALVES>(segment, part, quad, w[half]);
                }
            } else if (halves == 1) {
                usual(0);
            } else {
                usual(0);
                usual(1);
            }
        }
    };
};

const EncodedKernels *block_kernels(uint32_t encoding) {
    switch (encoding) {
#define DJINN_BLOCK_KERNELS(format)                                                                          \
    case DJINN_##format: {                                                                                   \
        static constexpr EncodedKernels kernels = {block_rows<DJINN_##format>, launch_blocks<DJINN_##format>,    \
                                                 launch_tiles_of<BlockTiles<DJINN_##format>>}; \
        return &kernels;                                                                                     \
    }
        DJINN_FOR_BLOCKS(DJINN_BLOCK_KERNELS)
#undef DJINN_BLOCK_KERNELS
    default: return nullptr;
    }
}

} // namespace djinn
