// Threadgroup memory of the group that runs.
#pragma once
#include "../include/emu/lane.h"

namespace emu {

void begin_arena();
/// Looks whether anything between the arrays was written; `lane` names the group.
void end_arena(const Lane& lane);

}  // namespace emu
