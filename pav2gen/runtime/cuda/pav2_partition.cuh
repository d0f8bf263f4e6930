// The part of a decode call that a thread block processes, and the functions that write the block's results.
#pragma once

#include "pav2_args.h"
#include "pav2_device.cuh"

namespace pav2 {

// The part of a call that a thread block of the partial kernel processes. One or more thread blocks share the query
// heads of a KV head (a group). The grid is [kv heads * thread blocks of a group, seqs, partitions].
struct Place {
    int kv_head, seq, partition;
    int first_head;  // the first of the block's query heads, counted over the heads of all groups
    int heads;  // the number of query heads of the block; set only if the blocks of a group have different numbers
    int length;  // the number of tokens of the sequence
    int start;  // the first position that the block reads: where its partition or the window's first page begins
    int slot;  // the index of the partition in the workspace
};

// The first position in the sliding window of a sequence's last token. `window` tokens include this last token.
__device__ __forceinline__ int window_start(int length, int window) { return max(0, length - window); }

// The softmax denominator of a query head: the sum of exp(score) over the keys and the sink. It is sum * exp(base). A
// head without a sink has the sink -inf.
struct RowSum {
    float base, sum, rescale;  // rescale = exp(m - base): converts sums relative to m to sums relative to base

    __device__ __forceinline__ RowSum(float m, float z, float sink) {
        base = fmaxf(fmaxf(m, sink), kLowest);
        rescale = expf(m - base);
        sum = z * rescale + expf(sink - base);
    }
    // The factor that turns weighted values relative to m into the output. It is 0 if no token is attended.
    __device__ __forceinline__ float inverse() const { return sum == 0.0f ? 0.0f : rescale / sum; }
    // The log-sum-exp: the natural logarithm of the denominator.
    __device__ __forceinline__ float lse() const { return sum == 0.0f ? -INFINITY : base + logf(sum); }
};

template <class Args>
__device__ __forceinline__ float sink_of(const Args& a, int head) {
    return a.sinks != nullptr ? a.sinks[head] : -INFINITY;
}

// The length of a sequence in tokens, clamped to max_seq_len and to the capacity of a block table row.
template <class Args>
__device__ __forceinline__ int clamped_length(const Args& a, int seq, int page_tokens) {
    const int64_t room = static_cast<int64_t>(a.max_pages) * page_tokens;
    const int limit = room < a.max_seq_len ? static_cast<int>(room) : a.max_seq_len;
    return max(0, min(a.seq_lens[seq], limit));
}

// A scale of the cache: pointer[element], or `number` if the pointer is null.
__device__ __forceinline__ float scale_of(const float* pointer, float number, int element) {
    return pointer != nullptr ? pointer[element] : number;
}

// Writes m and z of one head and partition to the caller's scratch, if there is a scratch.
__device__ __forceinline__ void write_scratch_state(const Pav2Args& a, int seq, int head, int partition, float m,
                                                    float z) {
    if (a.max_logits == nullptr) return;
    const int64_t s = seq, h = head, p = partition;
    a.max_logits[s * a.maxima_seq_stride + h * a.maxima_head_stride + p * a.maxima_part_stride] = m;
    a.exp_sums[s * a.sums_seq_stride + h * a.sums_head_stride + p * a.sums_part_stride] = z;
}

// Marks every `stride`-th partition from `first` to `end` (exclusive) as empty in the caller's scratch.
__device__ __forceinline__ void fill_scratch(const Pav2Args& a, int seq, int head, int first, int end, int stride) {
    if (a.max_logits == nullptr) return;
    for (int p = first; p < end; p += stride) write_scratch_state(a, seq, head, p, -INFINITY, 0.0f);
}

// Writes m and z of one head and the block's partition to the workspace and to the caller's scratch.
__device__ __forceinline__ void write_state(const Pav2Args& a, const Place& at, int head, float m, float z) {
    const int64_t i = (static_cast<int64_t>(at.seq) * a.num_heads + head) * a.partitions + at.slot;
    if (a.partial_m != nullptr) {
        a.partial_m[i] = m;
        a.partial_z[i] = z;
    }
    write_scratch_state(a, at.seq, head, at.partition, m, z);
}

// Writes one element of a head's output. With a single partition it goes to out, else to the workspace. It also goes to
// tmp_out, if there is a scratch. sum: the weighted sum of values. inverse: 1 / z, or 0 if no token is attended.
// out_inverse: the same factor if the sink is part of the denominator.
template <class scalar_t>
__device__ __forceinline__ void write_element(const Pav2Args& a, const Place& at, int head, int dim, int head_size,
                                              float sum, float inverse, float out_inverse) {
    const int64_t row = static_cast<int64_t>(at.seq) * a.num_heads + head;
    if (a.partitions == 1) {
        static_cast<scalar_t*>(a.out)[row * head_size + dim] = from_float<scalar_t>(sum * out_inverse);
    } else {
        a.partial_out[(row * a.partitions + at.slot) * head_size + dim] = sum;
    }
    if (a.tmp_out != nullptr) {
        const int64_t to = at.seq * a.tmp_seq_stride + head * a.tmp_head_stride + at.partition * a.tmp_part_stride;
        static_cast<scalar_t*>(a.tmp_out)[to + dim * a.tmp_dim_stride] = from_float<scalar_t>(sum * inverse);
    }
}

// Writes the results of a block that has no tokens in its partition. If the call has several partitions, the reduction
// kernel does this, and the block writes nothing. Otherwise the block writes zeros to out, the sink to lse, and the
// state m = -inf, z = 0 to the scratch.
template <class scalar_t>
__device__ __forceinline__ void write_empty(const Pav2Args& a, const Place& at, int heads, int head_size) {
    if (a.partitions > 1) return;
    const int64_t row = static_cast<int64_t>(at.seq) * a.num_heads + at.first_head;
    for (int h = threadIdx.x; h < heads; h += blockDim.x) {
        write_scratch_state(a, at.seq, at.first_head + h, 0, -INFINITY, 0.0f);
        if (a.lse != nullptr) a.lse[row + h] = sink_of(a, at.first_head + h);
    }
    scalar_t* out = static_cast<scalar_t*>(a.out) + row * head_size;
    for (int i = threadIdx.x; i < heads * head_size; i += blockDim.x) out[i] = from_float<scalar_t>(0.0f);
}

}  // namespace pav2
