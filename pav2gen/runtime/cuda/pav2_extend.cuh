// A thread block's place in a call of several query tokens for each sequence, and the second kernel of such a call.
#pragma once

#include "pav2_device.cuh"
#include "pav2_extend.h"
#include "pav2_partition.cuh"
#include "pav2_reduce.cuh"

namespace pav2 {

// Consecutive query tokens of one sequence.
struct QueryTile {
    int seq;
    int first;  // first token of the tile among all query tokens
    int tokens;  // query tokens of the tile; 0 if there is no such tile
    int position;  // position of the first query token in its sequence. Queries at negative positions attend nothing.
    int length;  // tokens of the sequence

    // The keys that a token of the tile attends lie in [window_begin(), end()).
    __device__ __forceinline__ int end() const { return max(0, position + tokens); }
    __device__ __forceinline__ int window_begin(int window) const { return max(0, position + 1 - window); }
};

// The first query token of a sequence; also of the sequence after the last one.
__device__ __forceinline__ int query_begin(const Pav2ExtendArgs& a, int seq) {
    return max(0, min(a.query_start_loc[seq], a.num_tokens));
}

// The number of the first tile of a sequence if tiles are packed. Each sequence may leave one tile unused:
//
//     begin / kTileTokens + seq + ceil((end - begin) / kTileTokens)  <=  end / kTileTokens + seq + 1
//
// A sequence's number follows from its own two entries of query_start_loc, without a sum over the sequences before it.
template <int kTileTokens>
__device__ __forceinline__ int packed_tile(const Pav2ExtendArgs& a, int seq) {
    return query_begin(a, seq) / kTileTokens + seq;
}

// The sequence of a tile: the last one with a first tile up to `tile`.
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

// Tile `tile` of the call. Whatever the call's tensors contain, the tile lies within the query and the block table.
template <int kTileTokens, int kPageTokens>
__device__ __forceinline__ QueryTile query_tile(const Pav2ExtendArgs& a, int tile) {
    QueryTile at;
    int index;  // of the tile in its sequence
    if (a.tiles_per_seq > 0) {
        at.seq = tile / a.tiles_per_seq;
        index = tile % a.tiles_per_seq;
    } else {
        at.seq = packed_sequence<kTileTokens>(a, tile);
        index = tile - packed_tile<kTileTokens>(a, at.seq);
    }
    const int begin = query_begin(a, at.seq);
    const int query_len = max(0, query_begin(a, at.seq + 1) - begin);  // all rows that the sequence owns
    at.first = begin + index * kTileTokens;
    at.tokens = index < 0 ? 0 : max(0, min(kTileTokens, min(query_len, a.max_query_len) - index * kTileTokens));
    at.length = clamped_length(a, at.seq, kPageTokens);
    at.position = at.length - query_len + index * kTileTokens;
    return at;
}

// The place of a thread block of the partial kernel. The grid is [kv heads * blocks of a group, tiles, partitions].
struct ExtendPlace : QueryTile {
    int kv_head;
    int first_head;  // first query head of the block, among all query heads
    int heads;  // query heads of the block; set only if the blocks of a group have different numbers of heads
    int rows;  // rows of the block: for each query token, its query heads
    int start;  // first key that the block reads
    int keys;  // keys of the block; 0 or less if its partition has none
    int slot;  // place of the partition in the workspace
};

// The row [tokens, heads] of out and lse, and the row [tiles, tile tokens, heads] of the workspace.
__device__ __forceinline__ int64_t out_row(const Pav2ExtendArgs& a, int token, int head) {
    return static_cast<int64_t>(token) * a.num_heads + head;
}

// The second kernel: merges the partitions of each head of each query token. Grid [heads, tile tokens * tiles, slices].
// kWindow: tokens of the sliding window, or 0; partitions before the window of the tile's first token have no slot.
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
