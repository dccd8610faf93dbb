// The matrix product of small tiles: C[M, N] (+)= A[M, K] B[K, N], a block of MR rows by two vectors held in registers.
// A is read one broadcast element at a time (so it may be transposed at no cost), B one vector at a time from panels.
#pragma once
#include "simd.h"

namespace {

// Rows per register block: two vectors each of accumulators, plus B's two and the broadcast, fill the register file.
#if FM_VBYTES == 64
constexpr int kMR = 12;
#else
constexpr int kMR = 6;
#endif
template <class T>
constexpr int kNR = 2 * Simd<T>::N;

template <class T>
constexpr int64_t round_up(int64_t n) {
    return (n + kNR<T> - 1) / kNR<T> * kNR<T>;
}

template <class T, int MR, bool AT, bool ACC>
FM_INLINE void micro(int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
    constexpr int N = Simd<T>::N;
    Vec<T> x[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
        x[i][0] = ACC ? load(c + i * ldc) : Vec<T>{};
        x[i][1] = ACC ? load(c + i * ldc + N) : Vec<T>{};
    }
    for (int64_t k = 0; k < K; ++k) {
        const Vec<T> b0 = load(b), b1 = load(b + N);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
            const Vec<T> s = splat(AT ? a[i] : a[i * lda]);
            x[i][0] += s * b0;
            x[i][1] += s * b1;
        }
        a += AT ? lda : 1;
        b += ldb;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
        store(c + i * ldc, x[i][0]);
        store(c + i * ldc + N, x[i][1]);
    }
}

template <class T, bool AT, bool ACC, int MR>
FM_INLINE void rest(int64_t m, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc) {
    if constexpr (MR > 0) {
        if (m == MR)
            micro<T, MR, AT, ACC>(K, a, lda, b, ldb, c, ldc);
        else
            rest<T, AT, ACC, MR - 1>(m, K, a, lda, b, ldb, c, ldc);
    }
}

// N is a multiple of kNR. Panel p of B starts at b + p * panel, its rows are ldb apart. AT: element (i, k) of A lies at
// a[k * lda + i], otherwise at a[i * lda + k]. The order of the sum over k never depends on M or N.
template <class T, bool AT, bool ACC>
static __attribute__((noinline)) void gemm(int64_t M, int64_t N, int64_t K, const T* a, int64_t lda, const T* b,
                                           int64_t ldb, int64_t panel, T* c, int64_t ldc) {
    const int64_t row = AT ? 1 : lda;
    if (K * N * (int64_t)sizeof(T) <= 20480) {  // all of B stays in the first-level cache: walk A and C once
        int64_t i = 0;
        for (; i + kMR <= M; i += kMR)
            for (int64_t p = 0; p * kNR<T> < N; ++p)
                micro<T, kMR, AT, ACC>(K, a + i * row, lda, b + p * panel, ldb, c + i * ldc + p * kNR<T>, ldc);
        if (i == M) return;
        a += i * row, c += i * ldc, M -= i;
    }
    for (int64_t p = 0; p * kNR<T> < N; ++p) {
        const T* bp = b + p * panel;
        T* cp = c + p * kNR<T>;
        int64_t i = 0;
        for (; i + kMR <= M; i += kMR) micro<T, kMR, AT, ACC>(K, a + i * row, lda, bp, ldb, cp + i * ldc, ldc);
        rest<T, AT, ACC, kMR - 1>(M - i, K, a + i * row, lda, bp, ldb, cp + i * ldc, ldc);
    }
}

}  // namespace
