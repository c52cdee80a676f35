/*
 * Lossless weights for linear_encoded_wide.cuh.
 * Reference: djinn-lossless.
 */
#include "linear_encoded_wide.cuh"
#include "lossless.cuh"

namespace djinn {

template <typename T> struct LosslessWide {
    using Type = T;
    /* Rows of tiles, and the time of a wave of them, as measured with few rows of x. */
    using Tiles = std::integer_sequence<unsigned, 64, 128, 192>;
    static constexpr unsigned wave(unsigned rows) { return rows == 64 ? 240 : rows == 128 ? 380 : 560; }
    /* Bytes of a run of a row: of signs and mantissas, where TMA's 64-byte swizzle repeats, and of codes. */
    static constexpr unsigned KEPT_ROW = RUN, CODES_ROW = RUN / 2;

    /* Of rows of signs and mantissas, and of rows of codes. */
    struct Maps {
        CUtensorMap kept, codes;

        bool encode(const void *weight, uint32_t rows, uint32_t row_bytes, uint32_t box_rows) {
            /* A line of codes has those of a run of each partial sum. Bytes next to a run's signs are read later than L2
             * keeps. */
            return encode_bytes(kept, weight, rows, row_bytes, KEPT_ROW, box_rows, CU_TENSOR_MAP_SWIZZLE_64B,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE) &&
                   encode_bytes(codes, weight, rows, row_bytes, CODES_ROW, box_rows);
        }
    };

    /*
     * COUNT rows, in units of 8. Four lanes take a row of each unit. Each takes 8 bytes of 16, which have four successive
     * columns of each half, and the 8 bytes 16 further on, whose codes are in the same bytes.
     */
    template <unsigned COUNT> struct Rows {
        static constexpr unsigned UNITS = COUNT / 8, AT_ONCE = 2, COPIED = COUNT * (KEPT_ROW + CODES_ROW);
        /* What is kept of the end of each row, where its base and escapes are. */
        static constexpr unsigned TAIL = 64, KEPT = COUNT * TAIL;

        unsigned quad, row, kept_at, codes_at, chunk;
        char *tails;
        uint32_t bases[UNITS];

        /* Rows of successive quads are two apart, so that neither reading nor writing has bank conflicts. */
        __device__ __forceinline__ Rows(unsigned lane, char *beside) : quad(lane % 4), tails(beside) {
            const unsigned turn = lane / 4;
            row = (turn & 4) | (turn & 1) << 1 | (turn >> 1 & 1);
            /* The swizzles are the same for every eighth row. */
            kept_at = row * KEPT_ROW + ((quad / 2 * 32) ^ (row / 2 % 4 * 16)) + quad % 2 * 8;
            codes_at = COUNT * KEPT_ROW + row * CODES_ROW + quad * 8;
            chunk = (quad / 2 * 4 ^ row) * 16 + quad % 2 * 8;
        }

        /* Copies a run of rows from `first` of a tile on, by one lane. */
        static __device__ __forceinline__ void copy(char *to, const Maps &maps, unsigned k, unsigned run, unsigned first,
                                                    Barrier &ready) {
            copy_box(to, maps.kept, run * (RUN / 2), first, ready, leaves_first());
            copy_box(to + COUNT * KEPT_ROW, maps.codes, k / 2 + run * (RUN / 4), first, ready);
        }

        /* Some units of a run, from FIRST on: first loaded, then decoded. */
        template <unsigned FIRST> struct Units {
            uint2 low[AT_ONCE], high[AT_ONCE], codes[AT_ONCE];

            __device__ __forceinline__ Units(const Rows &of, const char *from) {
#pragma unroll
                for (unsigned i = 0; i < AT_ONCE; ++i) {
                    const char *const kept = from + (FIRST + i) * 8 * KEPT_ROW;
                    low[i] = *reinterpret_cast<const uint2 *>(kept + of.kept_at);
                    high[i] = *reinterpret_cast<const uint2 *>(kept + (of.kept_at ^ 16));
                    codes[i] = *reinterpret_cast<const uint2 *>(from + of.codes_at + (FIRST + i) * 8 * CODES_ROW);
                }
            }

            /* Stores the values of all columns. Returns a bit for each unit: whether the lane's columns have an escape. */
            __device__ __forceinline__ unsigned decode(const Rows &of, char *to) const {
                unsigned found = 0;
#pragma unroll
                for (unsigned i = 0; i < AT_ONCE; ++i) {
                    uint2 w[4];
                    Lossless<T>::decode({low[i].x, high[i].x, low[i].y, high[i].y}, {codes[i].x, codes[i].y},
                                        of.bases[FIRST + i], w);
                    found |= Lossless<T>::has_escape(codes[i]) ? 1u << (FIRST + i) : 0;
                    char *const line = to + (FIRST + i) * 8 * BLOCK_ROW;
                    const auto store = [&](unsigned chunk, uint32_t first, uint32_t second) {
                        *reinterpret_cast<uint2 *>(line + (of.chunk ^ chunk * 16)) = {first, second};
                    };
                    store(0, w[0].x, w[2].x), store(1, w[0].y, w[2].y);
                    store(2, w[1].x, w[3].x), store(3, w[1].y, w[3].y);
                }
                return found;
            }
        };

        __device__ __forceinline__ Units<0> load(const char *from, unsigned) const { return Units<0>(*this, from); }

        template <typename StoredAt>
        __device__ __forceinline__ void decode(char *to, const Units<0> &loaded, const char *from, const djinn_linear_args &a,
                                               unsigned run, const StoredAt &stored_at) const {
            char *const line = to + row * BLOCK_ROW;
            unsigned found = loaded.decode(*this, line);
            found |= decode_from<AT_ONCE>(line, from);
            if (__any_sync(~0u, found != 0)) {
                mend(line, found, a, run, stored_at);
            }
        }

        /* Decodes the units from FIRST on. */
        template <unsigned FIRST> __device__ __forceinline__ unsigned decode_from(char *line, const char *from) const {
            if constexpr (FIRST < UNITS) {
                const unsigned found = Units<FIRST>(*this, from).decode(*this, line);
                return found | decode_from<FIRST + AT_ONCE>(line, from);
            } else {
                return 0;
            }
        }

        __device__ __forceinline__ uint32_t *tail_at(unsigned unit) const {
            return reinterpret_cast<uint32_t *>(tails + (row + unit * 8) * TAIL);
        }

        /* Keeps the ends of the rows of another tile. `stored_at(row)`: where a row is stored. */
        template <typename StoredAt>
        __device__ __forceinline__ void begin(const djinn_linear_args &a, const StoredAt &stored_at) {
            const unsigned room = (a.row_bytes - a.k - a.k / 2) / unsigned(sizeof(uint4));
            uint4 words[UNITS];
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
                const auto *const from = reinterpret_cast<const uint4 *>(Lossless<T>::tail(stored_at(row + unit * 8), a.k));
                words[unit] = quad < room ? __ldg(from + quad) : uint4{};
            }
            __syncwarp();
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
                reinterpret_cast<uint4 *>(tail_at(unit))[quad] = words[unit];
            }
            __syncwarp();
#pragma unroll
            for (unsigned unit = 0; unit < UNITS; ++unit) {
                bases[unit] = Lossless<T>::row(tail_at(unit)).bases;
            }
        }

        /* Stores the escapes of a run. `found` has a bit for each unit with one. */
        template <typename StoredAt>
        __device__ __forceinline__ void mend(char *line, unsigned found, const djinn_linear_args &a, unsigned run,
                                             const StoredAt &stored_at) const {
            constexpr unsigned KEPT_WORDS = TAIL / sizeof(uint32_t);
            const unsigned room = (a.row_bytes - a.k - a.k / 2) / unsigned(sizeof(uint32_t)) - 1;
            /* Escapes replace what other lanes stored. */
            __syncwarp();
            found |= __shfl_xor_sync(~0u, found, 1);
            found |= __shfl_xor_sync(~0u, found, 2);
#pragma unroll 1
            for (; found != 0; found &= found - 1) {
                const unsigned unit = __ffs(found) - 1;
                const uint32_t *const kept = tail_at(unit);
                const unsigned count = min(*kept >> 16, room);
                const auto put = [&](uint32_t entry) {
                    const unsigned column = (entry & 0xffff) - run * RUN;
                    if (column < RUN) {
                        char *const place = line + unit * 8 * BLOCK_ROW + (column / 8 ^ row) * 16 + column % 8 * 2;
                        *reinterpret_cast<uint16_t *>(place) = uint16_t(entry >> 16);
                    }
                };
#pragma unroll 1
                for (unsigned i = 1 + quad; i <= min(count, KEPT_WORDS - 1); i += 4) {
                    put(kept[i]);
                }
                if (count >= KEPT_WORDS) {
                    const uint32_t *const tail = Lossless<T>::tail(stored_at(row + unit * 8), a.k);
#pragma unroll 1
                    for (unsigned i = KEPT_WORDS + quad; i <= count; i += 4) {
                        put(__ldg(tail + i));
                    }
                }
            }
            __syncwarp();
        }
    };
};

const EncodedWide *lossless_wide(uint32_t dtype) {
    return dtype == DJINN_F16    ? &ENCODED_WIDE<LosslessWide<f16>>
           : dtype == DJINN_BF16 ? &ENCODED_WIDE<LosslessWide<bf16>>
                                 : nullptr;
}

} // namespace djinn
