// matmul2d: one simdgroup, or all of the group, multiply two tensors. Stricter than Metal's where
// Metal leaves behaviour undefined: a static K past an operand's edge, operands that disagree on K,
// a scope that isn't the dispatched one, and a dead slot are faults or poison.
#pragma once
#include "tensor.h"

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };

    int m, n, k;
    bool transpose_left, transpose_right;
    bool relaxed_precision;
    mode matmul_mode;

    constexpr matmul2d_descriptor(int m_, int n_,
                                  int k_ = static_cast<int>(metal::dynamic_extent),
                                  bool transpose_left_ = false, bool transpose_right_ = false,
                                  bool relaxed_precision_ = false, mode mode_ = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(transpose_left_),
          transpose_right(transpose_right_), relaxed_precision(relaxed_precision_),
          matmul_mode(mode_) {}
};

template <matmul2d_descriptor, typename Scope> class matmul2d;

}  // namespace tensor_ops
}  // namespace mpp

namespace emu {

/// Slots without an element, among a lane's others.
constexpr int kDead = 2;

/// A destination that the lanes of a scope hold together, each `kDead` slots more than it needs.
/// Element e of the tile is in lane (37·e + 11) mod lanes: near to no layout that code may guess.
template <typename T, int Columns, int Rows, int Lanes> class Cooperative {
    static constexpr int kElements = Columns * Rows;
    static_assert(kElements % Lanes == 0);
    static constexpr int kCapacity = kElements / Lanes + kDead;
    T slots_[kCapacity];

    static uint32_t member() { return self->thread % Lanes; }
    /// The dead slots: the first one or, in every other lane, the second; and one near the end.
    static int first_dead() { return static_cast<int>(member() % 2); }
    static constexpr int kLastDead = kCapacity >= 5 ? kCapacity - 2 : kCapacity - 1;
    static bool dead(int slot) { return slot == first_dead() || slot == kLastDead; }
    /// The x for which 37·x is 1 in numbers modulo `Lanes`.
    static constexpr int inverse() {
        int x = 0;
        while (37 * x % Lanes != 1) x++;
        return x;
    }
    /// The tile's element of a slot that has one.
    static int element(int slot) {
        constexpr int kInverse = inverse();
        const int dense = slot - (slot > first_dead()) - (slot > kLastDead);
        const int mine = static_cast<int>(member()) + 11 * (Lanes - 1);
        return dense * Lanes + mine % Lanes * kInverse % Lanes;
    }
    static int checked(int slot, Site site) {
        if (slot < 0 || slot >= kCapacity)
            fail(site, "slot %d of a cooperative tensor of %d", slot, kCapacity);
        return slot;
    }

  public:
    static_assert(Lanes % 32 == 0 && Lanes % 37 != 0);
    using element_type = T;

    /// Undefined contents: poison.
    Cooperative() {
        for (T& slot : slots_) slot = poisoned<T>();
    }
    uint16_t get_capacity() const { return kCapacity; }
    bool is_valid_element(int slot, Site site = here("is_valid_element")) const {
        return !dead(checked(slot, site));
    }
    T& operator[](int slot) { return slots_[checked(slot, {"operator[]", "tensor", 0})]; }
    void set(int slot, T value) { (*this)[slot] = value; }
    metal::array<int, 2> get_multidimensional_index(
        int slot, Site site = here("get_multidimensional_index")) const {
        // Metal leaves the index of a dead slot undefined: far outside of any tensor.
        if (dead(checked(slot, site))) return {{0x3fffffff, 0x3fffffff}};
        const int e = element(slot);
        return {{e % Columns, e / Columns}};
    }
    template <typename Tensor> void load(const Tensor& from, Site site = here("load")) {
        visit(from, site, [](T& slot, auto* at) { slot = T(*at); });
    }
    template <typename Tensor> void store(Tensor& to, Site site = here("store")) const {
        using E = typename Tensor::element_type;
        const_cast<Cooperative*>(this)->visit(to, site, [](T& slot, auto* at) { *at = E(slot); });
    }
    /// Calls f(slot, inner, outer) for the elements of this lane.
    template <typename F> void elements(F f) {
        for (int slot = 0; slot < kCapacity; slot++) {
            if (dead(slot)) continue;
            const int e = element(slot);
            f(slots_[slot], e % Columns, e / Columns);
        }
    }

  private:
    template <typename Tensor, typename F> void visit(Tensor& tensor, Site site, F f) {
        const int width = static_cast<int>(tensor.get_extent(0));
        const int height = static_cast<int>(tensor.get_extent(1));
        const long mine[4] = {reinterpret_cast<long>(tensor.emu_data()), width, height,
                              static_cast<long>(tensor.emu_stride())};
        agree(Lanes == 32 ? Scope::simdgroup : Scope::threadgroup, site, mine, sizeof mine);
        elements([&](T& slot, int x, int y) {
            if (x < width && y < height) f(slot, tensor.emu_at(x, y));
        });
    }
};

/// A factor as the multiplier sees it.
template <bool Relaxed, typename T> inline float factor(const T& x) {
    float value = float(x);
    // With relaxed precision the hardware may keep as few as ten bits of a float.
    if (Relaxed && std::is_same_v<T, float>)
        value = float_of((bits_of(value) + 0x1000) & 0xffffe000u);
    return value;
}

template <typename L, typename R, typename D> constexpr bool supported() {
    using metal::bfloat;
    using metal::half;
    if (std::is_same_v<D, float>) return is_float<L> && is_float<R>;
    if (std::is_same_v<L, float> || std::is_same_v<R, float>) return false;
    if (std::is_same_v<L, R>) return std::is_same_v<D, L>;
    return is_float<L> && is_float<R> && (std::is_same_v<D, half> || std::is_same_v<D, bfloat>);
}

}  // namespace emu

namespace mpp {
namespace tensor_ops {

template <matmul2d_descriptor D, int N> class matmul2d<D, metal::execution_simdgroups<N>> {
    static constexpr int kLanes = 32 * N;
    static_assert(D.m > 0 && D.n > 0 && D.m % 8 == 0 && D.n % 8 == 0 &&
                      (D.m % 16 == 0 || D.n % 16 == 0),
                  "M and N are multiples of 8, and one of them of 16");
    static constexpr bool kDynamic =
        D.k == static_cast<int>(metal::dynamic_extent) || D.k == metal::dynamic_length_v<int>;
    static_assert(kDynamic || (D.k > 0 && D.k % 16 == 0), "a static K is a multiple of 16");
    static constexpr emu::Scope kScope =
        N == 1 ? emu::Scope::simdgroup : emu::Scope::threadgroup;
    static constexpr bool kAccumulate =
        D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;

  public:
    template <typename Left, typename Right, typename T>
    emu::Cooperative<T, D.n, D.m, kLanes> get_destination_cooperative_tensor() const {
        return {};
    }

    /// Operands and destination are named, not const, as the real ones must be.
    template <typename Left, typename Right, typename Destination>
    void run(Left& left, Right& right, Destination& destination,
             emu::Site site = emu::here("matmul2d::run")) {
        static_assert(!std::is_const_v<Left> && !std::is_const_v<Right> &&
                          !std::is_const_v<Destination>,
                      "operands of run are not const");
        using LE = typename Left::element_type;
        using RE = typename Right::element_type;
        static_assert(emu::supported<LE, RE, typename Destination::element_type>(),
                      "matmul2d has no such combination of types");
        if (N != 1 && emu::self->simdgroups != N)
            emu::fail(site, "an operation of %d simdgroups in a group of %u", N,
                      emu::self->simdgroups);
        const Operand<Left> l(left, D.transpose_left);
        const Operand<Right> r(right, D.transpose_right);
        const long mine[8] = {l.address(), l.stride(), l.inner(), l.outer(),
                              r.address(), r.stride(), r.inner(), r.outer()};
        emu::agree(kScope, site, mine, sizeof mine);
        // Left is M by K: K runs along extent 0 unless it is transposed. Right is K by N.
        const long depth_l = D.transpose_left ? l.outer() : l.inner();
        const long depth_r = D.transpose_right ? r.inner() : r.outer();
        const long depth = kDynamic ? depth_l : D.k;
        if (kDynamic && depth_l != depth_r)
            emu::fail(site, "operands with K %ld and %ld", depth_l, depth_r);
        if (depth > depth_l || depth > depth_r)
            emu::fail(site, "a static K of %ld past the edge of operands with %ld and %ld", depth,
                      depth_l, depth_r);
        const long rows = D.transpose_left ? l.inner() : l.outer();
        const long columns = D.transpose_right ? r.outer() : r.inner();
        const auto dot = [&](float start, int x, int y) {
            float sum = start;
            // Beyond the edges factors are 0; such elements are never stored.
            for (long k = 0; k < depth && y < rows && x < columns; k++)
                sum += emu::factor<D.relaxed_precision>(l.at(k, y)) *
                       emu::factor<D.relaxed_precision>(r.at(x, k));
            return sum;
        };
        write(destination, dot, site);
    }

  private:
    template <typename Tensor> class Operand {
        Tensor& tensor_;
        bool transposed_;

      public:
        Operand(Tensor& tensor, bool transposed) : tensor_(tensor), transposed_(transposed) {}
        long address() const { return reinterpret_cast<long>(tensor_.emu_data()); }
        long stride() const { return static_cast<long>(tensor_.emu_stride()); }
        long inner() const { return static_cast<long>(tensor_.get_extent(0)); }
        long outer() const { return static_cast<long>(tensor_.get_extent(1)); }
        auto at(long inner, long outer) const {
            return transposed_ ? *tensor_.emu_at(outer, inner) : *tensor_.emu_at(inner, outer);
        }
    };

    template <typename T, typename F>
    static void write(emu::Cooperative<T, D.n, D.m, kLanes>& destination, F dot, emu::Site) {
        destination.elements([&](T& slot, int x, int y) {
            slot = T(dot(kAccumulate ? float(slot) : 0.0f, x, y));
        });
    }
    template <typename T, typename E, typename K, typename F>
    static void write(metal::tensor<T, E, K>& destination, F dot, emu::Site site) {
        const int width = static_cast<int>(destination.get_extent(0));
        const int height = static_cast<int>(destination.get_extent(1));
        const long mine[4] = {reinterpret_cast<long>(destination.emu_data()), width, height,
                              static_cast<long>(destination.emu_stride())};
        emu::agree(kScope, site, mine, sizeof mine);
        emu::Cooperative<T, D.n, D.m, kLanes> lanes;
        lanes.elements([&](T&, int x, int y) {
            if (x >= width || y >= height) return;
            T* const at = destination.emu_at(x, y);
            *at = T(dot(kAccumulate ? float(*at) : 0.0f, x, y));
        });
    }
};

/// One thread does it all.
template <matmul2d_descriptor D> class matmul2d<D, metal::execution_thread> {
    static_assert(D.m < 0, "the emulator runs operations of simdgroups only");
};

}  // namespace tensor_ops
}  // namespace mpp
