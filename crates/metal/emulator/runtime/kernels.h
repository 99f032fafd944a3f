// The kernels of this program, listed by the translation unit that holds their text.
#pragma once
#include <cstdint>

#include "../include/emu/lane.h"

namespace emu {

struct Kernel {
    const char* name;
    void (*run)(const Lane&);
    uint32_t threads; // per group, or 0 where the text doesn't say
};

extern const Kernel kernels[];
extern const int kernel_count;

}  // namespace emu
