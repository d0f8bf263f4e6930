"""Rewords a C++ compiler's error messages about features of CUDA that the CPU simulator does not support."""

from __future__ import annotations

import re

#: This text replaces the compiler's words, such as "was not declared", after the name of an unsupported part of CUDA.
UNSUPPORTED = "is not supported by this runtime (docs/simt.md, Limits)"

# Prefixes of names in the unsupported parts of CUDA. Any other unknown name may be a typo, and the compiler's
# suggestion stays.
_BEGINNINGS = """
    cudaGraph cudaUserObject cudaIpc cudaExternal cudaImport cudaMemPool cudaMemPrefetch cudaMemAdvise cudaMemRange
    cudaMalloc3D cudaMallocArray cudaMallocMipmapped cudaMallocFromPool cudaFreeArray cudaFreeMipmapped cudaMemcpy3D
    cudaMemcpyPeer cudaMemcpyToArray cudaMemcpyFromArray cudaMemcpyArray cudaMemcpy2DTo cudaMemcpy2DFrom
    cudaMemcpy2DArray cudaMemcpyToSymbolAsync cudaMemcpyFromSymbolAsync cudaMemcpyBatch cudaMemset3D cudaGetSymbol
    cudaGetSurface cudaGetTexture cudaGetChannel cudaCreateTexture cudaCreateSurface cudaDestroyTexture
    cudaDestroySurface cudaCreateChannel cudaBindTexture cudaUnbindTexture cudaBindSurface cudaArray cudaChannel
    cudaTexture cudaSurface cudaExtent cudaPitchedPtr cudaPos cudaLaunchCooperative cudaLaunchKernelEx
    cudaLaunchHostFunc cudaLaunchAttribute cudaLaunchConfig cudaStreamAddCallback cudaStreamBegin cudaStreamEnd
    cudaStreamIsCapturing cudaStreamCapture cudaStreamAttach cudaStreamGet cudaStreamSet cudaStreamCreateWithPriority
    cudaDeviceGetP2P cudaDeviceCanAccess cudaDeviceEnablePeer cudaDeviceDisablePeer cudaDeviceGetLimit
    cudaDeviceSetLimit cudaDeviceGetStream cudaDeviceGetByPCI cudaDeviceGetPCI cudaDeviceGetDefaultMemPool
    cudaDeviceGetMemPool cudaDeviceSetMemPool cudaDeviceSetCache cudaDeviceGetCache cudaDeviceSetShared
    cudaHostRegister cudaHostUnregister cudaHostGetFlags cudaPointer cudaChooseDevice cudaSetDeviceFlags
    cudaGetDeviceFlags cudaOccupancyMaxPotentialBlockSizeVar cudaOccupancyAvailable cudaOccupancyMaxActiveClusters
    cudaGetDriverEntryPoint cudaProfiler cudaGL cudaEGL cudaVDPAU cudaEventQuery cudaEventRecordWithFlags
    cudaDriverGetVersion cudaRuntimeGetVersion cudaFuncSetSharedMemConfig cudaAccessPolicy
    cuInit cuDevice cuCtx cuModule cuLaunch cuMem cuStream cuEvent cuFunc cuTex cuSurf cuArray cuGraph cuGet
    tex1D tex2D tex3D texCubemap surf1D surf2D surf3D wmma nvcuda __nv_fp8 __nv_fp6 __nv_fp4 __nv_cvt __pipeline_
    __nanosleep memcpy_async thrust curand cublas cufft cusparse cusolver cudnn
"""
_FUNCTIONS = tuple(_BEGINNINGS.split())
_HEADERS = re.compile(
    r"(thrust|cub|cuda|nv|cooperative_groups|cutlass|cute|crt)/.+|mma\.h"
    r"|(cublas|curand|cufft|cusparse|cusolver|cudnn|nccl|nvrtc|nvml|npp|nvtx|nvToolsExt|cuda_gl|cudaGL|cuda_egl|cuda_fp"
    r"|cuda_pipeline|cuda_awbarrier|cuda_profiler|cuda_texture|texture|surface|channel|driver)\w*\.h(pp)?"
)
_UNKNOWN = re.compile(
    r"error: '(?P<name>[\w:]+)' (was not declared|has not been declared|does not name a type|is not a member).*"
)
_NO_HEADER = re.compile(r"fatal error: (?P<name>\S+): No such file or directory$")
_GUESS = re.compile(r"\s*\|\s+[\w:]+$")


def explain(output: str) -> str:
    """Reword each error about an unsupported feature of CUDA in a compiler's output, and return the new output.

    The reworded error says that the simulator does not support the feature. The compiler's suggestions of other names
    are removed from the reworded errors.
    """
    lines = list[str]()
    guesses = 0  # the number of following lines that may contain the compiler's suggestion of another name
    for line in output.split("\n"):
        said = _NO_HEADER.sub(_header, _UNKNOWN.sub(_function, line))
        guesses = 3 if said != line else guesses - 1
        if guesses < 0 or not _GUESS.match(line):
            lines.append(said)
    return "\n".join(lines)


def _function(match: re.Match[str]) -> str:
    unsupported = any(part.startswith(_FUNCTIONS) for part in match["name"].split("::"))
    return f"error: '{match['name']}' {UNSUPPORTED}" if unsupported else match.group()


def _header(match: re.Match[str]) -> str:
    return f"fatal error: {match['name']} {UNSUPPORTED}" if _HEADERS.fullmatch(match["name"]) else match.group()
