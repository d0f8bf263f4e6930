// libstdc++ writes __attribute__((__noinline__)) in this header, and __noinline__ is a macro in CUDA.
#pragma GCC system_header
#pragma push_macro("__noinline__")
#undef __noinline__
#include_next <bits/shared_ptr_base.h>
#pragma pop_macro("__noinline__")
