// Writes one partition's partial result, and merges the partitions of one row, each in one thread: for test_partials.py.
#include "pav2_partition.cuh"
#include "pav2_reduce.cuh"

constexpr int kTestHeadSize = 64;

// Writes m = 2, z = 3 and the elements 0, 1, ... of the last partition of the last head of the last sequence.
__global__ void write_last(Pav2Args a) {
    pav2::Place at = {};
    at.seq = a.num_seqs - 1;
    at.partition = at.slot = a.partitions - 1;
    const int head = a.num_heads - 1;
    pav2::write_state(a, at, head, 2.0f, 3.0f);
    for (int dim = 0; dim < kTestHeadSize; ++dim) {
        pav2::write_element<float>(a, at, head, dim, kTestHeadSize, static_cast<float>(dim), 0.5f, 0.5f);
    }
}

// Merges the first partition of the last head of the last sequence; the four elements from 8 on, z and m go to out.
__global__ void merge_last(Pav2Args a) {
    const int64_t row = static_cast<int64_t>(a.num_seqs) * a.num_heads - 1;
    const pav2::Merged merged = pav2::merge_partitions<kTestHeadSize>(a, row, 8, 0, 1);
    float* out = static_cast<float*>(a.out);
    for (int i = 0; i < 4; ++i) out[i] = merged.o[i];
    out[4] = merged.z;
    out[5] = merged.m;
}

extern "C" PAV2_EXPORT int launch_write(const Pav2Args* args) {
    Pav2Args a = *args;
    void* parameters[] = {&a};
    return cudaLaunchKernel(write_last, dim3(1), dim3(1), parameters, 0, nullptr);
}

extern "C" PAV2_EXPORT int launch_merge(const Pav2Args* args) {
    Pav2Args a = *args;
    void* parameters[] = {&a};
    return cudaLaunchKernel(merge_last, dim3(1), dim3(1), parameters, 0, nullptr);
}
