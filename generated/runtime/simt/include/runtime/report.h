// The findings and counters as JSON. Code addresses are given as offsets in the library's file.
#pragma once
#include "memory.h"

namespace simt {
inline namespace SIMT_ABI {

class Json {
    std::string out;
    bool fresh = true;

    void separate() {
        if (!fresh) out += ',';
        fresh = false;
    }
    void string(const std::string& s) {
        out += '"';
        for (const char c : s) {
            if (c == '"' || c == '\\') out += '\\';
            if ((unsigned char)c < 0x20)
                out += text("\\u%04x", c);
            else
                out += c;
        }
        out += '"';
    }

   public:
    const std::string& str() const { return out; }
    Json& key(const char* name) {
        separate();
        string(name);
        out += ':';
        fresh = true;
        return *this;
    }
    Json& open(char bracket) {
        separate();
        out += bracket;
        fresh = true;
        return *this;
    }
    Json& close(char bracket) {
        out += bracket;
        fresh = false;
        return *this;
    }
    Json& value(const std::string& s) {
        separate();
        string(s);
        return *this;
    }
    Json& value(long long n) {
        separate();
        out += std::to_string(n);
        return *this;
    }
    template <class T>
    Json& pair(const char* name, const T& v) {
        key(name);
        if constexpr (std::is_convertible<T, std::string>::value)
            return value(std::string(v));
        else
            return value((long long)v);
    }
};

inline long long offset_in_file(uintptr_t pc) {
    const Module& m = Module::self();
    return m.contains(pc) ? (long long)(pc - 1 - m.bias) : 0;
}

inline void write_place(Json& json, const Place& p) {
    json.open('{').pair("role", p.role).pair("pc", offset_in_file(p.pc));
    json.pair("file", p.file ? p.file : "").pair("line", p.line).pair("threads", p.threads);
    if (p.in_block) json.key("block").open('[').value(p.block.x).value(p.block.y).value(p.block.z).close(']');
    json.close('}');
}

inline void write_findings(Json& json) {
    json.key("findings").open('[');
    for (const Finding& f : findings.list) {
        json.open('{').pair("kind", f.kind).pair("what", f.what).pair("expected", f.expected);
        json.pair("kernel", f.kernel).pair("buffer", f.buffer).pair("offset", f.offset).pair("count", f.count);
        json.pair("stopped", f.stopped).key("places").open('[');
        for (const Place& p : f.places) write_place(json, p);
        json.close(']').close('}');
    }
    json.close(']');
}

inline void write_totals(Json& json) {
    const Totals& t = machine.totals;
    json.key("totals").open('{').pair("launches", t.launches).pair("blocks", t.blocks).pair("threads", t.threads);
    json.pair("barriers", t.barriers).pair("collectives", t.collectives).pair("switches", t.switches);
    json.pair("local_bytes", t.local_bytes).pair("approximate", t.approximate).close('}');
    json.key("kernels").open('[');
    for (const auto& entry : kernels()) {
        const Kernel& k = entry.second;
        if (k.launches == 0) continue;
        json.open('{').pair("name", k.name).pair("launches", k.launches).pair("blocks", k.blocks);
        json.pair("threads", k.threads).pair("barriers", k.barriers).pair("collectives", k.collectives);
        json.pair("static_shared", k.static_shared).pair("dynamic_shared", k.dynamic_shared).close('}');
    }
    json.close(']');
}

inline void write_regions(Json& json) {
    json.key("regions").open('[');
    for (const auto& r : regions.all) {
        u64 read = 0, written = 0;
        for (const u64 bits : r->read_bytes) read += (u64)__builtin_popcountll(bits);
        for (const u64 bits : r->written_bytes) written += (u64)__builtin_popcountll(bits);
        json.open('{').pair("id", r->id).pair("name", r->name).pair("scope", r->scope);
        json.pair("bytes", r->full_size);
        json.pair("shared", r->space == Space::shared).pair("writable", r->writable);
        json.pair("registered", r->registered && !r->kept).pair("bytes_read", read);
        json.pair("bytes_written", written).close('}');
    }
    json.close(']');
}

inline void write_counters(Json& json) {
    json.key("counters").open('[');
#if SIMT_CHECKED
    for (const auto& site : sites.list)
        for (const auto& c : site->counters) {
            json.open('{').pair("pc", offset_in_file(site->pc)).pair("region", c->region->id);
            json.pair("operation", operation_names[(int)c->operation]).pair("width", c->width);
            json.pair("lanes", c->lanes).pair("bytes", c->bytes).pair("accesses", c->warps);
            json.pair("sectors_32", c->sectors32).pair("sectors_64", c->sectors64);
            json.pair("sectors_128", c->sectors128).pair("passes_ideal", c->ideal_passes);
            json.pair("passes", c->passes).close('}');
        }
#endif
    json.close(']');
}

inline std::string report_json() {
    Json json;
    json.open('{').pair("format", 1).pair("warp_size", SIMT_WARP_SIZE).pair("checked", SIMT_CHECKED);
    json.pair("library", Module::self().path);
    write_totals(json);
    write_regions(json);
    write_counters(json);
    write_findings(json);
    json.close('}');
    return json.str();
}

// The text of the finding that stopped the last launch, for a caller without a report. Empty if no finding stopped it.
inline std::string last_message() {
    if (findings.latest == Findings::none || !findings.list[findings.latest].stopped) return "";
    const Finding& f = findings.list[findings.latest];
    std::string s = f.kind + ": " + f.what;
    for (const Place& p : f.places) {
        s += "; " + p.role;
        if (p.in_block) s += text(", block (%u,%u,%u)", p.block.x, p.block.y, p.block.z);
        if (!p.threads.empty()) s += ", " + p.threads;
        if (p.file) s += text(" at %s:%d", p.file, p.line);
    }
    return s;
}

}  // namespace SIMT_ABI
}  // namespace simt
