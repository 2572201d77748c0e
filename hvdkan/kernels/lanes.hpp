// Vectors of the processor's own width as values, and the few operations on them that C++ has no word for.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define INLINE inline __attribute__((always_inline))

template <class T> struct LanesOf;
template <> struct LanesOf<float> {
  typedef float V __attribute__((vector_size(VECTOR_BYTES)));
  typedef float Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
  typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct LanesOf<double> {
  typedef double V __attribute__((vector_size(VECTOR_BYTES)));
  typedef double Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(8)));
  typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vec = typename LanesOf<T>::V;
template <class T> using Int = typename LanesOf<T>::I;
template <class T> constexpr int lanes = VECTOR_BYTES / sizeof(T);

template <class T> INLINE Vec<T> load(const T *from) {
  return *reinterpret_cast<const typename LanesOf<T>::Unaligned *>(from);
}
template <class T> INLINE void store(T *to, Vec<T> value) {
  *reinterpret_cast<typename LanesOf<T>::Unaligned *>(to) = value;
}
template <class T> INLINE Vec<T> all(T value) { return value - Vec<T>{}; }

template <class T> INLINE T sum(Vec<T> value) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    return _mm512_reduce_add_ps(value);
  else
    return _mm512_reduce_add_pd(value);
#else
  T total = 0;
  for (int l = 0; l < lanes<T>; l++) total += value[l];
  return total;
#endif
}

template <class T> INLINE bool any(Int<T> mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask);
#else
  bool found = false;
  for (int l = 0; l < lanes<T>; l++) found |= mask[l] != 0;
  return found;
#endif
}

// table[index] for every lane. REGISTERS: the table has two vectors, and one permutation finds all lanes.
template <bool REGISTERS, class T> INLINE Vec<T> lookup(const T *table, Int<T> index) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    if constexpr (REGISTERS)
      return _mm512_permutex2var_ps(load(table), (__m512i)index, load(table + lanes<T>));
    else
      return _mm512_i32gather_ps((__m512i)index, table, 4);
  } else {
    if constexpr (REGISTERS)
      return _mm512_permutex2var_pd(load(table), (__m512i)index, load(table + lanes<T>));
    else
      return _mm512_i64gather_pd((__m512i)index, table, 8);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return _mm256_i32gather_ps(table, (__m256i)index, 4);
  else
    return _mm256_i64gather_pd(table, (__m256i)index, 8);
#else
  Vec<T> found;
  for (int l = 0; l < lanes<T>; l++) found[l] = table[index[l]];
  return found;
#endif
}

template <class V, std::size_t... L> INLINE V interleave_low(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, (L % 2 ? sizeof...(L) + L / 2 : L / 2)...);
}
template <class V, std::size_t... L> INLINE V interleave_high(V a, V b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, (sizeof...(L) / 2 + (L % 2 ? sizeof...(L) + L / 2 : L / 2))...);
}

// [ROWS][lanes] to [lanes][ROWS], ROWS a power of two. Each round of interleaving rotates the bits of the flat index.
template <class T, int ROWS> INLINE void transpose(Vec<T> *rows) {
  constexpr auto each = std::make_index_sequence<lanes<T>>();
#pragma GCC unroll 4
  for (int round = 1; round < ROWS; round *= 2) {
    Vec<T> next[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS / 2; i++) {
      next[2 * i] = interleave_low(rows[i], rows[i + ROWS / 2], each);
      next[2 * i + 1] = interleave_high(rows[i], rows[i + ROWS / 2], each);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) rows[i] = next[i];
  }
}

template <class T> INLINE Vec<T> clamp(Vec<T> x, T low, T high) {
  // In this order NaN stays: a comparison with it is false.
  x = x > high ? all(high) : x;
  return x < low ? all(low) : x;
}

// exp(x) for x down to where it vanishes beside 1: 2^n times a polynomial in the rest, within 2 units in the last place,
// and infinity above the range, as in C.
INLINE Vec<float> exponential(Vec<float> x) {
  x = clamp(x, -87.f, 89.f);
#if defined(__AVX512F__)
  const Vec<float> n = _mm512_roundscale_ps(x * 1.44269504f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec<float> shifted = x * 1.44269504f + magic, n = shifted - magic;
#endif
  const Vec<float> r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Vec<float> p = all(1.9875691500e-4f);
  for (float term : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + term;
  p = p * (r * r) + r + 1.f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  const Int<float> bits = (Int<float>)shifted - (Int<float>)all(magic);
  p *= (Vec<float>)((bits + 127) << 23);
  return x > 88.5f ? all(std::numeric_limits<float>::infinity()) : p;
#endif
}
INLINE Vec<double> exponential(Vec<double> x) {
  x = clamp(x, -708.0, 710.0);
#if defined(__AVX512F__)
  const Vec<double> n = _mm512_roundscale_pd(x * 1.4426950408889634, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const Vec<double> shifted = x * 1.4426950408889634 + magic, n = shifted - magic;
#endif
  const Vec<double> r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
  double factorial = 6227020800.0;  // 13!
  Vec<double> p = all(1.0 / factorial);
#pragma GCC unroll 13
  for (int degree = 13; degree > 0; degree--) {
    factorial /= degree;
    p = p * r + 1.0 / factorial;
  }
#if defined(__AVX512F__)
  return _mm512_scalef_pd(p, n);
#else
  const Int<double> bits = (Int<double>)shifted - (Int<double>)all(magic);
  p *= (Vec<double>)((bits + 1023) << 52);
  return x > 709.7 ? all(std::numeric_limits<double>::infinity()) : p;
#endif
}

// Zeroed memory on cache lines. Throws std::bad_alloc.
template <class T> struct Buffer {
  std::unique_ptr<T, void (*)(void *)> data{nullptr, std::free};
  explicit Buffer(std::size_t count) {
    std::size_t bytes = std::max<std::size_t>(1, (count * sizeof(T) + 63) / 64) * 64;
    data.reset(static_cast<T *>(std::aligned_alloc(64, bytes)));
    if (!data) throw std::bad_alloc();
    std::memset(static_cast<void *>(data.get()), 0, bytes);
  }
  T *get() const { return data.get(); }
};
