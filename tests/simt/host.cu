// The host's side: what it allocates, copies and frees, and where it must not reach.
#include <cstring>
#include "common.h"

__global__ void count_up(int* out, int n) {
    if ((int)threadIdx.x < n) out[threadIdx.x] = threadIdx.x + 1;
}

// ---- device memory in the host's code
EXPORT int host_reads(int* seen) {
    int* device;
    cudaMalloc(&device, 64 * sizeof(int));
    count_up<<<1, 64>>>(device, 64);
    *seen = device[5];  // @read
    return cudaFree(device);
}
EXPORT int host_writes(int* seen) {
    int* device;
    cudaMalloc(&device, 64 * sizeof(int));
    device[7] = 70;  // @write
    count_up<<<1, 64>>>(device, 7);
    cudaMemcpy(seen, device, 8 * sizeof(int), cudaMemcpyDeviceToHost);
    return cudaFree(device);
}
EXPORT int libc_reads(int* seen) {
    int* device;
    cudaMalloc(&device, 64 * sizeof(int));
    count_up<<<1, 64>>>(device, 64);
    memcpy(seen, device, sizeof *seen);  // @libc
    return cudaFree(device);
}
EXPORT int host_reads_freed(int* seen) {
    int* device;
    cudaMalloc(&device, 64 * sizeof(int));
    cudaFree(device);
    *seen = device[5];  // @freed
    return 0;
}
EXPORT int host_uses_its_own(int* seen) {
    int *managed, *pinned, *mapped, *device;
    cudaMallocManaged(&managed, 4);
    cudaMallocHost(&pinned, 4);
    cudaHostAlloc(&mapped, 4, cudaHostAllocMapped);
    *managed = *pinned = *mapped = 0;
    count_up<<<1, 1>>>(managed, 1);
    count_up<<<1, 1>>>(pinned, 1);
    int code = cudaHostGetDevicePointer(&device, mapped, 0);
    count_up<<<1, 1>>>(device, 1);
    *seen = *managed + *pinned + *mapped;
    code |= cudaHostGetDevicePointer(&device, seen, 0) == cudaErrorInvalidValue ? 0 : 1000;
    cudaGetLastError();
    return code | cudaFree(managed) | cudaFreeHost(pinned) | cudaFreeHost(mapped);
}

// ---- copies
EXPORT int copy_what_was_written(int* out, int written) {
    int *first, *second;
    cudaMalloc(&first, 64 * sizeof(int));
    cudaMalloc(&second, 64 * sizeof(int));
    count_up<<<1, 64>>>(first, written);
    cudaMemcpy(second, first, 64 * sizeof(int), cudaMemcpyDeviceToDevice);
    cudaMemcpy(out, second, 64 * sizeof(int), cudaMemcpyDeviceToHost);  // @unwritten
    return cudaFree(first) | cudaFree(second);
}
EXPORT int copy_the_wrong_way(int* out) {
    int* device;
    cudaMalloc(&device, 64 * sizeof(int));
    const int code = cudaMemcpy(out, device, 4, cudaMemcpyHostToDevice);   // @device
    const int other = cudaMemcpy(device, device, 4, cudaMemcpyHostToDevice);  // @direction
    cudaFree(device);
    return code * 1000 + other;
}
EXPORT int odd_arguments() {
    int* device;
    cudaMalloc(&device, 64);
    const int code = cudaMemcpy(device, device, 4, (cudaMemcpyKind)9) * 1000 + cudaMemset2D(device, 4, 0, 8, 2);
    cudaFree(device);
    return cudaGetLastError() == cudaErrorInvalidPitchValue ? code : -1;
}
// Rows of 5 numbers out of a matrix of 8 columns, through pitched memory, the last column set to 7s.
EXPORT int through_pitched_memory(int* out, const int* in, int rows) {
    int* device;
    size_t pitch;
    if (cudaMallocPitch(&device, &pitch, 5 * sizeof(int), rows)) return -1;
    cudaMemcpy2D(device, pitch, in, 8 * sizeof(int), 5 * sizeof(int), rows, cudaMemcpyHostToDevice);
    cudaMemset2D(device + 4, pitch, 7, sizeof(int), rows);
    cudaMemcpy2D(out, 5 * sizeof(int), device, pitch, 5 * sizeof(int), rows, cudaMemcpyDefault);
    cudaFree(device);
    return (int)pitch;
}
EXPORT int a_pitch_too_long(int* out, int rows) {
    char* device;
    cudaMalloc(&device, 512 * rows);
    cudaMemset(device, 1, 512 * rows);
    const int code = cudaMemcpy2D(out, 4, device, 600, 4, rows, cudaMemcpyDeviceToHost);  // @pitch
    return cudaFree(device), code;
}

// ---- allocating and freeing
EXPORT int too_much(int* out) {
    void* p = out;
    const int code = cudaMalloc(&p, (size_t)-4);
    if (cudaMalloc((void**)nullptr, 4) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
        return -2;
    if (cudaMalloc(&p, (size_t)-400) != cudaErrorMemoryAllocation) return -3;
    return p ? -1 : code * 1000 + cudaGetLastError();
}
EXPORT int memory_left() {
    size_t before, after, total;
    void* p;
    cudaMemGetInfo(&before, &total);
    cudaMalloc(&p, (size_t)1 << 30);  // takes no memory of the host's until it is touched
    cudaMemGetInfo(&after, &total);
    const bool beyond = cudaMalloc(&p, after + 1) == cudaErrorMemoryAllocation;
    return before - after == (size_t)1 << 30 && beyond && cudaGetLastError() == cudaErrorMemoryAllocation ? 0 : 1;
}
EXPORT int free_wrongly(int how) {
    int *device, *pinned, local;
    cudaMalloc(&device, 64);
    cudaMallocHost(&pinned, 64);
    if (how == 0) cudaFree(device);
    int* const victims[] = {device, device + 1, &local, pinned};
    const int code = cudaFree(victims[how]);  // @free
    const int noted = cudaGetLastError();
    if (how) cudaFree(device);
    cudaFreeHost(pinned);
    cudaFree(nullptr);
    return code * 1000 + noted;
}
EXPORT int block_size(int limit) {
    int blocks, threads;
    if (cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, count_up, 0, limit)) return -1;
    return blocks * 10000 + threads;
}
