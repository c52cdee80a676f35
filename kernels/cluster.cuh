/*
 * What kernels of clusters use (sm_90): barriers in shared memory that count arrivals and bytes, and copies that
 * complete on them, in every block of a cluster at once.
 */
#ifndef DJINN_CLUSTER_CUH
#define DJINN_CLUSTER_CUH

#include "element.cuh"

namespace djinn {

__device__ __forceinline__ unsigned shared_address(const void *at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/* The rank of this block in its cluster. */
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Every thread of every block of the cluster waits for all others, and sees what they wrote before. */
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Some warps of the block wait for one another: `threads` of them, at barrier `id` from 1 on. */
__device__ __forceinline__ void sync_some(unsigned id, unsigned threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* A barrier in shared memory. Its phases end when all arrivals and all bytes that they announced are there. */
struct Barrier {
    uint64_t state;

    __device__ __forceinline__ void init(unsigned arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
    }

    /* After `init`, before other blocks and copies use the barrier (and a `cluster_sync`). */
    static __device__ __forceinline__ void publish() {
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    /* Arrives, and announces bytes. */
    __device__ __forceinline__ void arrive_expecting(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }

    /* Arrives once this thread's copies so far (`copy_async`) are done. */
    __device__ __forceinline__ void arrive_after_copies() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this)) : "memory");
    }

    /* Arrives at the same barrier of the block of a rank. Orders reads before later copies, and no writes. */
    __device__ __forceinline__ void arrive_at(unsigned rank) {
        asm volatile("{\n"
                     ".reg .b32 remote;\n"
                     "mapa.shared::cluster.u32 remote, %0, %1;\n"
                     "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                     "}" ::"r"(shared_address(this)),
                     "r"(rank)
                     : "memory");
    }

    /* Waits for the end of the phase of a parity: the first is 0, the next 1, and so on in turn. */
    __device__ __forceinline__ void wait(unsigned parity) {
        unsigned done;
        do {
            asm volatile("{\n"
                         ".reg .pred done;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, done;\n"
                         "}"
                         : "=r"(done)
                         : "r"(shared_address(this)), "r"(parity)
                         : "memory");
        } while (done == 0);
    }
};

/* Global memory that earlier kernels wrote may be read by `copy_to_cluster` of this thread. */
__device__ __forceinline__ void admit_bulk_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }

/*
 * Starts a copy of `bytes`, a multiple of 16, to the same place in the shared memory of the first `BLOCKS` blocks of
 * the cluster; it completes on the same barrier of each of them.
 */
template <unsigned BLOCKS>
__device__ __forceinline__ void copy_to_cluster(void *to, const void *from, unsigned bytes, Barrier &barrier) {
    static_assert(BLOCKS >= 1 && BLOCKS <= 16);
    if constexpr (BLOCKS == 1) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                     : "memory");
    } else {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(&barrier)),
                     "h"(static_cast<uint16_t>((1u << BLOCKS) - 1))
                     : "memory");
    }
}

} // namespace djinn

#endif
