// Shuffles, votes and other calls of the lanes of a warp: the lanes meet, and the last one computes all results.
#pragma once
#include "barriers.h"

namespace simt {
inline namespace SIMT_ABI {

inline const char* collective_name(Collective kind) {
    switch (kind) {
        case Collective::sync: return "__syncwarp";
        case Collective::shuffle: return "shuffle";
        case Collective::ballot: return "vote";
        case Collective::match: return "match";
        default: return "reduction";
    }
}

inline Finding* lane_finding(const char* kind, const Lane& lane, const Meeting& m, std::string what) {
    const FindingKey key{kind, (uintptr_t)m.file, (uintptr_t)m.line, nullptr};
    if (findings.repeated(key)) return nullptr;
    Finding& f = findings.add(key, kind, std::move(what));
    f.places.push_back(by(place(collective_name(m.kind), m.file, m.line), lane));
    return &f;
}

// The lanes of the mask that exist in the block.
inline Mask named_lanes(Mask mask, const Lane& me, const Warp& warp, const Meeting& call) {
    if (SIMT_WARP_SIZE == 64 && mask == 0xffffffffull && machine.policy.full_mask_32) mask = all_lanes;
    mask &= warp.present;
    if (mask & bit_of(me)) return mask;
    if (Finding* f = lane_finding("absent-lane", me, call,
                                  text("lane %u passes a mask without itself (%s)", me.lane, lanes_name(mask).c_str())))
        f->expected = "the mask of a call includes the calling lane";
    return mask | bit_of(me);
}

inline u64 reduced(Collective kind, bool is_signed, u64 a, u64 b) {
    const bool less = is_signed ? (long long)a < (long long)b : a < b;
    switch (kind) {
        case Collective::add: return a + b;
        case Collective::minimum: return less ? a : b;
        case Collective::maximum: return less ? b : a;
        case Collective::bit_and: return a & b;
        case Collective::bit_or: return a | b;
        default: return a ^ b;
    }
}

inline void report_absent_source(const Lane& lane, const Warp& warp, const Meeting& m) {
    const Mask source = (Mask)1 << lane.source;
    const char* why = !(source & warp.present) ? "which the block does not have"
                      : !(source & m.mask)     ? "which is not in the mask"
                                               : "which has returned";
    if (Finding* f = lane_finding("absent-lane", lane, m,
                                  text("lane %u reads lane %d, %s", lane.lane, lane.source, why)))
        f->expected = "a shuffle reads only from lanes that take part in it; the value of other lanes is undefined";
}

inline void exchange(const Warp& warp, Lane* lanes, const Meeting& m) {
    for (Mask rest = m.arrived; rest; rest &= rest - 1) {
        Lane& lane = lanes[__builtin_ctzll(rest)];
        if (m.arrived >> lane.source & 1) {
            lane.taken = lanes[lane.source].given;
        } else {
            report_absent_source(lane, warp, m);
            lane.taken = ~0ull;
        }
    }
}

// All lanes have arrived: gives each its result.
inline void conclude(Warp& warp, unsigned index, Meeting& m) {
    Lane* lanes = &machine.lanes[index * SIMT_WARP_SIZE];
    machine.totals.collectives++;
    const Mask missing = m.mask & ~m.arrived;
    if (missing && machine.policy.strict_exit)
        if (Finding* f = lane_finding("absent-lane", lanes[__builtin_ctzll(m.arrived)], m,
                                      text("the mask names %s, which had returned", lanes_name(missing).c_str())))
            f->expected = "every lane of the mask takes part (the policy strict_exit=False accepts this)";
    if (m.kind == Collective::shuffle) {
        exchange(warp, lanes, m);
    } else if (m.kind == Collective::match) {
        for (Mask a = m.arrived; a; a &= a - 1) {
            Lane& lane = lanes[__builtin_ctzll(a)];
            lane.taken = 0;
            for (Mask b = m.arrived; b; b &= b - 1)
                if (lanes[__builtin_ctzll(b)].given == lane.given) lane.taken |= b & (~b + 1);
        }
    } else if (m.kind != Collective::sync) {
        u64 result = 0;
        for (Mask rest = m.arrived; rest; rest &= rest - 1) {
            const u64 given = lanes[__builtin_ctzll(rest)].given;
            if (m.kind == Collective::ballot)
                result |= given ? rest & (~rest + 1) : 0;
            else
                result = rest == m.arrived ? given : reduced(m.kind, m.flavour, result, given);
        }
        for (Mask rest = m.arrived; rest; rest &= rest - 1) lanes[__builtin_ctzll(rest)].taken = result;
    }
    lanes_met(warp, index, m.arrived, m.kind);
    warp.ready |= m.arrived;
    warp.open &= ~((Mask)1 << (&m - warp.meetings));
}

inline Meeting& join(Warp& warp, const Lane& me, const Meeting& call) {
    for (Mask open = warp.open; open; open &= open - 1) {
        Meeting& m = warp.meetings[__builtin_ctzll(open)];
        if (m.mask != call.mask) continue;
        const bool same = m.kind == call.kind && m.line == call.line && m.flavour == call.flavour &&
                          (m.file == call.file || strcmp(m.file, call.file) == 0);
        if (!same)
            if (Finding* f = lane_finding("divergent-collective", me, call, "lanes of a warp met in different calls")) {
                const Lane* first = &machine.lanes[me.warp * SIMT_WARP_SIZE + __builtin_ctzll(m.arrived)];
                f->places.push_back(by(place(collective_name(m.kind), m.file, m.line), *first));
                f->expected = "all lanes of a mask make the same call";
            }
        return m;
    }
    const unsigned free = (unsigned)__builtin_ctzll(~warp.open);
    warp.open |= (Mask)1 << free;
    return warp.meetings[free] = call;
}

// Waits for the lanes in the mask of `call`, and returns this lane's result.
inline u64 take_part(Lane& me, const Meeting& call, u64 value, int source) {
    Warp& warp = warp_of(me);
    me.given = value;
    me.source = source & (SIMT_WARP_SIZE - 1);
    Meeting& m = join(warp, me, call);
    m.arrived |= bit_of(me);
    if (m.arrived == (m.mask & warp.live)) {
        conclude(warp, me.warp, m);
    } else {
        me.wait = Wait::collective;
        me.file = call.file;
        me.line = call.line;
        warp.ready &= ~bit_of(me);
        give_way();
        me.wait = Wait::none;
    }
    return me.taken;
}

u64 collective(Collective kind, Mask mask, u64 value, int source, int flavour, const char* file, int line) {
    if (!current) return value;
    Lane& me = *current;
    Meeting call{0, 0, kind, flavour, file, line};
    call.mask = named_lanes(mask, me, warp_of(me), call);
    if (kind == Collective::shuffle && (flavour < 1 || flavour > SIMT_WARP_SIZE || (flavour & (flavour - 1)))) {
        if (Finding* f = lane_finding("absent-lane", me, call, text("a shuffle of width %d", flavour)))
            f->expected = text("a power of two up to %d", SIMT_WARP_SIZE);
        source = me.lane;
    }
    return take_part(me, call, value, source);
}

u64 tile_collective(Collective kind, unsigned lanes, u64 value, int source, int flavour, const char* file, int line) {
    if (!current) return value;
    Lane& me = *current;
    const unsigned first = me.lane / lanes * lanes;
    const Mask tile = (lanes == 64 ? ~0ull : ((Mask)1 << lanes) - 1) << first;
    const u64 result = take_part(me, {tile & warp_of(me).present, 0, kind, flavour, file, line}, value,
                                 (int)first + (source & (int)(lanes - 1)));
    return kind == Collective::ballot || kind == Collective::match ? result >> first : result;
}

Mask active_lanes() { return current ? warp_of(*current).live : 1; }

}  // namespace SIMT_ABI
}  // namespace simt
