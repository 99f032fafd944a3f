// matmul2d for the check of address spaces.
#pragma once
#include <metal_tensor>

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    constexpr matmul2d_descriptor(int m_, int n_,
                                  int k_ = static_cast<int>(metal::dynamic_extent),
                                  bool left = false, bool right = false, bool relaxed = false,
                                  mode mode_ = mode::multiply)
        : m(m_), n(n_), k(k_), transpose_left(left), transpose_right(right),
          relaxed_precision(relaxed), matmul_mode(mode_) {}
};

// The operands that it was made for are part of its type.
template <typename L, typename R, typename T> struct Cooperative {
    using element_type = T;
    metal::uint16_t get_capacity() const;
    bool is_valid_element(int) const;
    thread T& operator[](int);
    void set(int, T);
    metal::array<int, 2> get_multidimensional_index(int) const;
    template <typename A, typename E, typename D> void load(const thread metal::tensor<A, E, D>&);
    template <typename A, typename E, typename D> void store(thread metal::tensor<A, E, D>&) const;
};

template <matmul2d_descriptor D, typename Scope> struct matmul2d {
    template <typename Left, typename Right, typename T>
    Cooperative<Left, Right, T> get_destination_cooperative_tensor() const;
    template <typename Left, typename Right, typename T>
    void run(thread Left&, thread Right&, thread Cooperative<Left, Right, T>&) const;
    template <typename Left, typename Right, typename A, typename E, typename I>
    void run(thread Left&, thread Right&, thread metal::tensor<A, E, I>&) const;
};

}  // namespace tensor_ops
}  // namespace mpp
