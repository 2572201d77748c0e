// A layer's arguments, and what is common to all its edges: each point's cell and the polynomials there.
#pragma once
#include "lanes.hpp"

// Shapes as in hvdkan.spline; all arrays contiguous, any output may be null and is then not computed.
template <class T> struct Layer {
  int64_t batch, inputs, outputs, knot_count;
  int uniform;     // no knot is a quarter of a cell from where equal cells would put it
  const T *x;      // [batch, inputs]
  const T *coef;   // [inputs, outputs, bases]
  const T *scale;  // [inputs, outputs]
  const T *base;   // [inputs, outputs] or null: weights of silu(x)
  const T *bias;   // [outputs] or null
  const T *knots;  // [inputs, knots]
  const T *bases;  // [order + 1, order + 1, inputs * rows]: hvdkan.spline.Cells.bases
  T *y;            // [batch, outputs]
  const T *grad;   // [batch, outputs]
  T *grad_x, *grad_coef, *grad_scale, *grad_base;
  int threads;

  int64_t cells() const { return knot_count - 1; }
  int64_t rows() const { return knot_count + 1; }
  int64_t padded_cells() const { return (cells() + 2 * lanes<T> - 1) / (2 * lanes<T>) * (2 * lanes<T>); }
};

// Tables of one layer by input, for lookups by cell.
template <class T, int K> struct Cells {
  int64_t stride;
  Buffer<T> ends;   // [inputs, left right 1/width, cells]
  Buffer<T> bases;  // [inputs, basis, term, cells]; only for wide layers

  Cells(const Layer<T> &layer, bool with_bases)
      : stride(layer.padded_cells()),
        ends(layer.inputs * 3 * stride),
        bases(with_bases ? layer.inputs * (K + 1) * (K + 1) * stride : 0) {
    for (int64_t i = 0; i < layer.inputs; i++) {
      const T *knots = layer.knots + i * layer.knot_count;
      T *left = ends.get() + i * 3 * stride, *right = left + stride, *inverse = right + stride;
      for (int64_t c = 0; c < layer.cells(); c++) {
        left[c] = knots[c], right[c] = knots[c + 1];
        double width = double(right[c]) - double(left[c]);
        inverse[c] = width > 0 ? T(1 / width) : T(0);
      }
      if (!with_bases) continue;
      for (int n = 0; n < (K + 1) * (K + 1); n++)
        std::memcpy(bases.get() + (i * (K + 1) * (K + 1) + n) * stride,
                    layer.bases + (n * layer.inputs + i) * layer.rows() + 1, layer.cells() * sizeof(T));
    }
  }
};

// For the points of one input: cell (0 outside, where every polynomial is zero), u, v = 1 - u and 1/width.
template <class T> struct Place {
  Int<T> cell;
  Vec<T> u, v, inverse;
};

// Of R vectors of points at a time: one alone would wait for itself most of the time.
template <bool REGISTERS, int R, class T>
INLINE void locate(const Layer<T> &layer, int64_t i, const T *ends, int64_t stride, const Vec<T> *x, Place<T> *at) {
  const T *knots = layer.knots + i * layer.knot_count;
  const T *left = ends, *right = ends + stride, *inverse = ends + 2 * stride;
  const T first = knots[0], last = knots[layer.knot_count - 1];
  const Vec<T> zero = {};
  Int<T> inside[R], cell[R];
  for (int t = 0; t < R; t++) inside[t] = (Int<T>)(x[t] >= first) & (Int<T>)(x[t] < last);
  if (layer.uniform) {
    // At most one beside the true cell, which the knots themselves then decide.
    const T per_unit = T(layer.cells()) / (last - first), top = T(layer.cells() - 1);
    Int<T> wrong = {}, step[R];
    for (int t = 0; t < R; t++) {
      Vec<T> guess = (x[t] - first) * per_unit;
      guess = guess > top ? all(top) : guess;
      cell[t] = __builtin_convertvector(inside[t] ? guess : zero, Int<T>);
      step[t] = (Int<T>)(x[t] < lookup<REGISTERS>(left, cell[t])) - (Int<T>)(x[t] >= lookup<REGISTERS>(right, cell[t]));
      step[t] &= inside[t];
      wrong |= step[t];
    }
    if (any<T>(wrong))
      for (int t = 0; t < R; t++) cell[t] += step[t];
  } else if (layer.knot_count <= 64) {
    for (int t = 0; t < R; t++) cell[t] = Int<T>{};
    for (int64_t k = 1; k < layer.knot_count - 1; k++)
      for (int t = 0; t < R; t++) cell[t] -= (Int<T>)(x[t] >= knots[k]);
    for (int t = 0; t < R; t++) cell[t] &= inside[t];
  } else {
    for (int t = 0; t < R; t++)
      for (int l = 0; l < lanes<T>; l++)
        cell[t][l] = inside[t][l] ? std::upper_bound(knots, knots + layer.knot_count, x[t][l]) - knots - 1 : 0;
  }
  for (int t = 0; t < R; t++) {
    const Vec<T> scale = lookup<REGISTERS>(inverse, cell[t]);
    const Vec<T> u = (x[t] - lookup<REGISTERS>(left, cell[t])) * scale;
    at[t] = {cell[t], inside[t] ? u : zero, inside[t] ? T(1) - u : zero, inside[t] ? scale : zero};
  }
}

// terms[s] = u^s v^(K - s); slopes[s] its derivative in x.
template <int K, class T> INLINE void terms_of(const Place<T> &at, Vec<T> *terms) {
  Vec<T> high = at.u;
  terms[0] = at.v;
  for (int s = 1; s < K; s++) terms[0] *= at.v;
  if constexpr (K == 1) {
    terms[1] = at.u;
  } else {
    Vec<T> low[K + 1];
    low[1] = at.v;
    for (int s = 2; s < K; s++) low[s] = low[s - 1] * at.v;
    for (int s = 1; s < K; s++) {
      terms[s] = high * low[K - s];
      high *= at.u;
    }
    terms[K] = high;
  }
}
template <int K, class T> INLINE void slopes_of(const Place<T> &at, Vec<T> *slopes) {
  Vec<T> lower[K];  // u^s v^(K - 1 - s) / width
  if constexpr (K == 1)
    lower[0] = at.inverse;
  else {
    terms_of<K - 1>(at, lower);
    for (int s = 0; s < K; s++) lower[s] *= at.inverse;
  }
  slopes[0] = -T(K) * lower[0];
  for (int s = 1; s < K; s++) slopes[s] = T(s) * lower[s - 1] - T(K - s) * lower[s];
  slopes[K] = T(K) * lower[K - 1];
}

// silu(x) and its derivative, or zeros: without a base branch, not even NaN may reach the result.
template <class T> INLINE void silu(Vec<T> x, bool wanted, Vec<T> &value, Vec<T> &slope) {
  const Vec<T> sigmoid = T(1) / (exponential(-x) + T(1));
  const Int<T> mask = Int<T>{} - (wanted ? 1 : 0);
  value = (Vec<T>)((Int<T>)(x * sigmoid) & mask);
  slope = (Vec<T>)((Int<T>)(sigmoid * (x * (T(1) - sigmoid) + T(1))) & mask);
}

// x[b0 : b0 + lanes, i0 : i0 + count] by input: to[i][lane], 0 where there is no sample.
template <class T> INLINE void load_tile(const Layer<T> &layer, int64_t b0, int64_t i0, int64_t count, T *to) {
  constexpr int N = lanes<T>;
  const int64_t samples = std::min<int64_t>(N, layer.batch - b0);
  const T *from = layer.x + b0 * layer.inputs + i0;
  if (count == N) {
    Vec<T> rows[N];
    if (samples == N)
      for (int64_t b = 0; b < N; b++) rows[b] = load(from + b * layer.inputs);
    else
      for (int64_t b = 0; b < N; b++) rows[b] = b < samples ? load(from + b * layer.inputs) : Vec<T>{};
    transpose<T, N>(rows);
    for (int i = 0; i < N; i++) store(to + i * N, rows[i]);
    return;
  }
  for (int64_t i = 0; i < count; i++)
    for (int64_t b = 0; b < N; b++) to[i * N + b] = b < samples ? from[b * layer.inputs + i] : T(0);
}

// The other way, into grad_x.
template <class T> INLINE void store_tile(const Layer<T> &layer, int64_t b0, int64_t i0, int64_t count, const T *from) {
  constexpr int N = lanes<T>;
  const int64_t samples = std::min<int64_t>(N, layer.batch - b0);
  T *to = layer.grad_x + b0 * layer.inputs + i0;
  if (count == N) {
    Vec<T> rows[N];
    for (int i = 0; i < N; i++) rows[i] = load(from + i * N);
    transpose<T, N>(rows);
    if (samples == N)
      for (int64_t b = 0; b < N; b++) store(to + b * layer.inputs, rows[b]);
    else
      for (int64_t b = 0; b < samples; b++) store(to + b * layer.inputs, rows[b]);
    return;
  }
  for (int64_t b = 0; b < samples; b++)
    for (int64_t i = 0; i < count; i++) to[b * layer.inputs + i] = from[i * N + b];
}
