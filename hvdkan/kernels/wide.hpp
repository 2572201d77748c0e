// Many outputs: lanes across outputs. A point adds order + 1 rows of coefficients, and one for silu, to its sample.
#pragma once
#include <vector>
#include "points.hpp"

// Outputs go in tiles of up to four vectors; a tile's rows lie side by side, so that they do not evict each other.
template <class T, int K> struct Tiles {
  static constexpr int N = lanes<T>;
#if defined(__AVX512F__)
  static constexpr int MOST = 4;  // (K + 2) * 4 sums and a few more fit in 32 registers
#else
  static constexpr int MOST = 2;  // and (K + 2) * 2 in 16
#endif
  int64_t inputs, rows, outputs, vectors;  // rows of an input: the padded coefficients, then the weight of silu
  explicit Tiles(const Layer<T> &layer)
      : inputs(layer.inputs), rows(layer.cells() + K + 1), outputs(layer.outputs), vectors((outputs + N - 1) / N) {}
  int64_t count() const { return (vectors + MOST - 1) / MOST; }
  int width(int64_t tile) const { return int(std::min<int64_t>(MOST, vectors - tile * MOST)); }
  int64_t padded() const { return vectors * N; }
  int64_t size() const { return inputs * rows * padded(); }
  // Where input i's rows in a tile begin; one row is width(tile) vectors.
  int64_t start(int64_t tile, int64_t i) const { return (tile * MOST * inputs + i * width(tile)) * rows * N; }
};

template <class T, int K> Buffer<T> packed_weights(const Layer<T> &layer, const Tiles<T, K> &tiles) {
  constexpr int N = lanes<T>;
  const int64_t J = layer.outputs, bases = layer.cells() - K;
  Buffer<T> packed(tiles.size());
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t i = 0; i < layer.inputs; i++)
    for (int64_t tile = 0; tile < tiles.count(); tile++) {
      const int64_t j0 = tile * tiles.MOST * N, width = tiles.width(tile) * N, end = std::min(J, j0 + width);
      T *to = packed.get() + tiles.start(tile, i);
      for (int64_t j = j0; j < end; j++) {
        const T scale = layer.scale[i * J + j], *coef = layer.coef + (i * J + j) * bases;
        for (int64_t m = 0; m < bases; m++) to[(K + m) * width + j - j0] = coef[m] * scale;
        if (layer.base) to[(tiles.rows - 1) * width + j - j0] = layer.base[i * J + j];
      }
    }
  return packed;
}

// Calls body(std::integral_constant<int, width>) for a tile's width in vectors, which the compiler then knows.
template <int MOST, class Body> INLINE void with_width(int width, Body body) {
  if (width == 1) return body(std::integral_constant<int, 1>());
  if constexpr (MOST > 2) {
    if (width == 2) return body(std::integral_constant<int, 2>());
    if (width == 3) return body(std::integral_constant<int, 3>());
  }
  body(std::integral_constant<int, MOST>());
}

// Values, or derivatives in x, of the K + 1 bases that are not zero and of silu, for two vectors of points of one input,
// which begin at `from` and `apart` behind: weights[basis * pitch + point], place[point].
template <int K, bool REGISTERS, bool SLOPES, class T>
INLINE void weights_of(const Layer<T> &layer, const Cells<T, K> &cells, int64_t i, const T *from, int64_t apart,
                       T *weights, int64_t pitch, int32_t *place) {
  constexpr int N = lanes<T>, TOGETHER = 2;
  const int64_t stride = cells.stride;
  const T *bases = cells.bases.get() + i * (K + 1) * (K + 1) * stride;
  Vec<T> x[TOGETHER], terms[TOGETHER][K + 1], value, slope;
  Place<T> at[TOGETHER];
  for (int n = 0; n < TOGETHER; n++) x[n] = load(from + n * apart);
  locate<REGISTERS, TOGETHER>(layer, i, cells.ends.get() + i * 3 * stride, stride, x, at);
  for (int n = 0; n < TOGETHER; n++) {
    if constexpr (SLOPES) slopes_of<K>(at[n], terms[n]); else terms_of<K>(at[n], terms[n]);
    silu<T>(x[n], layer.base != nullptr, value, slope);
    store(weights + (K + 1) * pitch + n * N, SLOPES ? slope : value);
    for (int l = 0; l < N; l++) place[n * N + l] = int32_t(at[n].cell[l]);
  }
  for (int r = 0; r <= K; r++)
    for (int n = 0; n < TOGETHER; n++) {
      const T *basis = bases + r * (K + 1) * stride;
      Vec<T> total = {};
      for (int s = 0; s <= K; s++) total += terms[n][s] * lookup<REGISTERS>(basis + s * stride, at[n].cell);
      store(weights + r * pitch + n * N, total);
    }
}

template <class T, int K, bool REGISTERS> void wide_forward(const Layer<T> &layer) {
  constexpr int N = lanes<T>, B = 64, PARTS = K + 2;
  const int64_t I = layer.inputs, J = layer.outputs;
  const Tiles<T, K> tiles(layer);
  const Cells<T, K> cells(layer, true);
  const Buffer<T> packed = packed_weights<T, K>(layer, tiles);
  // As many inputs at a time as have their weights for one tile in the first-level cache.
  const int64_t fit = 24576 / (tiles.rows * tiles.width(0) * N * sizeof(T));
  const int64_t some = std::clamp<int64_t>(fit, 1, std::min<int64_t>(I, N));
  const bool direct = tiles.padded() == J;
  const int64_t each = 2 * N * N + N * PARTS * B + (direct ? 0 : B * tiles.padded());
  const Buffer<T> scratch(layer.threads * each);
  const Buffer<int32_t> places(layer.threads * N * B);
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t task = 0; task < (layer.batch + B - 1) / B; task++) {
    T *points = scratch.get() + omp_get_thread_num() * each, *weights = points + 2 * N * N;
    int32_t *place = places.get() + omp_get_thread_num() * N * B;
    const int64_t b0 = task * B, samples = std::min<int64_t>(B, layer.batch - b0);
    T *y = direct ? layer.y + b0 * J : weights + N * PARTS * B;
    const int64_t pitch = tiles.padded();
    for (int64_t b = 0; b < samples; b++)
      for (int64_t j = 0; j < J; j++) y[b * pitch + j] = layer.bias ? layer.bias[j] : T(0);
    for (int64_t i0 = 0; i0 < I; i0 += some) {
      const int64_t count = std::min(some, I - i0);
      for (int64_t b = 0; b < samples; b += 2 * N) {
        load_tile(layer, b0 + b, i0, count, points);
        load_tile(layer, b0 + b + N, i0, count, points + N * N);
        for (int64_t i = 0; i < count; i++)
          weights_of<K, REGISTERS, false>(layer, cells, i0 + i, points + i * N, N * N, weights + i * PARTS * B + b, B,
                                          place + i * B + b);
      }
      for (int64_t tile = 0; tile < tiles.count(); tile++)
        with_width<tiles.MOST>(tiles.width(tile), [&](auto known) {
          constexpr int W = decltype(known)::value;
          for (int64_t b = 0; b < samples; b++) {
            T *to = y + b * pitch + tile * tiles.MOST * N;
            Vec<T> total[W];
            for (int v = 0; v < W; v++) total[v] = load(to + v * N);
            for (int64_t i = 0; i < count; i++) {
              const T *rows = packed.get() + tiles.start(tile, i0 + i), *weight = weights + i * PARTS * B + b;
              const T *first = rows + place[i * B + b] * W * N;
              for (int r = 0; r <= K; r++)
                for (int v = 0; v < W; v++) total[v] += load(first + (r * W + v) * N) * weight[r * B];
              if (layer.base)
                for (int v = 0; v < W; v++)
                  total[v] += load(rows + ((tiles.rows - 1) * W + v) * N) * weight[(K + 1) * B];
            }
            for (int v = 0; v < W; v++) store(to + v * N, total[v]);
          }
        });
    }
    if (!direct)
      for (int64_t b = 0; b < samples; b++) std::memcpy(layer.y + (b0 + b) * J, y + b * pitch, J * sizeof(T));
  }
}

// x by input, to whole pairs of vectors of samples.
template <class T> struct Columns {
  int64_t pitch;
  Buffer<T> data;
  explicit Columns(const Layer<T> &layer)
      : pitch((layer.batch + 2 * lanes<T> - 1) / (2 * lanes<T>) * 2 * lanes<T>), data(layer.inputs * pitch) {
    constexpr int N = lanes<T>;
    T *to = data.get();
#pragma omp parallel for num_threads(layer.threads) schedule(static)
    for (int64_t b0 = 0; b0 < layer.batch; b0 += N) {
      alignas(64) T tile[N * N];
      for (int64_t i0 = 0; i0 < layer.inputs; i0 += N) {
        const int64_t count = std::min<int64_t>(N, layer.inputs - i0);
        load_tile(layer, b0, i0, count, tile);
        for (int64_t i = 0; i < count; i++) store(to + (i0 + i) * pitch + b0, load(tile + i * N));
      }
    }
  }
  const T *of(int64_t i) const { return data.get() + i * pitch; }
};

template <class T, int K, bool REGISTERS>
void wide_grad_x(const Layer<T> &layer, const Tiles<T, K> &tiles, const Cells<T, K> &cells, const Columns<T> &x,
                 const T *grads) {
  constexpr int N = lanes<T>, B = 64, PARTS = K + 2;
  const int64_t I = layer.inputs, pitch = tiles.padded();
  const Buffer<T> packed = packed_weights<T, K>(layer, tiles);
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t task = 0; task < (layer.batch + B - 1) / B; task++) {
    alignas(64) T weights[PARTS * B], results[N * B];
    int32_t place[B];
    const int64_t b0 = task * B, samples = std::min<int64_t>(B, layer.batch - b0);
    for (int64_t i = 0; i < I; i++) {
      for (int64_t b = 0; b < samples; b += 2 * N)
        weights_of<K, REGISTERS, true>(layer, cells, i, x.of(i) + b0 + b, N, weights + b, B, place + b);
      for (int64_t b = 0; b < samples; b++) {
        Vec<T> total = {};
        for (int64_t tile = 0; tile < tiles.count(); tile++)
          with_width<tiles.MOST>(tiles.width(tile), [&](auto known) {
            constexpr int W = decltype(known)::value;
            const T *rows = packed.get() + tiles.start(tile, i), *weight = weights + b;
            const T *first = rows + place[b] * W * N, *grad = grads + (b0 + b) * pitch + tile * tiles.MOST * N;
            for (int v = 0; v < W; v++) {
              Vec<T> slope = load(rows + ((tiles.rows - 1) * W + v) * N) * weight[(K + 1) * B];
              for (int r = 0; r <= K; r++) slope += load(first + (r * W + v) * N) * weight[r * B];
              total += slope * load(grad + v * N);
            }
          });
        results[b / N * N * N + i % N * N + b % N] = sum<T>(total);
      }
      if (i % N == N - 1 || i == I - 1)
        for (int64_t b = 0; b < samples; b += N) store_tile(layer, b0 + b, i / N * N, i % N + 1, results + b * N);
    }
  }
}

// Samples sorted by cell, a block at a time: a cell's sums stay in registers while its samples pass.
template <class T, int K> struct Sorted {
  static constexpr int BLOCK = 1024, PARTS = K + 2;
  Buffer<T> weights{BLOCK * PARTS}, unsorted{BLOCK * PARTS};
  Buffer<int64_t> sample{BLOCK};
  Buffer<int32_t> cell{BLOCK};
  Buffer<int32_t> ends;  // where each cell's samples end
  explicit Sorted(int64_t cells) : ends(cells + 1) {}

  template <bool REGISTERS>
  void fill(const Layer<T> &layer, const Cells<T, K> &tables, const T *x, int64_t i, int64_t b0, int64_t count) {
    constexpr int N = lanes<T>;
    T *from = unsorted.get(), *to = weights.get();
    int32_t *end = ends.get();
    std::memset(end, 0, (layer.cells() + 1) * sizeof(int32_t));
    for (int64_t b = 0; b < count; b += 2 * N)
      weights_of<K, REGISTERS, false>(layer, tables, i, x + b0 + b, N, from + b, BLOCK, cell.get() + b);
    for (int64_t b = 0; b < count; b++) end[cell.get()[b] + 1]++;
    for (int64_t c = 0; c < layer.cells(); c++) end[c + 1] += end[c];
    for (int64_t b = 0; b < count; b++) {
      const int32_t at = end[cell.get()[b]]++;
      sample.get()[at] = b0 + b;
      for (int part = 0; part < PARTS; part++) to[at * PARTS + part] = from[part * BLOCK + b];
    }
  }
};

template <class T, int K, bool REGISTERS>
void wide_grad_weights(const Layer<T> &layer, const Tiles<T, K> &tiles, const Cells<T, K> &cells, const Columns<T> &x,
                       const T *grads) {
  constexpr int N = lanes<T>, PARTS = K + 2;
  const int64_t I = layer.inputs, J = layer.outputs, bases = layer.cells() - K, pitch = tiles.padded();
  const Buffer<T> sums(tiles.size());
  // Sorting once an input is cheapest; with few inputs, threads share the outputs of one.
  const int64_t shared = std::clamp<int64_t>((2 * layer.threads + I - 1) / I, 1, tiles.count());
  const int64_t groups = layer.threads == 1 ? 1 : shared;
  std::vector<Sorted<T, K>> workers;
  for (int n = 0; n < layer.threads; n++) workers.emplace_back(layer.cells());
#pragma omp parallel for num_threads(layer.threads) schedule(static)
  for (int64_t task = 0; task < I * groups; task++) {
    Sorted<T, K> &sorted = workers[omp_get_thread_num()];
    const int64_t i = task / groups, group = task % groups;
    const int64_t first_tile = tiles.count() * group / groups, end_tile = tiles.count() * (group + 1) / groups;
    for (int64_t b0 = 0; b0 < layer.batch; b0 += Sorted<T, K>::BLOCK) {
      const int64_t count = std::min<int64_t>(Sorted<T, K>::BLOCK, layer.batch - b0);
      sorted.template fill<REGISTERS>(layer, cells, x.of(i), i, b0, count);
      const T *weights = sorted.weights.get();
      const int64_t *sample = sorted.sample.get();
      for (int64_t tile = first_tile; tile < end_tile; tile++)
        with_width<tiles.MOST>(tiles.width(tile), [&](auto known) {
          constexpr int W = decltype(known)::value;
          T *to = sums.get() + tiles.start(tile, i), *smooth = to + (tiles.rows - 1) * W * N;
          const T *from = grads + tile * tiles.MOST * N;
          Vec<T> base[W] = {};
          int32_t at = 0;
          for (int64_t c = 0; c < layer.cells(); c++) {
            const int32_t end = sorted.ends.get()[c];
            if (at == end) continue;
            Vec<T> total[K + 1][W] = {};
            for (; at < end; at++) {
              const T *grad = from + sample[at] * pitch, *weight = weights + at * PARTS;
              for (int v = 0; v < W; v++) {
                const Vec<T> g = load(grad + v * N);
#pragma GCC unroll 6
                for (int r = 0; r <= K; r++) total[r][v] += g * weight[r];
                base[v] += g * weight[K + 1];
              }
            }
            for (int r = 0; r <= K; r++)
              for (int v = 0; v < W; v++) {
                T *row = to + ((c + r) * W + v) * N;
                store(row, load(row) + total[r][v]);
              }
          }
          for (int v = 0; v < W; v++) store(smooth + v * N, load(smooth + v * N) + base[v]);
        });
    }
    for (int64_t tile = first_tile; tile < end_tile; tile++) {
      const int64_t j0 = tile * tiles.MOST * N, width = tiles.width(tile) * N, end = std::min(J, j0 + width);
      const T *from = sums.get() + tiles.start(tile, i);
      for (int64_t j = j0; j < end; j++) {
        const int64_t edge = i * J + j;
        T scale = 0;
        for (int64_t m = 0; m < bases; m++) {
          const T value = from[(K + m) * width + j - j0];
          layer.grad_coef[edge * bases + m] = value * layer.scale[edge];
          scale += value * layer.coef[edge * bases + m];
        }
        layer.grad_scale[edge] = scale;
        if (layer.grad_base) layer.grad_base[edge] = from[(tiles.rows - 1) * width + j - j0];
      }
    }
  }
}

template <class T, int K, bool REGISTERS> void wide_backward(const Layer<T> &layer) {
  const Tiles<T, K> tiles(layer);
  const Cells<T, K> cells(layer, true);
  const int64_t J = layer.outputs, pitch = tiles.padded();
  const Buffer<T> copy(pitch == J ? 0 : layer.batch * pitch);
  const T *grads = layer.grad;
  if (pitch != J) {
    for (int64_t b = 0; b < layer.batch; b++) std::memcpy(copy.get() + b * pitch, grads + b * J, J * sizeof(T));
    grads = copy.get();
  }
  const Columns<T> x(layer);
  if (layer.grad_x) wide_grad_x<T, K, REGISTERS>(layer, tiles, cells, x, grads);
  if (layer.grad_coef) wide_grad_weights<T, K, REGISTERS>(layer, tiles, cells, x, grads);
}
