// The border between a kernel's text and the scheduler: who a lane is, and where lanes meet.
//
// Kernels are compiled with sanitizers, the scheduler (runtime/) without the race detector. What
// one lane hands to another goes through the scheduler, so that the detector sees no access
// there: collectives move values and order nothing. Only barriers order lanes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

/// Where a kernel calls something that can fail or that lanes do together.
struct Site {
    const char* call;
    const char* file;
    int line;
};

/// The site of a call. As a default argument it is the place of the outermost call.
constexpr Site here(const char* call, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
    return {call, file, line};
}

/// Lanes of a simdgroup.
constexpr uint32_t kLanes = 32;
/// Most bytes that a lane hands over at a meeting.
constexpr size_t kSlot = 64;

/// What a lane knows of itself. Positions are x, y, z.
struct Lane {
    uint32_t thread;
    uint32_t lane;
    uint32_t simdgroup;
    uint32_t simdgroups;
    uint32_t group[3];
    uint32_t groups[3];
    uint32_t position[3];
    uint32_t threads[3];
};

/// The lane that runs.
extern const Lane* self;

/// Who meets.
enum class Scope : unsigned char { simdgroup, threadgroup };

/// Waits for all lanes of the scope. With `fence`, orders their accesses.
void barrier(Scope scope, Site site, bool fence);

/// Waits for all lanes of the simdgroup; gives what each of them brought, `kSlot` bytes apart by
/// lane, until the lane comes to its next meeting.
const unsigned char* exchange(Site site, const void* data, size_t size);

/// Waits for all lanes of the scope; they must have brought equal bytes.
void agree(Scope scope, Site site, const void* data, size_t size);

/// Ends the process with a sentence that names the lane and the line.
[[noreturn]] void fail(Site site, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// What memory holds before anyone writes it: 0 for NaN, 1 for a large finite number. It
/// changes from run to run, because folds by maximum skip NaN.
extern int poison;

/// Storage of a threadgroup array, the same for all lanes that come to this line; poisoned when
/// the first one comes. `kind` says what a NaN of the element is.
enum class Kind : unsigned char { f32, f16, bf16, other };
void* threadgroup_storage(int line, size_t bytes, size_t align, Kind kind);

/// Argument `[[buffer(index)]]` or `[[threadgroup(index)]]` of this launch; `bytes` is the least
/// that its type needs.
void* buffer(int index, size_t bytes);
void* threadgroup_argument(int index);

}  // namespace emu
