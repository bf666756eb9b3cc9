// printf of a kernel's threads: what they print is given to the caller when the launch is over.
#include <cstdio>
#include "runtime.h"

constexpr size_t MOST_PRINTED = 1 << 20;  // bytes, as CUDA's own buffer
struct Value { u32 kind; union { const char* text; double number; long long whole; }; };  // 0 text, 1 number, 2 whole

// Formats one value by a conversion of C, without its length: the value knows what it is.
static void print_value(std::string& to, std::string form, char conversion, const Value& v) {
    char made[512];
    const double number = v.kind == 1 ? v.number : static_cast<double>(v.whole);
    const long long whole = v.kind == 1 ? static_cast<long long>(v.number) : v.whole;
    if (conversion == 's') snprintf(made, sizeof made, (form + "s").c_str(), v.kind == 0 ? v.text : "(no text)");
    else if (conversion == 'c') snprintf(made, sizeof made, (form + "c").c_str(), static_cast<int>(whole));
    else if (conversion == 'p') snprintf(made, sizeof made, "%p", reinterpret_cast<void*>(whole));
    else if (strchr("diouxX", conversion)) snprintf(made, sizeof made, (form + "ll" + conversion).c_str(), whole);
    else snprintf(made, sizeof made, (form + conversion).c_str(), number);
    to += made;
}
// An unsigned conversion of a negative int has the int's bits.
static Value in_width(Value v, char conversion, int longs) {
    if (v.kind == 2 && !longs && strchr("ouxX", conversion)) v.whole = static_cast<u32>(v.whole);
    return v;
}
#pragma GCC visibility push(default)
extern "C" int dagpu_print(const char* form, const Value* values, u32 count) {
    Worker& w = *worker;
    const bool checked = w.launch->in->checked;
    if (checked) check_text(form, CALLER);
    std::string made;
    u32 used = 0;
    for (const char* c = form; *c; ++c) {
        if (*c != '%') { made += *c; continue; }
        if (c[1] == '%') { made += *c++; continue; }
        std::string flags = "%";
        int longs = 0;
        for (++c; *c && strchr("-+ #0123456789.*hlLzjt", *c); ++c) {
            if (*c == '*') flags += std::to_string(used < count ? values[used].whole : 0), ++used;
            else if (strchr("hlLzjt", *c)) longs += *c != 'h';
            else flags += *c;
        }
        if (!*c || !strchr("diouxXcspeEfFgGaA", *c) || flags.size() > 32) break;
        if (used >= count) { made += "(no value)"; continue; }
        const Value v = in_width(values[used++], *c, longs);
        if (v.kind == 0 && checked && *c == 's') check_text(v.text, CALLER);
        print_value(made, flags, *c, v);
    }
    std::lock_guard<std::mutex> lock(w.launch->printing);
    if (w.launch->printed.size() < MOST_PRINTED) w.launch->printed += made;
    return static_cast<int>(used);
}
#pragma GCC visibility pop
