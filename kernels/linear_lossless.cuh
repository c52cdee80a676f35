/*
 * linear and expert_linear over lossless weights on Hopper (sm_90a), for up to 16 rows. The bits are those of the product
 * over decoded rows. On other cards: linear_encoded.cuh.
 *
 * The weight's rows are the wide operand of the tensor cores, x the narrow one, as in linear_encoded.cuh. A block has up to
 * 64 rows of the weight: a group of PARTIALS warps, one for each partial sum, for every 8 EACH rows. A producer warp copies
 * segments of all rows to a ring of stages, in pieces of 128 bytes of a row. Consumer warps wait for stages only, not for one
 * another. They load and decode a segment while the one before is multiplied. x is given rounded and STREAMED: a second
 * producer warp copies the same columns of it to each stage. Or, for few slots of experts, the block first rounds all of it to
 * shared memory.
 *
 * Launch: one block on each multiprocessor takes equal shares of the weight's rows, in turn; with streamed slots of experts,
 * shares of all their weights. No second one fits beside it.
 */
#ifndef DJINN_LINEAR_LOSSLESS_CUH
#define DJINN_LINEAR_LOSSLESS_CUH

#include "linear_encoded_launch.cuh"
#include "lossless.cuh"

#include <cstddef>

namespace djinn {

/* The most groups of a block, by the units of each; and stages of its ring. */
constexpr unsigned lossless_groups(unsigned each) { return each == 1 ? 5 : 4; }
constexpr unsigned LOSSLESS_STAGES = 16;

/* The most bytes of the weight in flight in a block while its ring is first filled. */
constexpr unsigned LOSSLESS_WINDOW = 60 * 1024;

/* Producer threads of a block: a warp for the weight, and one for x if it is STREAMED. */
constexpr unsigned supplying(bool streamed) { return streamed ? 64 : 32; }

struct LosslessBarriers {
    Barrier ready[LOSSLESS_STAGES], x_ready[LOSSLESS_STAGES], free[LOSSLESS_STAGES];
};

/*
 * Loads 16 bytes of 8 rows into each register: lane l gets the four of row l / 4 that begin at 4 (l % 4). Each address of a row
 * comes from one lane, those for the first register from lanes 0 to 7.
 */
__device__ __forceinline__ void load_chunks(uint32_t &first, uint32_t &second, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(first), "=r"(second)
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_chunks(uint32_t &first, uint32_t &second, uint32_t &third, uint32_t &fourth,
                                            unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
}

/* Loads 16 bytes of the lane's own. With a plain load, nvcc 13.0 does not end. */
__device__ __forceinline__ void load_sixteen(uint32_t &first, uint32_t &second, uint32_t &third, uint32_t &fourth,
                                             unsigned address) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
}

/* Loads a run's signs and mantissas of 8 rows. Lane l's address is that of chunk l / 8 of row l % 8. */
__device__ __forceinline__ void load_bytes(uint32_t (&to)[4], unsigned address) {
    load_chunks(to[0], to[1], to[2], to[3], address);
}

/* Loads a run's codes of one or two units of 8 rows. Lane l's address is that of chunk l / 8 % 2 of row l % 8, unit l / 16. */
__device__ __forceinline__ void load_codes(uint32_t (&to)[1][2], unsigned address) {
    load_chunks(to[0][0], to[0][1], address);
}
__device__ __forceinline__ void load_codes(uint32_t (&to)[2][2], unsigned address) {
    load_chunks(to[0][0], to[0][1], to[1][0], to[1][1], address);
}

/* A run of two rows, the second 8 rows after the first. */
template <typename T> struct RunOfTwo {
    using Code = Lossless<T>;
    uint32_t bytes[2][4], codes[2][2];

    /* From the lane's addresses for `load_bytes` and `load_codes`; rows of signs and mantissas are `apart`. */
    __device__ __forceinline__ void load(unsigned bytes_at, unsigned codes_at, unsigned apart) {
        load_codes(codes, codes_at);
        load_bytes(bytes[0], bytes_at);
        load_bytes(bytes[1], bytes_at + 8 * apart);
    }

    /* Decodes both, or the first alone. w[..][s] gets the lane's columns of the 16 from 16 s on. */
    __device__ __forceinline__ void decode(typename Code::Ahead (&of)[2], unsigned count, unsigned column, unsigned quad,
                                           uint2 (&w)[2][4]) const {
        Code::decode(bytes[0], codes[0], of[0].bases, w[0]);
        if (count == 1) {
            Code::template mend_all<1>(column, quad, of, w);
#pragma unroll
            for (unsigned step = 0; step < 4; ++step) {
                w[1][step] = {0, 0};
            }
        } else {
            Code::decode(bytes[1], codes[1], of[1].bases, w[1]);
            Code::template mend_all<2>(column, quad, of, w);
        }
    }
};

/*
 * EACH units of 8 rows of the weight for each group, times up to 8 TILES rows of x, which are STREAMED or not. `Rows`: SomeRows,
 * or RoutedParts, whose x is streamed.
 */
template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED, typename Rows> struct LosslessRows {
    static constexpr bool ROUTED = Rows::ROUTED;
    static_assert((EACH == 1 || EACH == 2) && (STREAMED || !ROUTED));
    using T = typename Format::Type;
    using Code = Lossless<T>;
    using Products = UnitProducts<T, EACH, TILES>;
    using Escapes = typename Format::template Rows<EACH>;
    static constexpr unsigned ROWS = 8 * EACH, SEGMENT = PARTIALS * RUN;
    /* Bytes of a column of the weight's tensor maps. */
    static constexpr unsigned WORD = ROUTED ? 4 : 2;
    /* Boxes of a segment, 128 bytes of each row: two of signs and mantissas, one of codes. */
    static constexpr unsigned BOXES = 3;

    using Barriers = LosslessBarriers;
    static constexpr unsigned READY = offsetof(Barriers, ready), X_READY = offsetof(Barriers, x_ready);
    static constexpr unsigned FREE = offsetof(Barriers, free);

    /* Streamed x in a stage: a box for each part. */
    static constexpr unsigned X_BOX = 8 * TILES * BLOCK_ROW, X_BYTES = STREAMED ? PARTIALS * X_BOX : 0;

    static __device__ __forceinline__ unsigned box_bytes(unsigned groups) { return groups * ROWS * BLOCK_ROW; }

    static __device__ __forceinline__ unsigned parts(const Rows &rows, const EncodedFrame &f) {
        if constexpr (ROUTED) {
            return rows.parts;
        } else {
            return f.shares;
        }
    }

    static __device__ __forceinline__ Part part_at(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                                   unsigned index) {
        return rows.at(a, f.share, a.row_bytes, 8 * TILES, index);
    }

    /*
     * Calls `work(part, segment, copied, slot)` for all segments of all parts, of which `part` is the first, once a stage is
     * free; `copied` came before.
     */
    template <typename Work>
    static __device__ __forceinline__ void each_segment(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                                        Barriers &barriers, Part part, const Work &work) {
        const unsigned segments = ceil_segments(a.k), all = parts(rows, f);
        Place place;
        unsigned copied = 0;
        for (unsigned index = blockIdx.x; index < all;) {
            for (unsigned segment = 0; segment < segments; ++segment, ++copied) {
                if (copied >= f.stages) {
                    barriers.free[place.slot].wait(place.parity ^ 1);
                }
                work(part, segment, copied, place.slot);
                place.advance(f.stages);
            }
            index += gridDim.x;
            if (index < all) {
                part = part_at(a, rows, f, index);
            }
        }
    }

    /*
     * Copies the weight, by one lane. While the ring is first filled, few stages are in flight: loads of x, and of the
     * kernel before, would queue behind them.
     */
    template <typename Maps>
    static __device__ __forceinline__ void supply(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                                  const Maps &maps, Barriers &barriers, unsigned ring, unsigned groups,
                                                  const Part &first) {
        const unsigned box = box_bytes(groups), bytes = BOXES * f.share * BLOCK_ROW;
        each_segment(a, rows, f, barriers, first, [&](const Part &part, unsigned segment, unsigned copied, unsigned slot) {
            const Share &share = part.share;
            if (copied >= f.ahead && copied < f.stages) {
                barriers.ready[copied - f.ahead].wait(0);
            }
            const unsigned to = ring + slot * (BOXES * box + X_BYTES), ready = shared_address(&barriers.ready[slot]);
            Barrier::arrive_expecting_at(ready, bytes);
            /* Past a row's columns, other bytes of the row are read; past its end, zeros. */
            const auto copy = [&](unsigned i, unsigned byte) {
                const unsigned column = byte / WORD;
                if constexpr (ROUTED) {
                    const unsigned place = maps.place[share.tile];
                    copy_box_to(to + i * box, maps.of(share.tile), column, share.row, place, ready, leaves_first());
                } else {
                    copy_box_to(to + i * box, maps.of(share.tile), column, share.row, ready, leaves_first());
                }
            };
            copy(0, segment * SEGMENT);
            copy(1, segment * SEGMENT + 128);
            copy(2, a.k + segment * SEGMENT / 2);
        });
    }

    /* Copies x, by one lane. */
    template <typename Maps>
    static __device__ __forceinline__ void supply_x(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                                    const Maps &maps, Barriers &barriers, unsigned ring, unsigned groups,
                                                    const Part &first) {
        const unsigned before = BOXES * box_bytes(groups);
        admit_bulk_copies();
        each_segment(a, rows, f, barriers, first, [&](const Part &of, unsigned segment, unsigned, unsigned slot) {
            const unsigned to = ring + slot * (before + X_BYTES) + before, ready = shared_address(&barriers.x_ready[slot]);
            Barrier::arrive_expecting_at(ready, X_BYTES);
#pragma unroll
            for (unsigned part = 0; part < PARTIALS; ++part) {
                copy_box_to(to + part * X_BOX, maps.x, segment * SEGMENT + part * RUN, of.first, ready);
            }
        });
    }

    static __device__ __forceinline__ unsigned ceil_segments(unsigned k) { return (k + SEGMENT - 1) / SEGMENT; }

    static __device__ __forceinline__ void meet(unsigned threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

    static __device__ __forceinline__ void compute(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                                   Barriers &barriers, unsigned ring, unsigned groups) {
        /* A shuffle, so that the compiler knows it to be uniform. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), part = warp % PARTIALS, group = warp / PARTIALS;
        const unsigned lane = pin(threadIdx.x % 32), row = lane / 4, quad = pin(lane % 4), threads = groups * GROUP_THREADS;
        const unsigned first = group * ROWS, box = box_bytes(groups), stage_size = pin_shared(BOXES * box + X_BYTES);
        const unsigned end = ring + f.stages * stage_size;
        const unsigned staged = end + PARTIALS * 8 * TILES * groups * ROWS * unsigned(sizeof(float));
        float *const handed = reinterpret_cast<float *>(shared_at(end));
        if (a.fresh != 0) {
            await_previous();
        }
        Share share = part_at(a, rows, f, blockIdx.x).share;
        Escapes of;
        of.expect(a, share, first + row, quad);
        if (rows.slots == nullptr) {
            await_previous();
        }
        if constexpr (!STREAMED) {
            stage_fours<T, Lanes::HALVES, false>(a, rows, staged, threads);
            meet(threads);
        }
        /* Where a lane reads for `load_chunks`: 16 bytes of a row, of which each lane of a quad gets 4. */
        const unsigned in = lane % 8, chunk = lane / 8;
        const unsigned x_at = pin(BOXES * box + part * X_BOX + in * BLOCK_ROW + (chunk ^ in) * 16);
        const unsigned kept = pin(part / 2 * box + (first + in) * BLOCK_ROW + ((part % 2 * 4 + chunk) ^ in) * 16);
        const unsigned codes = pin(2 * box + (first + chunk / 2 % EACH * 8 + in) * BLOCK_ROW + ((part * 2 + chunk % 2) ^ in) * 16);
        /* Of the current stage: its barriers, their parity, and where it is. */
        const unsigned begin = pin_shared(shared_address(&barriers)), stages_at = pin_shared(ring);
        const unsigned past = pin_shared(begin + f.stages * unsigned(sizeof(Barrier)));
        unsigned barrier = begin, parity = 0, at = stages_at;
        /* Runs of this warp. The last segment may have none for it. */
        const unsigned runs = pin_shared(runs_of(a, part)), segments = ceil_segments(a.k), all = parts(rows, f);
        const auto wait = [&] {
            if constexpr (STREAMED) {
                Barrier::wait_both(barrier + READY, barrier + X_READY, parity);
            } else {
                Barrier::wait_at(barrier + READY, parity);
            }
        };
        const auto leave = [&] {
            end_shared_reads();
            __syncwarp();
            if (lane == 0) {
                Barrier::arrive_own(barrier + FREE);
            }
            barrier += sizeof(Barrier), at += stage_size;
            if (barrier == past) {
                barrier = begin, at = stages_at, parity ^= 1;
            }
        };
#pragma unroll 1
        for (unsigned index = blockIdx.x; index < all; index += gridDim.x) {
            of.begin(part, quad);
            typename Products::Sums sums = {};
            /* Rows past the last repeat it; their sums are not stored. */
            unsigned x[TILES];
            if constexpr (!STREAMED) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    const unsigned of_row = min(row + 8 * tile, rows.count() - 1);
                    x[tile] = keep(staged + of_row * encoded_pitch(a.k) + part * RUN * 2 + quad * 16);
                }
            }
            /*
             * Loaded of a segment while the one before is multiplied: the weight's, and of x what was multiplied. A warp
             * decodes while those products run, so it does not wait for each of them.
             */
            uint32_t code[EACH][2], bytes[EACH][4];
            Fours fours[2][TILES];
            const auto load = [&] {
                load_codes(code, at + codes);
#pragma unroll
                for (unsigned unit = 0; unit < EACH; ++unit) {
                    load_bytes(bytes[unit], at + kept + unit * 8 * BLOCK_ROW);
                }
            };
            /* Those of two steps. */
            const auto load_x = [&](unsigned half) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    Fours &two = fours[half][tile];
                    if constexpr (STREAMED) {
                        const unsigned from = (at + x_at ^ half * 64) + tile * 8 * BLOCK_ROW;
                        load_chunks(two.at[0].low, two.at[0].high, two.at[1].low, two.at[1].high, from);
                    } else {
                        load_sixteen(two.at[0].low, two.at[0].high, two.at[1].low, two.at[1].high, x[tile] + half * 64);
                        x[tile] += half * SEGMENT * 2;
                    }
                }
            };
            const auto decode = [&](typename Products::Weights &w) {
#pragma unroll
                for (unsigned unit = 0; unit < EACH; ++unit) {
                    Code::decode(bytes[unit], code[unit], of.at[unit].bases, w[unit]);
                }
            };
            const auto multiply = [&](const typename Products::Weights &w, unsigned step) {
#pragma unroll
                for (unsigned tile = 0; tile < TILES; ++tile) {
                    Products::multiply_step(sums, w, step, tile, fours[step / 2][tile].at[step % 2]);
                }
            };
            wait();
            if (runs > 0) {
                load();
                load_x(0);
                load_x(1);
            }
            leave();
            if (runs > 0) {
                unsigned column = part * RUN;
                typename Products::Weights w;
                decode(w);
                Code::template mend_all<EACH>(column, quad, of.at, w);
#pragma unroll 1
                for (unsigned run = 1; run < runs; ++run) {
                    column += SEGMENT;
                    wait();
                    load();
#pragma unroll
                    for (unsigned step = 0; step < 4; ++step) {
                        multiply(w, step);
                        if (step % 2 == 1) {
                            load_x(step / 2);
                        }
                    }
                    decode(w);
                    leave();
                    Code::template mend_all<EACH>(column, quad, of.at, w);
                }
#pragma unroll
                for (unsigned step = 0; step < 4; ++step) {
                    multiply(w, step);
                }
            }
            if (max(runs, 1u) < segments) {
                wait();
                leave();
            }
            const Share done = share;
            const bool is_last = index + gridDim.x >= all;
            if (!is_last) {
                share = part_at(a, rows, f, index + gridDim.x).share;
                of.expect(a, share, first + row, quad);
            }
            if constexpr (ROUTED) {
                /* Found again: it would take registers meanwhile. */
                const Part found = part_at(a, rows, f, index);
                finish(a, PartRows{found}, found.share, sums, handed, groups, is_last);
            } else {
                finish(a, rows, done, sums, handed, groups, is_last);
            }
        }
    }

    /* Adds the partial sums of a share in order, and stores. */
    template <typename Stored>
    static __device__ __forceinline__ void finish(const djinn_linear_args &a, const Stored &rows, const Share &share,
                                                  const typename Products::Sums &sums, float *handed, unsigned groups,
                                                  bool is_last) {
        const unsigned warp = threadIdx.x / 32, part = warp % PARTIALS, group = warp / PARTIALS, lane = threadIdx.x % 32;
        const unsigned width = groups * ROWS, threads = groups * GROUP_THREADS;
#pragma unroll
        for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (unsigned i = 0; i < 2 * EACH; ++i) {
                const unsigned x_row = tile * 8 + lane % 4 * 2 + i % 2;
                handed[(part * 8 * TILES + x_row) * width + group * ROWS + i / 2 * 8 + lane / 4] = sums[0][tile][i];
            }
        }
        meet(threads);
        add_partials(a, rows, handed, width, 8 * TILES * width, share, 0, threadIdx.x, threads);
        if (!is_last) {
            meet(threads);
        }
    }

    template <typename Maps>
    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Rows &rows, const EncodedFrame &f,
                                               const Maps &maps) {
        extern __shared__ uint4 shared[];
        __shared__ Barriers barriers;
        const unsigned ring = (shared_address(shared) + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
        const unsigned groups = blockDim.x / GROUP_THREADS, supplier = groups * GROUP_THREADS;
        const auto init = [&] {
            init_barriers(f.stages, [&](unsigned i) {
                barriers.ready[i].init_by_warp(1);
                barriers.x_ready[i].init_by_warp(1);
                barriers.free[i].init_by_warp(groups * PARTIALS);
            });
            __syncthreads();
        };
        if (threadIdx.x < supplier) {
            init();
            compute(a, rows, f, barriers, ring, groups);
            return;
        }
        const Part of = part_at(a, rows, f, blockIdx.x);
        if (threadIdx.x == supplier) {
            prefetch_map(maps.of(of.share.tile));
            if constexpr (STREAMED) {
                prefetch_map(maps.x);
            }
        }
        __syncwarp();
        init();
        if (a.fresh != 0) {
            await_previous();
            admit_bulk_copies();
        }
        if (threadIdx.x == supplier) {
            supply(a, rows, f, maps, barriers, ring, groups, of);
        }
        __syncwarp();
        await_previous();
        if (STREAMED && threadIdx.x == supplier + 32) {
            supply_x(a, rows, f, maps, barriers, ring, groups, of);
        }
        __syncwarp();
    }
};

/* Rows are in order if `order` is null; else a block takes a portion of up to `most` slots. */
template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED>
__global__ void __launch_bounds__(GROUP_THREADS * lossless_groups(EACH) + supplying(STREAMED), 1)
    djinn_linear_lossless(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ Maps maps,
                          const __grid_constant__ EncodedFrame f) {
    SomeRows rows(a.linear);
    if (a.order == nullptr) {
        release_next();
    } else {
        rows = slots_of_block(a, blockIdx.y, f.most, f.range);
    }
    if (rows.count() > 0) {
        DJINN_ON_HOPPER(LosslessRows<Format, EACH, TILES, STREAMED, SomeRows>::run(a.linear, rows, f, maps));
    }
}

/* Over the weights of experts. Blocks go on from one expert's to the next's. */
template <typename Format, unsigned TILES>
__global__ void __launch_bounds__(GROUP_THREADS * lossless_groups(2) + supplying(true), 1)
    djinn_expert_linear_lossless(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ TileMaps maps,
                                 const __grid_constant__ EncodedFrame f) {
    using Parts = RoutedParts<DJINN_EXPERT_TILES>;
    __shared__ Parts parts;
    if (parts.find(a, f.range, f.shares, 8 * TILES, blockIdx.x)) {
        DJINN_ON_HOPPER(LosslessRows<Format, 2, TILES, true, Parts>::run(a.linear, parts, f, maps));
    }
}

} // namespace djinn

#endif
