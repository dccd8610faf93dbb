// Vectors of FM_VBYTES bytes through the compiler's vector extension: one source for every instruction set. Included
// only by the per-instruction-set units; everything has internal linkage, so that no unit can lend its machine code to
// another, and no standard template is instantiated here for the same reason.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define FM_METHOD inline __attribute__((always_inline))
#define FM_INLINE static FM_METHOD

namespace {

template <class T, class L>
struct Lanes {
    using Scalar = T;
    using Lane = L;
    typedef T V __attribute__((vector_size(FM_VBYTES)));
    typedef L I __attribute__((vector_size(FM_VBYTES)));
    static constexpr int N = FM_VBYTES / sizeof(T);
};
template <class T>
struct Simd;
template <>
struct Simd<float> : Lanes<float, int32_t> {};
template <>
struct Simd<double> : Lanes<double, int64_t> {};

template <class T>
using Vec = typename Simd<T>::V;
template <class T>
using Int = typename Simd<T>::I;

template <class T>
FM_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
FM_INLINE Int<T> loadi(const typename Simd<T>::Lane* p) {
    Int<T> v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
FM_INLINE void store(T* p, Vec<T> v) {
    memcpy(p, &v, sizeof v);
}
template <class T>
FM_INLINE Vec<T> splat(T x) {
    return x - Vec<T>{};  // unlike 0 + x, this is x for every x, and the compiler knows it: one broadcast
}

// Keeps a product from being fused into a later sum, where the recipe says two roundings.
#if defined(__AVX512F__)
#define FM_VREG "+v"
#elif defined(__x86_64__)
#define FM_VREG "+x"
#elif defined(__aarch64__)
#define FM_VREG "+w"
#else
#define FM_VREG "+m"
#endif
FM_INLINE void round_here(Vec<float>& x) { asm("" : FM_VREG(x)); }
FM_INLINE void round_here(Vec<double>& x) { asm("" : FM_VREG(x)); }

// The greater lane by lane; b where either is NaN.
#if defined(__AVX512F__) && FM_VBYTES == 64
FM_INLINE Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm512_max_ps((__m512)a, (__m512)b); }
FM_INLINE Vec<double> vmax(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm512_max_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__) && FM_VBYTES == 32
FM_INLINE Vec<float> vmax(Vec<float> a, Vec<float> b) { return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b); }
FM_INLINE Vec<double> vmax(Vec<double> a, Vec<double> b) { return (Vec<double>)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
template <class V>
FM_INLINE V vmax(V a, V b) {
    return a > b ? a : b;
}
#endif

template <class T>
FM_INLINE T hmax(Vec<T> v) {
    T x[Simd<T>::N];
    memcpy(x, &v, sizeof v);
    for (int n = Simd<T>::N / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
    return x[0];
}
template <class T>
FM_INLINE T hsum(Vec<T> v) {
    T x[Simd<T>::N];
    memcpy(x, &v, sizeof v);
    for (int n = Simd<T>::N / 2; n; n /= 2)
        for (int i = 0; i < n; ++i) x[i] += x[i + n];
    return x[0];
}
#if defined(__AVX2__) && FM_VBYTES == 32
template <>
FM_METHOD float hmax<float>(Vec<float> v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
template <>
FM_METHOD float hsum<float>(Vec<float> v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
#elif defined(__AVX512F__) && FM_VBYTES == 64
template <>
FM_METHOD float hmax<float>(Vec<float> v) {
    return _mm512_reduce_max_ps((__m512)v);
}
template <>
FM_METHOD float hsum<float>(Vec<float> v) {
    return _mm512_reduce_add_ps((__m512)v);
}
#endif

// 2^x. x = n + r with |r| <= 1/2 by adding and taking away 1.5 * 2^(mantissa bits), which leaves n in the low bits;
// 2^r by a polynomial (float: degree 6, fitted for least relative error, 2e-9; double: the Taylor series to degree 13,
// 4e-18). Below the smallest normal number, and at -inf, the result is exactly 0: a hidden key has no weight at all.
// BOUNDED promises x <= 127 or NaN; without it larger arguments count as 127, so that nothing wraps round.
template <bool BOUNDED = false>
FM_INLINE Vec<float> exp2v(Vec<float> x) {
    using I = Int<float>;
    const Vec<float> magic = splat(12582912.0f);
    x = vmax(splat(-127.0f), x);
    if (!BOUNDED) x = x > 127.0f ? splat(127.0f) : x;
    const Vec<float> t = x + magic;
    const Vec<float> r = x - (t - magic);
    Vec<float> p = splat(0.00015353360611713995f);
    p = p * r + 0.001339887486693215f;
    p = p * r + 0.009618437366492233f;
    p = p * r + 0.05550332469693042f;
    p = p * r + 0.24022647913498296f;
    p = p * r + 0.6931472028559704f;
    p = p * r + 1.0f;
    const I n = (I)t - (0x4b400000 - 127);
    return p * (Vec<float>)(n << 23);
}
template <bool BOUNDED = false>
FM_INLINE Vec<double> exp2v(Vec<double> x) {
    using I = Int<double>;
    const Vec<double> magic = splat(6755399441055744.0);
    x = vmax(splat(-1023.0), x);
    if (!BOUNDED) x = x > 1023.0 ? splat(1023.0) : x;
    const Vec<double> t = x + magic;
    const Vec<double> r = x - (t - magic);
    static const double c[14] = {1.0,
                                 0.6931471805599453,
                                 0.24022650695910072,
                                 0.05550410866482158,
                                 0.009618129107628477,
                                 0.0013333558146428443,
                                 0.00015403530393381608,
                                 1.5252733804059841e-05,
                                 1.3215486790144307e-06,
                                 1.0178086009239699e-07,
                                 7.054911620801121e-09,
                                 4.445538271870811e-10,
                                 2.567843599348820e-11,
                                 1.369148885390412e-12};
    Vec<double> p = splat(c[13]);
    for (int i = 12; i >= 0; --i) p = p * r + c[i];
    const I n = (I)t - (0x4338000000000000 - 1023);
    return p * (Vec<double>)(n << 52);
}

// tanh: an odd polynomial for small arguments, where 1 - 2 / (e^2x + 1) would cancel, and that formula elsewhere.
FM_INLINE Vec<float> tanhv(Vec<float> x) {
    const Vec<float> a = x < 0.0f ? -x : x;
    const Vec<float> z = x * x;
    Vec<float> p = splat(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const Vec<float> small = p * z * x + x;
    const Vec<float> e = exp2v(a * 2.885390081777927f);
    const Vec<float> big = 1.0f - 2.0f / (e + 1.0f);
    return a < 0.625f ? small : (x < 0.0f ? -big : big);
}
FM_INLINE Vec<double> tanhv(Vec<double> x) {
    // expm1 by its series keeps small arguments exact to rounding; |x| < 0.35 needs 12 odd-and-even terms.
    const Vec<double> a = x < 0.0 ? -x : x;
    const Vec<double> y = 2.0 * a;
    Vec<double> s = splat(1.0 / 20);
    for (int i = 19; i >= 2; --i) s = (1.0 + y * s) / (double)i;
    const Vec<double> em1 = y * (1.0 + y * s);
    const Vec<double> small = em1 / (em1 + 2.0);
    const Vec<double> e = exp2v(a * 2.8853900817779268);
    const Vec<double> big = 1.0 - 2.0 / (e + 1.0);
    const Vec<double> t = a < 0.35 ? small : big;
    return x < 0.0 ? -t : t;
}

}  // namespace
