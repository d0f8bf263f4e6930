// __half and __half2.
#pragma once
#include "cuda_runtime.h"
#include "simt/half.h"
