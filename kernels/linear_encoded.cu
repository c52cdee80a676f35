/*
 * linear and expert_linear over encoded weights: out[r, out_column + j] = sum over i of x[r, i] weight[j, i], plus
 * bias[j], with the bits of the product over decoded rows.
 * Shapes: as in linear.cu; weight [n] rows of row_bytes.
 * Launch: linear_encoded.cuh.
 * Reference: djinn-device, src/reference.rs, `linear`, of the decoded weight.
 */
#include "linear_encoded.cuh"
#include "lossless.cuh"

namespace djinn {

/* Rows of djinn-lossless: copied are signs and mantissas, then codes. */
template <typename T> struct LosslessFormat {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr unsigned SPAN = PARTIALS * RUN;
    static constexpr unsigned STAGES = 3, PLANES = 2, CHUNKS[] = {SPAN / 16, SPAN / 32}, PLACE[] = {0, SPAN};
    /* Lanes that read at once, 4 bytes of 8 rows, meet no bank twice. */
    static constexpr unsigned PITCH = SPAN + SPAN / 2 + 16;
    /* Bytes of a plane in a segment, and where the first ones that are copied are in a row. */
    static constexpr unsigned STEP[] = {SPAN, SPAN / 2};
    template <unsigned PLANE> static __device__ __forceinline__ unsigned begin(unsigned k) { return PLANE == 0 ? 0 : k; }

    /* What is kept near of a row, and where it is in the row. */
    static constexpr unsigned NEAR = Code::NEAR * sizeof(uint32_t);
    static __device__ __forceinline__ unsigned near(unsigned k) { return k + k / 2; }

    /* Two rows of a lane. */
    struct Rows {
        typename Code::Row at[2];

        Rows() = default;
        /* With what is kept near of the rows `row` and 8 after it. */
        __device__ __forceinline__ Rows(const djinn_linear_args &a, const char *first, const char *second,
                                        const char *near, unsigned row) {
            const uint32_t *words = reinterpret_cast<const uint32_t *>(near) + row * Code::NEAR;
            at[0] = Code::row(Code::tail(first, a.k), words);
            at[1] = Code::row(Code::tail(second, a.k), words + 8 * Code::NEAR);
        }

        /* The run that begins at a column, of the rows at `record` and 8 after it. */
        template <Lanes L, unsigned COUNT>
        __device__ __forceinline__ void decode(const char *record, unsigned column, unsigned part, unsigned quad,
                                               uint2 (&w)[2][4]) {
            const char *mine = record + part * RUN;
            const char *my_codes = record + SPAN + part * (RUN / 2);
            bool escapes[COUNT];
#pragma unroll
            for (unsigned i = 0; i < COUNT; ++i) {
                const char *kept = mine + i * 8 * PITCH, *codes = my_codes + i * 8 * PITCH;
                escapes[i] = Code::template run<L>(kept, codes, at[i].bases, quad, w[i]);
            }
#pragma unroll
            for (unsigned i = 0; i < COUNT; ++i) {
                if (escapes[i]) {
                    Code::template mend<L>(at[i], column, quad, w[i]);
                }
            }
        }
    };
};

/* For linear_tiles.cuh: two boxes of signs and mantissas, one of codes. */
template <typename T> struct LosslessTiles {
    using Type = T;
    using Code = Lossless<T>;
    static constexpr unsigned SEGMENTS = 1, BOXES = 3, BOX = 128;
    /* Lanes that read at once, of 8 rows, meet no bank twice. */
    static constexpr unsigned PITCH = BOX + 16;
    static __device__ __forceinline__ unsigned box_at(unsigned segment, unsigned box, unsigned k) {
        return box < 2 ? (2 * segment + box) * BOX : k + segment * BOX;
    }

    struct Rows {
        typename Code::Ahead at[2];

        __device__ __forceinline__ Rows(const djinn_linear_args &a, const char *low, const char *high)
            : at{{low, a.k, a.row_bytes}, {high, a.k, a.row_bytes}} {}
    };

    struct Stage {
        unsigned rows[2], apart;

        __device__ __forceinline__ Stage() {}
        __device__ __forceinline__ Stage(unsigned low, unsigned high, unsigned apart, unsigned, unsigned, unsigned,
                                         unsigned)
            : rows{low, high}, apart(apart) {}

        __device__ __forceinline__ void decode(Rows &of, unsigned halves, unsigned, unsigned column, unsigned part,
                                               unsigned quad, uint2 (&w)[2][4]) const {
            const unsigned kept = part / 2 * apart + part % 2 * RUN, codes = 2 * apart + part * (RUN / 2);
            const auto run = [&](unsigned half) {
                const char *kept_at = shared_at(rows[half] + kept), *codes_at = shared_at(rows[half] + codes);
                Code::template run<Lanes::HALVES>(kept_at, codes_at, of.at[half].bases, quad, w[half]);
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
constexpr EncodedKernels LOSSLESS = encoded_kernels<LosslessFormat<T>, LosslessTiles<T>>();

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
