// Tiles: loading rows of any dtype into padded scratch, transposing them into panels, storing them back, and what the
// mask says of a tile.
#pragma once
#include "api.h"
#include "micro.h"

namespace {

using namespace fm;

constexpr int64_t kTile = 64;  // rows and columns of a tile; divides the 128 of a block mask

// ---- element conversions ------------------------------------------------------------------------------------------
FM_INLINE float bits_to_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
FM_INLINE uint32_t float_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
FM_INLINE float from_bf16(uint16_t h) { return bits_to_float((uint32_t)h << 16); }
FM_INLINE uint16_t to_bf16(float f) {
    const uint32_t u = float_to_bits(f);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);  // a NaN must not round to inf
}
#if defined(__F16C__)
FM_INLINE float from_f16(uint16_t h) { return _cvtsh_ss(h); }
FM_INLINE uint16_t to_f16(float f) { return _cvtss_sh(f, 0); }
#else
FM_INLINE float from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    // The exponents differ by 112; a multiplication by 2^112 moves it and makes subnormals exact as well.
    return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * bits_to_float(0x77800000)));
}
FM_INLINE uint16_t to_f16(float f) {
    const uint32_t u = float_to_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above round to inf
    if (a < 0x38800000)                                     // subnormal: adding 1/2 aligns and rounds the mantissa
        return (uint16_t)(sign | (float_to_bits(bits_to_float(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}
#endif

// One vector of compute type C from or to memory of dtype D; `from_one` and `to_one` are the same for one element.
template <DType D, class C>
struct Io;
template <class C>
struct Io<DType::f32, C> {
    typedef float Wide __attribute__((vector_size(sizeof(float) * Simd<C>::N)));
    FM_INLINE C from_one(const void* p, int64_t i) { return (C)((const float*)p)[i]; }
    FM_INLINE void to_one(void* p, int64_t i, C x) { ((float*)p)[i] = (float)x; }
    FM_INLINE Vec<C> from(const void* p, int64_t i) {
        Wide w;
        memcpy(&w, (const float*)p + i, sizeof w);
        return __builtin_convertvector(w, Vec<C>);
    }
    FM_INLINE void to(void* p, int64_t i, Vec<C> x) {
        const Wide w = __builtin_convertvector(x, Wide);
        memcpy((float*)p + i, &w, sizeof w);
    }
};
template <class C>
struct Io<DType::f64, C> {
    FM_INLINE C from_one(const void* p, int64_t i) { return (C)((const double*)p)[i]; }
    FM_INLINE void to_one(void* p, int64_t i, C x) { ((double*)p)[i] = (double)x; }
    FM_INLINE Vec<C> from(const void* p, int64_t i) { return load((const C*)p + i); }  // double is computed in double
    FM_INLINE void to(void* p, int64_t i, Vec<C> x) { store((C*)p + i, x); }
};
template <class C>
struct Io<DType::bf16, C> {
    typedef uint16_t Narrow __attribute__((vector_size(2 * Simd<float>::N)));
    typedef uint32_t Bits __attribute__((vector_size(FM_VBYTES)));
    FM_INLINE C from_one(const void* p, int64_t i) { return (C)from_bf16(((const uint16_t*)p)[i]); }
    FM_INLINE void to_one(void* p, int64_t i, C x) { ((uint16_t*)p)[i] = to_bf16((float)x); }
    FM_INLINE Vec<float> from(const void* p, int64_t i) {
        Narrow h;
        memcpy(&h, (const uint16_t*)p + i, sizeof h);
        return (Vec<float>)(__builtin_convertvector(h, Bits) << 16);
    }
    FM_INLINE void to(void* p, int64_t i, Vec<float> x) {
        const Bits u = (Bits)x, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
        const Bits kept = x == x ? rounded : (u >> 16 | 0x40);
        const Narrow h = __builtin_convertvector(kept, Narrow);
        memcpy((uint16_t*)p + i, &h, sizeof h);
    }
};
template <class C>
struct Io<DType::f16, C> {
    FM_INLINE C from_one(const void* p, int64_t i) { return (C)from_f16(((const uint16_t*)p)[i]); }
    FM_INLINE void to_one(void* p, int64_t i, C x) { ((uint16_t*)p)[i] = to_f16((float)x); }
#if defined(__AVX512F__) && FM_VBYTES == 64
    FM_INLINE Vec<float> from(const void* p, int64_t i) {
        return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)((const uint16_t*)p + i)));
    }
    FM_INLINE void to(void* p, int64_t i, Vec<float> x) {
        _mm256_storeu_si256((__m256i*)((uint16_t*)p + i), _mm512_cvtps_ph((__m512)x, 0));
    }
#elif defined(__F16C__) && FM_VBYTES == 32
    FM_INLINE Vec<float> from(const void* p, int64_t i) {
        return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)((const uint16_t*)p + i)));
    }
    FM_INLINE void to(void* p, int64_t i, Vec<float> x) {
        _mm_storeu_si128((__m128i*)((uint16_t*)p + i), _mm256_cvtps_ph((__m256)x, 0));
    }
#else
    FM_INLINE Vec<float> from(const void* p, int64_t i) {
        Vec<float> x;
        for (int j = 0; j < Simd<float>::N; ++j) x[j] = from_one(p, i + j);
        return x;
    }
    FM_INLINE void to(void* p, int64_t i, Vec<float> x) {
        for (int j = 0; j < Simd<float>::N; ++j) to_one(p, i + j, x[j]);
    }
#endif
};

// Call F<D, C>::run(...) for the dtype at hand; double is only ever computed in double, the rest in float.
template <template <DType, class> class F, class C, class... A>
FM_INLINE void by_storage(DType dtype, A... a) {
    if constexpr (sizeof(C) == 8) {
        F<DType::f64, C>::run(a...);
    } else {
        if (dtype == DType::f32) F<DType::f32, C>::run(a...);
        if (dtype == DType::bf16) F<DType::bf16, C>::run(a...);
        if (dtype == DType::f16) F<DType::f16, C>::run(a...);
    }
}

template <DType D, class C>
struct LoadRow {
    FM_INLINE void run(const void* src, int64_t offset, int64_t n, int64_t width, C scale, C* dst) {
        int64_t i = 0;
        for (; i + Simd<C>::N <= n; i += Simd<C>::N) store(dst + i, Io<D, C>::from(src, offset + i) * scale);
        for (; i < n; ++i) dst[i] = Io<D, C>::from_one(src, offset + i) * scale;
        for (; i < width; ++i) dst[i] = 0;
    }
};
template <DType D, class C>
struct StoreRow {
    FM_INLINE void run(void* dst, int64_t offset, int64_t n, const C* src, C scale) {
        int64_t i = 0;
        for (; i + Simd<C>::N <= n; i += Simd<C>::N) Io<D, C>::to(dst, offset + i, load(src + i) * scale);
        for (; i < n; ++i) Io<D, C>::to_one(dst, offset + i, src[i] * scale);
    }
};

// dst[0..n) = src[offset..offset + n) * scale; the pad up to `width` is zero.
template <class C>
static void load_row(DType dtype, const void* src, int64_t offset, int64_t n, int64_t width, C scale, C* dst) {
    by_storage<LoadRow, C>(dtype, src, offset, n, width, scale, dst);
}

template <class C>
static void store_row(DType dtype, void* dst, int64_t offset, int64_t n, const C* src, C scale) {
    by_storage<StoreRow, C>(dtype, dst, offset, n, src, scale);
}

FM_INLINE int64_t at(const Bshd& t, int64_t b, int64_t s, int64_t h) { return b * t.sb + s * t.ss + h * t.sh; }

// Rows [s0, s0 + rows) of one head, scaled, row by row `ld` apart, padded with zeros to `width` columns and `pad_rows`.
template <class C>
static void load_tile(DType dtype, const Bshd& t, int64_t b, int64_t h, int64_t s0, int64_t rows, int64_t pad_rows,
                      int64_t n, int64_t width, C scale, C* dst, int64_t ld) {
    for (int64_t i = 0; i < rows; ++i) load_row(dtype, t.p, at(t, b, s0 + i, h), n, width, scale, dst + i * ld);
    for (int64_t i = rows; i < pad_rows; ++i) memset(dst + i * ld, 0, width * sizeof(C));
}

// Panels of the transposed tile: element (k, j) of panel p is src[p * kNR + j][k].
template <class C>
static void transpose_panels(const C* src, int64_t ld, int64_t rows, int64_t n, C* dst) {
    for (int64_t p = 0; p < rows; p += kNR<C>) {
        const C* s = src + p * ld;
        for (int64_t k = 0; k < n; ++k, dst += kNR<C>)
            for (int j = 0; j < kNR<C>; ++j) dst[j] = s[j * ld + k];
    }
}

// ---- the mask -----------------------------------------------------------------------------------------------------
// Least and greatest bound of each key tile. Tests over all columns use every column (an empty interval then fails
// them by itself); tests for any column leave empty intervals out.
struct TileBounds {
    int32_t lo_max, hi_min, lo_any, hi_any;      // mode 1: the visible interval; mode 2: the upper hidden one
    int32_t lo2_max, hi2_min, lo2_any, hi2_any;  // mode 2: the lower hidden one
};

enum Class : int { kSkip = 0, kPartial = 1, kFull = 2 };

struct Mask {
    MaskView v;
    int64_t sq, sk, nk, nbq, nbk;
    TileBounds* bounds;  // [batch, heads, nk]

    static FM_METHOD Mask make(const MaskView& v, int64_t sq, int64_t sk) {
        Mask m{v, sq, sk, (sk + kTile - 1) / kTile, (sq + 127) / 128, (sk + 127) / 128, nullptr};
        if (v.mode) {
            m.bounds = (TileBounds*)scratch_alloc(sizeof(TileBounds) * v.batch * v.heads * m.nk);
            for (int64_t bh = 0; bh < v.batch * v.heads; ++bh)
                for (int64_t t = 0; t < m.nk; ++t) m.bounds[bh * m.nk + t] = m.summarize(bh, t);
        }
        return m;
    }
    FM_METHOD void free() const {
        if (bounds) scratch_free(bounds);
    }

    // Index of the mask head of (batch b, query head h).
    FM_METHOD int64_t head(int64_t b, int64_t h, int64_t hq) const {
        return (v.batch > 1 ? b : 0) * v.heads + h / (hq / v.heads);
    }
    FM_METHOD const int32_t* plane(int64_t bh, int i) const { return v.planes + (bh * 2 * v.mode + i) * sk; }

    TileBounds summarize(int64_t bh, int64_t t) const {
        TileBounds r{0, INT32_MAX, INT32_MAX, 0, 0, INT32_MAX, INT32_MAX, 0};
        const int64_t j1 = (t + 1) * kTile < sk ? (t + 1) * kTile : sk;
        for (int part = 0; part < v.mode; ++part) {
            const int32_t *lo = plane(bh, 2 * part), *hi = plane(bh, 2 * part + 1);
            int32_t lo_max = 0, hi_min = INT32_MAX, lo_any = INT32_MAX, hi_any = 0;
            for (int64_t j = t * kTile; j < j1; ++j) {
                const bool some = lo[j] < hi[j];
                lo_max = lo[j] > lo_max ? lo[j] : lo_max;
                hi_min = hi[j] < hi_min ? hi[j] : hi_min;
                lo_any = some && lo[j] < lo_any ? lo[j] : lo_any;
                hi_any = some && hi[j] > hi_any ? hi[j] : hi_any;
            }
            if (part == 0)
                r.lo_max = lo_max, r.hi_min = hi_min, r.lo_any = lo_any, r.hi_any = hi_any;
            else
                r.lo2_max = lo_max, r.hi2_min = hi_min, r.lo2_any = lo_any, r.hi2_any = hi_any;
        }
        return r;
    }

    // Rows [r0, r1) against key tile t, by the bounds alone: never wrong, but kPartial may turn out to be something else.
    FM_METHOD Class coarse(int64_t bh, int64_t r0, int64_t r1, int64_t t) const {
        if (v.mode == 0) return kFull;
        const TileBounds& x = bounds[bh * nk + t];
        if (v.mode == 1) {
            if (r1 <= x.lo_any || r0 >= x.hi_any) return kSkip;
            return x.lo_max <= r0 && r1 <= x.hi_min ? kFull : kPartial;
        }
        if ((x.lo_max <= r0 && r1 <= x.hi_min) || (x.lo2_max <= r0 && r1 <= x.hi2_min)) return kSkip;
        const bool upper = r1 > x.lo_any && r0 < x.hi_any, lower = r1 > x.lo2_any && r0 < x.hi2_any;
        return upper || lower ? kPartial : kFull;
    }

    // Rows [r0, r1) of one query tile against key tile t, exactly.
    Class classify(int64_t bh, int64_t r0, int64_t r1, int64_t t) const {
        if (v.block && !v.block[(bh * nbq + r0 / 128) * nbk + t * kTile / 128]) return kSkip;
        const Class c = coarse(bh, r0, r1, t);
        const bool ragged = (t + 1) * kTile > sk;
        if (c != kPartial) return c == kFull && ragged ? kPartial : c;
        const int64_t j0 = t * kTile, n = ragged ? sk - j0 : kTile;
        int seen = 0, whole = 1;  // does any column show a row; does every column show all
        if (v.mode == 1) {
            const int32_t *lo = plane(bh, 0) + j0, *hi = plane(bh, 1) + j0;
            for (int64_t j = 0; j < n; ++j) {
                const int64_t a = lo[j] > r0 ? lo[j] : r0, z = hi[j] < r1 ? hi[j] : r1;
                seen |= a < z;
                whole &= (a == r0) & (z == r1);
            }
        } else {
            const int32_t *us = plane(bh, 0) + j0, *ue = plane(bh, 1) + j0, *ls = plane(bh, 2) + j0, *le = plane(bh, 3) + j0;
            for (int64_t j = 0; j < n; ++j) {
                const int u = (us[j] <= r0) & (r1 <= ue[j]), l = (ls[j] <= r0) & (r1 <= le[j]);
                seen |= !(u | l);  // canonical intervals neither overlap nor touch, so together they cover no tile
                whole &= ((us[j] >= r1) | (ue[j] <= r0)) & ((ls[j] >= r1) | (le[j] <= r0));
            }
        }
        if (!seen) return kSkip;
        return whole && !ragged ? kFull : kPartial;
    }
};

// The bounds of one tile's columns, widened to the compute type's lanes; columns past s_k are hidden.
template <class C>
struct TileMask {
    using L = typename Simd<C>::Lane;
    int mode;
    alignas(64) L lo[kTile], hi[kTile], lo2[kTile], hi2[kTile];

    void fill(const Mask& m, int64_t bh, int64_t t) {
        mode = m.v.mode == 2 ? 2 : 1;
        const int64_t j0 = t * kTile, n = m.sk - j0 < kTile ? m.sk - j0 : kTile;
        if (m.v.mode == 0) {
            for (int64_t j = 0; j < kTile; ++j) lo[j] = 0, hi[j] = j < n ? INT32_MAX : 0;
            return;
        }
        const L hidden_to = mode == 2 ? INT32_MAX : 0;
        copy(m.plane(bh, 0) + j0, n, 0, lo);
        copy(m.plane(bh, 1) + j0, n, hidden_to, hi);
        if (mode == 2) {
            copy(m.plane(bh, 2) + j0, n, 0, lo2);
            copy(m.plane(bh, 3) + j0, n, 0, hi2);
        }
    }
    static void copy(const int32_t* src, int64_t n, L pad, L* dst) {
        for (int64_t j = 0; j < n; ++j) dst[j] = src[j];
        for (int64_t j = n; j < kTile; ++j) dst[j] = pad;
    }

    // All ones where row i sees columns j, j + 1, ...
    FM_METHOD Int<C> visible(L i, int64_t j) const {
        const Int<C> r = Int<C>{} + i;
        const Int<C> first = (loadi<C>(lo + j) <= r) & (r < loadi<C>(hi + j));
        if (mode == 1) return first;
        return ~(first | ((loadi<C>(lo2 + j) <= r) & (r < loadi<C>(hi2 + j))));
    }
};

}  // namespace
