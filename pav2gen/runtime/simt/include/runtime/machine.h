// The state of a launch: its policy, the block that runs, its warps and threads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "../cuda_runtime.h"
#include "fiber.h"
#if SIMT_CHECKED
#include "position.h"
#endif

namespace simt {
inline namespace SIMT_ABI {

constexpr unsigned max_threads = 1024;
constexpr unsigned max_warps = max_threads / SIMT_WARP_SIZE;

enum class Order { ascending, descending, random };
// The weakest call that orders two accesses of one warp's lanes: any collective, __syncwarp, or __syncthreads.
enum class WarpOrder { collective, syncwarp, syncthreads };

struct Policy {
    Order lane_order = Order::ascending, block_order = Order::ascending;
    u64 seed = 0;
    WarpOrder warp_order = WarpOrder::syncwarp;
    bool strict_exit = true;       // a barrier or collective without a thread that has returned is a finding
    bool full_mask_32 = true;      // at warp size 64, mask 0xffffffff means all lanes
    bool poison = true;            // shared memory starts each block as 0xff bytes
    bool integer_overflow = true;  // signed overflow is a finding
    size_t stack_bytes = 128 << 10;
    size_t shared_limit = 128 << 10;
    u64 time_limit_ms = 0;  // for one launch; 0 means no limit
};

enum class Wait : uint8_t { none, barrier, collective, finished };

struct Lane {
    Fiber fiber;
    uintptr_t stack_low, stack_size;
    uint3 thread;
    uint16_t flat, warp, lane;
    Wait wait;
    int source;
    u64 given, taken;
    const char* file;
    int line;
    const volatile void* spun_at;  // the word of this lane's last atomic, if that did not change the word
#if SIMT_CHECKED
    Position position;
#endif
};

// A collective that waits for lanes.
struct Meeting {
    Mask mask, arrived;
    Collective kind;
    int flavour;
    const char* file;
    int line;
};

struct Warp {
    Mask present, live, ready, at_barrier;
    Mask open;  // which meetings are in use
    Meeting meetings[64];
#if SIMT_CHECKED
    uint32_t sync_tick;            // accesses before it are ordered among the warp's lanes
    volatile uint32_t epoch;       // counts the points where all lanes were together
    std::vector<uint32_t> heard;   // [a * 64 + b]: lane b's accesses before this tick are ordered before lane a
#endif
};

struct Totals {
    u64 launches = 0, blocks = 0, threads = 0, barriers = 0, collectives = 0, switches = 0, local_bytes = 0;
    bool approximate = false;
};

struct Machine {
    Policy policy;
    Totals totals;
    Launch launch{};
    bool running = false;
    int error = 0;    // why the launch was stopped
    bool cut_short = false;  // a launch of this session was stopped
    std::string kernel;
    u64 blocks = 0, block = 0;  // number in the grid; linear index of the running one
    uint3 block_index{};
    unsigned threads = 0, warps = 0, live = 0;
    u64 random = 1;
    // the barrier that threads wait at
    unsigned arrived = 0;
    bool diverged = false;
    const char* file = nullptr;
    int line = 0;
    int count = 0, result_count = 0;
    unsigned result_of = 0;

    Fiber host;
    Stacks stacks;
    unsigned fibers = 0;  // how many lanes have a fiber that can be entered
    Lane lanes[max_threads];
    Warp warp[max_warps];
    char* dynamic = nullptr;
    size_t dynamic_bytes = 0, dynamic_capacity = 0;
};

static Machine machine;
static thread_local int last_error = 0;  // the next result of cudaGetLastError for this thread of the host
static Lane* current = nullptr;  // null while the host's code runs
static volatile bool time_is_up = false;  // the launch is to be stopped at the next hook

inline Warp& warp_of(const Lane& lane) { return machine.warp[lane.warp]; }
inline Mask bit_of(const Lane& lane) { return (Mask)1 << lane.lane; }

inline u64 random_bits() {
    u64 z = machine.random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

inline uint3 block_at(u64 linear) {
    const dim3& grid = machine.launch.grid;
    return {(unsigned)(linear % grid.x), (unsigned)(linear / grid.x % grid.y),
            (unsigned)(linear / ((u64)grid.x * grid.y))};
}

}  // namespace SIMT_ABI
}  // namespace simt
