// Runs the lanes of one threadgroup after another.
#pragma once
#include <cstdint>

#include "../include/emu/lane.h"

namespace emu {

/// Which lane runs when several can.
enum class Order {
    round,    // the next higher one
    lowest,   // the lowest: the first simdgroup runs ahead
    highest,  // the highest: the last simdgroup runs ahead
    shuffled, // any, from a seed
};

struct Launch {
    void (*kernel)(const Lane&);
    uint32_t groups[3];
    uint32_t threads[3];
    Order order;
    uint64_t seed;
};

/// Threadgroup arguments of the host: bytes by index, 0 where there is none.
constexpr int kThreadgroupArguments = 4;
extern uint32_t threadgroup_bytes[kThreadgroupArguments];

/// Prepares as many lanes as a group of the launch has.
void prepare(const Launch& launch);

/// Runs one group to its end.
void run_group(const Launch& launch, const uint32_t (&group)[3]);

/// After the last group of a launch: what the lanes did is visible here.
void finish_launch();

/// What is printed before the sentence of a failure: the kernel's name.
extern const char* context;

}  // namespace emu
