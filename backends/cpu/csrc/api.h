// What crosses the border between the module, the thread pool and the per-instruction-set kernels: plain structs of
// raw pointers and element strides, so that no torch header is needed and one binary serves every torch.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fm {

enum class DType : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// A [batch, seq, heads, dim] tensor whose last dimension is contiguous; strides are in elements.
struct Bshd {
    void* p;
    int64_t sb, ss, sh;
};

// Column bounds [batch, heads, 2 * mode, s_k] int32; mode 0 hides nothing. `block` keeps 128 x 128 blocks that are 1.
struct MaskView {
    int mode;
    const int32_t* planes;
    int64_t batch, heads;
    const int32_t* block;
};

struct Shape {
    int64_t b, sq, sk, hq, hkv, d, dv;
};

struct ForwardArgs {
    Shape n;
    DType dtype;
    Bshd q, k, v, out;
    void* lse;         // [b, hq, sq], float (double for f64)
    const void* sink;  // [hq] in lse's dtype, or null
    MaskView mask;
    double scale, softcap;
    int threads;
};

struct BackwardArgs {
    Shape n;
    DType dtype;
    Bshd q, k, v, out, dout, dq, dk, dv;
    Bshd dq_acc;       // sums in lse's dtype; may be dq itself
    const void* lse;   // [b, hq, sq]
    const void* dlse;  // [b, hq, sq] or null
    const void* sink;  // [hq] or null
    void* dsink;       // [hq] or null
    MaskView mask;
    double scale, softcap;
    int threads;
};

// y[r] = (bias0[r] + bias1[r]) + sum over j of w[r, j] * x[index[r, j]], rounded once. An index below zero adds nothing;
// w null means ones; bias1 or both biases may be null.
struct GatherSumArgs {
    DType dtype;
    int64_t rows, width, terms;
    const void* x;
    const int64_t* index;
    const float* weight;
    const void *bias0, *bias1;
    void* y;
    int threads;
};

struct Kernels {
    const char* name;
    int vector_bytes;
    void (*forward)(const ForwardArgs&);
    void (*backward)(const BackwardArgs&);
    void (*gather_sum)(const GatherSumArgs&);
    void (*exp2_f32)(const float*, float*, int64_t);  // the softmax's own exponential, for its error test
    void (*tanh_f32)(const float*, float*, int64_t);
};

// Run fn(ctx, task, worker) for every task in [0, tasks); tasks start in ascending order, worker < threads.
void parallel(int64_t tasks, int threads, void (*fn)(void*, int64_t, int), void* ctx);

// 64-byte aligned scratch; throws std::bad_alloc. Only the module and the drivers outside parallel() may call it.
void* scratch_alloc(size_t bytes);
void scratch_free(void* p) noexcept;

const Kernels* kernels_baseline();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();

}  // namespace fm
