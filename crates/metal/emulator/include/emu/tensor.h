// Tensors of two dimensions over device or threadgroup memory. Extent 0 is the contiguous one.
#pragma once
#include "fragment.h"

#define __HAVE_TENSOR__ 1

namespace metal {

constexpr size_t dynamic_extent = static_cast<size_t>(-1);
template <typename T> inline constexpr T dynamic_length_v = T(0x7fffffff);

template <typename T, size_t N> struct array {
    T items[N];
    constexpr T& operator[](size_t i) { return items[i]; }
    constexpr const T& operator[](size_t i) const { return items[i]; }
};
template <typename T, typename... Rest> array(T, Rest...) -> array<T, 1 + sizeof...(Rest)>;

/// Sizes, each known in the type or stated.
template <typename Index, size_t E0, size_t E1> class extents {
    Index sizes_[2];

  public:
    using index_type = Index;
    static constexpr size_t statics[2] = {E0, E1};
    constexpr extents() : sizes_{Index(E0), Index(E1)} {
        static_assert(E0 != dynamic_extent && E1 != dynamic_extent,
                      "dynamic extents must be stated");
    }
    template <typename A, typename B>
    constexpr extents(A inner, B outer) : sizes_{Index(inner), Index(outer)} {}
    constexpr Index extent(size_t i) const { return sizes_[i]; }
    static constexpr size_t rank() { return 2; }
};
template <typename Index, size_t Rank> struct dextents_of;
template <typename Index> struct dextents_of<Index, 2> {
    using type = extents<Index, dynamic_extent, dynamic_extent>;
};
/// Only two dimensions: what the matrix operation takes.
template <typename Index, size_t Rank> using dextents = typename dextents_of<Index, Rank>::type;

struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

/// A view of memory that belongs to someone else.
template <typename T, typename Extents, typename Descriptor = tensor_inline> class tensor {
    static_assert(!std::is_const_v<T>, "the element type of a tensor can't be const");
    static_assert(emu::is_float<T> || std::is_integral_v<T>, "tensors hold numbers");
    static_assert(!std::is_same_v<Descriptor, tensor_handle>,
                  "tensor handles are bound by the host, which the emulator doesn't do");
    using Index = typename Extents::index_type;

    T* data_;
    Extents extents_;
    Index stride_;

  public:
    using element_type = T;
    using extents_type = Extents;

    tensor(T* data, Extents extents, emu::Site site = emu::here("tensor"))
        : tensor(data, extents, array<Index, 2>{{1, extents.extent(0)}}, site) {}
    template <typename S>
    tensor(T* data, Extents extents, array<S, 2> strides, emu::Site site = emu::here("tensor"))
        : data_(data), extents_(extents), stride_(Index(strides[1])) {
        if (strides[0] != 1)
            emu::fail(site, "a tensor with stride %ld in dimension 0: it must be 1",
                      static_cast<long>(strides[0]));
        for (size_t i = 0; i < 2; i++) {
            if (extents.extent(i) < 0)
                emu::fail(site, "a tensor with extent %ld in dimension %zu",
                          static_cast<long>(extents.extent(i)), i);
        }
        if (stride_ < extents.extent(0) && extents.extent(1) > 1)
            emu::fail(site, "a tensor whose rows of %ld elements overlap: stride %ld",
                      static_cast<long>(extents.extent(0)), static_cast<long>(stride_));
    }

    const Extents& get_extents() const { return extents_; }
    Index get_extent(size_t i) const { return extents_.extent(i); }
    T* emu_data() const { return data_; }
    Index emu_stride() const { return stride_; }
    /// Address of an element that is inside.
    T* emu_at(long inner, long outer) const {
        return data_ + outer * static_cast<long>(stride_) + inner;
    }

    /// The same tensor from another origin, with what is left of its extents.
    auto slice(Index inner, Index outer, emu::Site site = emu::here("slice")) const {
        return part<dynamic_extent, dynamic_extent>(inner, outer, site);
    }
    /// A part of stated size, which must be inside.
    template <size_t E0, size_t E1>
    auto slice(Index inner, Index outer, emu::Site site = emu::here("slice")) const {
        return part<E0, E1>(inner, outer, site);
    }
    template <size_t E0, size_t E1>
    auto static_slice(Index inner, Index outer, emu::Site site = emu::here("static_slice")) const {
        return part<E0, E1>(inner, outer, site);
    }

  private:
    template <size_t E0, size_t E1> auto part(Index inner, Index outer, emu::Site site) const {
        // Real offsets are of 32 bits.
        const long offset = static_cast<long>(outer) * stride_ + inner;
        if (offset * static_cast<long>(sizeof(T)) > 0x7fffffffL)
            emu::fail(site, "a slice %ld elements from the base: offsets have 32 bits", offset);
        const Index left[2] = {extents_.extent(0) - inner, extents_.extent(1) - outer};
        if (inner < 0 || outer < 0 || left[0] < 0 || left[1] < 0)
            emu::fail(site, "a slice at (%ld, %ld) of a tensor of (%ld, %ld)",
                      static_cast<long>(inner), static_cast<long>(outer),
                      static_cast<long>(extents_.extent(0)),
                      static_cast<long>(extents_.extent(1)));
        const Index size[2] = {E0 == dynamic_extent ? left[0] : Index(E0),
                               E1 == dynamic_extent ? left[1] : Index(E1)};
        if (size[0] > left[0] || size[1] > left[1])
            emu::fail(site, "a static slice of (%ld, %ld) where (%ld, %ld) are left",
                      static_cast<long>(size[0]), static_cast<long>(size[1]),
                      static_cast<long>(left[0]), static_cast<long>(left[1]));
        using Part = extents<Index, E0, E1>;
        return tensor<T, Part, tensor_inline>(data_ + offset, Part(size[0], size[1]),
                                              array<Index, 2>{{1, stride_}}, site);
    }
};
template <typename T, typename E> tensor(T*, E) -> tensor<T, E, tensor_inline>;
template <typename T, typename E, typename S>
tensor(T*, E, array<S, 2>) -> tensor<T, E, tensor_inline>;

/// Who runs a tensor operation.
template <int N> struct execution_simdgroups {
    static_assert(N > 0);
    static constexpr int count = N;
};
using execution_simdgroup = execution_simdgroups<1>;
template <int N> struct execution_threads {
    static_assert(N == 1, "execution_threads has one thread");
};
using execution_thread = execution_threads<1>;

}  // namespace metal
