/*
 * Routing of a mixture of experts, and the sum of the experts' results. The products are in linear.cu.
 *
 * route: the top_k greatest of each row of logits, in descending order, the lower id first among equals. Weights are the
 * softmax over all experts, divided by the sum of the chosen ones if `renormalise`. NaN is chosen like minus infinity, and
 * makes the row's weights NaN.
 * Shapes: logits f32 [rows, experts], weights f32 and ids u32 [rows, top_k]; experts up to 1024, top_k up to 16.
 * Launch: a warp for each row, 4 warps a block; lane i holds logits i, 32 + i, ... in registers. For each choice, each lane
 * finds its greatest logit that is left, and the warp the greatest of these.
 *
 * group: a stable counting sort of the slots by expert, of those that the device or the host's processor computes. ids u32
 * [slots], order u32 [slots], starts u32 [experts + 1].
 * Launch: one block of 8 warps, each with a run of slots and its own counters. They count; a scan over the experts, and
 * over the warps of each, turns counts into places; then each warp goes through its run again, and lanes with the same
 * expert take places in order.
 *
 * route_group: both of them. Up to 8 rows are routed by a warp each of one block, which then counts the slots before each slot
 * and each expert; more rows go the way of both.
 *
 * combine: out[r, :] = sum over j of weights[r, j] y[r top_k + j, :]. y f32 [rows top_k, width], weights f32 [rows, top_k],
 * out f32 [rows, width]. Fused multiply-adds in the order of j. Slots of the processor come from cpu_y, of y's shape.
 * Launch: blocks of 256 threads with 4 elements each, x over rows, y over columns.
 *
 * Reference: djinn-device, src/reference/routing.rs, `route`, `group`, `combine`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned MOST_EXPERTS = 1024;
constexpr unsigned MOST_CHOSEN = 16;
constexpr unsigned ALL_LANES = 0xffffffffu;
/* Greater than all ids. */
constexpr unsigned NONE = 0xffffffffu;

constexpr unsigned ROUTE_WARPS = 4;
constexpr unsigned GROUP_WARPS = 8;
constexpr unsigned GROUP_THREADS = 32 * GROUP_WARPS;
constexpr unsigned COMBINE_THREADS = 256;
constexpr unsigned COMBINE_BLOCK = 4 * COMBINE_THREADS;

/* Whether the processor computes a slot, with the expert that is chosen there. */
__device__ __forceinline__ bool is_of_cpu(const djinn_cpu_slots &cpu, unsigned slot, unsigned id) {
    return slot % cpu.top_k >= cpu.first && cpu.begin <= id && id < cpu.end;
}

/* Routes one row, of up to 32 EACH experts. Gives the lane's choice, of the first top_k lanes. */
template <unsigned EACH> __device__ __forceinline__ unsigned route_row(const djinn_route_args &a, unsigned row) {
    const unsigned lane = threadIdx.x % 32;
    const float *logits = a.logits + size_t(row) * a.experts;
    float at[EACH];
    unsigned left = 0;
#pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        const bool inside = i * 32 + lane < a.experts;
        at[i] = inside ? logits[i * 32 + lane] : 0.0f;
        left |= unsigned(inside) << i;
    }
    float greatest = 0, mine = 0;
    unsigned chosen = 0;
    for (unsigned turn = 0; turn < a.top_k; ++turn) {
        float best = -INFINITY;
        unsigned id = NONE;
#pragma unroll
        for (unsigned i = 0; i < EACH; ++i) {
            const float x = at[i] == at[i] ? at[i] : -INFINITY;
            if ((left >> i & 1) != 0 && (x > best || id == NONE)) {
                best = x, id = i * 32 + lane;
            }
        }
#pragma unroll
        for (int other = 16; other > 0; other /= 2) {
            const float x = __shfl_xor_sync(ALL_LANES, best, other);
            const unsigned i = __shfl_xor_sync(ALL_LANES, id, other);
            if (x > best || (x == best && i < id)) {
                best = x, id = i;
            }
        }
        if (id % 32 == lane) {
            left &= ~(1u << (id / 32));
        }
        if (turn == 0) {
            greatest = best;
        }
        if (turn == lane) {
            mine = best, chosen = id;
        }
    }
    float total = 0;
#pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        if (i * 32 + lane < a.experts) {
            total += expf(at[i] - greatest);
        }
    }
    total = warp_sum(total);
    const bool writes = lane < a.top_k;
    float weight = writes ? expf(mine - greatest) / total : 0.0f;
    if (a.renormalise != 0) {
        weight /= warp_sum(weight);
    }
    if (writes) {
        a.weights[size_t(row) * a.top_k + lane] = weight;
        a.ids[size_t(row) * a.top_k + lane] = chosen;
    }
    return chosen;
}

} // namespace djinn

template <unsigned EACH>
__global__ void __launch_bounds__(32 * djinn::ROUTE_WARPS)
    djinn_route_f32(const __grid_constant__ djinn_route_args a) {
    djinn::enter();
    const unsigned row = blockIdx.x * djinn::ROUTE_WARPS + threadIdx.x / 32;
    if (row < a.rows) {
        djinn::route_row<EACH>(a, row);
    }
}

extern "C" __global__ void __launch_bounds__(djinn::GROUP_THREADS)
    djinn_group_u32(const __grid_constant__ djinn_group_args a) {
    using namespace djinn;
    constexpr unsigned EACH = MOST_EXPERTS / GROUP_THREADS;
    __shared__ unsigned places[GROUP_WARPS][MOST_EXPERTS];
    __shared__ unsigned sums[GROUP_WARPS];
    enter();
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (unsigned i = threadIdx.x; i < GROUP_WARPS * MOST_EXPERTS; i += GROUP_THREADS) {
        places[i / MOST_EXPERTS][i % MOST_EXPERTS] = 0;
    }
    __syncthreads();
    const unsigned run = (a.slots / GROUP_THREADS + 1) * 32;
    const unsigned first = min(warp * run, a.slots), end = min(first + run, a.slots);
    const auto id_of = [&](unsigned slot) {
        const unsigned id = slot < end ? a.ids[slot] : NONE;
        return id < a.experts && is_of_cpu(a.cpu, slot, id) == (a.of_cpu != 0) ? id : NONE;
    };
    for (unsigned at = first; at < end; at += 32) {
        const unsigned id = id_of(at + lane);
        if (id < a.experts) {
            atomicAdd(&places[warp][id], 1u);
        }
    }
    __syncthreads();

    /* A thread has EACH neighbouring experts. */
    unsigned mine = 0;
#pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
#pragma unroll
        for (unsigned other = 0; other < GROUP_WARPS; ++other) {
            mine += places[other][threadIdx.x * EACH + i];
        }
    }
    unsigned until = mine;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const unsigned before = __shfl_up_sync(ALL_LANES, until, distance);
        until += lane >= distance ? before : 0;
    }
    if (lane == 31) {
        sums[warp] = until;
    }
    __syncthreads();
    unsigned place = until - mine;
    for (unsigned other = 0; other < warp; ++other) {
        place += sums[other];
    }
#pragma unroll
    for (unsigned i = 0; i < EACH; ++i) {
        const unsigned expert = threadIdx.x * EACH + i;
        if (expert < a.experts) {
            a.starts[expert] = place;
        }
#pragma unroll
        for (unsigned other = 0; other < GROUP_WARPS; ++other) {
            const unsigned count = places[other][expert];
            places[other][expert] = place;
            place += count;
        }
    }
    if (threadIdx.x + 1 == GROUP_THREADS) {
        a.starts[a.experts] = place;
    }
    __syncthreads();

    for (unsigned at = first; at < end; at += 32) {
        const unsigned id = id_of(at + lane);
        const unsigned same = __match_any_sync(ALL_LANES, id);
        const unsigned before = __popc(same & ((1u << lane) - 1));
        const unsigned to = id < a.experts ? places[warp][id] + before : 0;
        __syncwarp();
        if (id < a.experts) {
            a.order[to] = at + lane;
            if (before == 0) {
                places[warp][id] = to + __popc(same);
            }
        }
        __syncwarp();
    }
}

template <unsigned EACH>
__global__ void __launch_bounds__(djinn::GROUP_THREADS)
    djinn_route_group_f32(const __grid_constant__ djinn_route_group_args both) {
    using namespace djinn;
    /* Of each slot, its expert if it belongs to the group. */
    __shared__ unsigned experts[GROUP_WARPS * MOST_CHOSEN];
    enter();
    const djinn_group_args &a = both.group;
    const unsigned row = threadIdx.x / 32, lane = threadIdx.x % 32, top_k = both.route.top_k;
    if (row < both.route.rows) {
        const unsigned id = route_row<EACH>(both.route, row), slot = row * top_k + lane;
        if (lane < top_k) {
            experts[slot] = is_of_cpu(a.cpu, slot, id) == (a.of_cpu != 0) ? id : NONE;
        }
    }
    /* From here on, what is written may lie where the logits did. */
    __syncthreads();
    const unsigned mine = threadIdx.x < a.slots ? experts[threadIdx.x] : NONE;
    if (mine != NONE) {
        unsigned place = 0;
        for (unsigned slot = 0; slot < a.slots; ++slot) {
            place += experts[slot] < mine || (experts[slot] == mine && slot < threadIdx.x);
        }
        a.order[place] = threadIdx.x;
    }
    for (unsigned expert = threadIdx.x; expert <= a.experts; expert += GROUP_THREADS) {
        unsigned before = 0;
        for (unsigned slot = 0; slot < a.slots; ++slot) {
            before += experts[slot] < expert;
        }
        a.starts[expert] = before;
    }
}

extern "C" __global__ void __launch_bounds__(djinn::COMBINE_THREADS)
    djinn_combine_f32(const __grid_constant__ djinn_combine_args a) {
    using namespace djinn;
    enter();
    const size_t row = blockIdx.x;
    const float *weights = a.weights + row * a.top_k;
    const auto y_of = [&](unsigned j) {
        const size_t slot = row * a.top_k + j;
        const bool of_cpu = a.ids != nullptr && is_of_cpu(a.cpu, unsigned(slot), a.ids[slot]);
        return (of_cpu ? a.cpu_y : a.y) + slot * a.width;
    };
    float *out = a.out + row * a.width;
    const unsigned begin = blockIdx.y * COMBINE_BLOCK + threadIdx.x * 4;
    if (a.width % 4 == 0 && begin < a.width) {
        Pack<float, 4> sum = {};
        for (unsigned j = 0; j < a.top_k; ++j) {
            const auto part = load<float, 4>(y_of(j) + begin);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                sum.at[i] = __fmaf_rn(weights[j], part.at[i], sum.at[i]);
            }
        }
        store(out + begin, sum);
        return;
    }
    for (unsigned i = begin; i < a.width && i < begin + 4; ++i) {
        float sum = 0;
        for (unsigned j = 0; j < a.top_k; ++j) {
            sum = __fmaf_rn(weights[j], y_of(j)[i], sum);
        }
        out[i] = sum;
    }
}

static bool is_routable(const djinn_route_args &a) {
    return a.experts <= djinn::MOST_EXPERTS && a.top_k <= djinn::MOST_CHOSEN && a.top_k <= a.experts;
}

extern "C" int djinn_route(const djinn_route_args *args, void *stream) {
    using namespace djinn;
    const djinn_route_args &a = *args;
    if (!is_routable(a)) {
        return cudaErrorInvalidValue;
    }
    const auto kernel = a.experts <= 32    ? djinn_route_f32<1>
                        : a.experts <= 64  ? djinn_route_f32<2>
                        : a.experts <= 128 ? djinn_route_f32<4>
                        : a.experts <= 256 ? djinn_route_f32<8>
                                           : djinn_route_f32<32>;
    return launch(kernel, ceil_div(a.rows, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, stream, a);
}

extern "C" int djinn_group(const djinn_group_args *args, void *stream) {
    if (args->experts > djinn::MOST_EXPERTS) {
        return cudaErrorInvalidValue;
    }
    return djinn::launch(djinn_group_u32, 1, djinn::GROUP_THREADS, 0, stream, *args);
}

extern "C" int djinn_route_group(const djinn_route_group_args *args, void *stream) {
    using namespace djinn;
    const djinn_route_args &a = args->route;
    if (a.rows > GROUP_WARPS) {
        const int code = djinn_route(&args->route, stream);
        return code != cudaSuccess ? code : djinn_group(&args->group, stream);
    }
    if (!is_routable(a) || args->group.slots != a.rows * a.top_k) {
        return cudaErrorInvalidValue;
    }
    const auto kernel = a.experts <= 32    ? djinn_route_group_f32<1>
                        : a.experts <= 64  ? djinn_route_group_f32<2>
                        : a.experts <= 128 ? djinn_route_group_f32<4>
                        : a.experts <= 256 ? djinn_route_group_f32<8>
                                           : djinn_route_group_f32<32>;
    return launch(kernel, 1, GROUP_THREADS, 0, stream, *args);
}

extern "C" int djinn_combine(const djinn_combine_args *args, void *stream) {
    using namespace djinn;
    const dim3 grid(args->rows, ceil_div(args->width, COMBINE_BLOCK));
    return launch(djinn_combine_f32, grid, COMBINE_THREADS, 0, stream, *args);
}
