// Switches between stacks: saves the registers that a function preserves, and no others.
#pragma once
#include <cstring>

extern "C" void dagpu_switch(void** save, void* to);

#if defined(__x86_64__)
asm(R"(.text
.globl dagpu_switch
.hidden dagpu_switch
.type dagpu_switch,@function
dagpu_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret
.size dagpu_switch,.-dagpu_switch
)");
// A stack from which the first switch calls `entry`.
static void* fresh_stack(char* top, void (*entry)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
// Below this address functions with -fsplit-stack call __morestack (the word of a thread that GCC and clang have for it).
static inline void limit_stack(u64 lowest) { asm volatile("movq %0,%%fs:0x70" : : "r"(lowest) : "memory"); }
// Calls a thunk, and relies on no register afterwards: the text may have written over what it saved of them.
static inline __attribute__((always_inline)) void call_alone(void (*thunk)(const void*), const void* arguments) {
    asm volatile("call *%0" : "+a"(thunk), "+D"(arguments) :
                 : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc",
                   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                   "xmm12", "xmm13", "xmm14", "xmm15");
}
#elif defined(__aarch64__)
asm(R"(.text
.globl dagpu_switch
.hidden dagpu_switch
.type dagpu_switch,%function
dagpu_switch:
 sub sp,sp,#176
 stp x19,x20,[sp,#0]; stp x21,x22,[sp,#16]; stp x23,x24,[sp,#32]; stp x25,x26,[sp,#48]; stp x27,x28,[sp,#64]
 stp x29,x30,[sp,#80]
 stp d8,d9,[sp,#96]; stp d10,d11,[sp,#112]; stp d12,d13,[sp,#128]; stp d14,d15,[sp,#144]
 mov x9,sp
 str x9,[x0]
 mov sp,x1
 ldp x19,x20,[sp,#0]; ldp x21,x22,[sp,#16]; ldp x23,x24,[sp,#32]; ldp x25,x26,[sp,#48]; ldp x27,x28,[sp,#64]
 ldp x29,x30,[sp,#80]
 ldp d8,d9,[sp,#96]; ldp d10,d11,[sp,#112]; ldp d12,d13,[sp,#128]; ldp d14,d15,[sp,#144]
 add sp,sp,#176
 ret
)");
static void* fresh_stack(char* top, void (*entry)()) {
    void** sp = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15}) - 176);
    memset(sp, 0, 176);
    sp[11] = reinterpret_cast<void*>(entry);
    return sp;
}
static inline void limit_stack(u64) {}
static inline void call_alone(void (*thunk)(const void*), const void* arguments) { thunk(arguments); }
#else
#error "CUDA texts run on x86-64 and aarch64 alone"
#endif
