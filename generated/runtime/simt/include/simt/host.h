// The part of CUDA's host API that a kernel's launcher, or a small program around a kernel, uses.
//
// There is one device. All calls are synchronous, so the calls for streams, events and synchronization do nothing.
// cudaMalloc registers its buffer with the checks, and host code can't access it.
#pragma once
#include <time.h>
#include <cstdlib>
#include <cstring>
#include "errors.h"
#include "launch.h"

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

// ---- errors
inline cudaError_t cudaGetLastError() { return (cudaError_t)simt::take_error(true); }
inline cudaError_t cudaPeekAtLastError() { return (cudaError_t)simt::take_error(false); }

// ---- the device
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerMultiprocessor, sharedMemPerBlockOptin;
    int warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], major, minor, multiProcessorCount;
    int maxThreadsPerMultiProcessor;
};

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)simt::shared_limit(); break;
        case cudaDevAttrWarpSize: *value = SIMT_WARP_SIZE; break;
        case cudaDevAttrMultiProcessorCount: *value = 16; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 7; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device != 0) return cudaErrorInvalidDevice;
    size_t free, total;
    simt::memory_left(&free, &total);
    *p = {"CPU (simt)", total, 48 << 10, simt::shared_limit(), simt::shared_limit(), SIMT_WARP_SIZE,
          1024, {1024, 1024, 64}, {0x7fffffff, 65535, 65535}, 7, 0, 16, 2048};
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
inline cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }

// ---- functions
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaFuncCache {
    cudaFuncCachePreferNone,
    cudaFuncCachePreferShared,
    cudaFuncCachePreferL1,
    cudaFuncCachePreferEqual
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, maxDynamicSharedSizeBytes;
};
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > simt::shared_limit()) return cudaErrorInvalidValue;
    simt::set_dynamic_limit(reinterpret_cast<const void*>(kernel), (size_t)value);
    return cudaSuccess;
}
template <class... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(P...)) {
    *attributes = {simt::static_shared_of(reinterpret_cast<const void*>(kernel)), 0, 0, 1024, 0, 48 << 10};
    return cudaSuccess;
}
template <class... P>
cudaError_t cudaFuncSetCacheConfig(void (*)(P...), cudaFuncCache) {
    return cudaSuccess;
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(P...), int threads, size_t) {
    *blocks = threads > 0 ? 2048 / threads : 0;
    return cudaSuccess;
}
// The largest block that is allowed, and the number of such blocks that the device would run at once.
template <class... P>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* blocks, int* threads, void (*)(P...), size_t = 0, int limit = 0) {
    *threads = limit > 0 && limit < 1024 ? limit : 1024;
    *blocks = 16 * (2048 / *threads);
    return cudaSuccess;
}

// ---- memory
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes, SIMT_HERE) {
    return (cudaError_t)simt::allocate((void**)pointer, bytes, simt::MemoryKind::device, file, line);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t, SIMT_HERE) {
    return cudaMalloc(pointer, bytes, file, line);
}
// Rows begin at multiples of 512 bytes.
template <class T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height, SIMT_HERE) {
    size_t bytes;
    *pitch = (width + 511) & ~(size_t)511;
    if (*pitch < width || __builtin_mul_overflow(*pitch, height, &bytes))
        return (cudaError_t)simt::failed(cudaErrorMemoryAllocation);
    return cudaMalloc(pointer, bytes, file, line);
}
// Host code may write to this memory at any time, so it counts as initialised.
constexpr unsigned cudaMemAttachGlobal = 1, cudaMemAttachHost = 2;
template <class T>
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned = cudaMemAttachGlobal, SIMT_HERE) {
    return (cudaError_t)simt::allocate((void**)pointer, bytes, simt::MemoryKind::managed, file, line);
}
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                   cudaHostAllocWriteCombined = 4;
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned, SIMT_HERE) {
    return (cudaError_t)simt::allocate((void**)pointer, bytes, simt::MemoryKind::host, file, line);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned = cudaHostAllocDefault, SIMT_HERE) {
    return cudaHostAlloc(pointer, bytes, 0, file, line);
}
// The device sees the host's memory at the same address.
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned) {
    simt::MemoryKind kind;
    const bool ours = simt::device_memory(host, &kind) && kind == simt::MemoryKind::host;
    *device = ours ? (T*)host : nullptr;
    return ours ? cudaSuccess : (cudaError_t)simt::failed(cudaErrorInvalidValue);
}
inline cudaError_t cudaFree(void* pointer, SIMT_HERE) {
    return (cudaError_t)simt::release(pointer, false, file, line);
}
inline cudaError_t cudaFreeAsync(void* pointer, cudaStream_t, SIMT_HERE) { return cudaFree(pointer, file, line); }
inline cudaError_t cudaFreeHost(void* pointer, SIMT_HERE) {
    return (cudaError_t)simt::release(pointer, true, file, line);
}

inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, cudaMemcpyKind kind, SIMT_HERE) {
    return (cudaError_t)simt::copy_rows(to, to_pitch, from, from_pitch, width, height, kind, file, line);
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind kind, cudaStream_t = nullptr, SIMT_HERE) {
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind, file, line);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, SIMT_HERE) {
    return cudaMemcpy2D(to, bytes, from, bytes, bytes, 1, kind, file, line);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = nullptr, SIMT_HERE) {
    return cudaMemcpy(to, from, bytes, kind, file, line);
}
inline cudaError_t cudaMemset2D(void* to, size_t pitch, int byte, size_t width, size_t height, SIMT_HERE) {
    return (cudaError_t)simt::fill_rows(to, pitch, byte, width, height, file, line);
}
inline cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int byte, size_t width, size_t height,
                                     cudaStream_t = nullptr, SIMT_HERE) {
    return cudaMemset2D(to, pitch, byte, width, height, file, line);
}
inline cudaError_t cudaMemset(void* to, int byte, size_t bytes, SIMT_HERE) {
    return cudaMemset2D(to, bytes, byte, bytes, 1, file, line);
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t = nullptr, SIMT_HERE) {
    return cudaMemset(to, byte, bytes, file, line);
}
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice, SIMT_HERE) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return (cudaError_t)simt::failed(cudaErrorInvalidValue);
    return cudaMemcpy((char*)&symbol + offset, from, bytes, kind, file, line);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost, SIMT_HERE) {
    if (offset > sizeof(T) || bytes > sizeof(T) - offset) return (cudaError_t)simt::failed(cudaErrorInvalidValue);
    return cudaMemcpy(to, (const char*)&symbol + offset, bytes, kind, file, line);
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return simt::memory_left(free, total), cudaSuccess;
}

// ---- streams and events
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaPeekAtLastError(); }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }

struct CUevent_st {
    struct timespec time {};
};
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st(), cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    const double seconds = difftime(to->time.tv_sec, from->time.tv_sec);
    *milliseconds = (float)(seconds * 1e3 + (to->time.tv_nsec - from->time.tv_nsec) / 1e6);
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
