/*
 * WGMMA and TMA of Hopper (sm_90a): products of 64 rows that a warpgroup computes from shared memory, and copies of boxes of
 * a matrix to it.
 *
 * Both see a matrix of 16-bit elements in blocks of 64 columns: 128 bytes a row, rows one after the other, blocks at
 * multiples of 1024 bytes, and the 16-byte chunks of row r at places chunk ^ (r % 8) (the 128-byte swizzle).
 */
#ifndef DJINN_WGMMA_CUH
#define DJINN_WGMMA_CUH

#include "cluster.cuh"

#include <cuda.h>

namespace djinn {

/* Columns of a block, bytes of its rows, and a block's alignment, after which the swizzle repeats. */
constexpr unsigned BLOCK_COLUMNS = 64, BLOCK_ROW = 128, BLOCK_ALIGN = 1024;

/* The most dynamic shared memory of a block: what a block may have, less the barriers. */
constexpr unsigned MOST_SHARED = 226 * 1024;

/*
 * WGMMA's descriptor of a block. Add 2 i for the columns from 16 i on. If the products sum over rows, the blocks are `apart`
 * bytes apart; add 128 i for the rows from 16 i on.
 */
__device__ __forceinline__ uint64_t describe_at(unsigned address, unsigned apart = 16) {
    constexpr uint64_t SWIZZLE_128 = uint64_t(1) << 62, GROUP_OF_8_ROWS = uint64_t(BLOCK_ALIGN >> 4) << 32;
    return SWIZZLE_128 | GROUP_OF_8_ROWS | uint64_t(apart >> 4) << 16 | (address & 0x3ffff) >> 4;
}
__device__ __forceinline__ uint64_t describe(const void *block, unsigned apart = 16) {
    return describe_at(shared_address(block), apart);
}

/* The descriptor with this lower half; all have the same upper half. */
__device__ __forceinline__ uint64_t described(unsigned lower) { return describe_at(0) >> 32 << 32 | lower; }

/* Loads a map before the first copy that uses it, which would wait for it. */
__device__ __forceinline__ void prefetch_map(const CUtensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/* Starts a copy of a map's box at a column and a row. It completes on a barrier of this block. By shared addresses. */
__device__ __forceinline__ void copy_box_to(unsigned to, const CUtensorMap &map, unsigned column, unsigned row,
                                            unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

/* The same for a map of blocks (`encode_blocks`): all rows of the box from that block on. */
__device__ __forceinline__ void copy_blocks_to(unsigned to, const CUtensorMap &map, unsigned row, unsigned block,
                                               unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {0, %2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(row), "r"(block), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_box(void *to, const CUtensorMap &map, unsigned column, unsigned row,
                                         Barrier &barrier) {
    copy_box_to(shared_address(to), map, column, row, shared_address(&barrier));
}

/* The L2 policy for what is read once: evict it first. */
__device__ __forceinline__ uint64_t leaves_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Like `copy_box_to`, with an L2 policy. */
__device__ __forceinline__ void copy_box_to(unsigned to, const CUtensorMap &map, unsigned column, unsigned row,
                                            unsigned barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
                 : "memory");
}

/* The same for a map of several matrices. */
__device__ __forceinline__ void copy_box_to(unsigned to, const CUtensorMap &map, unsigned column, unsigned row,
                                            unsigned matrix, unsigned barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void copy_box(void *to, const CUtensorMap &map, unsigned column, unsigned row, Barrier &barrier,
                                         uint64_t policy) {
    copy_box_to(shared_address(to), map, column, row, shared_address(&barrier), policy);
}

/*
 * Like `copy_box_to`, by multicast: to the same place and barrier in all blocks of the cluster that `blocks` has a bit for.
 */
__device__ __forceinline__ void copy_box_to_all(void *to, const CUtensorMap &map, unsigned column, unsigned row,
                                                Barrier &barrier, unsigned blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)), "h"(uint16_t(blocks))
                 : "memory");
}

/* Like `copy_box_to_all`, with an L2 policy. */
__device__ __forceinline__ void copy_box_to_all(void *to, const CUtensorMap &map, unsigned column, unsigned row,
                                                Barrier &barrier, unsigned blocks, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
                 "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)), "h"(uint16_t(blocks)), "l"(policy)
                 : "memory");
}

/* Like `copy_box`, for a map with three dimensions. */
__device__ __forceinline__ void copy_box(void *to, const CUtensorMap &map, unsigned column, unsigned row, unsigned page,
                                         Barrier &barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(column), "r"(row), "r"(page), "r"(shared_address(&barrier))
                 : "memory");
}

/* Like `copy_box`, with an L2 policy, for a map with four dimensions: of bytes of slots of planes of pages. */
__device__ __forceinline__ void copy_box(void *to, const CUtensorMap &map, unsigned byte, unsigned slot, unsigned plane,
                                         unsigned page, Barrier &barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
                 "l"(&map), "r"(byte), "r"(slot), "r"(plane), "r"(page), "r"(shared_address(&barrier)), "l"(policy)
                 : "memory");
}

/*
 * Starts a copy from shared memory to a map's box at a column and a row. What is outside the matrix is left out. Call
 * `admit_shared_writes` in the threads that wrote the shared memory first.
 */
__device__ __forceinline__ void copy_box_out(const CUtensorMap &map, const void *from, unsigned column, unsigned row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
                 "r"(row), "r"(shared_address(from))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Like `copy_box_out`, but adds floats to those of the box, each as one rounded sum. */
__device__ __forceinline__ void add_box_out(const CUtensorMap &map, const void *from, unsigned column, unsigned row) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                 "r"(column), "r"(row), "r"(shared_address(from))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all but the last `N` of this thread's copies out of shared memory have read it. */
template <unsigned N> __device__ __forceinline__ void wait_read_out() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Stores four floats to an address in the shared memory of a block of the cluster. Completes on a barrier of that block. */
__device__ __forceinline__ void store_to_cluster(unsigned address, const float *four, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     address),
                 "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier)
                 : "memory");
}

/* Sets the registers of a thread: fewer, or more that others gave. Called by whole warpgroups. */
template <unsigned COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <unsigned COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* Call it before the first product of a batch, and after other code changed the accumulators. */
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* Ends a batch of products. */
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Waits until at most `N` batches are in flight. */
template <unsigned N> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keeps the compiler from reading the accumulators before the wait. */
template <unsigned COUNT> __device__ __forceinline__ void settle(float (&sums)[COUNT]) {
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
        asm volatile("" : "+f"(sums[i])::"memory");
    }
}

/*
 * sums[64, N] += a[64, 16] b[N, 16]^T, by the whole warpgroup, asynchronously. In lane l of warp w, sums[4 g + 2 h + i] is
 * at row 16 w + 8 h + l / 4, column 8 g + 2 (l % 4) + i.
 */
template <typename T, unsigned N>
__device__ __forceinline__ void multiply_block(float (&sums)[N / 2], uint64_t a, uint64_t b);

#define DJINN_R4(i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define DJINN_R8(i) DJINN_R4(i), DJINN_R4(i + 4)
#define DJINN_R16(i) DJINN_R8(i), DJINN_R8(i + 8)
#define DJINN_R32(i) DJINN_R16(i), DJINN_R16(i + 16)
#define DJINN_R48(i) DJINN_R32(i), DJINN_R16(i + 32)
#define DJINN_R64(i) DJINN_R32(i), DJINN_R32(i + 32)
#define DJINN_R72(i) DJINN_R64(i), DJINN_R8(i + 64)
#define DJINN_R80(i) DJINN_R64(i), DJINN_R16(i + 64)
#define DJINN_R88(i) DJINN_R80(i), DJINN_R8(i + 80)
#define DJINN_R96(i) DJINN_R64(i), DJINN_R32(i + 64)
#define DJINN_R112(i) DJINN_R96(i), DJINN_R16(i + 96)
#define DJINN_R128(i) DJINN_R64(i), DJINN_R64(i + 64)
#define DJINN_N4 "%0,%1,%2,%3"
#define DJINN_N8 DJINN_N4 ",%4,%5,%6,%7"
#define DJINN_N16 DJINN_N8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define DJINN_N32                                                                                            \
    DJINN_N16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DJINN_N48 DJINN_N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DJINN_N64                                                                                            \
    DJINN_N48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DJINN_N72 DJINN_N64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define DJINN_N80 DJINN_N64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define DJINN_N88 DJINN_N80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define DJINN_N96 DJINN_N80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define DJINN_N112                                                                                           \
    DJINN_N96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define DJINN_N128                                                                                           \
    DJINN_N112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* Like `multiply_block`, but overwrites the sums. */
template <typename T, unsigned N>
__device__ __forceinline__ void set_block(float (&sums)[N / 2], uint64_t a, uint64_t b);

/*
 * sums[64, N] += a[64, 16] b[16, N], with a in registers, and b described by its blocks and their distance. In lane l of
 * warp w, a[2 g + h] has columns 8 g + 2 (l % 4) and the next of row 16 w + 8 h + l / 4.
 */
template <typename T, unsigned N>
__device__ __forceinline__ void multiply_values(float (&sums)[N / 2], const uint32_t (&a)[4], uint64_t b);

/* Like `multiply_values`, for b[N, 16]^T, described as in `multiply_block`. */
template <typename T, unsigned N>
__device__ __forceinline__ void multiply_rows(float (&sums)[N / 2], const uint32_t (&a)[4], uint64_t b);

/* For N columns: accumulator registers of a thread, and the numbers of the operands after them. */
#define DJINN_MULTIPLY(T, name, function, add, N, registers, a_at, b_at)                                     \
    template <>                                                                                              \
    __device__ __forceinline__ void function<T, N>(float(&s)[N / 2], uint64_t a, uint64_t b) {               \
        asm volatile("{\n"                                                                                   \
                     ".reg .pred add;\n"                                                                     \
                     "setp." add ".u32 add, 0, 0;\n"                                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name                         \
                     " {" DJINN_N##registers "}, %" #a_at ", %" #b_at ", add, 1, 1, 0, 0;\n"                 \
                     "}"                                                                                     \
                     : DJINN_R##registers(0)                                                                 \
                     : "l"(a), "l"(b));                                                                      \
    }
#define DJINN_MULTIPLY_VALUES(T, name, function, transposed, N, registers, a0, a1, a2, a3, b_at)             \
    template <>                                                                                              \
    __device__ __forceinline__ void function<T, N>(float(&s)[N / 2], const uint32_t(&a)[4], uint64_t b) {    \
        asm volatile("{\n"                                                                                   \
                     ".reg .pred add;\n"                                                                     \
                     "setp.eq.u32 add, 0, 0;\n"                                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name                         \
                     " {" DJINN_N##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at          \
                     ", add, 1, 1, " transposed ";\n"                                                        \
                     "}"                                                                                     \
                     : DJINN_R##registers(0)                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
    }
#define DJINN_MULTIPLY_ALL(T, name)                                                                          \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 8, 4, 4, 5)                                                \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 16, 8, 8, 9)                                               \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 32, 16, 16, 17)                                            \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 64, 32, 32, 33)                                            \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 96, 48, 48, 49)                                            \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 128, 64, 64, 65)                                           \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 144, 72, 72, 73)                                           \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 160, 80, 80, 81)                                           \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 176, 88, 88, 89)                                           \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 192, 96, 96, 97)                                           \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 224, 112, 112, 113)                                        \
    DJINN_MULTIPLY(T, name, multiply_block, "eq", 256, 128, 128, 129)                                        \
    DJINN_MULTIPLY(T, name, set_block, "ne", 64, 32, 32, 33)                                                 \
    DJINN_MULTIPLY(T, name, set_block, "ne", 128, 64, 64, 65)                                                \
    DJINN_MULTIPLY(T, name, set_block, "ne", 224, 112, 112, 113)                                             \
    DJINN_MULTIPLY(T, name, set_block, "ne", 256, 128, 128, 129)                                             \
    DJINN_MULTIPLY_VALUES(T, name, multiply_rows, "0", 32, 16, 16, 17, 18, 19, 20)                           \
    DJINN_MULTIPLY_VALUES(T, name, multiply_rows, "0", 64, 32, 32, 33, 34, 35, 36)                           \
    DJINN_MULTIPLY_VALUES(T, name, multiply_rows, "0", 128, 64, 64, 65, 66, 67, 68)                          \
    DJINN_MULTIPLY_VALUES(T, name, multiply_values, "1", 64, 32, 32, 33, 34, 35, 36)                         \
    DJINN_MULTIPLY_VALUES(T, name, multiply_values, "1", 96, 48, 48, 49, 50, 51, 52)                         \
    DJINN_MULTIPLY_VALUES(T, name, multiply_values, "1", 128, 64, 64, 65, 66, 67, 68)                        \
    DJINN_MULTIPLY_VALUES(T, name, multiply_values, "1", 256, 128, 128, 129, 130, 131, 132)
DJINN_MULTIPLY_ALL(f16, "f16")
DJINN_MULTIPLY_ALL(bf16, "bf16")

/* The driver's encoder of tensor maps, or null. */
inline decltype(&cuTensorMapEncodeTiled) map_encoder() {
    static const auto found = [] {
        void *entry = nullptr;
        cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
#else
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &result);
#endif
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    }();
    return found;
}

/*
 * How many bytes L2 loads at once for TMA: those of a line. With 256 it also loads the line beside each that TMA asks for, and
 * often drops it before TMA asks for it too, so that memory is read more than once.
 */
constexpr CUtensorMapL2promotion A_LINE = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

/* Describes a row-major matrix of f16 or bf16 to TMA, in boxes of a block's columns and up to 256 rows. */
inline bool encode_map(CUtensorMap &map, const void *matrix, uint32_t dtype, uint32_t rows, uint32_t columns,
                       uint32_t box_rows) {
    const auto type = dtype == DJINN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {uint64_t(columns) * 2};
    const cuuint32_t box[2] = {BLOCK_COLUMNS, box_rows}, steps[2] = {1, 1};
    return map_encoder()(&map, type, 2, const_cast<void *>(matrix), sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, A_LINE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The same for matrices that lie `apart` bytes from one another, a multiple of 16: columns, rows, matrices. */
inline bool encode_maps(CUtensorMap &map, const void *first, uint32_t dtype, uint32_t matrices, uint64_t apart, uint32_t rows,
                        uint32_t columns, uint32_t box_rows) {
    const auto type = dtype == DJINN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t sizes[3] = {columns, rows, matrices}, strides[2] = {uint64_t(columns) * 2, apart};
    const cuuint32_t box[3] = {BLOCK_COLUMNS, box_rows, 1}, steps[3] = {1, 1, 1};
    return map_encoder()(&map, type, 3, const_cast<void *>(first), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, A_LINE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/*
 * Describes a matrix of f16 or bf16 to TMA as blocks of BLOCK_COLUMNS columns of all rows, in boxes of `box_rows` rows of
 * `box_blocks` successive blocks, block after block.
 */
inline bool encode_blocks(CUtensorMap &map, const void *matrix, uint32_t dtype, uint32_t rows, uint32_t columns,
                          uint32_t box_rows, uint32_t box_blocks) {
    const auto type = dtype == DJINN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const cuuint64_t sizes[3] = {BLOCK_COLUMNS, rows, columns / BLOCK_COLUMNS};
    const cuuint64_t strides[2] = {uint64_t(columns) * 2, BLOCK_ROW};
    const cuuint32_t box[3] = {BLOCK_COLUMNS, box_rows, box_blocks}, steps[3] = {1, 1, 1};
    return map_encoder()(&map, type, 3, const_cast<void *>(matrix), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, A_LINE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/*
 * Describes rows of bytes to TMA, in boxes of `box_bytes` of `box_rows` rows. Its columns are `word` bytes, 2 or 4, and a box
 * has up to 256.
 */
inline bool encode_bytes(CUtensorMap &map, const void *rows_at, uint32_t rows, uint32_t row_bytes, uint32_t box_bytes,
                         uint32_t box_rows, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
                         CUtensorMapL2promotion promotion = A_LINE, uint32_t word = 2) {
    const auto type = word == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT32;
    const cuuint64_t sizes[2] = {row_bytes / word, rows}, strides[1] = {row_bytes};
    const cuuint32_t box[2] = {box_bytes / word, box_rows}, steps[2] = {1, 1};
    return map_encoder()(&map, type, 2, const_cast<void *>(rows_at), sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The same for matrices that lie `apart` bytes from one another, a multiple of 16: words, rows, matrices; words of 4 bytes. */
inline bool encode_matrices(CUtensorMap &map, const void *first, uint32_t matrices, uint64_t apart, uint32_t rows,
                            uint32_t row_bytes, uint32_t box_bytes, uint32_t box_rows,
                            CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) {
    constexpr uint32_t WORD = 4;
    const cuuint64_t sizes[3] = {row_bytes / WORD, rows, matrices}, strides[2] = {row_bytes, apart};
    const cuuint32_t box[3] = {box_bytes / WORD, box_rows, 1}, steps[3] = {1, 1, 1};
    return map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, const_cast<void *>(first), sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, A_LINE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Describes pages of f16 or bf16 to TMA: columns, the rows of a page, pages; in boxes of `box_rows` rows. */
inline bool encode_pages(CUtensorMap &map, const djinn_kv_pages &kv, uint32_t box_rows) {
    const auto type = kv.dtype == DJINN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    /* Any page that the page table names exists. */
    constexpr cuuint64_t MOST_PAGES = 1u << 31;
    const cuuint64_t row = uint64_t(kv.head_dim) * 2, sizes[3] = {kv.head_dim, kv.page_bytes / row, MOST_PAGES};
    const cuuint64_t strides[2] = {row, kv.page_bytes};
    const cuuint32_t box[3] = {BLOCK_COLUMNS, box_rows, 1}, steps[3] = {1, 1, 1};
    return map_encoder()(&map, type, 3, kv.pages, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         CU_TENSOR_MAP_SWIZZLE_128B, A_LINE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Describes the vectors of 16-bit or aligned int8 pages to TMA, as bytes, in boxes of a line of `box_rows` slots. */
inline bool encode_planes(CUtensorMap &map, const djinn_kv_pages &kv, uint32_t box_rows) {
    constexpr cuuint64_t MOST_PAGES = 1u << 31;
    const bool int8s = kv.dtype == DJINN_INT8;
    const cuuint64_t vector = kv.head_dim * (int8s ? 1u : 2u), beside = int8s ? sizeof(float) : 0;
    const cuuint64_t sizes[4] = {vector, kv.page_tokens, 2 * uint64_t(kv.kv_heads), MOST_PAGES};
    const cuuint64_t strides[3] = {vector, kv.page_tokens * (vector + beside), kv.page_bytes};
    const cuuint32_t box[4] = {BLOCK_ROW, box_rows, 1, 1}, steps[4] = {1, 1, 1, 1};
    return map_encoder() != nullptr &&
           map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, kv.pages, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, A_LINE,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace djinn

/* Code for Hopper only; nothing on other cards. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DJINN_ON_HOPPER(...) __VA_ARGS__
#else
#define DJINN_ON_HOPPER(...)
#endif

#endif
