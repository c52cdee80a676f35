/*
 * copy_pages: page dst_pages[i] of dst = page src_pages[i] of src, for i in 0 .. count; without a list, page i.
 * Shapes: src and dst whole pages of page_bytes, a multiple of 16; src_pages and dst_pages u32 [count] or none.
 * Launch: blocks of 256 threads, x over parts of a page, y over pages, both in strides of the grid; 16 bytes a
 * thread and step. Either side may lie in pinned host memory.
 * CPU reference: djinn-device, kernels/reference.rs, `copy_pages`.
 */
#include "element.cuh"

namespace djinn {

constexpr unsigned THREADS = 256;
/* Chunks of 16 bytes that a thread loads before it stores. */
constexpr unsigned EACH = 4;
constexpr unsigned STEP = THREADS * EACH;
/* Blocks for a multiprocessor: as many as it runs at once. */
constexpr unsigned RESIDENT = 8;
constexpr unsigned MOST_GRID_ROWS = 65535;

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::THREADS)
    djinn_copy_pages_u8(const __grid_constant__ djinn_copy_pages_args a) {
    using namespace djinn;
    enter();
    const uint64_t chunks = a.page_bytes / sizeof(uint4);
    for (uint64_t page = blockIdx.y; page < a.count; page += gridDim.y) {
        const uint64_t src = a.src_pages == nullptr ? page : a.src_pages[page];
        const uint64_t dst = a.dst_pages == nullptr ? page : a.dst_pages[page];
        const uint4 *from = static_cast<const uint4 *>(a.src) + src * chunks;
        uint4 *to = static_cast<uint4 *>(a.dst) + dst * chunks;
        for (uint64_t first = uint64_t(blockIdx.x) * STEP; first < chunks; first += uint64_t(gridDim.x) * STEP) {
            const uint64_t mine = first + threadIdx.x;
            uint4 kept[EACH];
#pragma unroll
            for (unsigned i = 0; i < EACH; ++i) {
                if (mine + i * THREADS < chunks) {
                    kept[i] = from[mine + i * THREADS];
                }
            }
#pragma unroll
            for (unsigned i = 0; i < EACH; ++i) {
                if (mine + i * THREADS < chunks) {
                    to[mine + i * THREADS] = kept[i];
                }
            }
        }
    }
}

extern "C" int djinn_copy_pages(const djinn_copy_pages_args *args, void *stream) {
    using namespace djinn;
    if (args->page_bytes == 0 || args->page_bytes % sizeof(uint4) != 0) {
        return cudaErrorInvalidValue;
    }
    const unsigned blocks = RESIDENT * all_devices()[current_device()].multiprocessors;
    const uint64_t steps = (args->page_bytes / sizeof(uint4) + STEP - 1) / STEP;
    const unsigned x = steps < blocks ? unsigned(steps) : blocks;
    const unsigned enough = ceil_div(blocks, x);
    const unsigned most = enough < MOST_GRID_ROWS ? enough : MOST_GRID_ROWS;
    const unsigned y = args->count < most ? args->count : most;
    return launch(djinn_copy_pages_u8, dim3(x, y), THREADS, 0, stream, *args);
}
