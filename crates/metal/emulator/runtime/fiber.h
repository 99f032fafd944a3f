// Fibers: a stack and a switch. The sanitizers are told of every switch.
#pragma once
#include <cstddef>

namespace emu {

struct Fiber {
    void* sp = nullptr;
    unsigned char* stack = nullptr;
    size_t size = 0;
    void* detector = nullptr;   // the race detector's fiber
    void* fake_stack = nullptr; // the address sanitizer's
};

/// Gives a fiber a stack with an unmapped page below it. Once per fiber.
void allocate(Fiber& fiber, size_t size, unsigned index);

/// Makes the fiber start at `entry` when it is next switched to.
void restart(Fiber& fiber, void (*entry)(), unsigned index);

/// Makes a fiber of the thread that runs.
void adopt(Fiber& fiber);

/// Runs `to` until something switches back. `last`: `from` is never resumed before a restart.
void switch_to(Fiber& from, Fiber& to, bool last);

/// To be called first thing in an entry.
void entered();

// The race detector's clocks; nothing in builds without it.
void release(void* clock);
void acquire(void* clock);

}  // namespace emu
