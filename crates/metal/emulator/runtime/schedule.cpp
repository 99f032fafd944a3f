// The scheduler: meetings of lanes, their order, and what can be wrong with either.

#include "schedule.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "arena.h"
#include "fiber.h"

namespace emu {

const Lane* self = nullptr;
int poison = 0;
const char* context = "";

namespace {

constexpr uint32_t kMost = 1024;
constexpr uint32_t kMostSimdgroups = kMost / kLanes;
#if defined(EMU_ADDRESS) || defined(EMU_RACES)
constexpr size_t kStack = 256 << 10;
#else
constexpr size_t kStack = 128 << 10;
#endif

enum class Status : unsigned char { ready, waiting, done };

// A meeting that lanes are coming to, or none where nobody has arrived. Two generations are told
// apart by parity: a lane can be one meeting ahead of another, never two.
struct Meeting {
    Site site;
    uint32_t first;
    uint32_t arrived;
    uint32_t members;
    uint32_t begin;
    uint32_t done;
    unsigned generation;
    size_t size;
    unsigned char brought[kSlot];
    long clock[2];
};

struct State {
    Fiber fiber;
    Lane lane;
    Status status;
    Meeting* at;
};

State states[kMost];
Fiber outside;
Meeting group_meeting;
Meeting simdgroup_meetings[kMostSimdgroups];
alignas(64) unsigned char table[kMostSimdgroups][2][kLanes][kSlot];
uint64_t ready[kMost / 64];
uint32_t total = 0;
uint32_t prepared = 0;
uint32_t finished = 0;
const Launch* launch_now = nullptr;
uint64_t random_state = 0;
long start_clock = 0;
long end_clock = 0;

uint64_t random_bits() {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void set_ready(uint32_t lane) { ready[lane / 64] |= uint64_t{1} << (lane % 64); }
void clear_ready(uint32_t lane) { ready[lane / 64] &= ~(uint64_t{1} << (lane % 64)); }

// The lowest lane from `from` on that can run, or `total`.
uint32_t first_ready(uint32_t from) {
    const uint32_t words = (total + 63) / 64;
    for (uint32_t word = from / 64; word < words; word++) {
        uint64_t bits = ready[word];
        if (word == from / 64) bits &= ~uint64_t{0} << (from % 64);
        if (bits != 0) return word * 64 + static_cast<uint32_t>(__builtin_ctzll(bits));
    }
    return total;
}

uint32_t last_ready() {
    for (uint32_t word = (total + 63) / 64; word-- > 0;) {
        if (ready[word] != 0)
            return word * 64 + 63 - static_cast<uint32_t>(__builtin_clzll(ready[word]));
    }
    return total;
}

// The lane to run next, or `total` where none can.
uint32_t choose(uint32_t now) {
    switch (launch_now->order) {
        case Order::lowest: return first_ready(0);
        case Order::highest: return last_ready();
        case Order::round: {
            const uint32_t next = first_ready(now + 1 == total ? 0 : now + 1);
            return next == total ? first_ready(0) : next;
        }
        case Order::shuffled: {
            const uint32_t from = static_cast<uint32_t>(random_bits() % total);
            const uint32_t next = first_ready(from);
            return next == total ? first_ready(0) : next;
        }
    }
    return total;
}

[[noreturn]] void stop(const Lane& lane, const char* file, int line, const char* text) {
    std::fprintf(stderr, "emulation: %s: group (%u, %u, %u), thread %u, %s:%d: %s\n", context,
                 lane.group[0], lane.group[1], lane.group[2], lane.thread, file, line, text);
    std::fflush(stderr);
    std::_Exit(2);
}

// Nobody can run, and not all are done: names two lanes that wait for each other.
[[noreturn]] void stuck() {
    const State* first = nullptr;
    for (uint32_t i = 0; i < total; i++) {
        const State& state = states[i];
        if (state.status != Status::waiting) continue;
        if (first == nullptr) {
            first = &state;
        } else if (state.at != first->at) {
            const Site a = first->at->site, b = state.at->site;
            char text[256];
            std::snprintf(text, sizeof text,
                          "waits at %s forever: thread %u waits at %s, line %d", a.call,
                          state.lane.thread, b.call, b.line);
            stop(first->lane, a.file, a.line, text);
        }
    }
    const Site a = first->at->site;
    stop(first->lane, a.file, a.line, "waits forever: not all threads of its scope came");
}

void resume(uint32_t now, bool last) {
    const uint32_t next = choose(now);
    if (next == total) {
        if (finished != total) stuck();
        self = nullptr;
        switch_to(states[now].fiber, outside, true);
    } else if (next != now) {
        self = &states[next].lane;
        switch_to(states[now].fiber, states[next].fiber, last);
    }
}

Meeting& meeting(Scope scope) {
    return scope == Scope::threadgroup ? group_meeting : simdgroup_meetings[self->simdgroup];
}

// Arrives, and comes back when all have. Returns the meeting's parity.
unsigned arrive(Meeting& m, Site site, const void* data, size_t size, bool fence, bool same) {
    const uint32_t now = self->thread;
    if (m.done != 0) {
        for (uint32_t i = m.begin; i < m.begin + m.members; i++) {
            if (states[i].status == Status::done)
                fail(site, "%s after thread %u returned", site.call, i);
        }
    }
    const unsigned char* bytes = static_cast<const unsigned char*>(data);
    if (m.arrived == 0) {
        m.site = site;
        m.first = now;
        m.size = size;
        for (size_t i = 0; i < size && same; i++) m.brought[i] = bytes[i];
    } else if (m.site.line != site.line || std::strcmp(m.site.call, site.call) != 0) {
        fail(site, "%s while thread %u waits at %s, line %d: all threads of the scope must come "
             "to the same place", site.call, m.first, m.site.call, m.site.line);
    } else {
        bool equal = m.size == size;
        for (size_t i = 0; i < size && same; i++) equal = equal && m.brought[i] == bytes[i];
        if (!equal) fail(site, "%s with arguments that differ from thread %u's", site.call, m.first);
    }
    const unsigned parity = m.generation & 1;
    if (fence) release(&m.clock[parity]);
    m.arrived++;
    State& state = states[now];
    if (m.arrived == m.members) {
        m.arrived = 0;
        m.generation++;
        for (uint32_t i = m.begin; i < m.begin + m.members; i++) {
            states[i].status = Status::ready;
            states[i].at = nullptr;
            set_ready(i);
        }
    } else {
        state.status = Status::waiting;
        state.at = &m;
        clear_ready(now);
    }
    resume(now, false);
    if (fence) acquire(&m.clock[parity]);
    return parity;
}

void leave() {
    const uint32_t now = self->thread;
    for (Meeting* m : {&simdgroup_meetings[self->simdgroup], &group_meeting}) {
        if (m->arrived != 0) {
            char text[256];
            std::snprintf(text, sizeof text, "waits at %s, but thread %u has returned",
                          m->site.call, now);
            stop(states[m->first].lane, m->site.file, m->site.line, text);
        }
        m->done++;
    }
    release(&end_clock);
    states[now].status = Status::done;
    clear_ready(now);
    finished++;
    resume(now, true);
}

void entry() {
    entered();
    acquire(&start_clock);
    launch_now->kernel(*self);
    leave();
    std::abort();
}

}  // namespace

void fail(Site site, const char* format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    stop(*self, site.file, site.line, text);
}

void barrier(Scope scope, Site site, bool fence) {
    arrive(meeting(scope), site, nullptr, 0, fence, false);
}

const unsigned char* exchange(Site site, const void* data, size_t size) {
    Meeting& m = simdgroup_meetings[self->simdgroup];
    const uint32_t simdgroup = self->simdgroup;
    unsigned char* slot = table[simdgroup][m.generation & 1][self->lane];
    const unsigned char* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; i++) slot[i] = bytes[i];
    const unsigned parity = arrive(m, site, data, size, false, false);
    return table[simdgroup][parity][0];
}

void agree(Scope scope, Site site, const void* data, size_t size) {
    arrive(meeting(scope), site, data, size, false, true);
}

void prepare(const Launch& launch) {
    total = launch.threads[0] * launch.threads[1] * launch.threads[2];
    if (total == 0 || total > kMost || total % kLanes != 0) {
        std::fprintf(stderr, "emulation: %s: %u threads per group; use a multiple of %u up to %u\n",
                     context, total, kLanes, kMost);
        std::_Exit(3);
    }
    adopt(outside);
    for (; prepared < total; prepared++) allocate(states[prepared].fiber, kStack, prepared);
    random_state = launch.seed;
    launch_now = &launch;
}

void run_group(const Launch& launch, const uint32_t (&group)[3]) {
    const uint32_t simdgroups = total / kLanes;
    for (uint32_t s = 0; s <= simdgroups; s++) {
        Meeting& m = s == simdgroups ? group_meeting : simdgroup_meetings[s];
        m.arrived = 0;
        m.done = 0;
        m.begin = s == simdgroups ? 0 : s * kLanes;
        m.members = s == simdgroups ? total : kLanes;
    }
    for (uint32_t i = 0; i < total; i++) {
        State& state = states[i];
        Lane& lane = state.lane;
        lane.thread = i;
        lane.lane = i % kLanes;
        lane.simdgroup = i / kLanes;
        lane.simdgroups = simdgroups;
        uint32_t left = i;
        for (int d = 0; d < 3; d++) {
            lane.group[d] = group[d];
            lane.groups[d] = launch.groups[d];
            lane.threads[d] = launch.threads[d];
            lane.position[d] = left % launch.threads[d];
            left /= launch.threads[d];
        }
        state.status = Status::ready;
        state.at = nullptr;
        set_ready(i);
        restart(state.fiber, entry, i);
    }
    finished = 0;
    begin_arena();
    release(&start_clock);
    const uint32_t first = choose(total - 1);
    self = &states[first].lane;
    switch_to(outside, states[first].fiber, false);
    end_arena(states[0].lane);
}

void finish_launch() { acquire(&end_clock); }

}  // namespace emu
