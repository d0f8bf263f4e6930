// The C interface of a cache writer: one struct of plain C types, which each entry function receives by pointer.
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
    const void* value;  // [tokens, kv heads, head size], heads contiguous
    void* key_cache;  // [blocks, kv heads, head size / x, block size, x], where x elements have 16 bytes
    void* value_cache;  // [blocks, kv heads, head size, block size]
    const void* slot_mapping;  // [tokens], int32 or int64: each token's slot; slots outside the cache are skipped
    const float* k_scale_ptr;  // one element, or [kv heads]; if null, k_scale is the scale
    const float* v_scale_ptr;  // one element, or [kv heads]; if null, v_scale is the scale

    int64_t key_stride, value_stride;  // from one token to the next
    int64_t key_block_stride, key_head_stride;
    int64_t value_block_stride, value_head_stride;
    int64_t num_slots;  // number of token slots in the cache: blocks * block size

    int32_t num_tokens, num_kv_heads;
    int32_t slot_bytes;  // bytes of an element of slot_mapping: 4 or 8
    int32_t k_scale_stride, v_scale_stride;  // 1 if each KV head has its own scale, else 0
    float k_scale, v_scale;
} Pav2WriteArgs;
