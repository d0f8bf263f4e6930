// The part of an extend call (several query tokens per sequence) that a thread block processes, and the reduction
// kernel.
#pragma once

#include "pav2_device.cuh"
#include "pav2_extend.h"
#include "pav2_partition.cuh"
#include "pav2_reduce.cuh"

namespace pav2 {

// A group of consecutive query tokens of one sequence.
struct QueryTile {
    int seq;
    int first;  // the index of the first query token among all query tokens
    int tokens;  // the number of query tokens; 0 for an unused tile
    int position;  // the first query token's position in its sequence. Tokens at negative positions attend nothing.
    int length;  // the number of tokens of the sequence

    // All keys that the tile's tokens attend are at positions from window_begin() to end() (exclusive).
    __device__ __forceinline__ int end() const { return max(0, position + tokens); }
    __device__ __forceinline__ int window_begin(int window) const { return max(0, position + 1 - window); }
};

// The index of a sequence's first query token. For seq = num_seqs it is the end of the last sequence.
__device__ __forceinline__ int query_begin(const Pav2ExtendArgs& a, int seq) {
    return max(0, min(a.query_start_loc[seq], a.num_tokens));
}

// The number of a sequence's first tile if the tiles are packed. It depends only on where the sequence begins, so no
// sum over the earlier sequences is needed. The tiles of a sequence end before the first tile of the next sequence:
//
//     begin / kTileTokens + seq + ceil((end - begin) / kTileTokens)  <=  end / kTileTokens + seq + 1
//
// Each sequence may leave one tile number unused.
template <int kTileTokens>
__device__ __forceinline__ int packed_tile(const Pav2ExtendArgs& a, int seq) {
    return query_begin(a, seq) / kTileTokens + seq;
}

// The sequence of a packed tile: the last sequence whose first tile is not after `tile`.
template <int kTileTokens>
__device__ __forceinline__ int packed_sequence(const Pav2ExtendArgs& a, int tile) {
    int seq = 0;
    for (int end = a.num_seqs; end - seq > 1;) {
        const int middle = seq + (end - seq) / 2;
        if (packed_tile<kTileTokens>(a, middle) <= tile) {
            seq = middle;
        } else {
            end = middle;
        }
    }
    return seq;
}

// Tile number `tile` of the call. For any values in query_start_loc and seq_lens, the result is within the bounds of
// the query and of the block table.
template <int kTileTokens, int kPageTokens>
__device__ __forceinline__ QueryTile query_tile(const Pav2ExtendArgs& a, int tile) {
    QueryTile at;
    int index;  // the number of the tile in its sequence
    if (a.tiles_per_seq > 0) {
        at.seq = tile / a.tiles_per_seq;
        index = tile % a.tiles_per_seq;
    } else {
        at.seq = packed_sequence<kTileTokens>(a, tile);
        index = tile - packed_tile<kTileTokens>(a, at.seq);
    }
    const int begin = query_begin(a, at.seq);
    const int query_len = max(0, query_begin(a, at.seq + 1) - begin);  // all query tokens of the sequence
    at.first = begin + index * kTileTokens;
    at.tokens = index < 0 ? 0 : max(0, min(kTileTokens, min(query_len, a.max_query_len) - index * kTileTokens));
    at.length = clamped_length(a, at.seq, kPageTokens);
    at.position = at.length - query_len + index * kTileTokens;
    return at;
}

// The part of a call that a thread block of the partial kernel processes. One or more thread blocks share the query
// heads of a KV head (a group). The grid is [kv heads * thread blocks of a group, tiles, partitions].
struct ExtendPlace : QueryTile {
    int kv_head;
    int first_head;  // the first of the block's query heads, counted over the heads of all groups
    int heads;  // the number of query heads of the block; set only if the blocks of a group have different numbers
    int rows;  // the number of (query token, query head) pairs of the block
    int start;  // the position of the first key that the block reads
    int keys;  // the number of keys that the block reads; 0 or less if its partition has none
    int slot;  // the index of the partition in the workspace
};

// The index of a query token and head in out and lse, if [tokens, heads] are seen as one dimension.
__device__ __forceinline__ int64_t out_row(const Pav2ExtendArgs& a, int token, int head) {
    return static_cast<int64_t>(token) * a.num_heads + head;
}

// The reduction kernel: it merges the partitions of each query token and head. The grid is [heads, tile tokens * tiles,
// slices]. kWindow: tokens of the sliding window, or 0. Partitions before the window of the tile's first token are not
// stored in the workspace.
template <class scalar_t, int kHeadSize, int kPageTokens, int kTileTokens, int kPartitionTokens, int kWindow>
__global__ void __launch_bounds__(kReduceThreads) extend_reduce_kernel(Pav2ExtendArgs a) {
    const int head = blockIdx.x, slice = blockIdx.z;
    const int tile = blockIdx.y / kTileTokens, token = blockIdx.y % kTileTokens;
    const QueryTile at = query_tile<kTileTokens, kPageTokens>(a, a.first_tile + tile);
    if (token >= at.tokens) return;
    const int skipped = kWindow > 0 ? at.window_begin(kWindow) / kPartitionTokens : 0;
    const int count = ceil_div(at.end(), kPartitionTokens) - skipped;
    const int64_t row = static_cast<int64_t>(blockIdx.y) * a.num_heads + head;
    merge_row<scalar_t, kHeadSize>(a, row, out_row(a, at.first + token, head), head, slice, count);
}

}  // namespace pav2
