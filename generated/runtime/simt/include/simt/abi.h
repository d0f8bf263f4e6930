// The interface between a kernel's translation unit and the runtime.
//
// A kernel calls only these functions of the runtime. They live in an inline namespace named after the
// warp size and the build, so that objects of two kinds cannot be linked together by mistake.
#pragma once
#include <cstddef>

#ifndef SIMT_WARP_SIZE
#ifdef PAV2_WARP_SIZE
#define SIMT_WARP_SIZE PAV2_WARP_SIZE
#else
#define SIMT_WARP_SIZE 32
#endif
#endif
#if SIMT_WARP_SIZE != 32 && SIMT_WARP_SIZE != 64
#error "SIMT_WARP_SIZE is 32 or 64"
#endif
#if defined(PAV2_WARP_SIZE) && PAV2_WARP_SIZE + 0 != SIMT_WARP_SIZE
#error "PAV2_WARP_SIZE and SIMT_WARP_SIZE differ"
#endif
#ifndef SIMT_CHECKED
#define SIMT_CHECKED 0
#endif

#define SIMT_JOIN_(a, b, c) a##b##c
#define SIMT_JOIN(a, b, c) SIMT_JOIN_(a, b, c)
#if SIMT_CHECKED
#define SIMT_ABI SIMT_JOIN(warp, SIMT_WARP_SIZE, _checked)
#else
#define SIMT_ABI SIMT_JOIN(warp, SIMT_WARP_SIZE, _fast)
#endif

// The place of a call in the kernel's source, as default arguments of the callee.
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
// For the runtime's code that is compiled with the kernel: it gets no access hooks.
#if defined(__SANITIZE_THREAD__)
#define SIMT_UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define SIMT_UNSEEN
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

namespace simt {
inline namespace SIMT_ABI {

using u64 = unsigned long long;
using Mask = u64;  // one bit a lane
template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

constexpr Mask all_lanes = SIMT_WARP_SIZE == 64 ? ~0ull : 0xffffffffull;

// The operation of a warp-wide call on the values of its lanes.
enum class Collective : int { sync, shuffle, ballot, match, add, minimum, maximum, bit_and, bit_or, bit_xor };
enum class BarrierResult : int { none, count, conjunction, disjunction };

// Coordinates never change while a thread runs: the compiler may keep their values (and no hook sees the reads).
__attribute__((const)) uint3 thread_index();
__attribute__((const)) uint3 block_index();
__attribute__((const)) dim3 block_dimensions();
__attribute__((const)) dim3 grid_dimensions();

int barrier(BarrierResult want, int predicate, const char* file, int line);
// Contributes `value`, waits for all lanes of `mask`, and returns this lane's result. Only shuffles use `source`.
// `width_or_signed` is the width of a shuffle, or whether a minimum or maximum compares as signed.
u64 collective(Collective kind, Mask mask, u64 value, int source, int width_or_signed, const char* file, int line);
// The same among `lanes` neighbouring lanes of the warp, a power of two. The calling lane is one of them.
u64 tile_collective(Collective kind, unsigned lanes, u64 value, int source, int width_or_signed, const char* file,
                    int line);
Mask active_lanes();
void fence(bool of_device);                // or of the block only
void spun(const volatile void* address);  // tells that an atomic did not change this word
void atomic_access(const volatile void* address, unsigned bytes, const void* site);
void checked_copy(void* to, const void* from, size_t bytes, const void* site);
void checked_fill(void* to, int byte, size_t bytes, const void* site);
[[noreturn]] void trap(const char* file, int line);
u64 ticks();

struct Launch {
    const void* kernel;
    void (*invoke)(void* context);  // runs the kernel's body for the calling thread
    void* context;
    dim3 grid, block;
    size_t dynamic_shared;
    const char* file;
    int line;
    const char* name;  // as written in the source; used if there is no function pointer
};
int launch(const Launch& launch);  // returns a cudaError_t

// The host's API. Each returns a cudaError_t; `failed` has noted it for cudaGetLastError.
enum class MemoryKind : int { device, host, managed };
int failed(int error);
int allocate(void** pointer, size_t bytes, MemoryKind kind, const char* file, int line);
int release(void* pointer, bool host, const char* file, int line);
// Rows of `width` bytes. `kind` is a cudaMemcpyKind.
int copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int kind,
              const char* file, int line);
int fill_rows(void* to, size_t pitch, int byte, size_t width, size_t rows, const char* file, int line);
void memory_left(size_t* free, size_t* total);
bool device_memory(const void* pointer, MemoryKind* kind);  // false for memory that was not allocated here
size_t set_dynamic_limit(const void* kernel, size_t bytes);
size_t static_shared_of(const void* kernel);
size_t shared_limit();
int take_error(bool clear);

}  // namespace SIMT_ABI
}  // namespace simt
