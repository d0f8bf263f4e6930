// Launching kernels: cudaLaunchKernel, and the replacement of `kernel<<<grid, block>>>(arguments)`.
#pragma once
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include "abi.h"
#include "errors.h"

namespace simt {
inline namespace SIMT_ABI {

// Calls a kernel for one thread, with arguments given by their addresses as cudaLaunchKernel takes them.
template <class... P>
struct Call {
    void (*kernel)(P...);
    void** arguments;

    template <size_t... i>
    SIMT_UNSEEN static void run(const Call& call, std::index_sequence<i...>) {
        call.kernel(*static_cast<std::remove_reference_t<P>*>(call.arguments[i])...);
    }
    SIMT_UNSEEN static void invoke(void* context) {
        run(*static_cast<Call*>(context), std::index_sequence_for<P...>());
    }
};

// The arguments between <<< and >>>.
struct Configuration {
    dim3 grid, block;
    size_t dynamic_shared;
    const char* file;
    int line;
    Configuration(dim3 grid, dim3 block, size_t dynamic_shared = 0, cudaStream_t = nullptr, SIMT_HERE)
        : grid(grid), block(block), dynamic_shared(dynamic_shared), file(file), line(line) {}
};

template <class... P>
int launch_typed(const Configuration& c, void (*kernel)(P...), void** arguments) {
    Call<P...> call{kernel, arguments};
    return launch({reinterpret_cast<const void*>(kernel), &Call<P...>::invoke, &call, c.grid, c.block,
                   c.dynamic_shared, c.file, c.line, nullptr});
}

// Is a kernel's name a function, or does it become one only by its arguments (a template left to be deduced)?
struct Taker {
    template <class... P>
    static auto take(void (*kernel)(P...)) -> void (*)(P...) {
        return kernel;
    }
};

template <class Take, class Apply>
struct Prepared {
    Configuration configuration;
    Take take;
    Apply apply;
    const char* name;

    template <class... A>
    void operator()(A&&... arguments) const {
        if constexpr (std::is_invocable<Take, Taker>::value)
            convert(take(Taker()), std::forward<A>(arguments)...);
        else
            deduce(std::decay_t<A>(std::forward<A>(arguments))...);
    }

   private:
    template <class... P, class... A>
    void convert(void (*kernel)(P...), A&&... arguments) const {
        static_assert(sizeof...(P) == sizeof...(A), "a launch gives all of a kernel's arguments");
        std::tuple<std::remove_cv_t<P>...> values(std::forward<A>(arguments)...);
        with_addresses(kernel, values, std::index_sequence_for<P...>());
    }
    template <class... P, class Values, size_t... i>
    void with_addresses(void (*kernel)(P...), Values& values, std::index_sequence<i...>) const {
        void* addresses[] = {const_cast<void*>(static_cast<const void*>(&std::get<i>(values)))..., nullptr};
        launch_typed(configuration, kernel, addresses);
    }
    template <class... A>
    void deduce(A... arguments) const {
        void* addresses[] = {static_cast<void*>(&arguments)..., nullptr};
        Deduced<A...> call{&apply, addresses};
        const Configuration& c = configuration;
        launch({nullptr, &Deduced<A...>::invoke, &call, c.grid, c.block, c.dynamic_shared, c.file, c.line, name});
    }
    template <class... A>
    struct Deduced {
        const Apply* apply;
        void** arguments;
        template <size_t... i>
        SIMT_UNSEEN static void run(const Deduced& call, std::index_sequence<i...>) {
            (*call.apply)(*static_cast<A*>(call.arguments[i])...);
        }
        SIMT_UNSEEN static void invoke(void* context) {
            run(*static_cast<Deduced*>(context), std::index_sequence_for<A...>());
        }
    };
};

template <class Take, class Apply>
Prepared<Take, Apply> prepare(Configuration configuration, Take take, Apply apply, const char* name) {
    return {configuration, take, apply, name};
}

}  // namespace SIMT_ABI
}  // namespace simt

// KERNEL is in parentheses: (name), (ns::name<4, float>).
#define SIMT_LAUNCH(KERNEL, ...)                                                                          \
    ::simt::prepare(                                                                                      \
        ::simt::Configuration(__VA_ARGS__),                                                               \
        [&](auto simt_taker) -> decltype(simt_taker.take KERNEL) { return simt_taker.take KERNEL; },      \
        [&](auto... simt_arguments) __attribute__((no_sanitize("thread"))) { KERNEL(simt_arguments...); }, \
        #KERNEL)

template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** arguments, size_t shared_bytes = 0,
                             cudaStream_t stream = nullptr, SIMT_HERE) {
    const simt::Configuration configuration(grid, block, shared_bytes, stream, file, line);
    return (cudaError_t)simt::launch_typed(configuration, kernel, arguments);
}
// An untyped pointer does not tell the types of the arguments: pass the kernel itself.
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes = 0,
                             cudaStream_t stream = nullptr) = delete;
