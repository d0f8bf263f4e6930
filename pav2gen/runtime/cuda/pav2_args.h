// The C interface of a decode kernel: one struct of plain C types, which each entry function receives by pointer.
// This header needs neither torch nor a C++ ABI.
#pragma once

#include <stdint.h>

#define PAV2_ARGS_VERSION 2

#define PAV2_EXPORT __attribute__((visibility("default")))

// An entry function returns one of these codes, or a positive cudaError_t.
#define PAV2_OK 0
#define PAV2_WRONG_VERSION (-1)  // the caller's struct has another version or size than this library was compiled for

// Strides are in elements. A page is a block of the cache. The scratch pointers are null if the caller's scratch
// tensors are too small.
typedef struct Pav2Args {
    int32_t version;  // PAV2_ARGS_VERSION
    int32_t size;  // sizeof(Pav2Args)

    void* out;  // [seqs, heads, head size], contiguous
    const void* query;  // [seqs, heads, head size], heads contiguous
    const void* key_cache;  // [pages, kv heads, head size / x, page tokens, x], where x elements have 16 bytes
    const void* value_cache;  // [pages, kv heads, head size, page tokens]
    const int32_t* block_tables;  // [seqs, max pages]: the index in the caches of each page of a sequence
    const int32_t* seq_lens;  // [seqs], in tokens
    const float* alibi_slopes;  // [heads], or null
    const float* sinks;  // [heads], or null
    const float* tensors[4];  // parameter tensors of the modification, [heads] or [kv heads] each
    float* lse;  // [seqs, heads], or null
    const float* k_scale_ptr;  // one element, or [kv heads]; if null, k_scale is the scale
    const float* v_scale_ptr;  // one element, or [kv heads]; if null, v_scale is the scale

    float* partial_out;  // workspace: [seqs, heads, partitions, head size], weighted sums of values, not divided by z
    float* partial_m;  // workspace: [seqs, heads, partitions], the maximum score m
    float* partial_z;  // workspace: [seqs, heads, partitions], z = the sum of exp(score - m)

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
    int32_t max_pages;  // columns of block_tables
    int32_t max_seq_len;  // positive
    int32_t partitions;  // the most partitions that a sequence can attend: of max_seq_len tokens, or of the window
    int32_t scratch_partitions;  // ceil(max_seq_len / partition size)
    float scale, k_scale, v_scale;
    int32_t k_scale_stride, v_scale_stride;  // 1 if each KV head has its own scale, else 0

    int32_t tp_rank, local_blocks, vert_stride, sparse_block_size, head_sliding_step;
} Pav2Args;
