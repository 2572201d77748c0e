// Few outputs: lanes across samples. Each edge's spline is kept as one polynomial a cell, so that a point costs one
// lookup and one product a term.
#pragma once
#include "points.hpp"

// Coefficients of u^s v^(K - s): [inputs, outputs, term, cells].
template <class T, int K> Buffer<T> edge_polynomials(const Layer<T> &layer, int64_t stride) {
  const int64_t J = layer.outputs, bases = layer.cells() - K, rows = layer.rows();
  Buffer<T> polynomials(layer.inputs * J * (K + 1) * stride), padded(bases + 2 * K);
  T *weight = padded.get();
  for (int64_t i = 0; i < layer.inputs; i++)
    for (int64_t j = 0; j < J; j++) {
      for (int64_t m = 0; m < bases; m++)
        weight[K + m] = layer.coef[(i * J + j) * bases + m] * layer.scale[i * J + j];
      for (int s = 0; s <= K; s++) {
        T *to = polynomials.get() + ((i * J + j) * (K + 1) + s) * stride;
        for (int r = 0; r <= K; r++) {
          const T *basis = layer.bases + ((r * (K + 1) + s) * layer.inputs + i) * rows + 1;
          for (int64_t c = 0; c < layer.cells(); c++) to[c] += weight[c + r] * basis[c];
        }
      }
    }
  return polynomials;
}

template <class T, int K, bool REGISTERS> void narrow_forward(const Layer<T> &layer) {
  constexpr int N = lanes<T>, TILES = 4, TOGETHER = 2;
  const int64_t I = layer.inputs, J = layer.outputs;
  const Cells<T, K> cells(layer, false);
  const int64_t stride = cells.stride, each = J * TILES * N + TILES * N * N;
  const Buffer<T> edges = edge_polynomials<T, K>(layer, stride), scratch(layer.threads * each);
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t b0 = 0; b0 < layer.batch; b0 += TILES * N) {
    T *total = scratch.get() + omp_get_thread_num() * each, *points = total + J * TILES * N;
    for (int64_t j = 0; j < J; j++)
      for (int64_t l = 0; l < TILES * N; l++) total[j * TILES * N + l] = layer.bias ? layer.bias[j] : T(0);
    for (int64_t i0 = 0; i0 < I; i0 += N) {
      const int64_t count = std::min<int64_t>(N, I - i0);
      for (int64_t t = 0; t < TILES; t++) load_tile(layer, b0 + t * N, i0, count, points + t * N * N);
      for (int64_t i = i0; i < i0 + count; i++)
        for (int64_t t = 0; t < TILES; t += TOGETHER) {
          Vec<T> x[TOGETHER], terms[TOGETHER][K + 1], smooth[TOGETHER], slope;
          Place<T> at[TOGETHER];
          for (int n = 0; n < TOGETHER; n++) x[n] = load(points + ((t + n) * N + i - i0) * N);
          locate<REGISTERS, TOGETHER>(layer, i, cells.ends.get() + i * 3 * stride, stride, x, at);
          for (int n = 0; n < TOGETHER; n++) {
            terms_of<K>(at[n], terms[n]);
            silu<T>(x[n], layer.base != nullptr, smooth[n], slope);
          }
          for (int64_t j = 0; j < J; j++) {
            const T *edge = edges.get() + (i * J + j) * (K + 1) * stride;
            const T base = layer.base ? layer.base[i * J + j] : T(0);
            for (int n = 0; n < TOGETHER; n++) {
              T *sum = total + (j * TILES + t + n) * N;
              Vec<T> value = smooth[n] * base;
              for (int s = 0; s <= K; s++) value += terms[n][s] * lookup<REGISTERS>(edge + s * stride, at[n].cell);
              store(sum, load(sum) + value);
            }
          }
        }
    }
    for (int64_t b = b0; b < std::min(b0 + TILES * N, layer.batch); b++)
      for (int64_t j = 0; j < J; j++) layer.y[b * J + j] = total[j * TILES * N + b - b0];
  }
}

// A term for every lane becomes, for every point, its K + 1 terms side by side: added to its cell in one go. Two
// copies take turns, so that points of one cell wait less for each other.
template <class T, int K> struct Scatter {
  static constexpr int WIDE = K + 1 <= 2 ? 2 : K + 1 <= 4 ? 4 : 8, COPIES = 2, CELL = WIDE * COPIES;
  typedef T Terms __attribute__((vector_size(WIDE * sizeof(T))));
  static INLINE void add(T *cells, Vec<T> *terms, Int<T> cell) {
    constexpr int N = lanes<T>;
    alignas(64) T points[N * WIDE];
    alignas(64) decltype(cell[0] + cell[0]) at[N];
    transpose<T, WIDE>(terms);
    for (int s = 0; s < WIDE; s++) *reinterpret_cast<Vec<T> *>(points + s * N) = terms[s];
    *reinterpret_cast<Int<T> *>(at) = cell * CELL;
    asm volatile("" ::: "memory");  // reading them back is cheaper than taking each from its vector
#pragma GCC unroll 16
    for (int l = 0; l < N; l++)
      *reinterpret_cast<Terms *>(cells + at[l] + l % COPIES * WIDE) += *reinterpret_cast<Terms *>(points + l * WIDE);
  }
};

// Gradients of one edge's coefficients and scale from those of its polynomials.
template <class T, int K> void edge_gradients(const Layer<T> &layer, int64_t i, int64_t j, const T *cells, T *weight) {
  using Adder = Scatter<T, K>;
  const int64_t J = layer.outputs, bases = layer.cells() - K, rows = layer.rows();
  std::memset(weight, 0, (bases + 2 * K) * sizeof(T));
  for (int64_t c = 0; c < layer.cells(); c++)
    for (int s = 0; s <= K; s++) {
      T total = 0;
      for (int copy = 0; copy < Adder::COPIES; copy++) total += cells[(c * Adder::COPIES + copy) * Adder::WIDE + s];
      for (int r = 0; r <= K; r++)
        weight[c + r] += total * layer.bases[((r * (K + 1) + s) * layer.inputs + i) * rows + 1 + c];
    }
  T scale = 0;
  for (int64_t m = 0; m < bases; m++) {
    layer.grad_coef[(i * J + j) * bases + m] = weight[K + m] * layer.scale[i * J + j];
    scale += weight[K + m] * layer.coef[(i * J + j) * bases + m];
  }
  layer.grad_scale[i * J + j] = scale;
}

// Threads share the inputs, so that no two add to one edge and the bits do not depend on how many there are.
template <class T, int K, bool REGISTERS> void narrow_backward(const Layer<T> &layer) {
  constexpr int N = lanes<T>, TOGETHER = 2;
  using Adder = Scatter<T, K>;
  const int64_t I = layer.inputs, J = layer.outputs;
  const int64_t padded = (layer.batch + TOGETHER * N - 1) / (TOGETHER * N) * TOGETHER * N;
  const Cells<T, K> cells(layer, false);
  const int64_t stride = cells.stride, edge_size = layer.cells() * Adder::CELL;
  const Buffer<T> edges = edge_polynomials<T, K>(layer, stride), grads(J * padded);
  for (int64_t b = 0; b < layer.batch; b++)
    for (int64_t j = 0; j < J; j++) grads.get()[j * padded + b] = layer.grad[b * J + j];
  // A multiple of a cache line: threads write beside each other, and vectors lie whole in one.
  const int64_t tile = TOGETHER * N * N, each = (2 * tile + N * J * (N + edge_size) + layer.cells() + K + 63) / 64 * 64;
  const Buffer<T> scratch(layer.threads * each);
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t i0 = 0; i0 < I; i0 += N) {
    T *points = scratch.get() + omp_get_thread_num() * each, *results = points + tile, *bases = results + tile;
    T *sums = bases + N * J * N, *weight = sums + N * J * edge_size;
    std::memset(bases, 0, N * J * (N + edge_size) * sizeof(T));
    const int64_t count = std::min<int64_t>(N, I - i0);
    for (int64_t b0 = 0; b0 < padded; b0 += TOGETHER * N) {
      for (int n = 0; n < TOGETHER; n++) load_tile(layer, b0 + n * N, i0, count, points + n * N * N);
      for (int64_t i = 0; i < count; i++) {
        Vec<T> x[TOGETHER], terms[TOGETHER][K + 1], slopes[TOGETHER][K + 1], smooth[TOGETHER], rise[TOGETHER];
        Vec<T> result[TOGETHER] = {};
        Place<T> at[TOGETHER];
        for (int n = 0; n < TOGETHER; n++) x[n] = load(points + (n * N + i) * N);
        locate<REGISTERS, TOGETHER>(layer, i0 + i, cells.ends.get() + (i0 + i) * 3 * stride, stride, x, at);
        for (int n = 0; n < TOGETHER; n++) {
          terms_of<K>(at[n], terms[n]);
          slopes_of<K>(at[n], slopes[n]);
          silu<T>(x[n], layer.base != nullptr, smooth[n], rise[n]);
        }
        for (int64_t j = 0; j < J; j++) {
          const T *edge = edges.get() + ((i0 + i) * J + j) * (K + 1) * stride;
          const T base = layer.base ? layer.base[(i0 + i) * J + j] : T(0);
          Vec<T> based = load(bases + (i * J + j) * N);
          for (int n = 0; n < TOGETHER; n++) {
            const Vec<T> grad = load(grads.get() + j * padded + b0 + n * N);
            Vec<T> slope = rise[n] * base, weighted[Adder::WIDE] = {};
            for (int s = 0; s <= K; s++) {
              slope += slopes[n][s] * lookup<REGISTERS>(edge + s * stride, at[n].cell);
              weighted[s] = terms[n][s] * grad;
            }
            result[n] += grad * slope;
            based += grad * smooth[n];
            Adder::add(sums + (i * J + j) * edge_size, weighted, at[n].cell);
          }
          store(bases + (i * J + j) * N, based);
        }
        for (int n = 0; n < TOGETHER; n++) store(results + (n * N + i) * N, result[n]);
      }
      if (layer.grad_x)
        for (int n = 0; n < TOGETHER; n++) store_tile(layer, b0 + n * N, i0, count, results + n * N * N);
    }
    for (int64_t i = 0; i < count; i++)
      for (int64_t j = 0; j < J; j++) {
        if (layer.grad_base) layer.grad_base[(i0 + i) * J + j] = sum<T>(load(bases + (i * J + j) * N));
        if (layer.grad_coef) edge_gradients<T, K>(layer, i0 + i, j, sums + (i * J + j) * edge_size, weight);
      }
  }
}
