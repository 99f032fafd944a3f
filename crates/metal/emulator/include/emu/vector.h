// Vectors of 2, 3 and 4: members, indices and arithmetic, no swizzles.
#pragma once
#include "scalar.h"

namespace emu {

inline unsigned checked(unsigned i, unsigned count) {
    if (i >= count) fail({"vector index", "vector", 0}, "element %u of a vector of %u", i, count);
    return i;
}

}  // namespace emu

namespace metal {

template <typename T, int N> struct vec;

template <typename T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    T x, y;
    vec() = default;
    vec(T s) : x(s), y(s) {}
    vec(T a, T b) : x(a), y(b) {}
    T& operator[](unsigned i) { return (&x)[emu::checked(i, 2)]; }
    const T& operator[](unsigned i) const { return (&x)[emu::checked(i, 2)]; }
    template <typename U> explicit vec(const vec<U, 2>& v) : x(T(v.x)), y(T(v.y)) {}
};

template <typename T> struct alignas(4 * sizeof(T)) vec<T, 3> {
    T x, y, z;
    vec() = default;
    vec(T s) : x(s), y(s), z(s) {}
    vec(T a, T b, T c) : x(a), y(b), z(c) {}
    T& operator[](unsigned i) { return (&x)[emu::checked(i, 3)]; }
    const T& operator[](unsigned i) const { return (&x)[emu::checked(i, 3)]; }
    template <typename U>
    explicit vec(const vec<U, 3>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
};

template <typename T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    T x, y, z, w;
    vec() = default;
    vec(T s) : x(s), y(s), z(s), w(s) {}
    vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    T& operator[](unsigned i) { return (&x)[emu::checked(i, 4)]; }
    const T& operator[](unsigned i) const { return (&x)[emu::checked(i, 4)]; }
    template <typename U>
    explicit vec(const vec<U, 4>& v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
};

}  // namespace metal

namespace emu {

template <typename T, int N, typename F> inline auto each(const metal::vec<T, N>& v, F f) {
    using R = decltype(f(v.x));
    if constexpr (N == 2)
        return metal::vec<R, 2>(f(v.x), f(v.y));
    else if constexpr (N == 3)
        return metal::vec<R, 3>(f(v.x), f(v.y), f(v.z));
    else
        return metal::vec<R, 4>(f(v.x), f(v.y), f(v.z), f(v.w));
}

template <typename T, int N, typename F>
inline auto each(const metal::vec<T, N>& a, const metal::vec<T, N>& b, F f) {
    using R = decltype(f(a.x, b.x));
    if constexpr (N == 2)
        return metal::vec<R, 2>(f(a.x, b.x), f(a.y, b.y));
    else if constexpr (N == 3)
        return metal::vec<R, 3>(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z));
    else
        return metal::vec<R, 4>(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w));
}

template <typename T, int N, typename F>
inline auto each(const metal::vec<T, N>& a, const metal::vec<T, N>& b, const metal::vec<T, N>& c,
                 F f) {
    using R = decltype(f(a.x, b.x, c.x));
    if constexpr (N == 2)
        return metal::vec<R, 2>(f(a.x, b.x, c.x), f(a.y, b.y, c.y));
    else if constexpr (N == 3)
        return metal::vec<R, 3>(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z));
    else
        return metal::vec<R, 4>(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z),
                                f(a.w, b.w, c.w));
}

}  // namespace emu

namespace metal {

// bfloat has no arithmetic, so that these don't compile for its vectors.
#define EMU_VECTOR_OPERATOR(op)                                                                  \
    template <typename T, int N>                                                                 \
    inline auto operator op(const vec<T, N>& a, const vec<T, N>& b) {                            \
        return emu::each(a, b, [](T p, T q) { return p op q; });                                 \
    }                                                                                            \
    template <typename T, int N> inline auto operator op(const vec<T, N>& a, T b) {              \
        return emu::each(a, [b](T p) { return p op b; });                                        \
    }                                                                                            \
    template <typename T, int N> inline auto operator op(T a, const vec<T, N>& b) {              \
        return emu::each(b, [a](T q) { return a op q; });                                        \
    }
EMU_VECTOR_OPERATOR(+)
EMU_VECTOR_OPERATOR(-)
EMU_VECTOR_OPERATOR(*)
EMU_VECTOR_OPERATOR(/)
EMU_VECTOR_OPERATOR(<)
EMU_VECTOR_OPERATOR(<=)
EMU_VECTOR_OPERATOR(>)
EMU_VECTOR_OPERATOR(>=)
EMU_VECTOR_OPERATOR(==)
EMU_VECTOR_OPERATOR(!=)
#undef EMU_VECTOR_OPERATOR

template <typename T, int N> inline vec<T, N> operator-(const vec<T, N>& a) {
    return emu::each(a, [](T p) { return T(-p); });
}
#define EMU_VECTOR_ASSIGN(op)                                                                    \
    template <typename T, int N, typename U>                                                     \
    inline vec<T, N>& operator op##=(vec<T, N>& a, const U& b) {                                 \
        return a = a op b;                                                                       \
    }
EMU_VECTOR_ASSIGN(+)
EMU_VECTOR_ASSIGN(-)
EMU_VECTOR_ASSIGN(*)
EMU_VECTOR_ASSIGN(/)
#undef EMU_VECTOR_ASSIGN

#define EMU_VECTOR_NAMES(T)                                                                      \
    using T##2 = vec<T, 2>;                                                                      \
    using T##3 = vec<T, 3>;                                                                      \
    using T##4 = vec<T, 4>;
EMU_VECTOR_NAMES(float)
EMU_VECTOR_NAMES(half)
EMU_VECTOR_NAMES(bfloat)
EMU_VECTOR_NAMES(int)
EMU_VECTOR_NAMES(uint)
EMU_VECTOR_NAMES(short)
EMU_VECTOR_NAMES(ushort)
EMU_VECTOR_NAMES(char)
EMU_VECTOR_NAMES(uchar)
EMU_VECTOR_NAMES(long)
EMU_VECTOR_NAMES(ulong)
EMU_VECTOR_NAMES(bool)
#undef EMU_VECTOR_NAMES

}  // namespace metal
