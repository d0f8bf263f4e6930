// The CUDA C++ language: qualifiers and built-in variables.
#pragma once
#include "abi.h"

#define __CUDACC_SIMT__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif
// Static storage with one instance per block. Blocks run one after the other, so one image of it is enough. It is
// thread-local, so all of it lies in the library's TLS segment. The checks find it there by symbol.
#define __shared__ thread_local

#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_dimensions())
#define gridDim (::simt::grid_dimensions())
constexpr int warpSize = SIMT_WARP_SIZE;
