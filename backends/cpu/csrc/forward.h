// FlashMask forward. A task is up to four query tiles of one head: each key tile that any of them sees is packed once
// and used by all; tiles that nothing sees are never read. Scores live in base-2 logarithms, so that one
// multiplication of Q holds softmax_scale * log2(e). Every row sums its key tiles in ascending order, whatever the
// number of threads or of query tiles in a task.
#pragma once
#include "tiles.h"

namespace {

constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;

template <class C>
struct Score {  // from a raw product to a base-2 score
    bool capped;
    C to_log2;  // softcap * log2(e)
};

template <class C>
FM_INLINE Vec<C> neg_inf() {
    return splat((C)-INFINITY);
}

// One tile of the online softmax: S becomes exp2(S - max), and row i of the sums so far is to be scaled by alpha[i].
template <class C, bool MASKED, bool CAPPED>
static void softmax_tile(C* S, int64_t rows, int64_t r0, const TileMask<C>& mask, Score<C> score, C* m, C* l, C* alpha) {
    constexpr int N = Simd<C>::N;
    for (int64_t i = 0; i < rows; ++i) {
        C* s = S + i * kTile;
        Vec<C> top = neg_inf<C>();
        for (int64_t j = 0; j < kTile; j += N) {
            Vec<C> x = load(s + j);
            if (CAPPED) x = tanhv(x) * score.to_log2;
            if (MASKED) x = mask.visible((typename Simd<C>::Lane)(r0 + i), j) ? x : neg_inf<C>();
            if (MASKED || CAPPED) store(s + j, x);
            top = vmax(x, top);
        }
        const C row = hmax<C>(top), old = m[i], now = row > old ? row : old;
        const C base = now == (C)-INFINITY ? 0 : now;  // nothing seen yet: exp2(-inf - 0) = 0, not NaN
        Vec<C> sum{};
        for (int64_t j = 0; j < kTile; j += N) {
            const Vec<C> p = exp2v<true>(load(s + j) - base);
            store(s + j, p);
            sum += p;
        }
        const C a = old == now ? (C)1 : exp2v<true>(splat(old - base))[0];
        l[i] = l[i] * a + hsum<C>(sum);
        m[i] = now;
        alpha[i] = a;
    }
}

template <class C>
struct Forward {
    const ForwardArgs& a;
    Mask mask;
    int64_t nq, group, per_head, ldq, ldv, dvp;  // query tiles per head and task, tasks per head, padded widths
    C qscale;
    Score<C> score;
    size_t stride;  // scratch elements per worker
    C* scratch;

    static void run(const ForwardArgs& a) {
        const Shape& n = a.n;
        if (!n.b || !n.hq || !n.sq) return;
        Forward f(a);
        f.plan();
        f.scratch = (C*)scratch_alloc(f.stride * sizeof(C) * a.threads);
        parallel(n.b * n.hq * f.per_head, a.threads, [](void* self, int64_t t, int w) { ((Forward*)self)->task(t, w); }, &f);
        scratch_free(f.scratch);
        f.mask.free();
    }

    explicit Forward(const ForwardArgs& args) : a(args), mask(Mask::make(args.mask, args.n.sq, args.n.sk)) {}

    void plan() {
        const Shape& n = a.n;
        nq = (n.sq + kTile - 1) / kTile;
        group = n.d + n.dv <= 256 ? 4 : 2;
        while (group > 1 && n.b * n.hq * ((nq + group - 1) / group) < 4 * a.threads) group /= 2;
        per_head = (nq + group - 1) / group;
        dvp = round_up<C>(n.dv);
        ldq = n.d + 16;   // odd numbers of cache lines between rows: no set of the cache is hit by all of them
        ldv = dvp + 16;
        const double x = a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2e;
        qscale = (C)x;
        score = {a.softcap > 0, (C)(a.softcap * kLog2e)};
        stride = group * kTile * (ldq + ldv + 2) + kTile * (ldq + n.d + ldv + kTile + 1);
        stride = (stride + 63) / 64 * 64;
    }

    void task(int64_t t, int worker) {
        const Shape& n = a.n;
        // Last rows first: under a causal mask they are the heaviest, and the light ones fill the gaps at the end.
        const int64_t bh = t % (n.b * n.hq), b = bh / n.hq, h = bh % n.hq, kvh = h / (n.hq / n.hkv);
        const int64_t q0 = (per_head - 1 - t / (n.b * n.hq)) * group, q1 = q0 + group < nq ? q0 + group : nq;
        const int64_t mh = a.mask.mode || a.mask.block ? mask.head(b, h, n.hq) : 0;
        C* Q = scratch + worker * stride;
        C* O = Q + group * kTile * ldq;
        C* m = O + group * kTile * ldv;
        C* l = m + group * kTile;
        C* K = l + group * kTile;
        C* Kt = K + kTile * ldq;
        C* V = Kt + kTile * n.d;
        C* S = V + kTile * ldv;
        C* alpha = S + kTile * kTile;
        TileMask<C> tm;
        const int64_t r0 = q0 * kTile, r1 = q1 * kTile < n.sq ? q1 * kTile : n.sq;
        load_tile(a.dtype, a.q, b, h, r0, r1 - r0, r1 - r0, n.d, n.d, qscale, Q, ldq);
        memset(O, 0, (r1 - r0) * ldv * sizeof(C));
        for (int64_t i = 0; i < r1 - r0; ++i) m[i] = (C)-INFINITY, l[i] = 0;
        for (int64_t kt = 0; kt < mask.nk; ++kt) {
            if (mask.coarse(mh, r0, r1, kt) == kSkip) continue;
            bool packed = false, filled = false;
            for (int64_t qt = q0; qt < q1; ++qt) {
                const int64_t i0 = qt * kTile, i1 = i0 + kTile < n.sq ? i0 + kTile : n.sq, rows = i1 - i0, o = i0 - r0;
                const Class c = mask.classify(mh, i0, i1, kt);
                if (c == kSkip) continue;
                if (!packed) pack(b, kvh, kt, K, Kt, V), packed = true;
                if (c == kPartial && !filled) tm.fill(mask, mh, kt), filled = true;
                gemm<C, false, false>(rows, kTile, n.d, Q + o * ldq, ldq, Kt, kNR<C>, kNR<C> * n.d, S, kTile);
                if (c == kPartial)
                    score.capped ? softmax_tile<C, true, true>(S, rows, i0, tm, score, m + o, l + o, alpha)
                                 : softmax_tile<C, true, false>(S, rows, i0, tm, score, m + o, l + o, alpha);
                else
                    score.capped ? softmax_tile<C, false, true>(S, rows, i0, tm, score, m + o, l + o, alpha)
                                 : softmax_tile<C, false, false>(S, rows, i0, tm, score, m + o, l + o, alpha);
                for (int64_t i = 0; i < rows; ++i)
                    if (alpha[i] != 1) scale_row(O + (o + i) * ldv, alpha[i]);
                gemm<C, false, true>(rows, dvp, kTile, S, kTile, V, ldv, kNR<C>, O + o * ldv, ldv);
            }
        }
        finish(b, h, r0, r1, O, m, l);
    }

    FM_METHOD void scale_row(C* o, C x) const {
        for (int64_t j = 0; j < dvp; j += Simd<C>::N) store(o + j, load(o + j) * x);
    }

    void pack(int64_t b, int64_t h, int64_t kt, C* K, C* Kt, C* V) const {
        const int64_t j0 = kt * kTile, rows = a.n.sk - j0 < kTile ? a.n.sk - j0 : kTile;
        load_tile(a.dtype, a.k, b, h, j0, rows, kTile, a.n.d, a.n.d, (C)1, K, ldq);
        transpose_panels(K, ldq, kTile, a.n.d, Kt);
        load_tile(a.dtype, a.v, b, h, j0, rows, kTile, a.n.dv, dvp, (C)1, V, ldv);
    }

    void finish(int64_t b, int64_t h, int64_t r0, int64_t r1, C* O, const C* m, const C* l) const {
        C* lse = (C*)a.lse + (b * a.n.hq + h) * a.n.sq;
        for (int64_t i = r0; i < r1; ++i) {
            const C top = m[i - r0], sum = l[i - r0];
            const bool none = sum == 0;  // and not a NaN
            double total = none ? -INFINITY : (double)top * kLn2 + log((double)sum);
            C inverse = none ? 0 : 1 / sum;
            if (a.sink) {
                const double sink = (double)((const C*)a.sink)[h];
                const double high = total > sink ? total : sink, with = high == -INFINITY ? high : high + log(exp(total - high) + exp(sink - high));
                inverse = none ? 0 : (C)(exp(total - with) / (double)sum);
                total = with;
            }
            lse[i] = (C)total;
            store_row(a.dtype, a.out.p, at(a.out, b, i, h), a.n.dv, O + (i - r0) * ldv, inverse);
        }
    }
};

}  // namespace
