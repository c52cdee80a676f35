/*
 * linear and expert_linear over blocks on Hopper (sm_90a), for up to 32 rows. The bits are those of the product over decoded
 * rows. On other cards: linear_encoded.cuh.
 *
 * The weight's rows are the wide operand of the tensor cores, x the narrow one, as in linear_encoded.cuh. A block has a share
 * of the weight's rows, and takes some of them in each turn: 8 EACH for each of its groups of PARTIALS warps, one warp for each
 * partial sum. A producer warp copies some segments of a turn's rows to each stage of a ring. If the format has scales to
 * prepare, other warps prepare a stage's. The groups' warps wait for stages only, not for one another. With up to 16 rows they
 * decode a run while the one before is multiplied. x is given rounded and STREAMED: a second producer warp copies a stage's
 * columns of it. Or, for few rows, the block first rounds all of it to shared memory.
 *
 * Launch: up to one block on each multiprocessor. No second one fits beside it. A block has one share; or, with streamed slots
 * of many experts, shares of all their weights in turn.
 */
#ifndef DJINN_LINEAR_BLOCKS_CUH
#define DJINN_LINEAR_BLOCKS_CUH

#include "block_formats.cuh"
#include "linear_encoded_launch.cuh"

#include <cstddef>
#include <type_traits>

namespace djinn {

constexpr unsigned BLOCKS_STAGES = 16;

/* Bytes of a column of the weight's tensor maps. */
constexpr unsigned WORD = 4;

/*
 * The most bytes of the weight in flight in a block while its ring is first filled, if that is two stages or more. Loads of x,
 * and of the kernel before, would queue behind them.
 */
constexpr unsigned BLOCKS_WINDOW = 60 * 1024;

struct BlocksBarriers {
    Barrier ready[BLOCKS_STAGES], prepared[BLOCKS_STAGES], x_ready[BLOCKS_STAGES], free[BLOCKS_STAGES];
};

/* Rows of the weight in a share, shares, stages of a ring, how many of them are copied at once at first, groups, and slots. */
struct BlocksFrame {
    uint32_t share, shares, stages, ahead, groups, most;
    SlotRange range;
};

/* Which of 8 rows of x lanes have as their row `n`. Of streamed rows, half a warp reads at once, without bank conflicts. */
template <bool STREAMED> __device__ __forceinline__ unsigned row_of_x(unsigned n) {
    return STREAMED ? n % 4 * 2 + n / 4 : n;
}

/* Loads 16 bytes of the lane's own if `mine`. Else the registers stay as they are. */
__device__ __forceinline__ void load_sixteen_if(bool mine, Four &first, Four &second, unsigned address) {
    asm volatile("{\n"
                 ".reg .pred mine;\n"
                 "setp.ne.u32 mine, %5, 0;\n"
                 "@mine ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(first.low), "+r"(first.high), "+r"(second.low), "+r"(second.high)
                 : "r"(address), "r"(unsigned(mine))
                 : "memory");
}

/*
 * EACH units of 8 rows of the weight for each group, times up to 8 TILES rows of x, which are STREAMED or not. `Rows`: SomeRows,
 * or RoutedParts, whose x is streamed.
 */
template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED, typename Rows = SomeRows> struct BlocksRows {
    static constexpr bool ROUTED = Rows::ROUTED;
    static_assert(STREAMED || !ROUTED);
    using T = f16;
    using Prepared = typename Format::Prepared;
    using Products = UnitProducts<T, EACH, TILES>;
    using Weights = typename Products::Weights;
    using Sums = typename Products::Sums;
    static constexpr bool PREPARES = Format::IS_PREPARED;
    /* Whether a lane's four columns are paired as first and third, second and fourth. */
    static constexpr bool APART = PREPARES && !STREAMED;

    /* A stage's segments. They begin in a row at a multiple of 16 bytes, or up to SHIFT past one. */
    static constexpr unsigned SEGMENT = PARTIALS * RUN, SEGMENTS = PREPARES && TILES <= 2 ? 4 : 2;
    static constexpr unsigned BYTES = SEGMENTS * Format::BYTES;
    static constexpr unsigned SHIFT = 16 - common_divisor(16, BYTES);
    /* A row's bytes in a stage: an odd multiple of 16, so that lanes that read 4 bytes of 8 rows have no bank conflicts. */
    static constexpr unsigned PITCH = (BYTES + SHIFT + 15) / 16 * 16 | 16;
    static constexpr unsigned ROWS = 8 * EACH, BOX = ROWS * PITCH;
    static_assert(BOX % 128 == 0 && PITCH / WORD <= 256, "TMA copies boxes of up to 256 columns to multiples of 128 bytes");

    /* A warp prepares some rows of a stage, a lane one segment of one row. */
    static constexpr unsigned PREPARED_ROWS = 32 / SEGMENTS;
    static __host__ __device__ constexpr unsigned preparers(unsigned groups) {
        return PREPARES ? (groups * ROWS + PREPARED_ROWS - 1) / PREPARED_ROWS : 0;
    }

    /* Whether a run is multiplied only once the next one was decoded. With more rows of x, products take long enough. */
    static constexpr bool DELAYS = TILES <= 2;
    /* Groups of 8 rows of x whose partial sums are added at once. */
    static constexpr unsigned AT_ONCE = TILES < 2 ? TILES : 2;

    /* The most groups of a block. With more, too few registers are left. */
    static constexpr unsigned GROUPS = EACH == 1 || TILES > 2 || (!PREPARES && TILES == 1) ? 5 : 4;
    /* More groups read x less often. With more rows of x, some more are worth less than a third stage. */
    static constexpr unsigned LEAST_STAGES = TILES > 2 ? 3 : 2;
    static __host__ __device__ constexpr unsigned threads(unsigned groups) {
        return groups * GROUP_THREADS + 32 * (preparers(groups) + (STREAMED ? 2 : 1));
    }
    static constexpr unsigned MOST_THREADS = threads(GROUPS);

    /* A stage: streamed x, a box for each run; each group's box; 16 prepared bytes for each run of a row; and flags. */
    static constexpr unsigned X_BOX = 8 * TILES * BLOCK_ROW, X_BYTES = STREAMED ? SEGMENTS * PARTIALS * X_BOX : 0;
    static constexpr unsigned ALIGN = STREAMED ? BLOCK_ALIGN : 128;
    static __host__ __device__ constexpr unsigned scales_at(unsigned groups) { return X_BYTES + groups * BOX; }
    static __host__ __device__ constexpr unsigned flags_at(unsigned groups) {
        return scales_at(groups) + (PREPARES ? PARTIALS * SEGMENTS * groups * ROWS * 16 : 0);
    }
    static __host__ __device__ constexpr unsigned stage_bytes(unsigned groups) {
        return (flags_at(groups) + preparers(groups) * 4 + ALIGN - 1) / ALIGN * ALIGN;
    }
    /* What a block needs besides stages and x: partial sums. */
    static __host__ __device__ constexpr unsigned beside(unsigned groups) {
        return ALIGN + PARTIALS * 8 * AT_ONCE * groups * ROWS * unsigned(sizeof(float));
    }
    /* The stages that fit beside `staged` bytes of x. */
    static unsigned stages_beside(unsigned groups, unsigned staged) {
        const unsigned fit = (LEAST_SHARED - beside(groups) - staged) / stage_bytes(groups);
        return fit < BLOCKS_STAGES ? fit : BLOCKS_STAGES;
    }

    using Barriers = BlocksBarriers;
    /* Of a stage whose weights may be decoded. */
    static constexpr unsigned READY = PREPARES ? offsetof(Barriers, prepared) : offsetof(Barriers, ready);
    static constexpr unsigned X_READY = offsetof(Barriers, x_ready), FREE = offsetof(Barriers, free);

    const djinn_linear_args &a;
    const Rows &rows;
    const BlocksFrame &f;
    /* The block's first part. It is found before the block waits for anything. */
    const Part first_part;
    Barriers &barriers;
    const unsigned ring, groups, turn_rows, stage_size, stages;

    __device__ __forceinline__ BlocksRows(const djinn_linear_args &a, const Rows &rows, const BlocksFrame &f, Barriers &barriers,
                                          unsigned ring)
        : a(a), rows(rows), f(f), first_part(rows.at(a, f.share, a.row_bytes, 8 * TILES, blockIdx.x)), barriers(barriers),
          ring(ring), groups(f.groups), turn_rows(groups * ROWS), stage_size(stage_bytes(groups)),
          stages((a.k + SEGMENTS * SEGMENT - 1) / (SEGMENTS * SEGMENT)) {}

    /* The part with that index; the block's only one, of rows in order. */
    __device__ __forceinline__ Part part_at(unsigned index) const {
        return ROUTED ? rows.at(a, f.share, a.row_bytes, 8 * TILES, index) : first_part;
    }

    /* Whether the block has another part after that with this index, and its index. */
    __device__ __forceinline__ bool next_part(unsigned &index) const {
        if constexpr (ROUTED) {
            index += gridDim.x;
            return index < rows.parts;
        } else {
            return false;
        }
    }

    /* Where segment `i` of a stage begins, in bytes from the begin of its row there. */
    static __device__ __forceinline__ unsigned place(unsigned stage, unsigned i) {
        return (SHIFT == 0 ? 0 : stage * BYTES % 16) + i * Format::BYTES;
    }

    /* The groups that have rows in the turn that begins with that row of the share. */
    __device__ __forceinline__ unsigned groups_at(unsigned first) const {
        return min(groups, (f.share - first + ROWS - 1) / ROWS);
    }

    /* Calls `begin(part)` for each part, and then `work(first, stage, copied, slot, parity)` for all stages of its turns. */
    template <typename Begin, typename Work> __device__ __forceinline__ void each_stage(const Begin &begin, const Work &work) const {
        Place place;
        unsigned copied = 0, index = blockIdx.x;
        Part part = first_part;
        while (true) {
            begin(part);
            for (unsigned first = 0; first < f.share; first += turn_rows) {
                for (unsigned stage = 0; stage < stages; ++stage, ++copied) {
                    work(first, stage, copied, place.slot, place.parity);
                    place.advance(f.stages);
                }
            }
            if (!next_part(index)) {
                break;
            }
            part = part_at(index);
        }
    }

    /* Copies the weight, by one lane. */
    __device__ __forceinline__ void supply(const TileMaps &maps) const {
        const CUtensorMap *map = nullptr;
        unsigned place = 0, row = 0;
        const auto begin = [&](const Part &part) {
            map = &maps.of(part.share.tile), place = maps.place[part.share.tile], row = part.share.row;
        };
        each_stage(begin, [&](unsigned first, unsigned stage, unsigned copied, unsigned slot, unsigned parity) {
            if (copied >= f.stages) {
                barriers.free[slot].wait(parity ^ 1);
            } else if (copied >= f.ahead) {
                barriers.ready[copied - f.ahead].wait(0);
            }
            const unsigned to = ring + slot * stage_size + X_BYTES, ready = shared_address(&barriers.ready[slot]);
            const unsigned used = groups_at(first);
            Barrier::arrive_expecting_at(ready, used * BOX);
            /* Past a row's end, and past the last row, zeros are copied. */
            for (unsigned group = 0; group < used; ++group) {
                copy_box_to(to + group * BOX, *map, stage * BYTES / 16 * (16 / WORD), row + first + group * ROWS, place, ready,
                            leaves_first());
            }
        });
    }

    /* Copies x, by one lane. */
    __device__ __forceinline__ void supply_x(const TileMaps &maps) const {
        admit_bulk_copies();
        unsigned row = 0;
        const auto begin = [&](const Part &part) { row = part.first; };
        each_stage(begin, [&](unsigned, unsigned stage, unsigned copied, unsigned slot, unsigned parity) {
            if (copied >= f.stages) {
                barriers.free[slot].wait(parity ^ 1);
            }
            const unsigned ready = shared_address(&barriers.x_ready[slot]);
            Barrier::arrive_expecting_at(ready, X_BYTES);
            copy_blocks_to(ring + slot * stage_size, maps.x, row, stage * SEGMENTS * PARTIALS, ready);
        });
    }

    /* Prepares some rows of each stage, by warp `unit` of those that do so. */
    __device__ __forceinline__ void prepare(unsigned unit) const {
        const unsigned lane = threadIdx.x % 32, row = unit * PREPARED_ROWS + lane % PREPARED_ROWS;
        const unsigned segment = lane / PREPARED_ROWS;
        each_stage([](const Part &) {}, [&](unsigned first, unsigned stage, unsigned, unsigned slot, unsigned parity) {
            barriers.ready[slot].wait(parity);
            const unsigned at = ring + slot * stage_size;
            if (unit * PREPARED_ROWS < groups_at(first) * ROWS) {
                const char *from = shared_at(at + X_BYTES + row * PITCH + place(stage, segment));
                prepare_parts<Prepared, PARTIALS>(from, [&](unsigned part, const Prepared &of) {
                    const unsigned to = at + scales_at(groups) + ((part * SEGMENTS + segment) * turn_rows + row) * 16;
                    *reinterpret_cast<uint4 *>(shared_at(to)) = *reinterpret_cast<const uint4 *>(&of);
                    if (part == 0 && lane == 0) {
                        *reinterpret_cast<uint32_t *>(shared_at(at + flags_at(groups) + unit * 4)) = of.is_usual;
                    }
                });
            }
            __syncwarp();
            if (lane == 0) {
                barriers.prepared[slot].arrive();
            }
        });
    }

    static __device__ __forceinline__ void meet(unsigned threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

    /* Computes all turns of all parts, by the groups. */
    __device__ __forceinline__ void compute(unsigned warp) const {
        const unsigned part = warp % PARTIALS, first = warp / PARTIALS * ROWS, threads = groups * GROUP_THREADS;
        const unsigned lane = pin(threadIdx.x % 32), row = lane / 4, quad = pin(lane % 4);
        const unsigned size = pin_shared(stage_size), end = ring + f.stages * size, staged = end + beside(groups) - ALIGN;
        await_previous();
        if constexpr (!STREAMED) {
            stage_fours<T, Lanes::NEIGHBOURS, APART>(a, rows, staged, threads);
            meet(threads);
        }
        /* The lane's places in a stage: in streamed x, in its rows, in what was prepared of them; and its group's flags. */
        const unsigned of_x = row_of_x<STREAMED>(row);
        const unsigned x_at = pin(part * X_BOX + of_x * BLOCK_ROW + (quad / 2 ^ of_x) * 16 + quad % 2 * 8);
        const unsigned rows_at = X_BYTES + (first + row) * PITCH, record = pin(rows_at + Prepared::lane_at(part, quad));
        const unsigned scales = pin(scales_at(groups) + (part * SEGMENTS * turn_rows + first + row) * 16);
        const unsigned next_scales = pin_shared(turn_rows * 16);
        const unsigned flags = pin_shared(flags_at(groups) + first / PREPARED_ROWS * 4);
        /* Rows of x past the last stay zeros. */
        bool has_x = true;
        unsigned x_row = 0;
        if constexpr (!STREAMED) {
            has_x = row < rows.count();
            x_row = keep(staged + (has_x ? row : 0) * encoded_pitch(a.k) + part * RUN * 2 + quad * 16);
        }
        /* Of the current stage: its barriers, their parity, and where it is. */
        const unsigned begin = pin_shared(shared_address(&barriers)), stages_at = pin_shared(ring);
        const unsigned past = pin_shared(begin + f.stages * unsigned(sizeof(Barrier)));
        unsigned barrier = begin, parity = 0, at = stages_at;
        const unsigned whole = a.k / (SEGMENTS * SEGMENT);
        const auto compute_turn = [&](unsigned index, unsigned turn, bool is_last) {
            const bool has_rows = turn + first < f.share;
            Sums sums = {};
            /* Of the last run that was decoded: its weights and its columns of x. Before the first, zeros are multiplied. */
            Weights w = {};
            Four x[TILES][4] = {};
            unsigned x_now = x_row;
            const auto load_x = [&](unsigned half, unsigned i) {
                if constexpr (STREAMED) {
#pragma unroll
                    for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
                        for (unsigned step = 2 * half; step < 2 * half + 2; ++step) {
                            const unsigned from = (at + x_at ^ step * 32) + i * PARTIALS * X_BOX + tile * 8 * BLOCK_ROW;
                            x[tile][step] = *reinterpret_cast<const Four *>(shared_at(from));
                        }
                    }
                } else {
                    static_assert(TILES == 1);
                    load_sixteen_if(has_x, x[0][2 * half], x[0][2 * half + 1], x_now + half * 64);
                    x_now += half * SEGMENT * 2;
                }
            };
            const auto multiply = [&](unsigned half, const Weights &w) {
#pragma unroll
                for (unsigned step = 2 * half; step < 2 * half + 2; ++step) {
#pragma unroll
                    for (unsigned tile = 0; tile < TILES; ++tile) {
                        Products::multiply_step(sums, w, step, tile, x[tile][step]);
                    }
                }
            };
            /* Multiplies the last run, and makes segment `i` of this stage the last one; or multiplies that at once. */
            const auto go_on = [&](const Weights &next, unsigned i) {
                if constexpr (!DELAYS) {
                    load_x(0, i);
                    load_x(1, i);
                    multiply(0, next);
                    multiply(1, next);
                    return;
                }
                multiply(0, w);
                load_x(0, i);
                multiply(1, w);
                load_x(1, i);
#pragma unroll
                for (unsigned unit = 0; unit < EACH; ++unit) {
#pragma unroll
                    for (unsigned step = 0; step < 4; ++step) {
                        w[unit][step] = next[unit][step];
                    }
                }
            };
            const auto decode = [&](unsigned stage, unsigned i, unsigned unit, bool by_words, uint2 (&to)[4]) {
                const char *from = shared_at(at + record + unit * 8 * PITCH + place(stage, i));
                Prepared prepared;
                if constexpr (PREPARES) {
                    const unsigned of = at + scales + i * next_scales + unit * 8 * 16;
                    *reinterpret_cast<uint4 *>(&prepared) = *reinterpret_cast<const uint4 *>(shared_at(of));
                    prepared.template run_lane<APART>(from, part, by_words, to);
                } else {
                    prepared.template run<Lanes::NEIGHBOURS>(from, part, quad, to);
                }
            };
            const auto usual = [&](unsigned stage, unsigned i, bool by_words) {
                Weights next;
#pragma unroll
                for (unsigned unit = 0; unit < EACH; ++unit) {
                    decode(stage, i, unit, by_words, next[unit]);
                }
                go_on(next, i);
            };
            const auto decode_unusual = [&](unsigned stage, unsigned i, unsigned unit, uint2 (&to)[4]) {
                const Segment segment(shared_at(at + rows_at + unit * 8 * PITCH + place(stage, i)));
                run_unusual<typename Format::Format, Lanes::NEIGHBOURS>(segment, part, quad, to);
#pragma unroll
                for (unsigned step = 0; APART && step < 4; ++step) {
                    to[step] = {pick_bytes(to[step].x, to[step].y, 0x5410), pick_bytes(to[step].x, to[step].y, 0x7632)};
                }
            };
            /* A whole stage has all its segments. In another one the rows end. */
            const auto compute_stage = [&](unsigned stage, auto is_whole) {
                if constexpr (STREAMED) {
                    Barrier::wait_both(barrier + READY, barrier + X_READY, parity);
                } else {
                    Barrier::wait_at(barrier + READY, parity);
                }
                bool is_usual = has_rows;
                if constexpr (PREPARES && ROWS <= PREPARED_ROWS) {
                    is_usual = is_usual && *reinterpret_cast<const uint32_t *>(shared_at(at + flags)) != 0;
                } else if constexpr (PREPARES) {
                    const uint2 both = *reinterpret_cast<const uint2 *>(shared_at(at + flags));
                    is_usual = is_usual && both.x != 0 && both.y != 0;
                }
                const auto is_within = [&](unsigned i) { return (stage * SEGMENTS + i) * SEGMENT + part * RUN < a.k; };
                if (is_usual) {
                    if constexpr (decltype(is_whole)::value) {
#pragma unroll
                        for (unsigned i = 0; i < SEGMENTS; ++i) {
                            usual(stage, i, BYTES % 4 == 0 && i * Format::BYTES % 4 == 0);
                        }
                    } else {
#pragma unroll 1
                        for (unsigned i = 0; is_within(i) && i < SEGMENTS; ++i) {
                            usual(stage, i, Format::BYTES % 4 == 0);
                        }
                    }
                } else if (has_rows) {
#pragma unroll 1
                    for (unsigned i = 0; is_within(i) && i < SEGMENTS; ++i) {
                        Weights next;
#pragma unroll
                        for (unsigned unit = 0; unit < EACH; ++unit) {
                            decode_unusual(stage, i, unit, next[unit]);
                        }
                        go_on(next, i);
                    }
                }
                end_shared_reads();
                __syncwarp();
                if (lane == 0) {
                    Barrier::arrive_own(barrier + FREE);
                }
                barrier += sizeof(Barrier), at += size;
                if (barrier == past) {
                    barrier = begin, at = stages_at, parity ^= 1;
                }
            };
#pragma unroll 1
            for (unsigned stage = 0; stage < whole; ++stage) {
                compute_stage(stage, std::true_type());
            }
            if (whole < stages) {
                compute_stage(whole, std::false_type());
            }
            if constexpr (DELAYS) {
                multiply(0, w);
                multiply(1, w);
            }
            finish(index, turn, sums, reinterpret_cast<float *>(shared_at(end)), warp, is_last);
        };
        unsigned index = blockIdx.x;
        bool is_last = false;
#pragma unroll 1
        while (!is_last) {
            const unsigned now = index;
            is_last = !next_part(index);
#pragma unroll 1
            for (unsigned turn = 0; turn < f.share; turn += turn_rows) {
                compute_turn(now, turn, is_last && turn + turn_rows >= f.share);
            }
        }
    }

    /* Adds the partial sums of a part's turn in order, and stores. */
    __device__ __forceinline__ void finish(unsigned index, unsigned turn, const Sums &sums, float *handed, unsigned warp,
                                           bool is_last) const {
        const Part of = part_at(index);
        const unsigned part = warp % PARTIALS, first = warp / PARTIALS * ROWS, lane = threadIdx.x % 32;
        const unsigned threads = groups * GROUP_THREADS;
#pragma unroll
        for (unsigned begin = 0; begin < TILES; begin += AT_ONCE) {
#pragma unroll
            for (unsigned tile = 0; tile < AT_ONCE; ++tile) {
#pragma unroll
                for (unsigned i = 0; i < 2 * EACH; ++i) {
                    const unsigned x_row = tile * 8 + row_of_x<STREAMED>(lane % 4 * 2 + i % 2);
                    handed[(part * 8 * AT_ONCE + x_row) * turn_rows + first + i / 2 * 8 + lane / 4] = sums[0][begin + tile][i];
                }
            }
            meet(threads);
            const auto add = [&](const auto &rows) {
                add_partials(a, rows, handed, turn_rows, 8 * AT_ONCE * turn_rows, of.share, turn, threadIdx.x, threads, 8 * begin);
            };
            if constexpr (ROUTED) {
                add(PartRows{of});
            } else {
                add(rows);
            }
            if (!is_last || begin + AT_ONCE < TILES) {
                meet(threads);
            }
        }
    }

    static __device__ __forceinline__ void run(const djinn_linear_args &a, const Rows &rows, const BlocksFrame &f,
                                               const TileMaps &maps) {
        extern __shared__ uint4 shared[];
        __shared__ Barriers barriers;
        const unsigned ring = (shared_address(shared) + ALIGN - 1) / ALIGN * ALIGN;
        /* A shuffle, so that the compiler knows it to be uniform. */
        const unsigned warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
        const unsigned computing = f.groups * PARTIALS, units = preparers(f.groups), supplier = computing + units;
        init_barriers(f.stages, [&](unsigned i) {
            barriers.ready[i].init_by_warp(1);
            barriers.prepared[i].init_by_warp(units);
            barriers.x_ready[i].init_by_warp(1);
            barriers.free[i].init_by_warp(computing);
        });
        __syncthreads();
        const BlocksRows work(a, rows, f, barriers, ring);
        if (warp < computing) {
            work.compute(warp);
        } else if (warp < supplier) {
            if constexpr (PREPARES) {
                work.prepare(warp - computing);
            }
            await_previous();
        } else {
            if (a.fresh != 0) {
                await_previous();
                admit_bulk_copies();
            }
            if (warp == supplier && lane == 0) {
                prefetch_map(maps.of(work.first_part.share.tile));
                work.supply(maps);
            }
            __syncwarp();
            await_previous();
            if (STREAMED && warp > supplier && lane == 0) {
                work.supply_x(maps);
            }
            __syncwarp();
        }
    }
};

/* Rows are in order if `order` is null; else a block takes a portion of up to `most` slots. */
template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED>
__global__ void __launch_bounds__(BlocksRows<Format, EACH, TILES, STREAMED>::MOST_THREADS, 1)
    djinn_linear_blocks(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ TileMaps maps,
                        const __grid_constant__ BlocksFrame f) {
    SomeRows rows(a.linear);
    if (a.order == nullptr) {
        release_next();
    } else {
        rows = slots_of_block(a, blockIdx.y, f.most, f.range, true);
    }
    if (rows.count() > 0) {
        DJINN_ON_HOPPER((BlocksRows<Format, EACH, TILES, STREAMED>::run(a.linear, rows, f, maps)));
    } else {
        await_previous();
    }
}

/* Over the weights of experts. Blocks go on from one expert's to the next's. */
template <typename Format, unsigned TILES>
__global__ void
    __launch_bounds__(BlocksRows<Format, 2, TILES, true, RoutedParts<DJINN_EXPERT_TILES>>::MOST_THREADS, 1)
        djinn_expert_linear_blocks(const __grid_constant__ djinn_expert_linear_args a, const __grid_constant__ TileMaps maps,
                                   const __grid_constant__ BlocksFrame f) {
    using Parts = RoutedParts<DJINN_EXPERT_TILES>;
    __shared__ Parts parts;
    if (parts.find(a, f.range, f.shares, 8 * TILES, blockIdx.x)) {
        DJINN_ON_HOPPER((BlocksRows<Format, 2, TILES, true, Parts>::run(a.linear, parts, f, maps)));
    }
}

/* One share for each block: for experts, of as many blocks as compute a portion. */
template <typename Format> Division divide_blocks(const djinn_expert_linear_args &args) {
    /* Two turns of as many rows of the weight as a block takes at once. */
    constexpr unsigned MOST = 2 * BlocksRows<Format, 2, 1, false>::GROUPS * 16;
    return divide(args.linear, blocks_of_portion(args, all_devices()[current_device()].multiprocessors, MOST), ~0u);
}

/* Few rows of the weight are spread over more warps, for common formats. */
template <typename Format> unsigned units_of_group(const Division &division) {
    return Format::IS_COMMON && division.share <= 8 * BlocksRows<Format, 1, 1, false>::GROUPS ? 1 : 2;
}

/* The most rows of x that a block has room for beside two stages, whatever its share. */
template <typename Format> unsigned rows_beside(unsigned k) {
    using Kernel = BlocksRows<Format, 2, 1, false>;
    constexpr unsigned USED = Kernel::beside(Kernel::GROUPS) + 2 * Kernel::stage_bytes(Kernel::GROUPS);
    static_assert(USED < LEAST_SHARED);
    const unsigned fit = (LEAST_SHARED - USED) / encoded_pitch(k);
    return fit < 8 ? fit : 8;
}

/*
 * How many rows of x a block rounds itself. One takes less time than if it were streamed, as measured with whole models. Over
 * formats that are not common, nothing is streamed.
 */
template <typename Format> unsigned rows_unrounded(unsigned k) {
    const unsigned most = Format::IS_COMMON ? 1 : FEW_ENCODED, fit = rows_beside<Format>(k);
    return most < fit ? most : fit;
}

/* Describes the weight's tiles to TMA and, if it is streamed, x. */
template <typename Kernel> bool encode_streamed(TileMaps &maps, const djinn_expert_linear_args &args, const Batch &batch) {
    const djinn_linear_args &a = args.linear;
    const auto encode = [&](CUtensorMap &map, const void *first, unsigned tiles, uint64_t apart, unsigned rows) {
        return encode_matrices(map, first, tiles, apart, rows, a.row_bytes, Kernel::PITCH, Kernel::ROWS);
    };
    constexpr unsigned ROWS = Kernel::X_BOX / BLOCK_ROW, BLOCKS = Kernel::SEGMENTS * PARTIALS;
    const bool streamed = Kernel::X_BYTES > 0;
    return (!streamed || encode_blocks(maps.x, batch.rounded, a.weight_dtype, batch.rows, a.k, ROWS, BLOCKS)) &&
           encode_runs(maps, args, encode);
}

template <typename Format, unsigned EACH, unsigned TILES, bool STREAMED>
int launch_blocks(const djinn_expert_linear_args &args, const Batch &batch, const Division &division, void *stream) {
    using Kernel = BlocksRows<Format, EACH, TILES, STREAMED>;
    const djinn_linear_args &a = args.linear;
    const auto kernel = djinn_linear_blocks<Format, EACH, TILES, STREAMED>;
    if (const cudaError_t code = allow_shared(kernel, LEAST_SHARED); code != cudaSuccess) {
        return code;
    }
    /* Groups have equal work, but for the last turn. */
    const unsigned needed = ceil_div(division.share, Kernel::ROWS), staged = STREAMED ? 0 : batch.n * encoded_pitch(a.k);
    const auto equal = [&](unsigned most) { return ceil_div(needed, ceil_div(needed, most)); };
    unsigned groups = equal(Kernel::GROUPS);
    while (groups > 1 && Kernel::stages_beside(groups, staged) < Kernel::LEAST_STAGES) {
        groups = equal(groups - 1);
    }
    const unsigned stages = Kernel::stages_beside(groups, staged), window = BLOCKS_WINDOW / (groups * Kernel::BOX);
    TileMaps maps;
    if (!encode_streamed<Kernel>(maps, args, batch)) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(division.blocks, batch.portions(batch.n));
    const BlocksFrame frame{division.share, division.blocks, stages, window > 2 ? window : 2, groups, batch.n, batch.range()};
    return launch(kernel, grid, Kernel::threads(groups), LEAST_SHARED, stream, args, maps, frame);
}

/* For the gathered slots of experts, in portions of up to 8 TILES. */
template <typename Format, unsigned TILES>
int launch_blocks_parts(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    using Kernel = BlocksRows<Format, 2, TILES, true, RoutedParts<DJINN_EXPERT_TILES>>;
    const djinn_linear_args &a = args.linear;
    const auto kernel = djinn_expert_linear_blocks<Format, TILES>;
    if (const cudaError_t code = allow_shared(kernel, LEAST_SHARED); code != cudaSuccess) {
        return code;
    }
    static_assert(Kernel::beside(Kernel::GROUPS) + 2 * Kernel::stage_bytes(Kernel::GROUPS) <= LEAST_SHARED);
    const unsigned blocks = all_devices()[current_device()].multiprocessors;
    const unsigned share = choose_routed_share(a, expected_experts(args), blocks, Kernel::GROUPS * Kernel::ROWS);
    const unsigned shares = shares_of(a, share), groups = ceil_div(share, Kernel::ROWS);
    const unsigned stages = Kernel::stages_beside(groups, 0), window = BLOCKS_WINDOW / (groups * Kernel::BOX);
    TileMaps maps;
    if (!encode_streamed<Kernel>(maps, args, batch)) {
        return cudaErrorInvalidValue;
    }
    const uint64_t parts = uint64_t(shares) * batch.portions(8 * TILES);
    const BlocksFrame frame{share, shares, stages, window > 2 ? window : 2, groups, 8 * TILES, batch.range()};
    return launch(kernel, parts < blocks ? unsigned(parts) : blocks, Kernel::threads(groups), LEAST_SHARED, stream, args, maps,
                  frame);
}

/* Up to `most` rows of x at once, or as many as there is room for. */
template <typename Format, typename Lanes>
int launch_blocks(const djinn_expert_linear_args &args, unsigned most, void *stream) {
    const djinn_linear_args &a = args.linear;
    const unsigned fit = clusters_at_once() == 0 ? 0 : rows_beside<Format>(a.k), rows = a.rows < fit ? a.rows : fit;
    if (fit == 0) {
        return launch_encoded<Lanes>(args, most, stream);
    }
    if (args.order != nullptr && !are_few_runs(args)) {
        return by_experts(args, [&](const djinn_expert_linear_args &some) {
            return launch_blocks<Format, Lanes>(some, most, stream);
        });
    }
    const Division division = divide_blocks<Format>(args);
    return by_rows(args, rows, [&](const djinn_expert_linear_args &part, const Batch &batch) {
        if constexpr (Format::IS_COMMON) {
            if (units_of_group<Format>(division) == 1) {
                return launch_blocks<Format, 1, 1, false>(part, batch, division, stream);
            }
        }
        return launch_blocks<Format, 2, 1, false>(part, batch, division, stream);
    });
}

/*
 * Whether blocks go on from one expert to the next: with enough parts that all blocks have about as many. Else experts have
 * blocks of their own.
 */
inline bool follow_on(const djinn_expert_linear_args &args) {
    constexpr unsigned ROWS = 64, WAVES = 4;
    const uint64_t parts = uint64_t(shares_of(args.linear, ROWS)) * expected_experts(args);
    return args.order != nullptr && parts >= WAVES * all_devices()[current_device()].multiprocessors;
}

/* The most rows of x that are streamed with the weight, in common formats. */
constexpr unsigned BLOCKS_STREAMED = 32;

/* For x given rounded, up to `batch.n` rows at once. Few rows are streamed with the weight, in common formats. */
template <typename Format, typename Tiles>
int launch_blocks_rounded(const djinn_expert_linear_args &args, const Batch &batch, void *stream) {
    if constexpr (Format::IS_COMMON) {
        switch (batch.n) {
        case 64: return launch_tiles<Tiles, 64>(args, batch, stream);
        case MOST_GROUP: return launch_tiles<Tiles, MOST_GROUP>(args, batch, stream);
        default:
            if (follow_on(args)) {
                return batch.n <= 8    ? launch_blocks_parts<Format, 1>(args, batch, stream)
                       : batch.n <= 16 ? launch_blocks_parts<Format, 2>(args, batch, stream)
                                       : launch_blocks_parts<Format, 4>(args, batch, stream);
            }
            const Division division = divide_blocks<Format>(args);
            if (batch.n == BLOCKS_STREAMED) {
                return launch_blocks<Format, 2, 4, true>(args, batch, division, stream);
            }
            if (units_of_group<Format>(division) == 1) {
                return batch.n <= 8 ? launch_blocks<Format, 1, 1, true>(args, batch, division, stream)
                                    : launch_blocks<Format, 1, 2, true>(args, batch, division, stream);
            }
            return batch.n <= 8 ? launch_blocks<Format, 2, 1, true>(args, batch, division, stream)
                                : launch_blocks<Format, 2, 2, true>(args, batch, division, stream);
        }
    } else {
        return launch_tiles_of<Tiles>(args, batch, stream);
    }
}

} // namespace djinn

#endif
