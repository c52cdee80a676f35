/*
 * linear over lossless weights on Hopper (sm_90a) for more rows than linear_encoded.cu takes, as linear_wide.cu does it, with
 * the bits of the product over decoded rows. These are never in device memory. This is faster than decoding them before as
 * long as rows are few; with many, shared memory is the limit, and each pair of groups of rows decodes the weight again.
 *
 * Launch: as there, with clusters whose two blocks have the same rows of the weight. The warps that only copy there decode
 * these as well, while the others multiply.
 */
#include "linear_lossless_wide.cuh"

#define DJINN_LOSSLESS_WIDE(suffix, T)                                                                       \
    template <unsigned N, bool GATED>                                                                        \
    __global__ void __launch_bounds__(djinn::WIDE_THREADS, 1)                                                \
        djinn_linear_lossless_wide_##suffix(const __grid_constant__ djinn_linear_args a,                     \
                                            const __grid_constant__ djinn::LosslessWideMaps maps,            \
                                            const __grid_constant__ djinn::WideFrame f) {                    \
        DJINN_ON_HOPPER(djinn::LosslessWideTiles<T, N, GATED>::run(a, maps, f));                             \
    }
DJINN_LOSSLESS_WIDE(f16, djinn::f16)
DJINN_LOSSLESS_WIDE(bf16, djinn::bf16)

namespace djinn {

using LosslessWideChoice = WideChoice<LosslessWideMaps>;

template <unsigned N, bool GATED = false>
static LosslessWideChoice lossless_wide_choice(uint32_t dtype, unsigned wave) {
    return {dtype == DJINN_F16 ? djinn_linear_lossless_wide_f16<N, GATED> : djinn_linear_lossless_wide_bf16<N, GATED>,
            GATED ? N / 2 : N, EncodedRing<N>::ROWS, true, wave};
}

/* The kernel for a product, allowed its shared memory. Times are of an H100, measured with few rows of x. */
static cudaError_t choose(const djinn_linear_args &a, LosslessWideChoice &choice) {
    const uint32_t dtype = a.weight_dtype;
    const LosslessWideChoice plain[] = {lossless_wide_choice<128>(dtype, 380), lossless_wide_choice<192>(dtype, 560)};
    const LosslessWideChoice gated[] = {lossless_wide_choice<128, true>(dtype, 380),
                                        lossless_wide_choice<192, true>(dtype, 560)};
    static Allowed allowed;
    const cudaError_t code = allow_once(allowed, dtype, [&] {
        const cudaError_t code = allow_all(plain);
        return code == cudaSuccess ? allow_all(gated) : code;
    });
    choice = a.gated_rounded != nullptr ? least_of(gated, a, wide_clusters()) : least_of(plain, a, wide_clusters());
    return code;
}

int linear_lossless_wide(const djinn_linear_args &args, void *stream) {
    const djinn_linear_args a = args.gated_rounded != nullptr ? gate_of(args) : args;
    LosslessWideChoice choice;
    const cudaError_t code = choose(a, choice);
    if (code != cudaSuccess) {
        return code;
    }
    WideFrame frame = wide_frame(a, choice);
    LosslessWideMaps maps;
    const unsigned tiles = ceil_div(args.n, a.tile_rows);
    bool encoded = encode_map(maps.x, a.rounded, a.weight_dtype, a.rows, a.k, WIDE_ROWS);
    for (unsigned tile = 0; tile < tiles; ++tile) {
        const unsigned rows = tile + 1 < tiles ? a.tile_rows : args.n - tile * a.tile_rows;
        const auto encode = [&](CUtensorMap &map, unsigned bytes, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion line) {
            return encode_bytes(map, a.weights[tile], rows, a.row_bytes, bytes, choice.box, swizzle, line);
        };
        /* A line of codes has those of a run of each partial sum. Bytes next to a run's signs are read later than L2 keeps. */
        encoded = encoded && encode(maps.kept[tile], RUN, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE) &&
                  encode(maps.codes[tile], RUN / 2, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    }
    if (!encoded) {
        return cudaErrorInvalidValue;
    }
    frame.bulk = is_whole(a, choice.width) && encode_out(maps.out, a, choice.width);
    if (a.adds != 0 && (frame.bulk == 0 || !can_add(a, choice))) {
        return cudaErrorInvalidValue;
    }
    const unsigned clusters = wide_clusters(), used = frame.pairs < clusters ? frame.pairs : clusters;
    return launch_clusters(SHARING, choice.kernel, dim3(used * SHARING), WIDE_THREADS, MOST_SHARED, stream, a, maps, frame);
}

bool lossless_wide_adds(const djinn_linear_args &a) {
    LosslessWideChoice choice;
    return choose(a, choice) == cudaSuccess && can_add(a, choice);
}

} // namespace djinn

extern "C" uint32_t djinn_linear_decodes(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t encoding,
                                         uint32_t dtype, uint32_t row_bytes) {
    using namespace djinn;
    const unsigned direct = djinn_linear_direct(encoding, dtype, k, row_bytes);
    if (encoding != DJINN_LOSSLESS || direct < unsigned(MOST_GROUP) || rows <= direct) {
        return 0;
    }
    djinn_linear_args a{};
    a.rows = rows, a.k = k, a.n = n, a.tile_rows = tile_rows, a.weight_dtype = dtype;
    LosslessWideChoice choice;
    if (choose(a, choice) != cudaSuccess) {
        return 0;
    }
    /* What decoding alone takes: a launch, and the bytes that are read and written. An H100 does 1600 a cycle, an H200 2300. */
    const uint64_t decoding = 8500 + uint64_t(n) * (row_bytes + uint64_t(k) * 2) / 2200;
    return wide_cycles(a, choice, wide_clusters()) < decoding + wide_product_cycles(a);
}
