// __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include "cuda_runtime.h"
#include "simt/bfloat16.h"
