// Part of cuda_runtime.h here, as in the CUDA toolkit.
#pragma once
#include "cuda_runtime.h"
