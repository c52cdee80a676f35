/*
 * How the tiles of a weight, or of many experts' weights, are described to TMA: by one tensor map for tiles that lie at equal
 * distances, as those of a chunk's experts do.
 */
#ifndef DJINN_LINEAR_MAPS_CUH
#define DJINN_LINEAR_MAPS_CUH

#include "linear.cuh"
#include "wgmma.cuh"

namespace djinn {

/* Tensor maps of x, and of tiles that lie at equal distances; by tile: its map, and its place there. */
struct TileMaps {
    CUtensorMap weights[DJINN_LINEAR_TILES];
    CUtensorMap x;
    uint8_t map[DJINN_EXPERT_TILES], place[DJINN_EXPERT_TILES];

    __device__ __forceinline__ const CUtensorMap &of(unsigned tile) const { return weights[map[tile]]; }
};

/* Of the dynamic shared memory of a block, what kernels leave to RoutedParts of the most experts. */
constexpr unsigned PARTS_SHARED = 1024;

/* Bytes of a row of the weight. */
inline uint64_t row_bytes_of(const djinn_linear_args &a) {
    return a.encoding == DJINN_PLAIN ? uint64_t(a.k) * 2 : a.row_bytes;
}

/*
 * Calls `encode(map, tile, tiles, apart, rows)` for each run of tiles that lie at equal distances: of experts that have one
 * tile each. False once that fails, or if there are more runs than maps.
 */
template <typename Encode>
bool encode_runs(TileMaps &maps, const djinn_expert_linear_args &args, const Encode &encode) {
    const djinn_linear_args &a = args.linear;
    const bool are_experts = args.order != nullptr;
    const void *const *const weights = are_experts ? args.weights : a.weights;
    const unsigned each = tiles_of(a), all = (are_experts ? args.chosen : 1) * each, last = a.n - (each - 1) * a.tile_rows;
    const auto apart = [&](unsigned tile) {
        return reinterpret_cast<uintptr_t>(weights[tile + 1]) - reinterpret_cast<uintptr_t>(weights[tile]);
    };
    for (unsigned tile = 0, map = 0; tile < all; ++map) {
        const uint64_t bytes = a.tile_rows * row_bytes_of(a), distance = each == 1 && tile + 1 < all ? apart(tile) : bytes;
        unsigned tiles = 1;
        /* Distances that TMA takes. One back is a large one here. */
        if (each == 1 && distance % 16 == 0 && distance >= bytes && distance < uint64_t(1) << 40) {
            while (tile + tiles < all && apart(tile + tiles - 1) == distance) {
                ++tiles;
            }
        }
        const unsigned rows = (tile + 1) % each == 0 ? last : a.tile_rows;
        if (map == DJINN_LINEAR_TILES || !encode(maps.weights[map], weights[tile], tiles, tiles > 1 ? distance : bytes, rows)) {
            return false;
        }
        for (unsigned i = 0; i < tiles; ++i, ++tile) {
            maps.map[tile] = map, maps.place[tile] = i;
        }
    }
    return true;
}

/* Whether the experts' tiles are no more runs than there are maps. */
inline bool are_few_runs(const djinn_expert_linear_args &args) {
    TileMaps maps;
    return encode_runs(maps, args, [](CUtensorMap &, const void *, unsigned, uint64_t, unsigned) { return true; });
}

/* Describes the tiles of plain weights of experts, in boxes of `box_rows` rows. */
inline bool encode_experts(TileMaps &maps, const djinn_expert_linear_args &args, uint32_t box_rows) {
    const djinn_linear_args &a = args.linear;
    return encode_runs(maps, args, [&](CUtensorMap &map, const void *first, unsigned tiles, uint64_t apart, unsigned rows) {
        return encode_maps(map, first, a.weight_dtype, tiles, apart, rows, a.k, box_rows);
    });
}

} // namespace djinn

#endif
