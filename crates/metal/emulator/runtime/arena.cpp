// Threadgroup arrays lie apart, with no more alignment than their type asks for, and hold poison
// until they are written.

#include "arena.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "schedule.h"

#if defined(EMU_ADDRESS)
#include <sanitizer/asan_interface.h>
#endif

namespace emu {

uint32_t threadgroup_bytes[kThreadgroupArguments] = {};

namespace {

constexpr size_t kLimit = 32768;
constexpr size_t kGap = 32;
constexpr unsigned char kUntouched = 0xc3;
constexpr int kMost = 64;
constexpr size_t kBytes = kLimit + kMost * (2 * kGap + 16);

struct Array {
    int line;
    size_t offset;
    size_t bytes;
};

unsigned char* arena = nullptr;
Array arrays[kMost];
int count = 0;
size_t top = 0;
size_t used = 0;

// Stores that no compiler turns into a call that a sanitizer listens to.
void set(unsigned char* at, size_t bytes, const unsigned char* pattern, size_t period) {
    volatile unsigned char* to = at;
    for (size_t i = 0; i < bytes; i++) to[i] = pattern[i % period];
}

void fill(unsigned char* at, size_t bytes, Kind kind) {
    // Little-endian bits of a quiet NaN, and of 1e36 (f16: 32768).
    static const unsigned char nan32[] = {0, 0, 0xc0, 0x7f}, big32[] = {0xce, 0x97, 0x40, 0x7b};
    static const unsigned char nan16[] = {0, 0x7e}, big16[] = {0, 0x78};
    static const unsigned char nanb[] = {0xc0, 0x7f}, bigb[] = {0x41, 0x7b};
    static const unsigned char odd[] = {0x5a}, other[] = {0xa5};
    switch (kind) {
        case Kind::f32: return set(at, bytes, poison ? big32 : nan32, 4);
        case Kind::f16: return set(at, bytes, poison ? big16 : nan16, 2);
        case Kind::bf16: return set(at, bytes, poison ? bigb : nanb, 2);
        case Kind::other: return set(at, bytes, poison ? other : odd, 1);
    }
}

Array* find(int line) {
    for (int i = 0; i < count; i++) {
        if (arrays[i].line == line) return &arrays[i];
    }
    return nullptr;
}

}  // namespace

void begin_arena() {
#if defined(EMU_RACES)
    // Fresh pages: accesses of the last group must not meet those of this one.
    if (arena != nullptr) munmap(arena, kBytes);
    arena = nullptr;
#endif
    if (arena == nullptr) {
        void* memory =
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            std::fprintf(stderr, "emulation: no memory for threadgroup arrays\n");
            std::_Exit(3);
        }
        arena = static_cast<unsigned char*>(memory);
    }
    count = 0;
    top = 0;
    used = 0;
#if defined(EMU_ADDRESS)
    __asan_poison_memory_region(arena, kBytes);
#endif
}

void* threadgroup_storage(int line, size_t bytes, size_t align, Kind kind) {
    if (const Array* known = find(line)) return arena + known->offset;
    const Site site{"threadgroup array", "line", line};
    used = (used + align - 1) / align * align + bytes;
    if (used > kLimit) fail(site, "%zu bytes of threadgroup memory; a group has %zu", used, kLimit);
    if (count == kMost) fail(site, "more than %d threadgroup arrays", kMost);
    // Aligned to `align` and to no larger power of two up to 16.
    const size_t offset = (top + kGap + 15) / 16 * 16 + (align < 16 ? align : 0);
#if !defined(EMU_ADDRESS)
    // What is after the last array stays as it is, so that a write there is still seen.
    const size_t from = count == 0 ? 0 : top + kGap;
    set(arena + from, offset - from, &kUntouched, 1);
    set(arena + offset + bytes, kGap, &kUntouched, 1);
#else
    __asan_unpoison_memory_region(arena + offset, bytes);
    (void)kUntouched;
#endif
    fill(arena + offset, bytes, kind);
    arrays[count++] = {line, offset, bytes};
    top = offset + bytes;
    return arena + offset;
}

void* threadgroup_argument(int index) {
    if (index < 0 || index >= kThreadgroupArguments || threadgroup_bytes[index] == 0)
        fail({"argument", "kernel", 0}, "no length was set for [[threadgroup(%d)]]", index);
    return threadgroup_storage(-1 - index, threadgroup_bytes[index], 16, Kind::other);
}

void end_arena(const Lane& lane) {
#if !defined(EMU_ADDRESS)
    for (int i = 0; i < count; i++) {
        const Array& array = arrays[i];
        const unsigned char* after = arena + array.offset + array.bytes;
        const unsigned char* before = arena + array.offset - kGap;
        bool intact = true;
        for (size_t k = 0; k < kGap; k++)
            intact = intact && after[k] == kUntouched && (before[k] == kUntouched);
        if (intact) continue;
        std::fprintf(stderr,
                     "emulation: %s: group (%u, %u, %u): memory beside the threadgroup array of "
                     "line %d was written\n",
                     context, lane.group[0], lane.group[1], lane.group[2], array.line);
        std::_Exit(2);
    }
#endif
    (void)lane;
}

}  // namespace emu
