// Mathematics. Overloads as Metal has them, no templates: a call with mixed types is ambiguous
// there and here. There is no erf, no double, and nothing for bfloat.
#pragma once
#include "vector.h"

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define INT_MAX 0x7fffffff
#define INT_MIN (-0x7fffffff - 1)
#define UINT_MAX 0xffffffffu
#define M_PI_F 3.14159265358979323846f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_2_SQRTPI_F 1.12837916709551257390f

namespace metal {

#define EMU_UNARY(name, expression)                                                              \
    inline float name(float x) { return expression; }                                            \
    inline half name(half h) {                                                                   \
        const float x = h;                                                                       \
        return half(expression);                                                                 \
    }                                                                                            \
    template <typename T, int N> inline vec<T, N> name(const vec<T, N>& v) {                     \
        return emu::each(v, [](T p) { return T(name(p)); });                                     \
    }
#define EMU_UNARY_ALL(list) list(EMU_UNARY)
#define EMU_FUNCTIONS(F)                                                                         \
    F(exp, __builtin_expf(x))                                                                    \
    F(exp2, __builtin_exp2f(x))                                                                  \
    F(log, __builtin_logf(x))                                                                    \
    F(log2, __builtin_log2f(x))                                                                  \
    F(log10, __builtin_log10f(x))                                                                \
    F(sqrt, __builtin_sqrtf(x))                                                                  \
    F(rsqrt, 1.0f / __builtin_sqrtf(x))                                                          \
    F(sin, __builtin_sinf(x))                                                                    \
    F(cos, __builtin_cosf(x))                                                                    \
    F(tan, __builtin_tanf(x))                                                                    \
    F(sinh, __builtin_sinhf(x))                                                                  \
    F(cosh, __builtin_coshf(x))                                                                  \
    F(tanh, __builtin_tanhf(x))                                                                  \
    F(ceil, __builtin_ceilf(x))                                                                  \
    F(floor, __builtin_floorf(x))                                                                \
    F(trunc, __builtin_truncf(x))                                                                \
    F(rint, __builtin_rintf(x))                                                                  \
    F(round, __builtin_roundf(x))                                                                \
    F(fabs, __builtin_fabsf(x))
EMU_UNARY_ALL(EMU_FUNCTIONS)
namespace precise {
EMU_UNARY_ALL(EMU_FUNCTIONS)
}
namespace fast {
EMU_UNARY_ALL(EMU_FUNCTIONS)
}
#undef EMU_FUNCTIONS
#undef EMU_UNARY_ALL
#undef EMU_UNARY

// Of a NaN and a number these give the number, as the hardware's do.
#define EMU_FLOAT_PAIR(name, call)                                                               \
    inline float name(float a, float b) { return call(a, b); }                                   \
    inline half name(half a, half b) { return half(call(float(a), float(b))); }                  \
    template <typename T, int N>                                                                 \
    inline vec<T, N> name(const vec<T, N>& a, const vec<T, N>& b) {                              \
        return emu::each(a, b, [](T p, T q) { return T(name(p, q)); });                          \
    }
EMU_FLOAT_PAIR(fmin, __builtin_fminf)
EMU_FLOAT_PAIR(fmax, __builtin_fmaxf)
EMU_FLOAT_PAIR(min, __builtin_fminf)
EMU_FLOAT_PAIR(max, __builtin_fmaxf)
EMU_FLOAT_PAIR(pow, __builtin_powf)
EMU_FLOAT_PAIR(fmod, __builtin_fmodf)
EMU_FLOAT_PAIR(copysign, __builtin_copysignf)
#undef EMU_FLOAT_PAIR

#define EMU_INTEGER(T)                                                                           \
    inline T min(T a, T b) { return a < b ? a : b; }                                             \
    inline T max(T a, T b) { return a > b ? a : b; }                                             \
    inline T clamp(T x, T low, T high) { return x < low ? low : x > high ? high : x; }
EMU_INTEGER(int)
EMU_INTEGER(uint)
EMU_INTEGER(short)
EMU_INTEGER(ushort)
EMU_INTEGER(char)
EMU_INTEGER(uchar)
EMU_INTEGER(long)
EMU_INTEGER(ulong)
#undef EMU_INTEGER

inline float abs(float x) { return __builtin_fabsf(x); }
inline half abs(half x) { return half(__builtin_fabsf(float(x))); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline float clamp(float x, float low, float high) {
    return __builtin_fminf(__builtin_fmaxf(x, low), high);
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline half fma(half a, half b, half c) {
    // Exact in binary64, then rounded once.
    return half(static_cast<float>(static_cast<double>(float(a)) * float(b) + float(c)));
}
template <typename T, int N>
inline vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
    return emu::each(a, b, c, [](T p, T q, T r) { return T(fma(p, q, r)); });
}
inline float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == x ? x : 0.0f; }

inline bool isnan(float x) { return x != x; }
inline bool isnan(half x) { return float(x) != float(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

/// `c ? b : a`.
template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T> || emu::is_float<T>>>
inline T select(T a, T b, bool c) {
    return c ? b : a;
}
template <typename T, int N>
inline vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& c) {
    vec<T, N> result;
    for (unsigned i = 0; i < N; i++) result[i] = c[i] ? b[i] : a[i];
    return result;
}

/// The same bits as another type.
template <typename To, typename From> inline To as_type(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

template <typename T> struct numeric_limits;
template <> struct numeric_limits<float> {
    static constexpr float infinity() { return INFINITY; }
    static constexpr float quiet_NaN() { return NAN; }
    static constexpr float max() { return FLT_MAX; }
    static constexpr float lowest() { return -FLT_MAX; }
    static constexpr float min() { return FLT_MIN; }
};
template <> struct numeric_limits<int> {
    static constexpr int max() { return INT_MAX; }
    static constexpr int min() { return INT_MIN; }
    static constexpr int lowest() { return INT_MIN; }
};

}  // namespace metal
