#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(EMU_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(EMU_RACES)
// Declared here because compilers ship the header with different contents.
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

// Saves the registers that a callee keeps, swaps stacks, restores. The control words of the
// floating-point units are never changed by a kernel.
extern "C" void emu_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, %function
emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch, .-emu_switch
)");
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

namespace emu {

namespace {
#if defined(EMU_ADDRESS)
// Who switched last: what an entered fiber tells the sanitizer about.
Fiber* came_from = nullptr;
#endif
}  // namespace

void allocate(Fiber& fiber, size_t size, unsigned index) {
    constexpr size_t page = 4096;
    void* memory = mmap(nullptr, size + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        std::fprintf(stderr, "emulation: no memory for the stack of lane %u\n", index);
        std::_Exit(3);
    }
    fiber.stack = static_cast<unsigned char*>(memory) + page;
    fiber.size = size;
#if defined(EMU_RACES)
    fiber.detector = __tsan_create_fiber(0);
#endif
}

void restart(Fiber& fiber, void (*entry)(), unsigned index) {
    // Tops are staggered: stacks of one size would otherwise share their cache sets.
    uintptr_t top = reinterpret_cast<uintptr_t>(fiber.stack) + fiber.size - 64 * (index % 32);
    top &= ~uintptr_t{63};
    void** sp = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
    // After the return to the entry, the stack is as after a call: 8 beyond a multiple of 16.
    *--sp = nullptr;
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
#else
    sp -= 20;
    for (int i = 0; i < 20; i++) sp[i] = nullptr;
    sp[11] = reinterpret_cast<void*>(entry);
#endif
    fiber.sp = sp;
    fiber.fake_stack = nullptr;
}

void adopt(Fiber& fiber) {
#if defined(EMU_RACES)
    fiber.detector = __tsan_get_current_fiber();
#endif
    (void)fiber;
}

void switch_to(Fiber& from, Fiber& to, bool last) {
    (void)last;
#if defined(EMU_ADDRESS)
    came_from = &from;
    __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.size);
#endif
#if defined(EMU_RACES)
    // 1: the switch orders nothing.
    __tsan_switch_to_fiber(to.detector, 1);
#endif
    emu_switch(&from.sp, to.sp);
#if defined(EMU_ADDRESS)
    const void* stack = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(from.fake_stack, &stack, &size);
    // The first stack is the thread's, which only the sanitizer knows.
    if (came_from->stack == nullptr) {
        came_from->stack = const_cast<unsigned char*>(static_cast<const unsigned char*>(stack));
        came_from->size = size;
    }
#endif
}

void entered() {
#if defined(EMU_ADDRESS)
    const void* stack = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &size);
    if (came_from->stack == nullptr) {
        came_from->stack = const_cast<unsigned char*>(static_cast<const unsigned char*>(stack));
        came_from->size = size;
    }
#endif
}

#if defined(EMU_RACES)
void release(void* clock) { __tsan_release(clock); }
void acquire(void* clock) { __tsan_acquire(clock); }
#else
void release(void*) {}
void acquire(void*) {}
#endif

}  // namespace emu
