// The C interface of a cache writer: one struct of plain C types, passed by pointer to each entry function.
// pav2_args.h defines the codes that an entry function returns.
#pragma once

#include <stdint.h>

#include "pav2_args.h"

#define PAV2_WRITE_VERSION 1

// Strides are in elements.
typedef struct Pav2WriteArgs {
    int32_t version;  // PAV2_WRITE_VERSION
    int32_t size;  // sizeof(Pav2WriteArgs)

    const void* key;  // [tokens, kv heads, head size], heads contiguous
    const void* value;
    void* key_cache;  // [blocks, kv heads, head size / x, block size, x]
    void* value_cache;  // [blocks, kv heads, head size, block size]
    const void* slot_mapping;  // [tokens], slot_bytes each; a token is skipped if its slot is outside the cache
    const float* k_scale_ptr;  // one element, or one for each KV head; if null, k_scale is the scale
    const float* v_scale_ptr;

    int64_t key_stride, value_stride;  // from one token to the next
    int64_t key_block_stride, key_head_stride;
    int64_t value_block_stride, value_head_stride;
    int64_t num_slots;  // slots of the cache: blocks * block size

    int32_t num_tokens, num_kv_heads;
    int32_t slot_bytes;  // 4 or 8
    int32_t k_scale_stride, v_scale_stride;  // 0 if all heads share one scale
    float k_scale, v_scale;
} Pav2WriteArgs;
