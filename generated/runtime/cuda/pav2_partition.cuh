// What a block of the partial kernel knows of its place in the call, and what it leaves behind.
#pragma once

#include "pav2_args.h"
#include "pav2_device.cuh"

namespace pav2 {

// The grid is [kv heads * blocks of a group, seqs, partitions].
struct Place {
    int kv_head, seq, partition;
    int first_head;  // of the block, among all query heads
    int heads;       // of the block, where its group is split unevenly
    int length;      // tokens of the sequence
    int start;       // of the partition, in tokens
};

// The length of a sequence: clamped to what the call and the block table hold.
__device__ __forceinline__ int clamped_length(const Pav2Args& a, int seq, int page) {
    const int64_t room = static_cast<int64_t>(a.max_blocks) * page;
    const int limit = room < a.max_seq_len ? static_cast<int>(room) : a.max_seq_len;
    return max(0, min(a.seq_lens[seq], limit));
}

// A scale of the cache: a number, or one element on the device.
__device__ __forceinline__ float scale_of(const float* pointer, float number) {
    return pointer != nullptr ? *pointer : number;
}

// m and z of a head of this partition, for the reduction and for the caller's scratch.
__device__ __forceinline__ void write_state(const Pav2Args& a, const Place& at, int head, float m, float z) {
    const int64_t i = (static_cast<int64_t>(at.seq) * a.num_heads + head) * a.partitions + at.partition;
    if (a.partial_m != nullptr) {
        a.partial_m[i] = m;
        a.partial_z[i] = z;
    }
    if (a.max_logits != nullptr) {
        a.max_logits[at.seq * a.maxima_seq_stride + head * a.maxima_head_stride + at.partition * a.maxima_part_stride] =
            m;
        a.exp_sums[at.seq * a.sums_seq_stride + head * a.sums_head_stride + at.partition * a.sums_part_stride] = z;
    }
}

// One element of a head's output: to the reduction, or, where there is one partition, to out at once; and to the scratch.
// `inverse` is that of z, or 0 where no token is attended.
template <class scalar_t>
__device__ __forceinline__ void write_element(const Pav2Args& a, const Place& at, int head, int dim, int head_size,
                                              float sum, float inverse) {
    const int64_t row = static_cast<int64_t>(at.seq) * a.num_heads + head;
    if (a.partitions == 1) {
        static_cast<scalar_t*>(a.out)[row * head_size + dim] = from_float<scalar_t>(sum * inverse);
    } else {
        a.partial_out[(row * a.partitions + at.partition) * head_size + dim] = sum;
    }
    if (a.tmp_out != nullptr) {
        const int64_t to = at.seq * a.tmp_seq_stride + head * a.tmp_head_stride + at.partition * a.tmp_part_stride;
        static_cast<scalar_t*>(a.tmp_out)[to + dim * a.tmp_dim_stride] = from_float<scalar_t>(sum * inverse);
    }
}

// A partition without tokens: m = -inf, z = 0, and zeros in out if it is the only one.
template <class scalar_t>
__device__ __forceinline__ void write_nothing(const Pav2Args& a, const Place& at, int heads, int head_size) {
    for (int h = threadIdx.x; h < heads; h += blockDim.x) write_state(a, at, at.first_head + h, -INFINITY, 0.0f);
    if (a.partitions > 1) return;
    scalar_t* out =
        static_cast<scalar_t*>(a.out) + (static_cast<int64_t>(at.seq) * a.num_heads + at.first_head) * head_size;
    for (int i = threadIdx.x; i < heads * head_size; i += blockDim.x) out[i] = from_float<scalar_t>(0.0f);
}

}  // namespace pav2
