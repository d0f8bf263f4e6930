// vLLM's block-sparse pattern, as in paged_attention_kernel of vLLM 0.6.3. A sparse block has sparse_block_size
// tokens. Each query head attends the last local_blocks sparse blocks of the sequence and every vert_stride-th sparse
// block. The offset of the strided blocks depends on the query head (step >= 0) or on the KV head (step < 0).
#pragma once

#include "pav2_args.h"
#include "pav2_device.cuh"

namespace pav2 {

__device__ __forceinline__ bool attends(const Pav2Args& a, int head, int kv_head, int position, int length) {
    const int step = a.head_sliding_step;
    const int offset =
        step >= 0 ? (a.tp_rank * a.num_heads + head) * step + 1 : (a.tp_rank * a.num_kv_heads + kv_head) * -step + 1;
    const int block = position / a.sparse_block_size;
    const int last = (length - 1) / a.sparse_block_size;
    return (block + offset) % a.vert_stride == 0 || block > last - a.local_blocks;
}

}  // namespace pav2
