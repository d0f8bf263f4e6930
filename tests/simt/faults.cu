// Kernels with one fault each; `clean` variants have none. A comment "// @name" marks the lines a finding must name.
#include <unistd.h>
#include <cassert>
#include <cstdlib>
#include "common.h"

#define RUN(KERNEL, BLOCKS, THREADS, ...)         \
    KERNEL<<<BLOCKS, THREADS>>>(__VA_ARGS__);     \
    return cudaGetLastError();

// ---- global memory
__global__ void beyond(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i + n];  // @beyond
}
EXPORT int beyond_end(float* out, const float* in, int n) { RUN(beyond, 2, 64, out, in, n) }

__global__ void misaligned(float* out, const float* in, int shift) {
    const float4 v = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + shift);  // @misaligned
    out[threadIdx.x] = v.x + v.w;
}
EXPORT int misaligned_load(float* out, const float* in, int shift) { RUN(misaligned, 1, 32, out, in, shift) }

__global__ void overwrite(float* in) {
    in[threadIdx.x] = 0;  // @readonly
}
EXPORT int write_readonly(float* in) { RUN(overwrite, 1, 32, in) }

__global__ void consume(float* out, const float* scratch) {
    out[threadIdx.x] = scratch[threadIdx.x];  // @unwritten
}
__global__ void produce(float* scratch, int n) {
    if ((int)threadIdx.x < n) scratch[threadIdx.x] = threadIdx.x;
}
EXPORT int unwritten_scratch(float* out, float* scratch, int n) {
    produce<<<1, 64>>>(scratch, n);
    RUN(consume, 1, 64, out, scratch)
}

__global__ void everyone(int* out) {
    out[0] = 7;  // @samewrite
}
EXPORT int same_write(int* out, int blocks, int threads) { RUN(everyone, blocks, threads, out) }

// Block b reads what block b - 1 writes.
__global__ void neighbours(int* data) {
    if (threadIdx.x == 0 && blockIdx.x > 0)
        data[0] = data[blockIdx.x];  // @crossread
    if (threadIdx.x == 1)
        data[blockIdx.x + 1] = blockIdx.x;  // @crosswrite
}
EXPORT int cross_block(int* data) { RUN(neighbours, 2, 64, data) }

// The last block to arrive adds up what all have written: in order by __threadfence and an atomic.
__device__ unsigned arrived;
__global__ void last_block(float* sum, float* parts, int fenced) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = blockIdx.x;  // @partwrite
        if (fenced) __threadfence();
        last = atomicAdd(&arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0;
        for (unsigned i = 0; i < gridDim.x; i++) total += parts[i];  // @partread
        *sum = total;
        arrived = 0;
    }
}
EXPORT int last_block_sum(float* sum, float* parts, int fenced) { RUN(last_block, 5, 64, sum, parts, fenced) }

__global__ void counted(int* counter, int mixed) {
    if (mixed && threadIdx.x == 3)
        counter[0] = 1;  // @plainwrite
    else
        atomicAdd(&counter[0], 1);  // @atomic
}
EXPORT int atomic_counter(int* counter, int mixed) { RUN(counted, 3, 64, counter, mixed) }

// ---- shared memory
// A word that only atomics write: the first to come finds nothing there, the others and the load do.
__global__ void by_atomics(int* out) {
    __shared__ int word;
    if (threadIdx.x == 0) atomicExch(&word, 5);  // @exchange
    __syncthreads();
    atomicAdd(&word, 1);
    __syncthreads();
    out[threadIdx.x] = word;
}
EXPORT int written_by_atomics(int* out) { RUN(by_atomics, 2, 32, out) }

__global__ void reversed(float* out, const float* in, int barrier) {
    __shared__ float tile[128];
    tile[threadIdx.x] = in[threadIdx.x];  // @racewrite
    if (barrier) __syncthreads();
    out[threadIdx.x] = tile[127 - threadIdx.x];  // @raceread
}
EXPORT int missing_barrier(float* out, const float* in, int barrier) { RUN(reversed, 1, 128, out, in, barrier) }

__global__ void reused(float* out, const float* in, int barrier) {
    __shared__ float tile[128];
    float sum = 0;
    for (int i = 0; i < 3; i++) {
        tile[threadIdx.x] = in[i * 128 + threadIdx.x];  // @reusewrite
        __syncthreads();
        sum += tile[(threadIdx.x + 64) % 128];  // @reuseread
        if (barrier) __syncthreads();
    }
    out[threadIdx.x] = sum;
}
EXPORT int missing_second_barrier(float* out, const float* in, int barrier) { RUN(reused, 1, 128, out, in, barrier) }

// Bytes of one word by different threads do not conflict; the same byte does.
__global__ void bytes(unsigned char* out, int shift) {
    __shared__ unsigned char tile[256];
    const int t = threadIdx.x;
    tile[t] = t;  // @bytewrite
    if (shift && t == 200) tile[t + shift] = 0;  // @byterace
    __syncthreads();
    out[t] = tile[255 - t];
}
EXPORT int byte_race(unsigned char* out, int shift) { RUN(bytes, 1, 256, out, shift) }

// A warp's tree over shared memory: kind 0 with __syncwarp, 1 with a shuffle between, 2 with nothing, 3 __syncthreads.
__global__ void tree(float* out, const float* in, int kind) {
    __shared__ float tile[W];
    tile[threadIdx.x] = in[threadIdx.x];  // @treewrite
    if (kind == 0) __syncwarp();
    if (kind == 1) __shfl_sync(FULL, 0, 0);
    if (kind == 3) __syncthreads();
    out[threadIdx.x] = tile[(threadIdx.x + 1) % W];  // @treeread
}
EXPORT int warp_tree(float* out, const float* in, int kind) { RUN(tree, 1, W, out, in, kind) }

// Sixteen lanes synchronize alone, and exchange within (fine) or across (not).
__global__ void sixteens(float* out, int across) {
    __shared__ float tile[W];
    const int t = threadIdx.x;
    const u64 mask = 0xffffull << (t / 16 * 16);
    tile[t] = t;  // @partwrite16
    __syncwarp(mask);
    out[t] = tile[across ? (t + 16) % W : t / 16 * 16 + (t + 1) % 16];  // @partread16
}
EXPORT int part_warps(float* out, int across) { RUN(sixteens, 1, W, out, across) }

__global__ void tail(float* out, const float* in, int n) {
    __shared__ float tile[96];
    if ((int)threadIdx.x < n) tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[95 - threadIdx.x];  // @uninitshared
}
EXPORT int unwritten_tail(float* out, const float* in, int n) { RUN(tail, 2, 96, out, in, n) }

__global__ void overrun(float* out, int n) {
    __shared__ float first[32];
    __shared__ float second[32];
    first[threadIdx.x] = second[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = first[threadIdx.x + n] + second[threadIdx.x];  // @arrayindex
}
EXPORT int array_overrun(float* out, int n) { RUN(overrun, 1, 32, out, n) }

// A pointer leaves its array by less than the size of the next one.
__global__ void strayed(float* out, int n) {
    __shared__ float4 rows[8];
    __shared__ float4 more[8];
    rows[threadIdx.x] = more[threadIdx.x] = make_float4(1, 2, 3, 4);
    __syncthreads();
    const float* p = reinterpret_cast<const float*>(rows);
    const float* q = reinterpret_cast<const float*>(more);
    out[threadIdx.x] = p[threadIdx.x * 4 + n] + q[threadIdx.x * 4 + n];  // @strayed
}
EXPORT int stray_pointer(float* out, int n) { RUN(strayed, 1, 8, out, n) }

__global__ void dynamic(float* out, int index) {
    extern __shared__ float pool[];
    pool[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = pool[index];  // @dynamic
}
EXPORT int dynamic_overrun(float* out, int index) {
    dynamic<<<1, 32, 128>>>(out, index);
    return cudaGetLastError();
}

__global__ void far(float* out, long offset) {
    __shared__ float tile[32];
    tile[threadIdx.x] = 1;
    const float* p = tile;
    out[threadIdx.x] = p[offset];  // @far
}
EXPORT int far_outside(float* out, long offset) { RUN(far, 1, 32, out, offset) }

// ---- barriers and collectives
__global__ void two_barriers(float* out, int apart) {
    if (apart && threadIdx.x % 2 == 0)
        __syncthreads();  // @even
    else
        __syncthreads();  // @odd
    out[threadIdx.x] = 1;
}
EXPORT int divergent_barriers(float* out, int apart) { RUN(two_barriers, 1, 64, out, apart) }

__global__ void left_early(float* out, int n) {
    if ((int)threadIdx.x >= n) return;
    __syncthreads();  // @early
    out[threadIdx.x] = 1;
}
EXPORT int exited_threads(float* out, int n) { RUN(left_early, 1, 128, out, n) }

__global__ void some_lanes(float* out, int n) {
    float v = 1;
    if ((int)(threadIdx.x % W) < n) v = __shfl_xor_sync(FULL, v, 1);  // @stuck
    __syncthreads();  // @others
    out[threadIdx.x] = v;
}
EXPORT int shuffle_in_branch(float* out, int n) { RUN(some_lanes, 1, 2 * W, out, n) }

__global__ void gone_lanes(float* out, int n) {
    if ((int)threadIdx.x >= n) return;
    out[threadIdx.x] = __shfl_down_sync(FULL, 1.0f, 1);  // @gone
}
EXPORT int shuffle_after_exit(float* out, int n) { RUN(gone_lanes, 1, W, out, n) }

__global__ void outside_mask(float* out, int source) {
    if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0xffu, (float)threadIdx.x, source);  // @outside
}
EXPORT int read_outside_mask(float* out, int source) { RUN(outside_mask, 1, W, out, source) }

__global__ void not_in_mask(float* out) {
    if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0x7fu, (float)threadIdx.x, 0);  // @notinmask
}
EXPORT int lane_not_in_mask(float* out) { RUN(not_in_mask, 1, W, out) }

__global__ void half_full(float* out) {
    const unsigned low = 0xffffffffu;
    out[threadIdx.x] = __shfl_xor_sync(low, (float)threadIdx.x, W / 2);  // @mask32
}
EXPORT int mask_of_32(float* out) { RUN(half_full, 1, W, out) }

__global__ void different_calls(float* out) {
    float v = threadIdx.x;
    if (threadIdx.x % 2)
        v = __shfl_xor_sync(FULL, v, 1);  // @callodd
    else
        v = __shfl_xor_sync(FULL, v, 1);  // @calleven
    out[threadIdx.x] = v;
}
EXPORT int divergent_calls(float* out) { RUN(different_calls, 1, W, out) }

__global__ void bad_width(float* out) {
    out[threadIdx.x] = __shfl_sync(FULL, 1.0f, 0, 24);  // @width
}
EXPORT int shuffle_width(float* out) { RUN(bad_width, 1, W, out) }

// A reduction over 32 lanes of a warp of 64 leaves lanes out: only the numbers tell.
__global__ void narrow_sum(float* out, int width) {
    float v = 1;
    for (int offset = width / 2; offset; offset /= 2) v += __shfl_down_sync(FULL, v, offset);
    if (threadIdx.x == 0) *out = v;
}
EXPORT int sum_of_width(float* out, int width) { RUN(narrow_sum, 1, W, out, width) }

// ---- crashes
__global__ void wild(const int* p, int* out, long offset) {
    out[threadIdx.x] = p[offset];  // @wild
}
EXPORT int wild_load(const int* p, int* out, long offset) { RUN(wild, 1, 32, p, out, offset) }

__global__ void divide(int* out, int by) {
    out[threadIdx.x] = 100 / ((int)threadIdx.x - by);  // @divide
}
EXPORT int divide_by(int* out, int by) { RUN(divide, 1, 32, out, by) }

__device__ __noinline__ int deep(volatile char* above, int n) {
    volatile char here[1024];
    here[n % 1024] = above[0];
    return n == 0 ? here[0] : deep(here, n - 1) + here[n % 7];
}
__global__ void recurse(int* out, int n) {
    volatile char first[16];
    first[0] = 1;
    out[threadIdx.x] = deep(first, n);
}
EXPORT int deep_stack(int* out, int n) { RUN(recurse, 1, 32, out, n) }

__global__ void endless(volatile int* flag) {
    while (*flag == 0) {  // @endless
    }
}
EXPORT int hang(int* flag) { RUN(endless, 1, 32, flag) }

__global__ void spinning(int* out) {
    for (unsigned i = *out;; i = i * 5 + 1) asm volatile("" : "+r"(i));  // no access to memory, no call
}
EXPORT int spin(int* out) { RUN(spinning, 1, 1, out) }

__global__ void asserting(int* out, int n) {
    assert(threadIdx.x < n);  // @assert
    out[threadIdx.x] = 1;
}
EXPORT int failed_assertion(int* out, int n) { RUN(asserting, 1, 32, out, n) }

__global__ void trapping(int* out) {
    if (threadIdx.x == 5) __trap();  // @trap
    out[threadIdx.x] = 1;
}
EXPORT int trapped(int* out) { RUN(trapping, 1, 32, out) }

__global__ void overflowing(int* out, int a, int b) {
    out[threadIdx.x] = (int)(((long)(a * b) + (int)threadIdx.x) & 63);  // @overflow
}
EXPORT int overflow_32_bits(int* out, int a, int b) { RUN(overflowing, 1, 1, out, a, b) }

__global__ void nothing() {}
EXPORT int launch_size(int blocks, int threads, int bytes) {
    nothing<<<blocks, threads, bytes>>>();
    return cudaGetLastError();
}

EXPORT int raised_limit(int bytes) {
    if (bytes) cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    nothing<<<1, 32, 60000>>>();
    return cudaGetLastError();
}

// ---- the address of a local variable, given to another thread
__global__ void leaked(int* out) {
    __shared__ int* pointer;
    int mine = threadIdx.x;
    if (threadIdx.x == 0) pointer = &mine;
    __syncthreads();
    out[threadIdx.x] = *pointer;  // @leaked
    __syncthreads();
}
EXPORT int leaked_local(int* out) { RUN(leaked, 1, 32, out) }

// ---- locks: 0 as it should be, 1 without fences, 2 two locks for one word, 3 a store outside
__global__ void locked(int* out, int kind) {
    __shared__ int lock[2], count;
    if (threadIdx.x == 0) lock[0] = lock[1] = count = 0;
    __syncthreads();
    int* const mine = &lock[kind == 2 ? threadIdx.x % 2 : 0];
    while (atomicCAS(mine, 0, 1) != 0) {
    }
    if (kind != 1) __threadfence_block();
    count = count + 1;  // @inside
    if (kind != 1) __threadfence_block();
    atomicExch(mine, 0);
    if (kind == 3 && threadIdx.x == 70) count = 5;  // @notheld
    __syncthreads();
    if (threadIdx.x == 0) *out = count;
}
EXPORT int spin_lock(int* out, int kind) { RUN(locked, 1, 160, out, kind) }

// The lock is in global memory, and of each thread of the grid.
__device__ int global_lock;
__global__ void counted_by_all(int* count) {
    while (atomicExch(&global_lock, 1) != 0) {
    }
    __threadfence();
    *count = *count + 1;
    __threadfence();
    atomicExch(&global_lock, 0);
}
EXPORT int global_spin_lock(int* count) { RUN(counted_by_all, 3, 160, count) }

// A warp takes a lock by its first lane, and meets while it holds it: others wait, whoever comes first.
__global__ void warp_locked(int* out, int barrier) {
    __shared__ int lock, data[W];
    if (threadIdx.x == 0) lock = 0;
    if (threadIdx.x < W) data[threadIdx.x] = 0;
    __syncthreads();
    const int lane = threadIdx.x % W;
    if (lane == 0) {
        while (atomicExch(&lock, 1) != 0) {
        }
        __threadfence_block();
    }
    __syncwarp();
    data[(lane + 1) % W] += 1;  // @first
    if (barrier) __syncwarp();
    data[lane] += 1;  // @second
    __syncwarp();
    if (lane == 0) {
        __threadfence_block();
        atomicExch(&lock, 0);
    }
    __syncthreads();
    if (threadIdx.x < W) out[threadIdx.x] = data[threadIdx.x];
}
EXPORT int warp_lock(int* out, int barrier) { RUN(warp_locked, 1, 3 * W, out, barrier) }

// A flag from the last thread to the first, which waits for it.
__global__ void flagged(int* out) {
    __shared__ int flag, word;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        word = 9;
        __threadfence_block();
        atomicExch(&flag, 1);
    }
    if (threadIdx.x == 0) {
        while (atomicAdd(&flag, 0) == 0) {
        }
        *out = word;
    }
}
EXPORT int wait_for_flag(int* out) { RUN(flagged, 1, 160, out) }

// A word goes from thread 0 to thread 140 by way of thread 70, with a flag for each step.
__global__ void relayed(int* out, int fenced) {
    __shared__ int flags[2], word;
    if (threadIdx.x == 0) flags[0] = flags[1] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        word = 4;  // @sent
        __threadfence_block();
        atomicExch(&flags[0], 1);
    }
    if (threadIdx.x == 70) {
        while (atomicAdd(&flags[0], 0) == 0) {
        }
        if (fenced) __threadfence_block();
        atomicExch(&flags[1], 1);
    }
    if (threadIdx.x == 140) {
        while (atomicAdd(&flags[1], 0) == 0) {
        }
        *out = word;  // @received
    }
}
EXPORT int relay(int* out, int fenced) { RUN(relayed, 1, 160, out, fenced) }

// ---- leaving the process
#ifndef __NVCC__  // which refuses it
__global__ void leaving(int how) {
    if (threadIdx.x == 3) {
        if (how == 0) exit(0);  // @exit0
        if (how == 1) _exit(0);  // @exit1
        if (how == 2) std::_Exit(0);  // @exit2
        if (how == 3) std::quick_exit(0);  // @exit3
        if (how == 4) abort();  // @exit4
    }
}
EXPORT int leave_process(int how) { RUN(leaving, 1, 32, how) }
#endif

// ---- local arrays that are larger than the stack and its guard
template <int bytes>
__global__ void large_local(int* out, int spread) {
    volatile char local[bytes];
    for (int i = 0; i < 8; i++) local[(long)i * spread % bytes] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = local[(long)3 * spread % bytes];  // all threads have their own
}
EXPORT int large_locals(int* out, int kilobytes) {
    if (kilobytes == 160) large_local<160 << 10><<<1, 64>>>(out, 5000);
    if (kilobytes == 300) large_local<300 << 10><<<1, 64>>>(out, 9000);
    if (kilobytes == 65536) large_local<64 << 20><<<1, 64>>>(out, 8000000);
    return cudaGetLastError();
}
