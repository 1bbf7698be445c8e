// Read before every C++ file of a release: what keeps it at glibc 2.28 and libstdc++ 10.
//
// Debian 11 has glibc 2.31. Of what keras-strom calls, glibc 2.29 has new versions of these
// functions of libm, which differ in errno alone; the older ones stay in every later glibc.
#ifdef __x86_64__
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver exp2,exp2@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver log2,log2@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");
#endif

// What of C++20 keras-strom uses and libstdc++ 10 lacks; the compiler is a newer one.
#if __cplusplus > 201703L
#include <bit>
#include <memory>
#include <type_traits>

namespace std {
#ifndef __cpp_lib_bit_cast
template <typename To, typename From>
constexpr To bit_cast(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}
#endif
#ifndef __cpp_lib_smart_ptr_for_overwrite
template <typename T>
  requires is_unbounded_array_v<T>
unique_ptr<T> make_unique_for_overwrite(size_t size) {
  return unique_ptr<T>(new remove_extent_t<T>[size]);
}
#endif
}  // namespace std
#endif
