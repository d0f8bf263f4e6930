// The C interface of a kernel: one struct of plain C types, passed by pointer to each entry function.
// It needs neither torch nor a C++ ABI.
#pragma once

#include <stdint.h>

#define PAV2_ARGS_VERSION 2

#define PAV2_EXPORT __attribute__((visibility("default")))

// An entry function returns one of these codes, or a positive cudaError_t.
#define PAV2_OK 0
#define PAV2_WRONG_VERSION (-1)  // the struct's version or size differs from this library's

// Strides are in elements. Scratch pointers are null if the caller's scratch is too small.
typedef struct Pav2Args {
    int32_t version;  // PAV2_ARGS_VERSION
    int32_t size;  // sizeof(Pav2Args)

    void* out;  // [seqs, heads, head size], contiguous
    const void* query;  // [seqs, heads, head size], heads contiguous
    const void* key_cache;  // [pages, kv heads, head size / x, page tokens, x]; x elements are 16 bytes
    const void* value_cache;  // [pages, kv heads, head size, page tokens]
    const int32_t* block_tables;  // [seqs, max pages]: where each page of a sequence lies in the caches
    const int32_t* seq_lens;  // [seqs]
    const float* alibi_slopes;  // [heads], or null
    const float* sinks;  // [heads], or null
    const float* tensors[4];  // parameter tensors of the modification, [heads] or [kv heads] each
    float* lse;  // [seqs, heads], or null
    const float* k_scale_ptr;  // one element, or one for each KV head; if null, k_scale is the scale
    const float* v_scale_ptr;

    float* partial_out;  // workspace: [seqs, heads, partitions, head size], not divided by z
    float* partial_m;  // workspace: [seqs, heads, partitions], the maxima
    float* partial_z;  // workspace: [seqs, heads, partitions], the sums of exp(score - m)

    float* exp_sums;  // scratch: [seqs, heads, partitions]
    float* max_logits;  // scratch: [seqs, heads, partitions]
    void* tmp_out;  // scratch: [seqs, heads, partitions, head size]

    int64_t query_stride;
    int64_t key_page_stride, key_head_stride;
    int64_t value_page_stride, value_head_stride;
    int64_t table_stride;
    int64_t sums_seq_stride, sums_head_stride, sums_part_stride;
    int64_t maxima_seq_stride, maxima_head_stride, maxima_part_stride;
    int64_t tmp_seq_stride, tmp_head_stride, tmp_part_stride, tmp_dim_stride;

    int32_t num_seqs, num_heads, num_kv_heads;
    int32_t max_pages;  // columns of a block table
    int32_t max_seq_len;  // positive
    int32_t partitions;  // partitions that a sequence can attend: those of all its tokens, or of its window
    int32_t scratch_partitions;  // ceil(max_seq_len / partition size)
    float scale, k_scale, v_scale;
    int32_t k_scale_stride, v_scale_stride;  // 0 if all heads share one scale

    int32_t tp_rank, local_blocks, vert_stride, sparse_block_size, head_sliding_step;
} Pav2Args;
