// The gather-and-sum over rows behind the MoE combine.
#pragma once
#include "tiles.h"

namespace {

constexpr int64_t kRowsPerTask = 32;

// One output row: strips of four vectors, all terms of a strip summed in registers, in the order of the recipe.
template <DType D, class C>
struct GatherSumRow {
    using M = Io<D, C>;
    static constexpr int N = Simd<C>::N;

    static void run(const GatherSumArgs* a, int64_t r) {
        int64_t c = 0;
        for (; c + 4 * N <= a->width; c += 4 * N) strip<4>(*a, r, c);
        for (; c + N <= a->width; c += N) strip<1>(*a, r, c);
        for (; c < a->width; ++c) one(*a, r, c);
    }

    template <int W>
    FM_INLINE void strip(const GatherSumArgs& a, int64_t r, int64_t c) {
        Vec<C> sum[W] = {};
        bool first = true;
        for (int64_t j = 0; j < a.terms; ++j) {
            const int64_t from = a.index[r * a.terms + j];
            if (from < 0) continue;
            const Vec<C> w = splat(a.weight ? (C)a.weight[r * a.terms + j] : (C)1);
            for (int i = 0; i < W; ++i) {
                Vec<C> x = M::from(a.x, from * a.width + c + i * N) * w;
                round_here(x);
                sum[i] = first ? x : sum[i] + x;
            }
            first = false;
        }
        for (int i = 0; i < W; ++i) {
            const int64_t at = r * a.width + c + i * N;
            if (a.bias0 && a.bias1)
                sum[i] = (M::from(a.bias0, at) + M::from(a.bias1, at)) + sum[i];
            else if (a.bias0)
                sum[i] = M::from(a.bias0, at) + sum[i];
            M::to(a.y, at, sum[i]);
        }
    }

    static void one(const GatherSumArgs& a, int64_t r, int64_t c) {
        C sum = 0;
        bool first = true;
        for (int64_t j = 0; j < a.terms; ++j) {
            const int64_t from = a.index[r * a.terms + j];
            if (from < 0) continue;
            Vec<C> x = splat(M::from_one(a.x, from * a.width + c) * (a.weight ? (C)a.weight[r * a.terms + j] : (C)1));
            round_here(x);
            sum = first ? x[0] : sum + x[0];
            first = false;
        }
        const int64_t at = r * a.width + c;
        if (a.bias0 && a.bias1)
            sum = (M::from_one(a.bias0, at) + M::from_one(a.bias1, at)) + sum;
        else if (a.bias0)
            sum = M::from_one(a.bias0, at) + sum;
        M::to_one(a.y, at, sum);
    }
};

template <class C>
struct GatherSum {
    static void run(const GatherSumArgs& a) {
        parallel((a.rows + kRowsPerTask - 1) / kRowsPerTask, a.threads,
                 [](void* p, int64_t t, int) { task((const GatherSumArgs*)p, t); }, (void*)&a);
    }
    static void task(const GatherSumArgs* a, int64_t t) {
        const int64_t r1 = (t + 1) * kRowsPerTask < a->rows ? (t + 1) * kRowsPerTask : a->rows;
        for (int64_t r = t * kRowsPerTask; r < r1; ++r) by_storage<GatherSumRow, C>(a->dtype, a, r);
    }
};

}  // namespace
