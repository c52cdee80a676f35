/*
 * Copies between pinned host memory and the device, made by multiprocessors. They bypass the copy engines, which serve one
 * copy of each direction at a time, and may depend on a condition on the device.
 *
 * copy: dst = src. src and dst are any bytes, each in pinned host memory or the device's.
 *
 * copy_experts: for each copy, if starts[expert + 1] > starts[expert], dst = src and moved = 1; else moved = 0 and nothing
 * else. src and dst as in copy; starts u32 [experts + 1]; moved u32, one for each copy. For a stream of copies: launched
 * without the attribute that lets kernels overlap.
 *
 * Launch: up to 24 blocks of 512 threads in strides of the grid, each thread with 8 loads of 16 bytes in flight: enough to
 * keep a link busy, few enough to leave the multiprocessors to the stream that computes. Single bytes if addresses are not
 * multiples of 16. Of copies of experts, those that are used follow one another as if they were one.
 * Reference: the device's own copy; djinn-device, src/reference/routing.rs, `copy_expert`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned COPY_BLOCKS = 24;
constexpr unsigned COPY_THREADS = 512;
/* Loads of 16 bytes that a thread has in flight. */
constexpr unsigned COPY_EACH = 8;
constexpr unsigned COPY_STEP = COPY_THREADS * COPY_EACH;

/* Steps of a copy: what a block copies at once. */
__host__ __device__ inline uint64_t copy_steps(uint64_t bytes) { return (bytes / sizeof(uint4) + COPY_STEP - 1) / COPY_STEP; }

/* Called by all threads of the grid. Blocks take steps in turn; `turn`: which step is the block's first, below gridDim.x. */
__device__ __forceinline__ void copy_bytes(const void *src, void *dst, uint64_t bytes, unsigned turn) {
    const bool aligned = ((reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst)) % 16) == 0;
    const uint64_t packs = aligned ? bytes / sizeof(uint4) : 0;
    const uint4 *from = static_cast<const uint4 *>(src);
    uint4 *to = static_cast<uint4 *>(dst);
    for (uint64_t first = uint64_t(turn) * COPY_STEP; first < packs; first += uint64_t(gridDim.x) * COPY_STEP) {
        const uint64_t mine = first + threadIdx.x;
        uint4 kept[COPY_EACH];
#pragma unroll
        for (unsigned i = 0; i < COPY_EACH; ++i) {
            if (mine + i * COPY_THREADS < packs) {
                kept[i] = __ldcs(from + mine + i * COPY_THREADS);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < COPY_EACH; ++i) {
            if (mine + i * COPY_THREADS < packs) {
                to[mine + i * COPY_THREADS] = kept[i];
            }
        }
    }
    const uint64_t thread = uint64_t(turn) * COPY_THREADS + threadIdx.x;
    for (uint64_t at = packs * sizeof(uint4) + thread; at < bytes; at += uint64_t(gridDim.x) * COPY_THREADS) {
        static_cast<uint8_t *>(dst)[at] = static_cast<const uint8_t *>(src)[at];
    }
}

unsigned copy_blocks(uint64_t steps) { return steps == 0 ? 1 : steps < COPY_BLOCKS ? unsigned(steps) : COPY_BLOCKS; }

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::COPY_THREADS) djinn_copy_u8(const __grid_constant__ djinn_copy_args a) {
    djinn::await_previous();
    djinn::copy_bytes(a.src, a.dst, a.bytes, blockIdx.x);
    /* Later kernels may read the copy before they wait for this kernel: see `await_previous`. */
    __threadfence();
    __syncthreads();
    djinn::release_next();
}

namespace djinn {

/* Up to MOST of the arguments' copies. A captured launch takes several times the bytes of its arguments from the card. */
template <unsigned MOST> struct ExpertCopies {
    const uint32_t *starts;
    uint32_t count;
    djinn_expert_copy copies[MOST];
};

} // namespace djinn

template <unsigned MOST>
__global__ void __launch_bounds__(djinn::COPY_THREADS)
    djinn_copy_experts_u8(const __grid_constant__ djinn::ExpertCopies<MOST> a) {
    using namespace djinn;
    constexpr unsigned WORDS = (MOST + 31) / 32;
    static_assert(32 * WORDS <= COPY_THREADS);
    __shared__ uint32_t used[WORDS];
    if (threadIdx.x < 32 * WORDS) {
        const bool is_one = threadIdx.x < a.count;
        const djinn_expert_copy &mine = a.copies[is_one ? threadIdx.x : 0];
        const bool is_used = is_one && a.starts[mine.expert + 1] > a.starts[mine.expert];
        const uint32_t together = __ballot_sync(~0u, is_used);
        if (threadIdx.x % 32 == 0) {
            used[threadIdx.x / 32] = together;
        }
        if (is_one && blockIdx.x == 0) {
            *mine.moved = is_used;
        }
    }
    __syncthreads();
    unsigned turn = blockIdx.x;
    for (unsigned word = 0; word < WORDS; ++word) {
        for (uint32_t left = used[word]; left != 0; left &= left - 1) {
            const djinn_expert_copy &copy = a.copies[32 * word + __ffs(left) - 1];
            copy_bytes(copy.src, copy.dst, copy.bytes, turn);
            turn = (turn + gridDim.x - unsigned(copy_steps(copy.bytes) % gridDim.x)) % gridDim.x;
        }
    }
}

namespace djinn {

template <unsigned MOST> int copy_experts(const djinn_copy_experts_args &args, void *stream) {
    ExpertCopies<MOST> some{args.starts, args.count, {}};
    uint64_t steps = 0;
    for (unsigned i = 0; i < args.count; ++i) {
        some.copies[i] = args.copies[i];
        steps += copy_steps(args.copies[i].bytes);
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(copy_blocks(steps));
    config.blockDim = dim3(COPY_THREADS);
    config.stream = static_cast<cudaStream_t>(stream);
    void (*const kernel)(ExpertCopies<MOST>) = djinn_copy_experts_u8<MOST>;
    return cudaLaunchKernelEx(&config, kernel, some);
}

} // namespace djinn

extern "C" int djinn_copy(const djinn_copy_args *args, void *stream) {
    using namespace djinn;
    return launch(djinn_copy_u8, copy_blocks(copy_steps(args->bytes)), COPY_THREADS, 0, stream, *args);
}

extern "C" int djinn_copy_experts(const djinn_copy_experts_args *args, void *stream) {
    using namespace djinn;
    return args->count == 0              ? int(cudaErrorInvalidValue)
           : args->count <= 2            ? copy_experts<2>(*args, stream)
           : args->count <= 24           ? copy_experts<24>(*args, stream)
           : args->count <= DJINN_COPIES ? copy_experts<DJINN_COPIES>(*args, stream)
                                         : int(cudaErrorInvalidValue);
}
