/*
 * linear and expert_linear over encoded weights: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus bias[j].
 * The bits are those of the product over decoded rows.
 * Shapes: as in linear.cu; weight [n] rows of row_bytes.
 * Launch: linear_encoded.cuh.
 * Reference: djinn-device, src/reference.rs, `linear`, of the decoded weight.
 */
#include "linear_lossless_tiles.cuh"

namespace djinn {

/* A format for linear_encoded.cuh. A segment has two boxes of signs and mantissas, and one of codes. */
template <typename T> struct LosslessLanes {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr Lanes LANES = Lanes::HALVES;
    static constexpr bool PREPARES = false, IS_COMMON = true;
    static constexpr unsigned BYTES = 128, PITCH = BYTES + 16;
    static constexpr unsigned segments(unsigned) { return 1; }
    static constexpr unsigned boxes(unsigned) { return 3; }
    static __device__ __forceinline__ unsigned begin(unsigned segment, unsigned box, unsigned k) {
        return box < 2 ? (2 * segment + box) * BYTES : k + segment * BYTES;
    }
    static __device__ __forceinline__ unsigned lane_at(unsigned, unsigned) { return 0; }

    /* The next escapes of a lane's rows, which are 8 apart. */
    template <unsigned EACH> struct Rows {
        typename Code::Ahead at[EACH];

        uint4 words[EACH];

        __device__ __forceinline__ void expect(const djinn_linear_args &a, const Share &share, unsigned row, unsigned quad) {
#pragma unroll
            for (unsigned unit = 0; unit < EACH; ++unit) {
                const size_t from = size_t(min(row + 8 * unit, share.rows - 1)) * a.row_bytes;
                words[unit] = at[unit].expect(static_cast<const char *>(share.weight) + from, a.k, a.row_bytes, quad);
            }
        }
        __device__ __forceinline__ void begin(unsigned part, unsigned quad) {
            Code::template begin_all<EACH>(at, words, part, quad);
        }
    };

    template <typename Kernel>
    static __device__ __forceinline__ void run(const Rows<Kernel::EACH_UNITS> &of, unsigned mine, unsigned, unsigned, unsigned,
                                               unsigned unit, unsigned part, unsigned quad, uint2 (&w)[4]) {
        const unsigned kept = mine + part / 2 * Kernel::BOX + part % 2 * RUN, codes = mine + 2 * Kernel::BOX + part * (RUN / 2);
        Code::run(shared_at(kept), shared_at(codes), of.at[unit].bases, quad, w);
    }

    template <typename Kernel>
    static __device__ __forceinline__ void run_unusual(const Rows<Kernel::EACH_UNITS> &of, unsigned mine, unsigned stage,
                                                       unsigned i, unsigned unit, unsigned part, unsigned quad, uint2 (&w)[4]) {
        run<Kernel>(of, mine, 0, stage, i, unit, part, quad, w);
    }

    /* Puts the escapes of a stage in their places. */
    template <typename Kernel>
    static __device__ __forceinline__ void mend(Rows<Kernel::EACH_UNITS> &of, unsigned stage, unsigned, unsigned part,
                                                unsigned quad, typename Kernel::Weights &w) {
        constexpr unsigned EACH = Kernel::EACH_UNITS;
        Code::template mend_all<EACH>((stage * PARTIALS + part) * RUN, quad, of.at, w);
    }
};

/* A format for linear_tiles.cuh: two boxes of signs and mantissas, and one of codes. */
template <typename T> struct LosslessTiles {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr unsigned BOXES = 3, BOX = BLOCK_ROW, PITCH = BLOCK_ROW;
    static constexpr bool PREPARES = false;
    static __device__ __forceinline__ unsigned box_at(unsigned segment, unsigned box, unsigned k) {
        return box < 2 ? (2 * segment + box) * BOX : k + segment * BOX;
    }

    struct Rows {
        typename Code::Ahead at[2];

        uint4 words[2];

        __device__ __forceinline__ void expect(const djinn_linear_args &a, const char *low, const char *high, unsigned quad) {
            words[0] = at[0].expect(low, a.k, a.row_bytes, quad);
            words[1] = at[1].expect(high, a.k, a.row_bytes, quad);
        }
        __device__ __forceinline__ void begin(unsigned part, unsigned quad) {
            Code::template begin_all<2>(at, words, part, quad);
        }
    };

    struct Stage {
        /* The row that the lane reads for `load_bytes`, of 8. */
        unsigned row, apart;

        /* `first` is the lane's first row. */
        __device__ __forceinline__ Stage(unsigned first, unsigned apart, unsigned, unsigned, unsigned)
            : row(first + (threadIdx.x % 8 - threadIdx.x % 32 / 4) * BLOCK_ROW), apart(apart) {}

        __device__ __forceinline__ void decode(Rows &of, unsigned halves, unsigned column, unsigned part,
                                               unsigned quad, uint2 (&w)[2][4]) const {
            /* The 128-byte swizzle of 16-byte chunks: units begin at multiples of 8 rows. */
            const unsigned turn = threadIdx.x % 8 * 16, chunk = threadIdx.x % 32 / 8;
            const unsigned kept = row + part / 2 * apart + (part % 2 * RUN + chunk * 16 ^ turn);
            const unsigned codes = row + 2 * apart + chunk / 2 * 8 * BLOCK_ROW + (part * 32 + chunk % 2 * 16 ^ turn);
            RunOfTwo<T> run;
            run.load(kept, codes, BLOCK_ROW);
            run.decode(of.at, halves, column, quad, w);
        }
    };
};

/* A block for a share of some rows: its groups, and the units of each. Few units are spread over more warps. */
struct LosslessBlock {
    unsigned groups, each;
};
static LosslessBlock lossless_block(unsigned share) {
    const unsigned units = ceil_div(share, 8);
    return units <= lossless_groups(1) ? LosslessBlock{units, 1} : LosslessBlock{ceil_div(units, 2), 2};
}

/* Bytes of a block's partial sums; of all but its stages, with `staged` bytes of x; and of a stage without x. */
static unsigned lossless_sums(const LosslessBlock &block, unsigned rows) {
    return PARTIALS * (rows <= 8 ? 8 : 16) * 8 * block.groups * block.each * unsigned(sizeof(float));
}
static unsigned lossless_beside(const LosslessBlock &block, unsigned rows, unsigned staged) {
    return BLOCK_ALIGN + lossless_sums(block, rows) + staged;
}
static unsigned lossless_stage(const LosslessBlock &block) { return 3 * 8 * block.groups * block.each * BLOCK_ROW; }

/*
 * Shared memory of a block. If x is streamed and no block has a second share, just over half: a block of attention fits
 * beside it, but no other one of a product. Else nearly all: a larger ring fills up while a share ends.
 */
static unsigned lossless_shared(bool streamed, const Division &division) {
    const DeviceFacts &device = all_devices()[current_device()];
    return streamed && division.blocks <= device.multiprocessors ? device.block_shared / 2 + 1024 : LEAST_SHARED;
}

static Division divide_lossless(const djinn_expert_linear_args &args) {
    constexpr unsigned MOST = 16 * lossless_groups(2);
    return divide(args.linear, blocks_of_portion(args, all_devices()[current_device()].multiprocessors, MOST), MOST);
}

/* Lets the kernels use all shared memory of a block, which also loads their code; once in a context. */
template <typename Format> cudaError_t allow_lossless() {
    static std::atomic<unsigned> allowed[MOST_DEVICES];
    const unsigned context = contexts().load();
    std::atomic<unsigned> &known = allowed[current_device()];
    if (known.load() == context) {
        return cudaSuccess;
    }
    for (const auto kernel : {djinn_linear_lossless<Format, 1, 1, false>, djinn_linear_lossless<Format, 1, 2, false>,
                              djinn_linear_lossless<Format, 2, 1, false>, djinn_linear_lossless<Format, 2, 2, false>,
                              djinn_linear_lossless<Format, 1, 1, true>, djinn_linear_lossless<Format, 1, 2, true>,
                              djinn_linear_lossless<Format, 2, 1, true>, djinn_linear_lossless<Format, 2, 2, true>}) {
        const cudaError_t code = allow_shared(kernel, MOST_SHARED);
        if (code != cudaSuccess) {
            return code;
        }
    }
    known.store(context);
    return cudaSuccess;
}

template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED>
int launch_lossless(const djinn_expert_linear_args &args, const Batch &batch, const Division &division, void *stream) {
    const DeviceFacts &device = all_devices()[current_device()];
    const djinn_linear_args &a = args.linear;
    const auto kernel = djinn_linear_lossless<Format, EACH, TILES, STREAMED>;
    if (const cudaError_t code = allow_lossless<Format>(); code != cudaSuccess) {
        return code;
    }
    const LosslessBlock block = lossless_block(division.share);
    const unsigned rows = batch.n;
    const unsigned beside = lossless_beside(block, rows, STREAMED ? 0 : rows * encoded_pitch(a.k));
    const unsigned shared = lossless_shared(STREAMED, division);
    const unsigned stage = lossless_stage(block) + (STREAMED ? PARTIALS * 8 * TILES * BLOCK_ROW : 0);
    const unsigned fit = (shared - beside) / stage, stages = fit < LOSSLESS_STAGES ? fit : LOSSLESS_STAGES;
    Maps maps;
    const auto encode = [&](unsigned tile, unsigned tile_rows) {
        return encode_bytes(maps.weights[tile], a.weights[tile], tile_rows, a.row_bytes, BLOCK_ROW, division.share,
                            CU_TENSOR_MAP_SWIZZLE_128B);
    };
    if ((STREAMED && !encode_map(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, 8 * TILES)) ||
        !encode_tiles(a, batch.weights(), encode)) {
        return cudaErrorInvalidValue;
    }
    const unsigned blocks = division.blocks < device.multiprocessors ? division.blocks : device.multiprocessors;
    const dim3 grid(blocks, batch.portions(rows));
    const unsigned ahead = LOSSLESS_WINDOW / (3 * division.share * BLOCK_ROW);
    const EncodedFrame frame{division.share, division.blocks, stages, ahead > 1 ? ahead : 1, rows, batch.range()};
    return launch(kernel, grid, block.groups * GROUP_THREADS + supplying(STREAMED), shared, stream, args, maps, frame);
}

/* By groups of `each` units, for up to MOST_ROWS rows at once. */
template <typename Format, bool STREAMED>
int launch_lossless_by(const djinn_expert_linear_args &args, const Batch &batch, const Division &division, unsigned each,
                       void *stream) {
    if (each == 1) {
        return batch.n <= 8 ? launch_lossless<Format, 1, 1, STREAMED>(args, batch, division, stream)
                            : launch_lossless<Format, 1, 2, STREAMED>(args, batch, division, stream);
    }
    return batch.n <= 8 ? launch_lossless<Format, 2, 1, STREAMED>(args, batch, division, stream)
                        : launch_lossless<Format, 2, 2, STREAMED>(args, batch, division, stream);
}

/* For the gathered slots of experts, in portions of up to `batch.n`. */
template <typename Format, unsigned TILES>
int launch_lossless_parts(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    const djinn_linear_args &a = args.linear;
    const unsigned blocks = all_devices()[current_device()].multiprocessors;
    const unsigned share = choose_routed_share(a, expected_experts(args), blocks, TILE_ROWS), shares = shares_of(a, share);
    const LosslessBlock block{ceil_div(share, 16), 2};
    static_assert(TILE_ROWS <= 16 * lossless_groups(2));
    const unsigned stage = lossless_stage(block) + PARTIALS * 8 * TILES * BLOCK_ROW;
    const unsigned fit = (LEAST_SHARED - lossless_beside(block, batch.n, 0)) / stage;
    TileMaps maps;
    const auto encode = [&](CUtensorMap &map, const void *first, unsigned tiles, uint64_t apart, unsigned rows) {
        return encode_matrices(map, first, tiles, apart, rows, a.row_bytes, BLOCK_ROW, share, CU_TENSOR_MAP_SWIZZLE_128B);
    };
    if (!encode_map(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, 8 * TILES) || !encode_runs(maps, args, encode)) {
        return cudaErrorInvalidValue;
    }
    const auto kernel = djinn_expert_linear_lossless<Format, TILES>;
    if (const cudaError_t code = allow_shared(kernel, LEAST_SHARED); code != cudaSuccess) {
        return code;
    }
    const uint64_t parts = uint64_t(shares) * batch.portions(8 * TILES);
    const unsigned ahead = LOSSLESS_WINDOW / (3 * share * BLOCK_ROW), threads = block.groups * GROUP_THREADS + supplying(true);
    const EncodedFrame frame{share, shares, fit < LOSSLESS_STAGES ? fit : LOSSLESS_STAGES, ahead > 1 ? ahead : 1, 8 * TILES,
                             batch.range()};
    return launch(kernel, parts < blocks ? unsigned(parts) : blocks, threads, LEAST_SHARED, stream, args, maps, frame);
}

/* Up to `most` rows of x at once, or as many as there is room for, of experts that by_experts() chose. */
template <typename Format> int launch_lossless_some(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const djinn_linear_args &a = args.linear;
    const Division division = divide_lossless(args);
    const LosslessBlock block = lossless_block(division.share);
    const auto fits = [&](unsigned rows) {
        return lossless_beside(block, rows, rows * encoded_pitch(a.k)) + 2 * lossless_stage(block) <= LEAST_SHARED;
    };
    unsigned rows = a.rows < most ? a.rows : most, launches = 1;
    while (rows > 1 && !fits(rows)) {
        rows = ceil_div(a.rows < most ? a.rows : most, ++launches);
    }
    if (clusters_at_once() == 0 || !fits(rows)) {
        return launch_encoded<Format>(args, most, stream);
    }
    return by_rows(args, rows, [&](const djinn_expert_linear_args &part, const Batch &batch) {
        return launch_lossless_by<Format, false>(part, batch, division, block.each, stream);
    });
}

/* The same for all experts. */
template <typename Format> int launch_lossless(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const auto run = [&](const djinn_expert_linear_args &some) { return launch_lossless_some<Format>(some, most, stream); };
    return args.order == nullptr ? run(args) : by_experts(args, run);
}

/* The most rows of x that are streamed with the weight. */
constexpr unsigned MOST_STREAMED = 16;

/* For x given rounded, up to `batch.n` rows at once. Few rows are streamed with the weight. */
template <typename Format, typename Tiles>
int launch_rounded(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    const djinn_linear_args &a = args.linear;
    if (batch.n > MOST_STREAMED) {
        const Division division = divide_tiles(a);
        return batch.experts == 0 && serves_tiles(a, division)
                   ? launch_lossless_tiles<typename Format::Type>(a, division, stream)
                   : launch_tiles_of<Tiles>(args, batch, stream);
    }
    if (batch.experts > 0) {
        return batch.n <= 8 ? launch_lossless_parts<Format, 1>(args, batch, stream)
                            : launch_lossless_parts<Format, 2>(args, batch, stream);
    }
    const Division division = divide_lossless(args);
    return launch_lossless_by<Format, true>(args, batch, division, lossless_block(division.share).each, stream);
}

template <typename T>
constexpr EncodedKernels LOSSLESS = {DJINN_LINEAR_TILES,
                                     MOST_STREAMED,
                                     encoded_rows<LosslessLanes<T>>,
                                     launch_lossless<LosslessLanes<T>>,
                                     launch_rounded<LosslessLanes<T>, LosslessTiles<T>>,
                                     [](unsigned) { return 0u; }};

/* The kernels of an encoding, or null if none serves it. */
static const EncodedKernels *kernels_of(uint32_t encoding, uint32_t dtype) {
    if (encoding != DJINN_LOSSLESS) {
        return dtype == DJINN_F16 ? block_kernels(encoding) : nullptr;
    }
    return dtype == DJINN_F16 ? &LOSSLESS<f16> : dtype == DJINN_BF16 ? &LOSSLESS<bf16> : nullptr;
}

unsigned most_unrounded(uint32_t encoding, unsigned k) {
    const EncodedKernels *kernels = block_kernels(encoding);
    return kernels == nullptr ? 0 : kernels->unrounded(k);
}

const EncodedWide *encoded_wide(uint32_t encoding, uint32_t dtype) {
    if (encoding == DJINN_LOSSLESS) {
        return lossless_wide(dtype);
    }
    return dtype == DJINN_F16 ? blocks_wide(encoding) : nullptr;
}

int linear_encoded(const djinn_linear_args &a, void *stream) {
    if (a.rows > djinn_linear_direct(a.encoding, a.weight_dtype, a.k, a.row_bytes)) {
        const EncodedWide *const wide = encoded_wide(a.encoding, a.weight_dtype);
        const bool meanwhile = wide != nullptr && a.rounded != nullptr && serves_hopper(a.k, a.weight_dtype);
        return meanwhile ? wide->run(a, stream) : int(cudaErrorInvalidValue);
    }
    const EncodedKernels &kernels = *kernels_of(a.encoding, a.weight_dtype);
    djinn_expert_linear_args part = {};
    part.linear = a;
    if (a.rounded != nullptr && clusters_at_once() > 0) {
        return kernels.many(part, {a.rounded, a.rows, plain_columns(a.rows)}, stream);
    }
    const unsigned most = kernels.rows(a.k);
    for (unsigned row = 0; row < a.rows; row += most) {
        part.linear.rows = a.rows - row < most ? a.rows - row : most;
        part.linear.x = a.x + size_t(row) * a.k;
        part.linear.out = a.out + size_t(row) * a.out_width;
        const int code = kernels.few(part, most, stream);
        if (code != cudaSuccess) {
            return code;
        }
    }
    return cudaSuccess;
}

int expert_linear_encoded(const djinn_expert_linear_args &args, void *stream) {
    const djinn_linear_args &a = args.linear;
    if (djinn_linear_direct(a.encoding, a.weight_dtype, a.k, a.row_bytes) == 0) {
        return cudaErrorInvalidValue;
    }
    const EncodedKernels &kernels = *kernels_of(a.encoding, a.weight_dtype);
    /* Few slots are not gathered, if their rows fit beside a ring and one launch takes all experts. */
    const unsigned room = dynamic_shared();
    const unsigned rows = a.rows < MOST_ROWS ? a.rows : MOST_ROWS;
    const bool fit = MOST_RING + rows * encoded_pitch(a.k) <= room && args.chosen * tiles_of(a) <= kernels.few_tiles;
    const bool few = (a.rows <= FEW_ENCODED || uint64_t(a.rows) * 4 < args.experts) && fit;
    if (!few && args.workspace_bytes / 2 / MOST_GROUP >= a.k && clusters_at_once() > 0) {
        const EncodedWide *const wide = encoded_wide(a.encoding, a.weight_dtype);
        /*
         * A weight with few rows leaves blocks idle. Smaller portions side by side then take less time, and tiles of many rows
         * take less from half as many slots on. As measured.
         */
        const bool has_few = ceil_div(a.n, TILE_ROWS) < unsigned(all_devices()[current_device()].multiprocessors);
        const bool meanwhile = wide != nullptr && a.rows / args.experts >= (has_few ? 1 : 2) * MOST_GROUP;
        const unsigned n = portion_slots(args, has_few ? MOST_GROUP / 2 : MOST_GROUP);
        const bool together = !meanwhile && n <= kernels.many_slots && are_few_runs(args);
        return by_batches(args, n, together, stream, [&](const djinn_expert_linear_args &some, const Batch &batch) {
            return meanwhile ? wide->run_experts(some, batch.range(), stream) : kernels.many(some, batch, stream);
        });
    }
    return kernels.few(args, kernels.rows(a.k), stream);
}

} // namespace djinn

extern "C" uint32_t djinn_linear_direct(uint32_t encoding, uint32_t weight_dtype, uint32_t k, uint32_t row_bytes) {
    using namespace djinn;
    const EncodedKernels *kernels = kernels_of(encoding, weight_dtype);
    if (kernels == nullptr || k == 0 || k % RUN != 0 || row_bytes % 16 != 0 || kernels->rows(k) == 0) {
        return 0;
    }
    return clusters_at_once() > 0 ? uint32_t(MOST_GROUP) : kernels->rows(k);
}

extern "C" uint32_t djinn_linear_decodes(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t encoding,
                                         uint32_t dtype, uint32_t row_bytes) {
    using namespace djinn;
    const unsigned direct = djinn_linear_direct(encoding, dtype, k, row_bytes);
    const EncodedWide *const wide = encoded_wide(encoding, dtype);
    if (wide == nullptr || direct < unsigned(MOST_GROUP) || rows <= direct) {
        return 0;
    }
    djinn_linear_args a{};
    a.rows = rows, a.k = k, a.n = n, a.tile_rows = tile_rows, a.weight_dtype = dtype;
    /* What decoding alone takes: a launch, and the bytes that are read and written, at nine tenths of the data sheet's speed. */
    const unsigned speed = all_devices()[current_device()].bytes_a_cycle * 9 / 10;
    const uint64_t bytes = uint64_t(n) * (row_bytes + uint64_t(k) * 2), decoding = 8500 + bytes / (speed > 0 ? speed : 2000);
    return wide->cycles(a) < decoding + wide_product_cycles(a);
}
