// The entry of a kernel's library: reads the packed parameters of a launch by the types of the kernel's own.
#pragma once

#define DAGPU_SHOWN __attribute__((visibility("default")))
namespace dagpu_emulated {
template <class T> T take(const unsigned char* packed, std::size_t& at) {
    at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
    typename std::remove_cv<T>::type value;
    std::memcpy((void*)&value, packed + at, sizeof(T));
    at += sizeof(T);
    return value;
}
template <class... A> struct Arguments {
    void (*kernel)(A...);
    std::tuple<std::decay_t<A>...> values;
};
template <class... A> DAGPU_QUIET void call(const void* p) {
    const Arguments<A...>& a = *static_cast<const Arguments<A...>*>(p);
    std::apply(a.kernel, a.values);
}
// Returns the bytes that the kernel takes, or nothing where its arguments need more than `room`.
template <class... A> DAGPU_QUIET std::size_t unpack(void (*kernel)(A...), const unsigned char* packed, void (**thunk)(const void*), void* arguments, std::size_t room) {
    if (sizeof(Arguments<A...>) > room) return 0;
    std::size_t at = 0;
    new (arguments) Arguments<A...>{kernel, std::tuple<std::decay_t<A>...>{take<std::decay_t<A>>(packed, at)...}};
    *thunk = &call<A...>;
    return at;
}
}  // namespace dagpu_emulated
#define DAGPU_ENTRY(kernel)                                                                                       \
    extern "C" DAGPU_QUIET DAGPU_SHOWN std::size_t dagpu_entry(const unsigned char* packed, void (**thunk)(const void*),      \
                                                   void* arguments, std::size_t room) {                           \
        return dagpu_emulated::unpack(kernel, packed, thunk, arguments, room);                                    \
    }
#define DAGPU_DYNAMIC_MEMORY(bytes)                                                                                \
    extern "C" {                                                                                                   \
    __thread __attribute__((aligned(128))) char dagpu_dynamic_memory[bytes] __asm("dagpu_dynamic");                \
    DAGPU_QUIET DAGPU_SHOWN void dagpu_dynamic_of_thread(void** begin) { *begin = dagpu_dynamic_memory; }                      \
    }
