// The second kernel: merges the partitions of each head of each sequence by log-sum-exp.
#pragma once

#include "pav2_args.h"
#include "pav2_device.cuh"

namespace pav2 {

constexpr int kReduceThreads = 128;

// The largest x of the block's threads; every thread has it. `lanes` holds one float for each warp.
__device__ __forceinline__ float block_max(float x, float* lanes) {
    x = warp_max(x);
    if (threadIdx.x % kWarp == 0) lanes[threadIdx.x / kWarp] = x;
    __syncthreads();
    for (int w = 0; w < kReduceThreads / kWarp; ++w) x = fmaxf(x, lanes[w]);
    return x;
}

// Grid [heads, seqs]. out = sum of w_p o_p / sum of w_p z_p, with w_p = exp(m_p - max m) and o_p not divided by z_p.
template <class scalar_t, int kHeadSize>
__global__ void __launch_bounds__(kReduceThreads) reduce_kernel(Pav2Args a) {
    constexpr int kDims = ceil_div(kHeadSize, kReduceThreads);  // elements of a thread
    __shared__ float lanes[kReduceThreads / kWarp];
    __shared__ float weights[kReduceThreads], sums[kReduceThreads];
    const int thread = threadIdx.x;
    const int64_t row = static_cast<int64_t>(blockIdx.y) * a.num_heads + blockIdx.x;
    const float* m = a.partial_m + row * a.partitions;
    const float* z = a.partial_z + row * a.partitions;
    const float* o = a.partial_out + row * a.partitions * kHeadSize;

    float top = kLowest;
    for (int p = thread; p < a.partitions; p += kReduceThreads) top = fmaxf(top, m[p]);
    top = block_max(top, lanes);

    float total = 0.0f, out[kDims] = {};
    for (int first = 0; first < a.partitions; first += kReduceThreads) {
        const int p = first + thread;
        const bool live = p < a.partitions && z[p] != 0.0f;  // beyond its tokens nobody wrote o
        weights[thread] = live ? __expf(m[p] - top) : 0.0f;
        sums[thread] = live ? z[p] * weights[thread] : 0.0f;
        __syncthreads();
        const int count = min(kReduceThreads, a.partitions - first);
        for (int i = 0; i < count; ++i) {
            total += sums[i];
            if (weights[i] == 0.0f) continue;
#pragma unroll
            for (int d = 0; d < kDims; ++d) {
                const int dim = d * kReduceThreads + thread;
                if (dim < kHeadSize)
                    out[d] = fmaf(weights[i], o[static_cast<int64_t>(first + i) * kHeadSize + dim], out[d]);
            }
        }
        __syncthreads();
    }
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
#pragma unroll
    for (int d = 0; d < kDims; ++d) {
        const int dim = d * kReduceThreads + thread;
        if (dim >= kHeadSize) continue;
        static_cast<scalar_t*>(a.out)[row * kHeadSize + dim] = from_float<scalar_t>(out[d] * inverse);
    }
}

}  // namespace pav2
