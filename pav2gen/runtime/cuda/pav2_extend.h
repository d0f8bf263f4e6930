// The C interface of an extend kernel: one struct of plain C types, passed by pointer to each entry function.
// pav2_args.h defines the codes that an entry function returns.
#pragma once

#include <stdint.h>

#include "pav2_args.h"

#define PAV2_EXTEND_VERSION 1

// Strides are in elements. A token is a row of the query. A tile is some consecutive tokens of one sequence.
typedef struct Pav2ExtendArgs {
    int32_t version;  // PAV2_EXTEND_VERSION
    int32_t size;  // sizeof(Pav2ExtendArgs)

    void* out;  // [tokens, heads, head size], contiguous
    const void* query;  // [tokens, heads, head size], heads contiguous
    const void* key_cache;  // [pages, kv heads, head size / x, page tokens, x]; x elements are 16 bytes
    const void* value_cache;  // [pages, kv heads, head size, page tokens]
    const int32_t* block_tables;  // [seqs, max pages]: where each page of a sequence lies in the caches
    const int32_t* query_start_loc;  // [seqs + 1]: the first token of each sequence, and the end of the last one
    const int32_t* seq_lens;  // [seqs], the tokens of the query included
    const float* alibi_slopes;  // [heads], or null
    const float* sinks;  // [heads], or null
    const float* tensors[4];  // parameter tensors of the modification, [heads] or [kv heads] each
    float* lse;  // [tokens, heads], or null
    const float* k_scale_ptr;  // one element, or one for each KV head; if null, k_scale is the scale
    const float* v_scale_ptr;

    float* partial_out;  // workspace: [tiles, tile tokens, heads, partitions, head size], not divided by z
    float* partial_m;  // workspace: [tiles, tile tokens, heads, partitions], the maxima
    float* partial_z;  // workspace: [tiles, tile tokens, heads, partitions], the sums of exp(score - m)

    int64_t query_stride;
    int64_t key_page_stride, key_head_stride;
    int64_t value_page_stride, value_head_stride;
    int64_t table_stride;

    int32_t num_tokens, num_seqs, num_heads, num_kv_heads;
    int32_t max_pages;  // columns of a block table
    int32_t max_query_len, max_seq_len;  // positive
    int32_t partitions;  // partitions that a tile can attend: those of all tokens, or of its windows
    int32_t first_tile, tiles;  // tiles of this launch
    int32_t tiles_per_seq;  // each sequence has this many tiles; or 0: the tiles are packed, see pav2_extend.cuh
    float scale, k_scale, v_scale;
    int32_t k_scale_stride, v_scale_stride;  // 0 if all heads share one scale
} Pav2ExtendArgs;
