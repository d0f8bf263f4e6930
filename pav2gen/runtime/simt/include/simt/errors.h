// CUDA's error codes, their names and texts, and the handles of streams and events.
#pragma once

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidDevicePointer = 17,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999
};
using cudaError_t = cudaError;

#define SIMT_ERRORS(X)                                                           \
    X(cudaSuccess, "no error")                                                   \
    X(cudaErrorInvalidValue, "invalid argument")                                 \
    X(cudaErrorMemoryAllocation, "out of memory")                                \
    X(cudaErrorInitializationError, "initialization error")                      \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")           \
    X(cudaErrorInvalidPitchValue, "invalid pitch argument")                      \
    X(cudaErrorInvalidSymbol, "invalid device symbol")                           \
    X(cudaErrorInvalidDevicePointer, "invalid device pointer")                   \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")      \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                 \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                   \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                          \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                 \
    X(cudaErrorNotReady, "device not ready")                                     \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")       \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")  \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")         \
    X(cudaErrorAssert, "device-side assert triggered")                           \
    X(cudaErrorIllegalInstruction, "an illegal instruction was encountered")     \
    X(cudaErrorMisalignedAddress, "misaligned address")                          \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                      \
    X(cudaErrorNotSupported, "operation not supported")                          \
    X(cudaErrorUnknown, "unknown error")

inline const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define SIMT_CASE(NAME, TEXT) \
    case NAME:                \
        return #NAME;
        SIMT_ERRORS(SIMT_CASE)
#undef SIMT_CASE
    }
    return "unrecognized error code";
}
inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define SIMT_CASE(NAME, TEXT) \
    case NAME:                \
        return TEXT;
        SIMT_ERRORS(SIMT_CASE)
#undef SIMT_CASE
    }
    return "unrecognized error code";
}

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
