// The last header before a kernel's text: Metal's keywords, and words that the text may not use.
//
// Address spaces mean nothing here; address/ checks them. Threadgroup arrays are rewritten
// before the text comes here.
#pragma once

#define kernel
#define device
#define constant const
#define thread
#define threadgroup

#define __METAL_VERSION__ EMU_METAL_VERSION

#pragma GCC poison double std goto try catch throw virtual dynamic_cast typeid new delete
#pragma GCC poison printf malloc free asm
