// The symbols of the library this code is linked into, read from its file: names of kernels, shared arrays, globals.
#pragma once
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <algorithm>
#include <cstring>
#include "machine.h"

namespace simt {
inline namespace SIMT_ABI {

struct Symbol {
    uintptr_t start;  // an address, or an offset in the TLS block
    size_t size;
    std::string name;  // as mangled
};

inline std::string demangled(const std::string& name) {
    int status = 0;
    char* readable = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    std::string s = status == 0 ? readable : name;
    free(readable);
    return s;
}

thread_local char simt_tls_anchor;  // touching it makes the library's TLS block exist

struct Module {
    std::string path;
    uintptr_t bias = 0, low = 0, high = 0;
    size_t tls_size = 0;
    std::vector<Symbol> functions, objects, shared;  // each sorted by start

    static Module& self() {
        static Module& module = *new Module(load());  // never destroyed: needed until the process has ended
        return module;
    }
    // The TLS block belongs to the OS thread that asks.
    static uintptr_t tls_base() {
        *(volatile char*)&simt_tls_anchor = 1;
        uintptr_t base = 0;
        dl_iterate_phdr(&Module::find_tls, &base);
        return base;
    }
    bool contains(uintptr_t address) const { return address - low < high - low; }

    static const Symbol* at(const std::vector<Symbol>& symbols, uintptr_t address) {
        auto after = std::upper_bound(symbols.begin(), symbols.end(), address,
                                      [](uintptr_t a, const Symbol& s) { return a < s.start; });
        if (after == symbols.begin()) return nullptr;
        const Symbol& s = *--after;
        return address - s.start < s.size ? &s : nullptr;
    }
    // The static shared arrays that a kernel declares are its local statics: _ZZ<kernel>E<name>.
    static std::string local_prefix(const std::string& kernel) {
        if (kernel.compare(0, 2, "_Z") == 0) return "_ZZ" + kernel.substr(2) + "E";
        return "_ZZ" + std::to_string(kernel.size()) + kernel + "E";
    }

   private:
    static bool mine(dl_phdr_info* info) {
        const uintptr_t here = reinterpret_cast<uintptr_t>(&Module::self);
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type == PT_LOAD && here - (info->dlpi_addr + header.p_vaddr) < header.p_memsz) return true;
        }
        return false;
    }
    static int find_tls(dl_phdr_info* info, size_t, void* base) {
        if (!mine(info)) return 0;
        *static_cast<uintptr_t*>(base) = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
        return 1;
    }
    static int find_self(dl_phdr_info* info, size_t, void* into) {
        if (!mine(info)) return 0;
        Module& m = *static_cast<Module*>(into);
        m.path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
        m.bias = info->dlpi_addr;
        m.low = ~(uintptr_t)0;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type == PT_TLS) m.tls_size = header.p_memsz;
            if (header.p_type != PT_LOAD) continue;
            m.low = std::min<uintptr_t>(m.low, m.bias + header.p_vaddr);
            m.high = std::max<uintptr_t>(m.high, m.bias + header.p_vaddr + header.p_memsz);
        }
        return 1;
    }
    static Module load() {
        Module m;
        dl_iterate_phdr(&Module::find_self, &m);
        const int file = open(m.path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat status;
        if (file < 0) return m;
        if (fstat(file, &status) == 0 && (size_t)status.st_size > sizeof(ElfW(Ehdr))) {
            void* bytes = mmap(nullptr, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
            if (bytes != MAP_FAILED) {
                m.read(static_cast<const char*>(bytes), (size_t)status.st_size);
                munmap(bytes, (size_t)status.st_size);
            }
        }
        close(file);
        return m;
    }
    void read(const char* bytes, size_t size) {
        const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(bytes);
        if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
        if (header.e_shoff + (size_t)header.e_shnum * sizeof(ElfW(Shdr)) > size) return;
        const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes + header.e_shoff);
        for (int i = 0; i < header.e_shnum; i++) {
            if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header.e_shnum) continue;
            const auto& strings = sections[sections[i].sh_link];
            const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes + sections[i].sh_offset);
            for (size_t k = 0; k < sections[i].sh_size / sizeof(ElfW(Sym)); k++)
                if (symbols[k].st_shndx != SHN_UNDEF) take(symbols[k], bytes + strings.sh_offset + symbols[k].st_name);
        }
        forget_dynamic();
        for (auto* list : {&functions, &objects, &shared})
            std::sort(list->begin(), list->end(), [](const Symbol& a, const Symbol& b) { return a.start < b.start; });
    }
    // The memory behind `extern __shared__` arrays has a symbol for each of them; launches manage it.
    void forget_dynamic() {
        uintptr_t dynamic = ~(uintptr_t)0;
        for (const Symbol& s : shared)
            if (s.name == "simt_dynamic_shared") dynamic = s.start;
        shared.erase(std::remove_if(shared.begin(), shared.end(), [&](const Symbol& s) { return s.start == dynamic; }),
                     shared.end());
    }
    void take(const ElfW(Sym) & symbol, const char* name) {
        if (symbol.st_size == 0 || strstr(name, "4simt")) return;
        switch (symbol.st_info & 15) {
            case STT_FUNC: functions.push_back({bias + symbol.st_value, symbol.st_size, name}); break;
            case STT_OBJECT: objects.push_back({bias + symbol.st_value, symbol.st_size, name}); break;
            case STT_TLS: shared.push_back({symbol.st_value, symbol.st_size, name}); break;
            default: break;
        }
    }
};

// "void attention<256, 6>(float*, int)" -> "attention<256, 6>"
inline std::string short_name(std::string s) {
    if (!s.empty() && s.back() == ')') {
        size_t open = s.size(), depth = 0;
        do {
            open--;
            depth += s[open] == ')';
            depth -= s[open] == '(';
        } while (depth && open);
        s.resize(open);
    }
    return s.compare(0, 5, "void ") == 0 ? s.substr(5) : s;
}

// A local static's name and the function it is in: "_ZZ6sharpPfE3red" -> "red", "sharp".
struct VariableName {
    std::string name, scope;
};
inline VariableName variable_name(const std::string& mangled) {
    const std::string full = demangled(mangled);
    const size_t colon = full.rfind("::");
    if (mangled.compare(0, 3, "_ZZ") != 0 || colon == std::string::npos) return {full, ""};
    return {full.substr(colon + 2), short_name(full.substr(0, colon))};
}

inline const Symbol* symbol_of_kernel(const void* kernel) {
    return kernel ? Module::at(Module::self().functions, reinterpret_cast<uintptr_t>(kernel)) : nullptr;
}

}  // namespace SIMT_ABI
}  // namespace simt
