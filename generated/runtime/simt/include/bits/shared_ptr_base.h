// libstdc++ writes __attribute__((__noinline__)) in this header, and __noinline__ is a macro in CUDA.
// #pragma push_macro can't help: a source with rewritten launches goes through the preprocessor twice.
#pragma GCC system_header
#undef __noinline__
#include_next <bits/shared_ptr_base.h>
#ifdef __CUDACC_SIMT__
#define __noinline__ __attribute__((noinline))
#endif
