// simdgroup_matrix: 8 by 8, two elements per lane, laid out as the hardware is seen to do it.
#pragma once
#include "simd.h"

namespace metal {

template <typename T, int Cols, int Rows> class simdgroup_matrix {
    static_assert(Cols == 8 && Rows == 8, "simdgroup matrices are 8x8");
    static_assert(emu::is_float<T>, "simdgroup matrices hold float, half or bfloat");

  public:
    using elements_type = T[2];
    /// Undefined contents: poison.
    simdgroup_matrix() {
        elements_[0] = emu::poisoned<T>();
        elements_[1] = emu::poisoned<T>();
    }
    /// A diagonal matrix.
    explicit simdgroup_matrix(T diagonal) {
        for (int i = 0; i < 2; i++)
            elements_[i] = row() == column() + i ? diagonal : T(0.0f);
    }
    elements_type& thread_elements() { return elements_; }
    const elements_type& thread_elements() const { return elements_; }

    /// Row and first column of the lane's elements.
    static int row() { return (emu::self->lane / 4 & 4) + emu::self->lane / 2 % 4; }
    static int column() { return (emu::self->lane / 4 & 2) * 2 + emu::self->lane % 2 * 2; }

  private:
    T elements_[2];
};

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <typename T, int Cols, int Rows = Cols>
inline simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, Cols, Rows> m;
    m.thread_elements()[0] = value;
    m.thread_elements()[1] = value;
    return m;
}

}  // namespace metal

namespace emu {

/// What must be the same for all lanes that load or store a matrix.
struct Window {
    const void* at;
    uint64_t stride, x, y;
    uint64_t transpose;
};

/// The place of element i of this lane.
inline uint64_t window_offset(const Window& w, int row, int column) {
    if (w.transpose != 0) {
        const int swap = row;
        row = column;
        column = swap;
    }
    return (w.y + static_cast<uint64_t>(row)) * w.stride + w.x + static_cast<uint64_t>(column);
}

}  // namespace emu

namespace metal {

template <typename T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* source, ulong stride = 8,
                           ulong2 origin = ulong2(0), bool transpose = false,
                           emu::Site site = emu::here("simdgroup_load")) {
    const emu::Window w{source, stride, origin.x, origin.y, transpose};
    emu::agree(emu::Scope::simdgroup, site, &w, sizeof w);
    for (int i = 0; i < 2; i++)
        m.thread_elements()[i] = source[emu::window_offset(w, m.row(), m.column() + i)];
}

template <typename T>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* destination, ulong stride = 8,
                            ulong2 origin = ulong2(0), bool transpose = false,
                            emu::Site site = emu::here("simdgroup_store")) {
    const emu::Window w{destination, stride, origin.x, origin.y, transpose};
    emu::agree(emu::Scope::simdgroup, site, &w, sizeof w);
    for (int i = 0; i < 2; i++)
        destination[emu::window_offset(w, m.row(), m.column() + i)] = m.thread_elements()[i];
}

/// d = a·b + c, summed in float in order of k.
template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
    emu::Site site = emu::here("simdgroup_multiply_accumulate")) {
    const float mine[4] = {float(a.thread_elements()[0]), float(a.thread_elements()[1]),
                           float(b.thread_elements()[0]), float(b.thread_elements()[1])};
    const unsigned char* table = emu::exchange(site, mine, sizeof mine);
    // The lane of the element pair (row, column / 2), the inverse of row() and column().
    const auto lane_of = [](int row, int column) {
        return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column & 2) / 2;
    };
    const auto brought = [table](int lane, int which) {
        float x;
        __builtin_memcpy(&x, table + lane * static_cast<int>(emu::kSlot) + 4 * which, 4);
        return x;
    };
    const int row = d.row(), column = d.column();
    for (int i = 0; i < 2; i++) {
        float sum = float(c.thread_elements()[i]);
        for (int k = 0; k < 8; k++)
            sum += brought(lane_of(row, k), k % 2) * brought(lane_of(k, column + i), 2 + i);
        d.thread_elements()[i] = D(sum);
    }
}

template <typename D, typename A, typename B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b,
                               emu::Site site = emu::here("simdgroup_multiply")) {
    const simdgroup_matrix<D, 8, 8> zero = make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f));
    simdgroup_multiply_accumulate(d, a, b, zero, site);
}

}  // namespace metal
