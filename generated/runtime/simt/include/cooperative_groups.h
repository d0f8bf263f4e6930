// Cooperative groups: the block, and tiles of a warp. Groups that span blocks are not supported.
#pragma once
#include "cuda_runtime.h"

#define SIMT_UNSUPPORTED(WHAT) __attribute__((error(WHAT " is not supported by this runtime (docs/simt.md, Limits)")))

namespace cooperative_groups {

// Any group below, for functions that take a group by value: the block, or tiles of `tile` lanes.
class thread_group {
   protected:
    unsigned tile;  // 0: the block

   public:
    explicit thread_group(unsigned tile) : tile(tile) {}
    unsigned long long size() const {
        return tile ? tile : (unsigned long long)blockDim.x * blockDim.y * blockDim.z;
    }
    unsigned long long num_threads() const { return size(); }
    unsigned long long thread_rank() const {
        const dim3 n = blockDim, at = threadIdx;
        const unsigned long long rank = ((unsigned long long)at.z * n.y + at.y) * n.x + at.x;
        return tile ? rank % tile : rank;
    }
    SIMT_CALL void sync(SIMT_HERE) const {
        if (tile)
            simt::tile_collective(simt::Collective::sync, tile, 0, 0, 0, file, line);
        else
            __syncthreads(file, line);
    }
};

class thread_block : public thread_group {
   public:
    thread_block() : thread_group(0) {}
    static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
    static unsigned num_threads() { return size(); }
    static unsigned thread_rank() {
        const dim3 n = blockDim, at = threadIdx;
        return (at.z * n.y + at.y) * n.x + at.x;
    }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
    SIMT_CALL static void sync(SIMT_HERE) { __syncthreads(file, line); }
};
inline thread_block this_thread_block() { return {}; }

// Lanes of a warp, side by side. A tile may be as wide as the warp is.
template <unsigned N, class Parent = thread_block>
class thread_block_tile : public thread_group {
    static_assert(N > 0 && (N & (N - 1)) == 0, "the size of a tile is a power of two");
    static_assert(N <= SIMT_WARP_SIZE, "a tile wider than a warp is not supported by this runtime");
    using Votes = std::conditional_t<(N > 32), unsigned long long, unsigned>;

    template <class T>
    SIMT_CALL static T shuffle(T value, int source, const char* file, int line) {
        return simt::from_bits<T>(simt::tile_collective(simt::Collective::shuffle, N, simt::to_bits(value), source,
                                                        N, file, line));
    }

   public:
    thread_block_tile() : thread_group(N) {}
    template <class Other>
    thread_block_tile(const thread_block_tile<N, Other>&) : thread_group(N) {}
    static constexpr unsigned size() { return N; }
    static constexpr unsigned num_threads() { return N; }
    static unsigned thread_rank() { return thread_block::thread_rank() % N; }
    // The index of this tile in its parent, and the number of the parent's tiles.
    static unsigned meta_group_rank() { return Parent::thread_rank() / N; }
    static unsigned meta_group_size() { return (Parent::size() + N - 1) / N; }
    SIMT_CALL static void sync(SIMT_HERE) {
        simt::tile_collective(simt::Collective::sync, N, 0, 0, 0, file, line);
    }
    template <class T>
    SIMT_CALL static T shfl(T value, int source, SIMT_HERE) {
        return shuffle(value, source, file, line);
    }
    template <class T>
    SIMT_CALL static T shfl_up(T value, unsigned delta, SIMT_HERE) {
        const unsigned rank = thread_rank();
        return shuffle(value, (int)(rank >= delta ? rank - delta : rank), file, line);
    }
    template <class T>
    SIMT_CALL static T shfl_down(T value, unsigned delta, SIMT_HERE) {
        const unsigned rank = thread_rank();
        return shuffle(value, (int)(delta < N - rank ? rank + delta : rank), file, line);
    }
    template <class T>
    SIMT_CALL static T shfl_xor(T value, unsigned flip, SIMT_HERE) {
        const unsigned rank = thread_rank();
        return shuffle(value, (int)((rank ^ flip) < N ? rank ^ flip : rank), file, line);
    }
    SIMT_CALL static Votes ballot(int predicate, SIMT_HERE) {
        return (Votes)simt::tile_collective(simt::Collective::ballot, N, predicate != 0, 0, 0, file, line);
    }
    SIMT_CALL static int any(int predicate, SIMT_HERE) { return ballot(predicate, file, line) != 0; }
    SIMT_CALL static int all(int predicate, SIMT_HERE) { return ballot(!predicate, file, line) == 0; }
    template <class T>
    SIMT_CALL static Votes match_any(T value, SIMT_HERE) {
        return (Votes)simt::tile_collective(simt::Collective::match, N, simt::to_bits(value), 0, 0, file, line);
    }
};

template <unsigned N, class Parent>
thread_block_tile<N, Parent> tiled_partition(const Parent&) {
    return {};
}
inline thread_group tiled_partition(const thread_group&, unsigned lanes) { return thread_group(lanes); }

template <class Group>
SIMT_CALL void sync(const Group& group, SIMT_HERE) {
    group.sync(file, line);
}
template <class Group>
unsigned long long thread_rank(const Group& group) {
    return group.thread_rank();
}
template <class Group>
unsigned long long group_size(const Group& group) {
    return group.size();
}

// The grid knows the place of a thread. Its blocks can't synchronize.
class grid_group {
   public:
    static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
    static unsigned long long block_rank() {
        return ((unsigned long long)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    }
    static unsigned long long size() { return num_blocks() * thread_block::size(); }
    static unsigned long long num_threads() { return size(); }
    static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
    static dim3 group_dim() { return gridDim; }
    static bool is_valid() { return false; }
    SIMT_UNSUPPORTED("grid_group::sync()") void sync() const;
};
inline grid_group this_grid() { return {}; }

SIMT_UNSUPPORTED("coalesced_threads()") thread_block_tile<1> coalesced_threads();

}  // namespace cooperative_groups
