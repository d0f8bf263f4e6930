// A plain split-KV decode kernel of the shape of vLLM's V2, written to be compared with: one block for each query head,
// sequence and partition, so that the query heads of a group read the same keys and values again; the query in
// registers, spread over the two or four threads that share a token.
//
// Head size 256, pages of 16, partitions of 512, float16; 6 query heads for each KV head. Partial kernel only.

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

constexpr int kHeadSize = 256, kPage = 16, kPartition = 512, kThreads = 128, kWarp = 32, kGroup = 6;
constexpr int kThreadsOfToken = kWarp / kPage;  // 2
constexpr int kVectors = kHeadSize / 8 / kThreadsOfToken;  // of 16 bytes, of a thread
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = kHeadSize * 2 / kWarp;  // rows of values of a lane, two lanes to a row

struct alignas(16) Vector {
    __half2 x[4];
};

__global__ void __launch_bounds__(kThreads)
    plain_v2_kernel(float* out, float* m_out, float* z_out, const __half* query, const __half* key_cache,
                    const __half* value_cache, const int* block_tables, const int* seq_lens, int max_blocks,
                    int kv_heads, float scale) {
    const int head = blockIdx.x, seq = blockIdx.y, part = blockIdx.z, heads = gridDim.x, parts = gridDim.z;
    const int kv_head = head / kGroup, length = seq_lens[seq], start = part * kPartition;
    if (start >= length) return;
    const int tokens = min(kPartition, length - start), pages = (tokens + kPage - 1) / kPage;
    const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
    const int slot = lane / kThreadsOfToken, part_of_token = lane % kThreadsOfToken;
    const int* table = block_tables + int64_t(seq) * max_blocks + start / kPage;
    __shared__ float logits[kPartition];
    __shared__ float reduced[2 * kWarps];
    __shared__ float outs[kWarps][kHeadSize];

    Vector q[kVectors];
    const __half* row = query + (int64_t(seq) * heads + head) * kHeadSize;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
        q[v] = *reinterpret_cast<const Vector*>(row + (v * kThreadsOfToken + part_of_token) * 8);
    }
    float top = -INFINITY;
    for (int p = warp; p < pages; p += kWarps) {
        const __half* keys = key_cache + (int64_t(table[p]) * kv_heads + kv_head) * kHeadSize * kPage;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            const Vector k =
                *reinterpret_cast<const Vector*>(keys + ((v * kThreadsOfToken + part_of_token) * kPage + slot) * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 a = __half22float2(q[v].x[i]), b = __half22float2(k.x[i]);
                sum = fmaf(a.x, b.x, sum);
                sum = fmaf(a.y, b.y, sum);
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        const bool live = p * kPage + slot < tokens;
        const float score = live ? sum * scale : -INFINITY;
        if (part_of_token == 0) logits[p * kPage + slot] = score;
        top = fmaxf(top, score);
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
    if (lane == 0) reduced[warp] = top;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, reduced[w]);
    float z = 0.0f;
    for (int t = thread; t < pages * kPage; t += kThreads) {
        const float weight = __expf(logits[t] - top);
        logits[t] = weight;
        z += weight;
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) z += __shfl_xor_sync(0xffffffffu, z, lanes);
    if (lane == 0) reduced[kWarps + warp] = z;
    __syncthreads();
    z = 0.0f;
    for (int w = 0; w < kWarps; ++w) z += reduced[kWarps + w];

    float sums[kRows] = {};
    const int half = lane % 2;
    for (int p = warp; p < pages; p += kWarps) {
        const __half* values = value_cache + (int64_t(table[p]) * kv_heads + kv_head) * kHeadSize * kPage;
        const float* weights = logits + p * kPage + half * 8;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int dim = r * (kWarp / 2) + lane / 2;
            const Vector v = *reinterpret_cast<const Vector*>(values + dim * kPage + half * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = __half22float2(v.x[i]);
                sums[r] = fmaf(x.x, weights[2 * i], sums[r]);
                sums[r] = fmaf(x.y, weights[2 * i + 1], sums[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
        if (half == 0) outs[warp][r * (kWarp / 2) + lane / 2] = sums[r];
    }
    __syncthreads();
    const int64_t index = (int64_t(seq) * heads + head) * parts + part;
    for (int d = thread; d < kHeadSize; d += kThreads) {
        float sum = 0.0f;
        for (int w = 0; w < kWarps; ++w) sum += outs[w][d];
        out[index * kHeadSize + d] = sum / z;
    }
    if (thread == 0) {
        m_out[index] = top;
        z_out[index] = z;
    }
}
