// Kernels over rows: the gather-and-sum behind the MoE permutation and combine, and RMS norm.
#pragma once
#include "tiles.h"

namespace {

constexpr int64_t kChunk = 1024;  // columns summed at a time: the sums stay in the first-level cache
constexpr int64_t kRowsPerTask = 32;

FM_INLINE int64_t dtype_bytes(DType d) { return d == DType::f64 ? 8 : d == DType::f32 ? 4 : 2; }

template <class C>
struct GatherSum {
    static void run(const GatherSumArgs& a) {
        parallel((a.rows + kRowsPerTask - 1) / kRowsPerTask, a.threads,
                 [](void* p, int64_t t, int) { task(*(const GatherSumArgs*)p, t); }, (void*)&a);
    }

    static void add_bias(const GatherSumArgs& a, int64_t at, int64_t n, int64_t whole, C* sum) {
        alignas(64) C x[kChunk], y[kChunk];
        const void* one = a.bias0 ? a.bias0 : a.bias1;
        load_row(a.dtype, one, at, n, whole, (C)1, x);
        if (a.bias0 && a.bias1) {
            load_row(a.dtype, a.bias1, at, n, whole, (C)1, y);
            for (int64_t i = 0; i < whole; i += Simd<C>::N) store(x + i, load(x + i) + load(y + i));
        }
        for (int64_t i = 0; i < whole; i += Simd<C>::N) store(sum + i, load(x + i) + load(sum + i));
    }

    static void task(const GatherSumArgs& a, int64_t t) {
        const int64_t r1 = (t + 1) * kRowsPerTask < a.rows ? (t + 1) * kRowsPerTask : a.rows;
        alignas(64) C sum[kChunk], x[kChunk];
        for (int64_t r = t * kRowsPerTask; r < r1; ++r)
            for (int64_t c = 0; c < a.width; c += kChunk) {
                const int64_t n = a.width - c < kChunk ? a.width - c : kChunk, whole = round_up<C>(n);
                bool first = true;
                for (int64_t j = 0; j < a.terms; ++j) {
                    const int64_t from = a.index[r * a.terms + j];
                    if (from < 0) continue;
                    const C w = a.weight ? (C)a.weight[r * a.terms + j] : (C)1;
                    load_row(a.dtype, a.x, from * a.width + c, n, whole, w, first ? sum : x);
                    if (!first)
                        for (int64_t i = 0; i < whole; i += Simd<C>::N) store(sum + i, load(sum + i) + load(x + i));
                    first = false;
                }
                if (first) memset(sum, 0, whole * sizeof(C));
                if (a.bias0 || a.bias1) add_bias(a, r * a.width + c, n, whole, sum);
                store_row(a.dtype, a.y, r * a.width + c, n, sum, (C)1);
            }
    }
};

template <class C>
struct RmsNorm {
    static void run(const RmsNormArgs& a) {
        parallel((a.rows + kRowsPerTask - 1) / kRowsPerTask, a.threads,
                 [](void* p, int64_t t, int) { task(*(const RmsNormArgs*)p, t); }, (void*)&a);
    }

    static void task(const RmsNormArgs& a, int64_t t) {
        const int64_t r1 = (t + 1) * kRowsPerTask < a.rows ? (t + 1) * kRowsPerTask : a.rows;
        alignas(64) C x[kChunk], w[kChunk];
        for (int64_t r = t * kRowsPerTask; r < r1; ++r) {
            double total = 0;
            for (int64_t c = 0; c < a.width; c += kChunk) {
                const int64_t n = a.width - c < kChunk ? a.width - c : kChunk, whole = round_up<C>(n);
                load_row(a.dtype, a.x, r * a.width + c, n, whole, (C)1, x);
                Vec<C> sum{};
                for (int64_t i = 0; i < whole; i += Simd<C>::N) sum += load(x + i) * load(x + i);
                total += (double)hsum<C>(sum);
            }
            const C factor = (C)(1 / sqrt(total / (double)a.width + a.eps));
            for (int64_t c = 0; c < a.width; c += kChunk) {
                const int64_t n = a.width - c < kChunk ? a.width - c : kChunk, whole = round_up<C>(n);
                load_row(a.dtype, a.x, r * a.width + c, n, whole, factor, x);
                if (a.weight) {
                    load_row(a.dtype, a.weight, c, n, whole, (C)1, w);
                    for (int64_t i = 0; i < whole; i += Simd<C>::N) store(x + i, load(x + i) * load(w + i));
                }
                store_row(a.dtype, a.y, r * a.width + c, n, x, (C)1);
            }
        }
    }
};

}  // namespace
