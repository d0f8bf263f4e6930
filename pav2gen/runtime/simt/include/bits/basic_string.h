// libstdc++ 13 and later write __attribute__((__noinline__)) in this header, and __noinline__ is a macro in CUDA.
#pragma GCC system_header
#pragma push_macro("__noinline__")
#undef __noinline__
#include_next <bits/basic_string.h>
#pragma pop_macro("__noinline__")
