// The C interface of an extend kernel: one struct of plain C types, which each entry function receives by pointer.
// pav2_args.h defines the codes that an entry function returns.
#pragma once

#include <stdint.h>

#include "pav2_args.h"

#define PAV2_EXTEND_VERSION 1

// Strides are in elements. A page is a block of the cache. The dimension `tokens` counts the query tokens of all
// sequences together. A tile is a group of consecutive query tokens of one sequence.
typedef struct Pav2ExtendArgs {
    int32_t version;  // PAV2_EXTEND_VERSION
    int32_t size;  // sizeof(Pav2ExtendArgs)

    void* out;  // [tokens, heads, head size], contiguous
    const void* query;  // [tokens, heads, head size], heads contiguous
    const void* key_cache;  // [pages, kv heads, head size / x, page tokens, x], where x elements have 16 bytes
    const void* value_cache;  // [pages, kv heads, head size, page tokens]
    const int32_t* block_tables;  // [seqs, max pages]: the index in the caches of each page of a sequence
    const int32_t* query_start_loc;  // [seqs + 1]: the first token of each sequence, then the end of the last sequence
    const int32_t* seq_lens;  // [seqs], in tokens; a sequence's new (query) tokens are included
    const float* alibi_slopes;  // [heads], or null
    const float* sinks;  // [heads], or null
    const float* tensors[4];  // parameter tensors of the modification, [heads] or [kv heads] each
    float* lse;  // [tokens, heads], or null
    const float* k_scale_ptr;  // one element, or [kv heads]; if null, k_scale is the scale
    const float* v_scale_ptr;  // one element, or [kv heads]; if null, v_scale is the scale

    // The workspace: for each query token, head and partition, the maximum score m, z = the sum of exp(score - m), and
    // the weighted sum of values, which is not divided by z.
    float* partial_out;  // [tiles, tile tokens, heads, partitions, head size]
    float* partial_m;  // [tiles, tile tokens, heads, partitions]
    float* partial_z;  // [tiles, tile tokens, heads, partitions]

    int64_t query_stride;
    int64_t key_page_stride, key_head_stride;
    int64_t value_page_stride, value_head_stride;
    int64_t table_stride;

    int32_t num_tokens, num_seqs, num_heads, num_kv_heads;
    int32_t max_pages;  // columns of block_tables
    int32_t max_query_len, max_seq_len;  // positive
    int32_t partitions;  // the most partitions that a tile can attend: of max_seq_len tokens, or of its tokens' windows
    int32_t first_tile, tiles;  // the first tile of this launch, and the number of tiles
    int32_t tiles_per_seq;  // the number of tiles of each sequence; 0 if the tiles are packed (see pav2_extend.cuh)
    float scale, k_scale, v_scale;
    int32_t k_scale_stride, v_scale_stride;  // 1 if each KV head has its own scale, else 0
} Pav2ExtendArgs;
