// The reduction kernel: it merges the partial results of all partitions, for each sequence and query head.
//
// The grid is [heads, seqs, slices]. A slice is up to 64 elements of a head's output. A thread block merges one slice,
// and a thread handles four elements of it. The block visits only the partitions that its sequence has, so the time
// does not depend on max_seq_len.
//
//                   elements 0-3     4-7       ...    60-63
//   partition 0   |  thread 0    thread 1      ...  thread 15
//   partition 1   |  thread 16   thread 17     ...  thread 31
//      ...        |     ...
//   partition 15  |  thread 240  thread 241    ...  thread 255
//   partition 16  |  thread 0 again
//
// A thread loads kLoadsInFlight partitions before it uses the first of them. It therefore waits for memory only
// ceil(partitions / (kPartitionLanes * kLoadsInFlight)) times.
#pragma once

#include "pav2_args.h"
#include "pav2_device.cuh"
#include "pav2_partition.cuh"

namespace pav2 {

constexpr int kReduceThreads = 256;
constexpr int kReduceWarps = kReduceThreads / kWarp;
constexpr int kLoadsInFlight = 4;  // partitions that a thread loads before it uses the first of them

// How the threads of a block are distributed over partitions and over the elements of a slice.
template <int kHeadSize>
struct ReduceShape {
    static constexpr int kElementLanes = kHeadSize <= 32 ? 8 : 16;  // threads that load one partition's slice together
    static constexpr int kPartitionLanes = kReduceThreads / kElementLanes;  // partitions that a block loads at once
    static constexpr int kSliceElements = 4 * kElementLanes;
    static constexpr int kSlices = ceil_div(kHeadSize, kSliceElements);
    static_assert(kHeadSize % 4 == 0, "a thread loads four elements of a head");
    static_assert(kWarp % kElementLanes == 0 && kSliceElements <= kReduceThreads, "a partition's threads share a warp");
};

// The result of the partitions that a thread has merged so far. For partitions p with the states m_p, z_p and o_p: m is
// the maximum of all m_p, z = sum of exp(m_p - m) * z_p, and o = sum of exp(m_p - m) * o_p. o has four elements.
struct Merged {
    float m = kLowest, z = 0.0f, o[4] = {};

    // Sets m to a larger maximum, and rescales z and o to it.
    __device__ __forceinline__ void raise(float maximum) {
        const float factor = __expf(m - maximum);
        m = maximum;
        z *= factor;
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] *= factor;
    }

    // Adds a partition. Its maximum m_p must be at most m. A partition without attended tokens has m_p = -inf.
    __device__ __forceinline__ void add(float m_p, float z_p, const float4& o_p) {
        const float weight = __expf(m_p - m);
        z = fmaf(weight, z_p, z);
        o[0] = fmaf(weight, o_p.x, o[0]);
        o[1] = fmaf(weight, o_p.y, o[1]);
        o[2] = fmaf(weight, o_p.z, o[2]);
        o[3] = fmaf(weight, o_p.w, o[3]);
    }
};

// The maximum of x over all threads of the block. Every thread gets the result. maxima: shared memory, one float per
// warp.
__device__ __forceinline__ float block_max(float x, float* maxima) {
    x = warp_max(x);
    if (threadIdx.x % kWarp == 0) maxima[threadIdx.x / kWarp] = x;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kReduceWarps; ++w) x = fmaxf(x, maxima[w]);
    return x;
}

// Merges every kPartitionLanes-th partition of a row of the workspace, from partition `first` to `count` (exclusive). A
// row is one query and query head. element: the first of the thread's four elements in the head.
template <int kHeadSize, class Args>
__device__ __forceinline__ Merged merge_partitions(const Args& a, int64_t row, int element, int first, int count) {
    constexpr int kStride = ReduceShape<kHeadSize>::kPartitionLanes;
    const float* __restrict__ m = a.partial_m + row * a.partitions;
    const float* __restrict__ z = a.partial_z + row * a.partitions;
    const float* __restrict__ o = a.partial_out + row * a.partitions * kHeadSize + element;
    Merged merged;
    for (int p = first; p < count; p += kStride * kLoadsInFlight) {
        float m_p[kLoadsInFlight], z_p[kLoadsInFlight];
        float4 o_p[kLoadsInFlight];
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i) {
            const int64_t at = p + i * kStride;
            const bool live = at < count;
            m_p[i] = live ? m[at] : -INFINITY;
            z_p[i] = live ? z[at] : 0.0f;
            o_p[i] = live ? *reinterpret_cast<const float4*>(o + at * kHeadSize) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        float maximum = merged.m;
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i) maximum = fmaxf(maximum, m_p[i]);
        merged.raise(maximum);
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i) merged.add(m_p[i], z_p[i], o_p[i]);
    }
    return merged;
}

// Computes a row of out from its `count` partitions p: out = (sum of w_p * o_p) / (sum of w_p * z_p), where the weight
// w_p is exp(m_p - the maximum of all m). The row's sink is added to the denominator here. row: index of the row in the
// workspace. out_row: index of the row in out and lse.
template <class scalar_t, int kHeadSize, class Args>
__device__ __forceinline__ void merge_row(const Args& a, int64_t row, int64_t out_row, int head, int slice, int count) {
    using Shape = ReduceShape<kHeadSize>;
    __shared__ float maxima[kReduceWarps], totals[kReduceWarps];
    __shared__ __align__(16) float sums[kReduceWarps][Shape::kSliceElements];
    const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
    const int element = slice * Shape::kSliceElements + 4 * (thread % Shape::kElementLanes);
    Merged merged;
    if (element < kHeadSize) {
        merged = merge_partitions<kHeadSize>(a, row, element, thread / Shape::kElementLanes, count);
    }
    merged.raise(block_max(merged.m, maxima));

    // Adds up the results of all threads with the same elements: within a warp by shuffles, then through shared memory.
    merged.z = lane_sum<Shape::kElementLanes, kWarp>(merged.z);
#pragma unroll
    for (int i = 0; i < 4; ++i) merged.o[i] = lane_sum<Shape::kElementLanes, kWarp>(merged.o[i]);
    if (lane == 0) totals[warp] = merged.z;
    if (lane < Shape::kElementLanes) {
        float4* sum = reinterpret_cast<float4*>(&sums[warp][4 * lane]);
        *sum = make_float4(merged.o[0], merged.o[1], merged.o[2], merged.o[3]);
    }
    __syncthreads();
    const int dim = slice * Shape::kSliceElements + thread;  // each of the first threads writes one element
    if (thread >= Shape::kSliceElements || dim >= kHeadSize) return;
    float total = 0.0f, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kReduceWarps; ++w) {
        total += totals[w];
        sum += sums[w][thread];
    }
    const RowSum all(merged.m, total, sink_of(a, head));
    static_cast<scalar_t*>(a.out)[out_row * kHeadSize + dim] = from_float<scalar_t>(sum * all.inverse());
    if (dim == 0 && a.lse != nullptr) a.lse[out_row] = all.lse();
}

// Merges the partitions of a sequence that a head attends. Marks all other partitions as empty in the caller's scratch.
// kWindow: tokens of the sliding window, or 0. Partitions before the window are not stored in the workspace.
template <class scalar_t, int kHeadSize, int kPageTokens, int kPartitionTokens, int kWindow>
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(Pav2Args a) {
    const int head = blockIdx.x, seq = blockIdx.y, slice = blockIdx.z;
    const int64_t row = static_cast<int64_t>(seq) * a.num_heads + head;
    const int length = clamped_length(a, seq, kPageTokens);
    const int skipped = kWindow > 0 ? window_start(length, kWindow) / kPartitionTokens : 0;
    const int end = ceil_div(length, kPartitionTokens), count = end - skipped;
    const int mine = slice * kReduceThreads + threadIdx.x;
    const int stride = ReduceShape<kHeadSize>::kSlices * kReduceThreads;
    fill_scratch(a, seq, head, mine, skipped, stride);
    fill_scratch(a, seq, head, end + mine, a.scratch_partitions, stride);
    merge_row<scalar_t, kHeadSize>(a, row, row, head, slice, count);
}

}  // namespace pav2
