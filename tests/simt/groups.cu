// Cooperative groups, against what the same threads do by hand.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include "common.h"

namespace cg = cooperative_groups;

__device__ int sum_of(cg::thread_group group, int* slots, int value) {
    const int rank = group.thread_rank();
    for (int i = group.size() / 2; i; i /= 2) {
        slots[rank] = value;
        group.sync();
        if (rank < i) value += slots[rank + i];
        group.sync();
    }
    return value;
}

constexpr int N = 128, COLUMNS = 16;

template <int TILE>
__global__ void grouped(int* out) {
    __shared__ int slots[N];
    cg::thread_block block = cg::this_thread_block();
    const int i = block.thread_rank(), value = i * 7 % 31;
    const cg::thread_block_tile<TILE> tile = cg::tiled_partition<TILE>(block);
    const auto pair = cg::tiled_partition<2>(tile);
    int* row = out + i * COLUMNS;
    row[0] = tile.thread_rank();
    row[1] = tile.meta_group_rank() * 1000 + tile.meta_group_size();
    row[2] = pair.meta_group_rank() * 1000 + pair.meta_group_size();
    row[3] = tile.shfl(value, 1);
    row[4] = tile.shfl_up(value, 1);
    row[5] = tile.shfl_down(value, 1);
    row[6] = tile.shfl_xor(value, 1);
    row[7] = tile.ballot(value % 3 == 0) & 0xffff;
    row[8] = tile.any(value == 30) * 2 + tile.all(value < 30);
    row[9] = cg::reduce(tile, value, cg::plus<int>());
    row[10] = cg::reduce(pair, value, cg::greater<int>());
    row[11] = sum_of(cg::tiled_partition(block, 8), slots + i / 8 * 8, value);
    cg::sync(block);
    row[12] = sum_of(block, slots, value);
    row[13] = cg::this_grid().thread_rank();
    if (i / TILE == 1) tile.sync();  // one tile meets alone
}
EXPORT int run_groups(int* out, int tile) {
    if (tile == 4) grouped<4><<<1, N>>>(out);
    if (tile == 16) grouped<16><<<1, N>>>(out);
    if (tile == 32) grouped<32><<<1, N>>>(out);
    return cudaGetLastError();
}
