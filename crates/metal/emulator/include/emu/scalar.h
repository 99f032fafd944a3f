// Scalar types. half converts as a built-in type does; bfloat to and from others only where the
// text says so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lane.h"

namespace emu {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

/// To the nearest binary16, ties to even.
inline uint16_t to_half_bits(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x47800000) return sign | 0x7c00;
    uint32_t kept, rest, half_way;
    if (magnitude < 0x38800000) {
        // Below the smallest normal number: 2^-24 is one step.
        const uint32_t exponent = magnitude >> 23;
        if (exponent < 101) return sign;
        const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000, shift = 126 - exponent;
        kept = mantissa >> shift;
        rest = mantissa & ((uint32_t{1} << shift) - 1);
        half_way = uint32_t{1} << (shift - 1);
    } else {
        const uint32_t rebased = magnitude - (uint32_t{112} << 23);
        kept = rebased >> 13;
        rest = rebased & 0x1fff;
        half_way = 0x1000;
    }
    if (rest > half_way || (rest == half_way && (kept & 1) != 0)) kept++;
    return sign | static_cast<uint16_t>(kept);
}

inline float from_half_bits(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31;
    const uint32_t mantissa = h & 0x3ff;
    if (exponent == 31) return float_of(sign | 0x7f800000 | (mantissa << 13));
    if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -small : small;
}

/// To the nearest bfloat16, ties to even.
inline uint16_t to_bfloat_bits(float x) {
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bfloat_bits(uint16_t b) { return float_of(static_cast<uint32_t>(b) << 16); }

}  // namespace emu

namespace metal {

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;

class half {
    uint16_t bits_;

  public:
    half() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    constexpr half(T x) : bits_(emu::to_half_bits(static_cast<float>(x))) {}
    operator float() const { return emu::from_half_bits(bits_); }
    half& operator+=(half x) { return *this = half(float(*this) + float(x)); }
    half& operator-=(half x) { return *this = half(float(*this) - float(x)); }
    half& operator*=(half x) { return *this = half(float(*this) * float(x)); }
    half& operator/=(half x) { return *this = half(float(*this) / float(x)); }
};

// A result of half with half is a half: the float result, rounded once more, is the rounded one,
// because a float has more than twice the digits.
inline half operator+(half a, half b) { return half(float(a) + float(b)); }
inline half operator-(half a, half b) { return half(float(a) - float(b)); }
inline half operator*(half a, half b) { return half(float(a) * float(b)); }
inline half operator/(half a, half b) { return half(float(a) / float(b)); }
inline half operator-(half a) { return half(-float(a)); }
inline bool operator==(half a, half b) { return float(a) == float(b); }
inline bool operator!=(half a, half b) { return float(a) != float(b); }
inline bool operator<(half a, half b) { return float(a) < float(b); }
inline bool operator<=(half a, half b) { return float(a) <= float(b); }
inline bool operator>(half a, half b) { return float(a) > float(b); }
inline bool operator>=(half a, half b) { return float(a) >= float(b); }

// half with another arithmetic type: float if that is float, else half.
#define EMU_HALF_MIXED(op)                                                                       \
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>                  \
    inline auto operator op(half a, T b) {                                                       \
        if constexpr (std::is_floating_point_v<T>)                                               \
            return float(a) op b;                                                                \
        else                                                                                     \
            return a op half(b);                                                                 \
    }                                                                                            \
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>                  \
    inline auto operator op(T a, half b) {                                                       \
        if constexpr (std::is_floating_point_v<T>)                                               \
            return a op float(b);                                                                \
        else                                                                                     \
            return half(a) op b;                                                                 \
    }
EMU_HALF_MIXED(+)
EMU_HALF_MIXED(-)
EMU_HALF_MIXED(*)
EMU_HALF_MIXED(/)
EMU_HALF_MIXED(==)
EMU_HALF_MIXED(!=)
EMU_HALF_MIXED(<)
EMU_HALF_MIXED(<=)
EMU_HALF_MIXED(>)
EMU_HALF_MIXED(>=)
#undef EMU_HALF_MIXED

/// No arithmetic and no implicit conversion: compute in float.
class bfloat {
    uint16_t bits_;

  public:
    bfloat() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    explicit bfloat(T x) : bits_(emu::to_bfloat_bits(static_cast<float>(x))) {}
    explicit bfloat(half x) : bits_(emu::to_bfloat_bits(float(x))) {}
    explicit operator float() const { return emu::from_bfloat_bits(bits_); }
    explicit operator half() const { return half(emu::from_bfloat_bits(bits_)); }
};

static_assert(sizeof(half) == 2 && sizeof(bfloat) == 2);
static_assert(std::is_trivially_copyable_v<half> && std::is_trivially_copyable_v<bfloat>);

}  // namespace metal

namespace emu {

template <typename T> inline constexpr bool is_float = false;
template <> inline constexpr bool is_float<float> = true;
template <> inline constexpr bool is_float<metal::half> = true;
template <> inline constexpr bool is_float<metal::bfloat> = true;

/// Poison of an element: NaN, or a large number.
template <typename T> inline T poisoned() {
    if constexpr (std::is_same_v<T, metal::half>)
        return poison != 0 ? T(32768.0f) : T(__builtin_nanf(""));
    else if constexpr (is_float<T>)
        return poison != 0 ? T(1e36f) : T(__builtin_nanf(""));
    else
        return static_cast<T>(poison != 0 ? 0x25a5a5a5 : 0x5a5a5a5a);
}

template <typename T> constexpr Kind kind_of() {
    using E = std::remove_cv_t<std::remove_all_extents_t<T>>;
    return std::is_same_v<E, float>           ? Kind::f32
           : std::is_same_v<E, metal::half>   ? Kind::f16
           : std::is_same_v<E, metal::bfloat> ? Kind::bf16
                                              : Kind::other;
}

/// What `threadgroup T name[N];` becomes.
template <typename T, size_t Align = alignof(T)> inline T& threadgroup_array(int line) {
    return *static_cast<T*>(threadgroup_storage(line, sizeof(T), Align, kind_of<T>()));
}

}  // namespace emu
