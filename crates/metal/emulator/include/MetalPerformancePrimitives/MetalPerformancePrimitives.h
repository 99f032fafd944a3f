#pragma once
#include "../emu/matmul.h"
