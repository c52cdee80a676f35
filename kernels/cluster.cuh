/*
 * What kernels with clusters use (sm_90): the cluster's barrier; mbarriers, which count arrivals and bytes of copies; and
 * the fences that copies and tensor cores need.
 */
#ifndef DJINN_CLUSTER_CUH
#define DJINN_CLUSTER_CUH

#include "element.cuh"

namespace djinn {

__device__ __forceinline__ unsigned shared_address(const void *at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/*
 * Every thread of every block of the cluster arrives, and later waits for all others. It then sees what they wrote before.
 */
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

/* Like `cluster_arrive`, but orders only what was published: no thread waits for its writes. */
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* The address of the same place in the shared memory of the block of that rank. */
__device__ __forceinline__ unsigned address_at(unsigned address, unsigned rank) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

/* An mbarrier in shared memory. A phase ends when all arrivals are in, and all bytes that they announced. */
struct Barrier {
    uint64_t state;

    __device__ __forceinline__ void init(unsigned arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
    }

    /* The same, called by all lanes of a warp: after a branch to one of them the compiler would use no uniform registers. */
    __device__ __forceinline__ void init_by_warp(unsigned arrivals) {
        asm volatile("{\n"
                     ".reg .pred mine;\n"
                     "elect.sync _|mine, 0xffffffff;\n"
                     "@mine mbarrier.init.shared::cta.b64 [%0], %1;\n"
                     "}" ::"r"(shared_address(this)),
                     "r"(arrivals)
                     : "memory");
    }

    /* Call it after `init`, before other blocks (which also need a `cluster_sync`) or copies use the barrier. */
    static __device__ __forceinline__ void publish() {
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    /* Arrives. For reads of shared memory that copies will overwrite, see `end_shared_reads`. */
    __device__ __forceinline__ void arrive() { arrive_own(shared_address(this)); }

    /* The same, by the barrier's address. */
    static __device__ __forceinline__ void arrive_own(unsigned address) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
    }

    /*
     * Arrives at the same barrier in the block of that rank. It orders no writes: a release at cluster scope would wait for
     * all of this thread's writes to memory.
     */
    __device__ __forceinline__ void arrive_at(unsigned rank) { arrive_other(address_at(shared_address(this), rank)); }

    /* The same, by the barrier's address in the cluster. */
    static __device__ __forceinline__ void arrive_other(unsigned address) {
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
    }

    /* Arrives, and announces bytes of copies. */
    __device__ __forceinline__ void arrive_expecting(unsigned bytes) { arrive_expecting_at(shared_address(this), bytes); }

    /* The same, by the barrier's address. */
    static __device__ __forceinline__ void arrive_expecting_at(unsigned address, unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
    }

    /* Waits for the end of the phase of that parity. Phases have parity 0 and 1 in turn, from 0 on. */
    __device__ __forceinline__ void wait(unsigned parity) { wait_at(shared_address(this), parity); }

    /* The same, by the barrier's address. */
    static __device__ __forceinline__ void wait_at(unsigned address, unsigned parity) {
        unsigned done;
        do {
            asm volatile("{\n"
                         ".reg .pred done;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, done;\n"
                         "}"
                         : "=r"(done)
                         : "r"(address), "r"(parity)
                         : "memory");
        } while (done == 0);
    }

    /* Waits for two barriers, whose phases have the same parity, at once. */
    static __device__ __forceinline__ void wait_both(unsigned one, unsigned other, unsigned parity) {
        unsigned done;
        do {
            asm volatile("{\n"
                         ".reg .pred one, other;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 one, [%1], %3;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 other, [%2], %3;\n"
                         "and.pred one, one, other;\n"
                         "selp.u32 %0, 1, 0, one;\n"
                         "}"
                         : "=r"(done)
                         : "r"(one), "r"(other), "r"(parity)
                         : "memory");
        } while (done == 0);
    }
};

/*
 * Calls `init(i)` for i up to `count`, by one warp each: it calls `init_by_warp` for some barriers. All warps of a block call
 * this, and then `__syncthreads`. Lanes of one warp would initialise barriers one after another.
 */
template <typename Init> __device__ __forceinline__ void init_barriers(unsigned count, const Init &init) {
    /* A shuffle, so that the compiler knows the warp to be uniform. */
#pragma unroll 1
    for (unsigned i = __shfl_sync(~0u, threadIdx.x / 32, 0); i < count; i += blockDim.x / 32) {
        init(i);
    }
    Barrier::publish();
}

/*
 * Lets bulk copies that this thread starts read global memory that earlier kernels wrote. Without `.global` the fence would
 * also wait for all of the thread's accesses to memory.
 */
__device__ __forceinline__ void admit_bulk_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* Lets the tensor cores read shared memory that this thread's stores and `copy_async` wrote. */
__device__ __forceinline__ void admit_shared_writes() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * Ends this thread's reads of shared memory that a bulk copy may overwrite next. Call it before the arrival that allows the
 * copy, unless what was read has been used already: loads do not have to be done when an arrival after them is. Generic
 * accesses and bulk copies are of different proxies (PTX ISA, "Async proxy"). What happens otherwise: docs/design/encodings.md.
 */
__device__ __forceinline__ void end_shared_reads() { admit_shared_writes(); }

/*
 * Starts a copy from this block's shared memory to an address in that of another block of the cluster. It completes on a
 * barrier of that block. Call `admit_shared_writes` in the threads that wrote the memory first.
 */
__device__ __forceinline__ void copy_to_cluster(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

} // namespace djinn

#endif
