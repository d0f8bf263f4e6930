// The CUDA runtime header as a kernel's source sees it, for execution on the CPU.
#pragma once
#include "simt/language.h"
#include "simt/vectors.h"
#include "simt/warp.h"
#include "simt/atomics.h"
#include "simt/math.h"

#include "simt/host.h"
