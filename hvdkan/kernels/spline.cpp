// The spline layer on a CPU, forward and backward, behind a C interface: see hvdkan/kernels/__init__.py.
//
//     y[b, j] = bias[j] + sum_i (base[i, j] silu(x[b, i]) + scale[i, j] sum_m coef[i, j, m] B_m(x[b, i]))
#include <omp.h>
#include "narrow.hpp"
#include "wide.hpp"

template <class T, int K, bool REGISTERS> void run(const Layer<T> &layer, bool backward, bool wide) {
  if (wide)
    backward ? wide_backward<T, K, REGISTERS>(layer) : wide_forward<T, K, REGISTERS>(layer);
  else
    backward ? narrow_backward<T, K, REGISTERS>(layer) : narrow_forward<T, K, REGISTERS>(layer);
}

template <class T, int K> void run(const Layer<T> &layer, bool backward, bool wide) {
#if defined(__AVX512F__)
  if (layer.cells() <= 2 * lanes<T>) return run<T, K, true>(layer, backward, wide);
#endif
  run<T, K, false>(layer, backward, wide);
}

// 0, or 1 where there is no memory, or 2 for another order. wide: lanes across outputs.
template <class T> int run(const Layer<T> *layer, int order, int backward, int wide) {
  try {
    switch (order) {
      case 1: run<T, 1>(*layer, backward, wide); return 0;
      case 2: run<T, 2>(*layer, backward, wide); return 0;
      case 3: run<T, 3>(*layer, backward, wide); return 0;
      case 4: run<T, 4>(*layer, backward, wide); return 0;
      case 5: run<T, 5>(*layer, backward, wide); return 0;
    }
  } catch (const std::bad_alloc &) {
    return 1;
  }
  return 2;
}

// Compiled once for each type, with -DELEMENT=float or double.
#define NAME(type) NAMED(type)
#define NAMED(type) spline_##type
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int NAME(ELEMENT)(const Layer<ELEMENT> *layer, int order, int backward, int wide) {
  return run(layer, order, backward, wide);
}
