// The position of a thread in the control flow of its kernel, as a number. The number is equal for two lanes of a warp
// if a GPU would execute them together.
//
// Compiled code calls hooks at every basic block, access and function. A step to a lower code address is the back edge
// of a loop. The loops around a thread and their rounds make up its position. Rounds are counted from the last point
// where the whole warp was together. Compiler flags keep the basic blocks in the order of the source.
#pragma once
#include <cstdint>
#include "../simt/abi.h"

namespace simt {
inline namespace SIMT_ABI {

inline u64 mixed(u64 a, u64 b) {
    u64 z = (a ^ b) * 0x9e3779b97f4a7c15ull;
    return z ^ z >> 29;
}

struct Position {
    static constexpr unsigned max_depth = 32;
    struct Loop {
        uintptr_t head, end;
        u64 rounds, outer;  // outer: the key outside the loop
    };
    struct Frame {
        uintptr_t last;
        unsigned base;
        u64 key;
    };
    uintptr_t last;
    u64 key;
    unsigned depth, base, frames;
    uint32_t epoch;
    Loop loops[max_depth];
    Frame callers[max_depth];

    void start(uint32_t at) {
        frames = 0;
        restart(at);
        last = 0;
    }
    // The warp is together: its lanes have equal positions again.
    void restart(uint32_t at) {
        epoch = at;
        depth = base = 0;
        key = 0;
        for (unsigned i = 0; i < frames && i < max_depth; i++) callers[i] = {callers[i].last, 0, 0};
    }
    void leave() { key = loops[--depth].outer; }
    void step(uintptr_t pc) {
        if (pc > last) {
            while (depth > base && pc > loops[depth - 1].end) leave();
        } else {
            back(pc);
        }
        last = pc;
    }
    void back(uintptr_t pc) {
        while (depth > base && loops[depth - 1].head > pc) leave();
        if (depth == base || loops[depth - 1].head != pc) {
            if (depth == max_depth) return;
            loops[depth++] = {pc, last, 0, key};
        }
        Loop& loop = loops[depth - 1];
        if (last > loop.end) loop.end = last;
        loop.rounds++;
        key = mixed(mixed(loop.outer, loop.head), loop.rounds);
    }
    void enter(uintptr_t call) {
        if (frames < max_depth) {
            callers[frames] = {last, base, key};
            base = depth;
            key = mixed(key, call);
            last = 0;
        }
        frames++;
    }
    void exit() {
        if (frames == 0) return;
        if (--frames >= max_depth) return;
        last = callers[frames].last;
        key = callers[frames].key;
        depth = base;
        base = callers[frames].base;
    }
};

}  // namespace SIMT_ABI
}  // namespace simt
