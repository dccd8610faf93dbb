// FlashMask backward in one pass. A task is one block of keys of one KV head: it keeps dK and dV to itself, over all
// query heads of the group, and adds its share of dQ in a fixed order: for each query tile, after the nearest earlier
// key block that sees it. Tasks start in ascending key order, so the one that is waited for is always already running,
// and the sum is the same bits for any number of threads.
#pragma once
#include <sched.h>

#include "forward.h"

namespace {

template <class C>
struct Backward {
    const BackwardArgs& a;
    Mask mask;
    int64_t nq, nkb, span, dp, dvp, ldk, ldv;  // span: key tiles in a block
    C qscale, kfactor;
    Score<C> score;
    size_t stride;
    C* scratch;
    C *delta, *lse2;  // [b, hq, sq]: rowsum(dO * O) - dlse, and lse in base 2
    double* sink_part;  // [b, hq, nq]
    int32_t* done;      // [b, hq, nq]: the last key block added to that query tile

    static void run(const BackwardArgs& a) {
        const Shape& n = a.n;
        if (!n.b || !n.hq) return;
        Backward f(a);
        f.plan();
        const int64_t tiles = n.b * n.hq * f.nq, rows = n.b * n.hq * n.sq;
        f.scratch = (C*)scratch_alloc(f.stride * sizeof(C) * a.threads);
        f.delta = (C*)scratch_alloc(2 * rows * sizeof(C));
        f.lse2 = f.delta + rows;
        f.sink_part = (double*)scratch_alloc(tiles * sizeof(double));
        f.done = (int32_t*)scratch_alloc(tiles * sizeof(int32_t));
        parallel(tiles, a.threads, [](void* self, int64_t t, int w) { ((Backward*)self)->prepare(t, w); }, &f);
        parallel(n.b * n.hkv * f.nkb, a.threads, [](void* self, int64_t t, int w) { ((Backward*)self)->task(t, w); }, &f);
        parallel(tiles, a.threads, [](void* self, int64_t t, int) { ((Backward*)self)->finish(t); }, &f);
        f.reduce_sink();
        scratch_free(f.done);
        scratch_free(f.sink_part);
        scratch_free(f.delta);
        scratch_free(f.scratch);
        f.mask.free();
    }

    explicit Backward(const BackwardArgs& args) : a(args), mask(Mask::make(args.mask, args.n.sq, args.n.sk)) {}

    void plan() {
        const Shape& n = a.n;
        nq = (n.sq + kTile - 1) / kTile;
        span = n.d + n.dv <= 256 ? 2 : 1;
        // The span groups the terms of dQ, so it may depend on the shape but never on the number of threads.
        while (span > 1 && n.b * n.hkv * ((mask.nk + span - 1) / span) < 32) span /= 2;
        nkb = (mask.nk + span - 1) / span;
        dp = round_up<C>(n.d);
        dvp = round_up<C>(n.dv);
        ldk = dp + 16;
        ldv = dvp + 16;
        qscale = (C)(a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2e);
        kfactor = (C)(a.softcap > 0 ? a.softcap : kLn2);  // dK = scale * dS^T q, and Q holds qscale * q
        score = {a.softcap > 0, (C)(a.softcap * kLog2e)};
        stride = span * kTile * (2 * ldk + n.d + n.dv + ldv) + kTile * (2 * ldk + ldv + 2 * kTile);
        stride = (stride + 63) / 64 * 64;
    }

    // delta, the base-2 lse and the sink's share of one query tile.
    void prepare(int64_t t, int worker) {
        const Shape& n = a.n;
        const int64_t bh = t / nq, b = bh / n.hq, h = bh % n.hq, r0 = t % nq * kTile, r1 = r0 + kTile < n.sq ? r0 + kTile : n.sq;
        C *x = scratch + worker * stride, *y = x + ldv;
        double part = 0;
        for (int64_t i = r0; i < r1; ++i) {
            load_row(a.dtype, a.dout.p, at(a.dout, b, i, h), n.dv, dvp, (C)1, x);
            load_row(a.dtype, a.out.p, at(a.out, b, i, h), n.dv, dvp, (C)1, y);
            Vec<C> sum{};
            for (int64_t j = 0; j < dvp; j += Simd<C>::N) sum += load(x + j) * load(y + j);
            const int64_t r = bh * n.sq + i;
            const C lse = ((const C*)a.lse)[r];
            delta[r] = hsum<C>(sum) - (a.dlse ? ((const C*)a.dlse)[r] : 0);
            lse2[r] = lse == (C)-INFINITY ? (C)INFINITY : (C)(lse * kLog2e);  // a row that sees nothing: P = exp2(-inf)
            if (a.sink && lse != (C)-INFINITY) part -= exp((double)((const C*)a.sink)[h] - (double)lse) * (double)delta[r];
        }
        sink_part[t] = part;
        done[t] = -1;
    }

    void reduce_sink() const {
        if (!a.dsink) return;
        for (int64_t h = 0; h < a.n.hq; ++h) {
            double sum = 0;
            for (int64_t b = 0; b < a.n.b; ++b)
                for (int64_t t = 0; t < nq; ++t) sum += sink_part[(b * a.n.hq + h) * nq + t];
            ((C*)a.dsink)[h] = (C)sum;
        }
    }

    FM_METHOD bool sees(int64_t mh, int64_t r0, int64_t r1, int64_t kb) const {
        const int64_t t1 = (kb + 1) * span < mask.nk ? (kb + 1) * span : mask.nk;
        for (int64_t kt = kb * span; kt < t1; ++kt)
            if (mask.classify(mh, r0, r1, kt) != kSkip) return true;
        return false;
    }

    void task(int64_t t, int worker) {
        const Shape& n = a.n;
        const int64_t kb = t / (n.b * n.hkv), bk = t % (n.b * n.hkv), b = bk / n.hkv, kvh = bk % n.hkv, group = n.hq / n.hkv;
        const int64_t t0 = kb * span, tiles = t0 + span < mask.nk ? span : mask.nk - t0;
        C* K = scratch + worker * stride;
        C* Kt = K + span * kTile * ldk;
        C* Vt = Kt + span * kTile * n.d;
        C* dK = Vt + span * kTile * n.dv;
        C* dV = dK + span * kTile * ldk;
        C* Q = dV + span * kTile * ldv;
        C* dQ = Q + kTile * ldk;
        C* dO = dQ + kTile * ldk;
        C* S = dO + kTile * ldv;
        C* dP = S + kTile * kTile;
        TileMask<C> tm[2];
        memset(dK, 0, tiles * kTile * ldk * sizeof(C));
        memset(dV, 0, tiles * kTile * ldv * sizeof(C));
        bool packed = false;
        int64_t filled_for = -1;
        for (int64_t h = kvh * group; h < (kvh + 1) * group; ++h) {
            const int64_t mh = a.mask.mode || a.mask.block ? mask.head(b, h, n.hq) : 0;
            for (int64_t qt = 0; qt < nq; ++qt) {
                const int64_t r0 = qt * kTile, r1 = r0 + kTile < n.sq ? r0 + kTile : n.sq, rows = r1 - r0;
                Class c[2];
                bool any = false;
                for (int64_t s = 0; s < tiles; ++s) c[s] = mask.classify(mh, r0, r1, t0 + s), any |= c[s] != kSkip;
                if (!any) continue;
                if (!packed) pack(b, kvh, t0, tiles, K, Kt, Vt, dO), packed = true;
                if (filled_for != mh) {
                    for (int64_t s = 0; s < tiles; ++s) tm[s].fill(mask, mh, t0 + s);
                    filled_for = mh;
                }
                load_tile(a.dtype, a.q, b, h, r0, rows, rows, n.d, dp, qscale, Q, ldk);
                load_tile(a.dtype, a.dout, b, h, r0, rows, rows, n.dv, dvp, (C)1, dO, ldv);
                bool first = true;
                for (int64_t s = 0; s < tiles; ++s) {
                    if (c[s] == kSkip) continue;
                    const int64_t o = s * kTile;
                    gemm<C, false, false>(rows, kTile, n.d, Q, ldk, Kt + o * n.d, kNR<C>, kNR<C> * n.d, S, kTile);
                    gemm<C, false, false>(rows, kTile, n.dv, dO, ldv, Vt + o * n.dv, kNR<C>, kNR<C> * n.dv, dP, kTile);
                    const int64_t at_row = (b * n.hq + h) * n.sq + r0;
                    if (c[s] == kPartial)
                        score.capped ? scores<true, true>(S, dP, rows, r0, tm[s], at_row) : scores<true, false>(S, dP, rows, r0, tm[s], at_row);
                    else
                        score.capped ? scores<false, true>(S, dP, rows, r0, tm[s], at_row) : scores<false, false>(S, dP, rows, r0, tm[s], at_row);
                    gemm<C, true, true>(kTile, dvp, rows, S, kTile, dO, ldv, kNR<C>, dV + o * ldv, ldv);
                    gemm<C, true, true>(kTile, dp, rows, dP, kTile, Q, ldk, kNR<C>, dK + o * ldk, ldk);
                    if (first)
                        gemm<C, false, false>(rows, dp, kTile, dP, kTile, K + o * ldk, ldk, kNR<C>, dQ, ldk);
                    else
                        gemm<C, false, true>(rows, dp, kTile, dP, kTile, K + o * ldk, ldk, kNR<C>, dQ, ldk);
                    first = false;
                }
                add_dq(b, h, mh, qt, r0, r1, kb, dQ);
            }
        }
        for (int64_t j = t0 * kTile; j < (t0 + tiles) * kTile && j < n.sk; ++j) {
            store_row(a.dtype, a.dk.p, at(a.dk, b, j, kvh), n.d, dK + (j - t0 * kTile) * ldk, kfactor);
            store_row(a.dtype, a.dv.p, at(a.dv, b, j, kvh), n.dv, dV + (j - t0 * kTile) * ldv, (C)1);
        }
    }

    // S becomes P = exp2(S - lse), dP becomes dS = P * (dP - delta) (times the softcap's slope). Hidden pairs are set
    // to zero by selection, not by a product with zero: a hidden key may hold any number.
    template <bool MASKED, bool CAPPED>
    void scores(C* S, C* dP, int64_t rows, int64_t r0, const TileMask<C>& tm, int64_t at_row) const {
        for (int64_t i = 0; i < rows; ++i) {
            const C l = lse2[at_row + i], de = delta[at_row + i];
            for (int64_t j = i * kTile; j < (i + 1) * kTile; j += Simd<C>::N) {
                Vec<C> x = load(S + j), slope{};
                if (CAPPED) {
                    const Vec<C> t = tanhv(x);
                    x = t * score.to_log2;
                    slope = (C)1 - t * t;
                }
                Vec<C> p = exp2v(x - l), ds = p * (load(dP + j) - de);
                if (CAPPED) ds *= slope;
                if (MASKED) {
                    const Int<C> see = tm.visible((typename Simd<C>::Lane)(r0 + i), j - i * kTile);
                    p = see ? p : Vec<C>{};
                    ds = see ? ds : Vec<C>{};
                }
                store(S + j, p);
                store(dP + j, ds);
            }
        }
    }

    void pack(int64_t b, int64_t h, int64_t t0, int64_t tiles, C* K, C* Kt, C* Vt, C* tmp) const {
        for (int64_t s = 0; s < tiles; ++s) {
            const int64_t j0 = (t0 + s) * kTile, rows = a.n.sk - j0 < kTile ? a.n.sk - j0 : kTile;
            load_tile(a.dtype, a.k, b, h, j0, rows, kTile, a.n.d, dp, (C)1, K + s * kTile * ldk, ldk);
            transpose_panels(K + s * kTile * ldk, ldk, kTile, a.n.d, Kt + s * kTile * a.n.d);
            load_tile(a.dtype, a.v, b, h, j0, rows, kTile, a.n.dv, a.n.dv, (C)1, tmp, ldv);
            transpose_panels(tmp, ldv, kTile, a.n.dv, Vt + s * kTile * a.n.dv);
        }
    }

    void add_dq(int64_t b, int64_t h, int64_t mh, int64_t qt, int64_t r0, int64_t r1, int64_t kb, const C* dQ) const {
        int64_t before = kb - 1;
        while (before >= 0 && !sees(mh, r0, r1, before)) --before;
        int32_t* turn = done + (b * a.n.hq + h) * nq + qt;
        for (int spins = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) != before; ++spins)
            if (spins > 64) sched_yield();
        const Vec<C> scale = splat((C)a.scale);
        for (int64_t i = r0; i < r1; ++i) {
            C* to = (C*)a.dq_acc.p + at(a.dq_acc, b, i, h);
            const C* from = dQ + (i - r0) * ldk;
            int64_t j = 0;
            for (; j + Simd<C>::N <= a.n.d; j += Simd<C>::N) {
                const Vec<C> x = load(from + j) * scale;
                store(to + j, before < 0 ? x : load(to + j) + x);
            }
            for (; j < a.n.d; ++j) to[j] = (before < 0 ? 0 : to[j]) + from[j] * scale[0];
        }
        __atomic_store_n(turn, (int32_t)kb, __ATOMIC_RELEASE);
    }

    void finish(int64_t t) const {
        const Shape& n = a.n;
        const int64_t bh = t / nq, b = bh / n.hq, h = bh % n.hq, r0 = t % nq * kTile, r1 = r0 + kTile < n.sq ? r0 + kTile : n.sq;
        const bool none = done[t] < 0;
        if (!none && a.dq_acc.p == a.dq.p) return;
        C* acc = (C*)a.dq_acc.p;
        for (int64_t i = r0; i < r1; ++i) {
            C* row = acc + at(a.dq_acc, b, i, h);
            if (none) memset(row, 0, n.d * sizeof(C));
            if (a.dq_acc.p != a.dq.p) store_row(a.dtype, a.dq.p, at(a.dq, b, i, h), n.d, row, (C)1);
        }
    }
};

}  // namespace
