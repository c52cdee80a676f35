/*
 * linear and expert_linear over encoded weights: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus
 * bias[j], with the bits of the product over decoded rows.
 * Shapes: as in linear.cu; weight [n] rows of row_bytes.
 * Launch: linear_encoded.cuh.
 * Reference: djinn-device, src/reference.rs, `linear`, of the decoded weight.
 */
#include "linear_lossless.cuh"

namespace djinn {

/* For linear_encoded.cuh: of a segment two boxes of signs and mantissas, one of codes. */
template <typename T> struct LosslessLanes {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr bool PREPARES = false, IS_COMMON = true;
    static constexpr unsigned BYTES = 128, PITCH = BYTES + 16;
    static constexpr unsigned segments(unsigned) { return 1; }
    static constexpr unsigned boxes(unsigned) { return 3; }
    static __device__ __forceinline__ unsigned begin(unsigned segment, unsigned box, unsigned k) {
        return box < 2 ? (2 * segment + box) * BYTES : k + segment * BYTES;
    }
    static __device__ __forceinline__ unsigned lane_at(unsigned, unsigned) { return 0; }

    /* The next escapes of a lane's rows, 8 apart. */
    template <unsigned EACH> struct Rows {
        typename Code::Ahead at[EACH];

        __device__ __forceinline__ Rows(const djinn_linear_args &a, const Share &share, unsigned row)
            : Rows(a, share, row, std::make_integer_sequence<unsigned, EACH>()) {}
        template <unsigned... UNITS>
        __device__ __forceinline__ Rows(const djinn_linear_args &a, const Share &share, unsigned row,
                                        std::integer_sequence<unsigned, UNITS...>)
            : at{{static_cast<const char *>(share.weight) + size_t(min(row + 8 * UNITS, share.rows - 1)) * a.row_bytes, a.k,
                  a.row_bytes}...} {}
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
        mend_all<Lanes::NEIGHBOURS>((stage * PARTIALS + part) * RUN, quad, of.at, w);
    }
};

/* For linear_tiles.cuh: two boxes of signs and mantissas, one of codes. */
template <typename T> struct LosslessTiles {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr unsigned SEGMENTS = 1, BOXES = 3, BOX = BLOCK_ROW, PITCH = BLOCK_ROW;
    static __device__ __forceinline__ unsigned box_at(unsigned segment, unsigned box, unsigned k) {
        return box < 2 ? (2 * segment + box) * BOX : k + segment * BOX;
    }

    struct Rows {
        typename Code::Ahead at[2];

        __device__ __forceinline__ Rows(const djinn_linear_args &a, const char *low, const char *high)
            : at{{low, a.k, a.row_bytes}, {high, a.k, a.row_bytes}} {}
    };

    /* The second row is 8 after the first. */
    struct Stage {
        unsigned row, apart;

        __device__ __forceinline__ Stage() {}
        __device__ __forceinline__ Stage(unsigned low, unsigned, unsigned apart, unsigned, unsigned, unsigned, unsigned)
            : row(low), apart(apart) {}

        __device__ __forceinline__ void decode(Rows &of, unsigned halves, unsigned, unsigned column, unsigned part,
                                               unsigned quad, uint2 (&w)[2][4]) const {
            /* Where chunks of 16 bytes are: rows begin at multiples of 128. */
            const unsigned turn = row >> 3 & 0x70, lane = row + 2 * quad;
            const unsigned kept = lane + part / 2 * apart + (part % 2 * RUN ^ turn), codes = lane + 2 * apart + (part * 32 ^ turn);
            const auto two = [&](unsigned at) { return uint32_t(*reinterpret_cast<const uint16_t *>(shared_at(at))); };
            const auto run = [&](unsigned half) {
                const unsigned down = half * 8 * BLOCK_ROW;
                uint32_t bytes[4][2], code[2][2];
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    code[i][0] = two((codes ^ i * 16) + down), code[i][1] = two((codes ^ i * 16) + down + 8);
                }
#pragma unroll
                for (unsigned i = 0; i < 4; ++i) {
                    bytes[i][0] = two((kept ^ i * 16) + down), bytes[i][1] = two((kept ^ i * 16) + down + 8);
                }
                Code::decode(bytes, code, of.at[half].bases, w[half]);
            };
            if (halves == 1) {
                run(0);
            } else {
                run(0);
                run(1);
                of.at[1].template mend<Lanes::HALVES>(column, quad, w[1]);
            }
            of.at[0].template mend<Lanes::HALVES>(column, quad, w[0]);
        }
    };
};

template <typename T>
constexpr EncodedKernels LOSSLESS = {encoded_rows<LosslessLanes<T>>, launch_lossless<LosslessLanes<T>>,
                                     launch_tiles_of<LosslessTiles<T>>};

/* The kernels of an encoding; null where none serves it. */
static const EncodedKernels *kernels_of(uint32_t encoding, uint32_t dtype) {
    if (encoding != DJINN_LOSSLESS) {
        return dtype == DJINN_F16 ? block_kernels(encoding) : nullptr;
    }
    return dtype == DJINN_F16 ? &LOSSLESS<f16> : dtype == DJINN_BF16 ? &LOSSLESS<bf16> : nullptr;
}

int linear_encoded(const djinn_linear_args &a, void *stream) {
    if (a.rows > djinn_linear_direct(a.encoding, a.weight_dtype, a.k, a.row_bytes)) {
        return cudaErrorInvalidValue;
    }
    const EncodedKernels &kernels = *kernels_of(a.encoding, a.weight_dtype);
    djinn_expert_linear_args part = {};
    part.linear = a;
    if (a.rounded != nullptr && clusters_at_once() > 0) {
        return kernels.many(part, {a.rounded, a.rows, columns_of(a.rows), 0}, stream);
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
    if (args.workspace_bytes / 2 / MOST_GROUP >= a.k && clusters_at_once() > 0) {
        return by_batches(args, MOST_GROUP, stream,
                          [&](const Batch &batch) { return kernels.many(args, batch, stream); });
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
