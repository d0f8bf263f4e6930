// What the test kernels share. They are plain CUDA: nvcc compiles them too.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr int W = PAV2_WARP_SIZE;
constexpr unsigned FULL = 0xffffffffu;
using u64 = unsigned long long;
