// reduce() over a tile.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
    T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
    T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
    T operator()(T a, T b) const { return a ^ b; }
};

// Every lane gets the result.
template <unsigned N, class Parent, class T, class Operation>
SIMT_CALL T reduce(const thread_block_tile<N, Parent>& tile, T value, Operation operation, SIMT_HERE) {
    for (unsigned flip = N / 2; flip; flip /= 2) value = operation(value, tile.shfl_xor(value, flip, file, line));
    return value;
}

}  // namespace cooperative_groups
