// Barriers, the functions of a simdgroup, and a lane's positions.
//
// Every lane of the scope must come to the same call; a missing or diverging lane is a fault,
// though Metal lets the active lanes go on. No function but a barrier orders memory.
#pragma once
#include "math.h"

namespace metal {

enum class mem_flags : uint {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_texture = 4,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
    return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

inline void threadgroup_barrier(mem_flags flags,
                                emu::Site site = emu::here("threadgroup_barrier")) {
    emu::barrier(emu::Scope::threadgroup, site, flags != mem_flags::mem_none);
}
inline void simdgroup_barrier(mem_flags flags, emu::Site site = emu::here("simdgroup_barrier")) {
    emu::barrier(emu::Scope::simdgroup, site, flags != mem_flags::mem_none);
}

}  // namespace metal

namespace emu {

template <typename T> struct IsSimd : std::false_type {};
template <> struct IsSimd<float> : std::true_type {};
template <> struct IsSimd<metal::half> : std::true_type {};
template <> struct IsSimd<int> : std::true_type {};
template <> struct IsSimd<metal::uint> : std::true_type {};
template <> struct IsSimd<short> : std::true_type {};
template <> struct IsSimd<metal::ushort> : std::true_type {};
template <> struct IsSimd<char> : std::true_type {};
template <> struct IsSimd<metal::uchar> : std::true_type {};
template <typename T, int N> struct IsSimd<metal::vec<T, N>> : IsSimd<T> {};

/// What all lanes of the simdgroup brought.
template <typename T> class Brought {
    const unsigned char* table_;

  public:
    Brought(Site site, const T& mine) {
        static_assert(IsSimd<T>::value,
                      "simdgroup functions take float, half, 8, 16 and 32-bit integers and "
                      "vectors of them");
        static_assert(sizeof(T) <= kSlot);
        table_ = exchange(site, &mine, sizeof mine);
    }
    T operator[](uint32_t lane) const {
        T value;
        __builtin_memcpy(&value, table_ + lane * kSlot, sizeof value);
        return value;
    }
};

/// A fold over all lanes, by a tree: neighbours first.
template <typename T, typename F> inline T fold(Site site, const T& mine, F f) {
    const Brought<T> all(site, mine);
    T part[kLanes];
    for (uint32_t i = 0; i < kLanes; i++) part[i] = all[i];
    for (uint32_t width = kLanes / 2; width > 0; width /= 2) {
        for (uint32_t i = 0; i < width; i++) part[i] = f(part[2 * i], part[2 * i + 1]);
    }
    return part[0];
}

template <typename T, typename F> inline T prefix(Site site, const T& mine, F f, uint32_t count,
                                                  T identity) {
    const Brought<T> all(site, mine);
    T sum = identity;
    for (uint32_t i = 0; i < count; i++) sum = f(sum, all[i]);
    return sum;
}

/// The lane that a call names must exist, and be the same for all.
inline void check_lane(Site site, long lane) {
    if (lane < 0 || lane >= static_cast<long>(kLanes))
        fail(site, "%s of lane %ld; a simdgroup has lanes 0 to 31", site.call, lane);
}

}  // namespace emu

namespace metal {

#define EMU_FOLD(name, expression)                                                               \
    template <typename T> inline T name(T x, emu::Site site = emu::here(#name)) {                \
        return emu::fold(site, x, [](T a, T b) { return T(expression); });                       \
    }
EMU_FOLD(simd_sum, a + b)
EMU_FOLD(simd_product, a * b)
// As min and max, these skip NaN.
EMU_FOLD(simd_min, min(a, b))
EMU_FOLD(simd_max, max(a, b))
EMU_FOLD(simd_and, a & b)
EMU_FOLD(simd_or, a | b)
EMU_FOLD(simd_xor, a ^ b)
#undef EMU_FOLD

template <typename T>
inline T simd_prefix_inclusive_sum(T x, emu::Site site = emu::here("simd_prefix_inclusive_sum")) {
    return emu::prefix(site, x, [](T a, T b) { return T(a + b); }, emu::self->lane + 1, T(0));
}
template <typename T>
inline T simd_prefix_exclusive_sum(T x, emu::Site site = emu::here("simd_prefix_exclusive_sum")) {
    return emu::prefix(site, x, [](T a, T b) { return T(a + b); }, emu::self->lane, T(0));
}

template <typename T>
inline T simd_broadcast(T x, ushort lane, emu::Site site = emu::here("simd_broadcast")) {
    emu::check_lane(site, lane);
    emu::agree(emu::Scope::simdgroup, site, &lane, sizeof lane);
    return emu::Brought<T>(site, x)[lane];
}
template <typename T>
inline T simd_broadcast_first(T x, emu::Site site = emu::here("simd_broadcast_first")) {
    return emu::Brought<T>(site, x)[0];
}
template <typename T>
inline T simd_shuffle(T x, ushort lane, emu::Site site = emu::here("simd_shuffle")) {
    emu::check_lane(site, lane);
    return emu::Brought<T>(site, x)[lane];
}
template <typename T>
inline T simd_shuffle_xor(T x, ushort mask, emu::Site site = emu::here("simd_shuffle_xor")) {
    emu::check_lane(site, mask);
    emu::agree(emu::Scope::simdgroup, site, &mask, sizeof mask);
    return emu::Brought<T>(site, x)[emu::self->lane ^ mask];
}
// A lane that is none leaves the value undefined: poison.
template <typename T>
inline T simd_shuffle_up(T x, ushort delta, emu::Site site = emu::here("simd_shuffle_up")) {
    const emu::Brought<T> all(site, x);
    return emu::self->lane >= delta ? all[emu::self->lane - delta] : emu::poisoned<T>();
}
template <typename T>
inline T simd_shuffle_down(T x, ushort delta, emu::Site site = emu::here("simd_shuffle_down")) {
    const emu::Brought<T> all(site, x);
    return emu::self->lane + delta < emu::kLanes ? all[emu::self->lane + delta]
                                                 : emu::poisoned<T>();
}
template <typename T>
inline T simd_shuffle_rotate_down(T x, ushort delta,
                                  emu::Site site = emu::here("simd_shuffle_rotate_down")) {
    return emu::Brought<T>(site, x)[(emu::self->lane + delta) % emu::kLanes];
}
template <typename T>
inline T simd_shuffle_rotate_up(T x, ushort delta,
                                emu::Site site = emu::here("simd_shuffle_rotate_up")) {
    return emu::Brought<T>(site, x)[(emu::self->lane + emu::kLanes - delta % emu::kLanes) %
                                    emu::kLanes];
}
inline bool simd_any(bool x, emu::Site site = emu::here("simd_any")) {
    return emu::fold(site, uint(x), [](uint a, uint b) { return a | b; }) != 0;
}
inline bool simd_all(bool x, emu::Site site = emu::here("simd_all")) {
    return emu::fold(site, uint(x), [](uint a, uint b) { return a & b; }) != 0;
}
inline bool simd_is_first() { return emu::self->lane == 0; }

}  // namespace metal

namespace emu {

/// A buffer argument `device T* p [[buffer(n)]]`.
template <typename T> inline T* pointer(int index) {
    return static_cast<T*>(buffer(index, 0));
}
/// An argument `constant T& x [[buffer(n)]]`.
template <typename T> inline T& reference(int index) {
    return *static_cast<T*>(buffer(index, sizeof(T)));
}

// Positions, as uint, ushort or vectors of them.
template <typename T> struct Position {
    static T of(const uint32_t (&at)[3]) { return T(at[0]); }
};
template <typename T> struct Position<metal::vec<T, 2>> {
    static metal::vec<T, 2> of(const uint32_t (&at)[3]) { return {T(at[0]), T(at[1])}; }
};
template <typename T> struct Position<metal::vec<T, 3>> {
    static metal::vec<T, 3> of(const uint32_t (&at)[3]) {
        return {T(at[0]), T(at[1]), T(at[2])};
    }
};

namespace builtin {
template <typename T> T threadgroup_position_in_grid(const Lane& l) {
    return Position<T>::of(l.group);
}
template <typename T> T threadgroups_per_grid(const Lane& l) { return Position<T>::of(l.groups); }
template <typename T> T threads_per_threadgroup(const Lane& l) {
    return Position<T>::of(l.threads);
}
template <typename T> T thread_position_in_threadgroup(const Lane& l) {
    return Position<T>::of(l.position);
}
template <typename T> T thread_position_in_grid(const Lane& l) {
    const uint32_t at[3] = {l.group[0] * l.threads[0] + l.position[0],
                            l.group[1] * l.threads[1] + l.position[1],
                            l.group[2] * l.threads[2] + l.position[2]};
    return Position<T>::of(at);
}
template <typename T> T threads_per_grid(const Lane& l) {
    const uint32_t at[3] = {l.groups[0] * l.threads[0], l.groups[1] * l.threads[1],
                            l.groups[2] * l.threads[2]};
    return Position<T>::of(at);
}
template <typename T> T thread_index_in_threadgroup(const Lane& l) { return T(l.thread); }
template <typename T> T thread_index_in_simdgroup(const Lane& l) { return T(l.lane); }
template <typename T> T simdgroup_index_in_threadgroup(const Lane& l) { return T(l.simdgroup); }
template <typename T> T simdgroups_per_threadgroup(const Lane& l) { return T(l.simdgroups); }
template <typename T> T threads_per_simdgroup(const Lane&) { return T(kLanes); }
}  // namespace builtin

}  // namespace emu
