// The Python module: picks the instruction set, turns integers into pointers and releases the GIL. All checks of
// shapes, dtypes and devices are the caller's (fmcore_cpu), which owns the tensors for the length of the call.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "api.h"
#include "layout.h"

namespace py = pybind11;

namespace {

using namespace fm;

struct Entry {
    const Kernels* kernels;
    bool supported;
};

std::vector<Entry> build_table() {
    std::vector<Entry> all;
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_cpu_init();
#if defined(FM_HAVE_AVX512)
    all.push_back({kernels_avx512(), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")});
#endif
#if defined(FM_HAVE_AVX2)
    all.push_back({kernels_avx2(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                       __builtin_cpu_supports("f16c")});
#endif
#endif
    all.push_back({kernels_baseline(), true});
    return all;
}

const std::vector<Entry>& table() {
    static const std::vector<Entry> all = build_table();
    return all;
}

const Kernels* find(const std::string& isa) {
    std::string names;
    for (const Entry& e : table()) {
        if (!e.supported) continue;
        if (isa == "auto" || isa == e.kernels->name) return e.kernels;
        names += std::string(names.empty() ? "" : ", ") + e.kernels->name;
    }
    throw std::invalid_argument("instruction set '" + isa + "' is not built in or not of this processor; it has " + names);
}

const Kernels* g_kernels = nullptr;
const Kernels& kernels() {
    if (!g_kernels) g_kernels = find("auto");
    return *g_kernels;
}

// (address, batch stride, sequence stride, head stride)
using Tensor = std::array<int64_t, 4>;
Bshd bshd(const Tensor& t) { return {reinterpret_cast<void*>(t[0]), t[1], t[2], t[3]}; }
template <class T>
T* ptr(int64_t p) {
    return reinterpret_cast<T*>(p);
}
// (mode, planes, batch, heads, block mask)
using MaskTuple = std::array<int64_t, 5>;
MaskView view(const MaskTuple& m) { return {(int)m[0], ptr<int32_t>(m[1]), m[2], m[3], ptr<int32_t>(m[4])}; }
Shape shape(const std::array<int64_t, 7>& n) { return {n[0], n[1], n[2], n[3], n[4], n[5], n[6]}; }

void forward(const std::array<int64_t, 7>& n, int dtype, const std::array<Tensor, 4>& t, int64_t lse, int64_t sink,
             const MaskTuple& mask, double scale, double softcap, int threads) {
    const ForwardArgs a{shape(n), (DType)dtype, bshd(t[0]), bshd(t[1]), bshd(t[2]), bshd(t[3]), ptr<void>(lse),
                        ptr<void>(sink), view(mask), scale, softcap, threads};
    const Kernels& k = kernels();
    py::gil_scoped_release release;
    k.forward(a);
}

void backward(const std::array<int64_t, 7>& n, int dtype, const std::array<Tensor, 9>& t, int64_t lse, int64_t dlse,
              int64_t sink, int64_t dsink, const MaskTuple& mask, double scale, double softcap, int threads) {
    const BackwardArgs a{shape(n), (DType)dtype, bshd(t[0]), bshd(t[1]), bshd(t[2]), bshd(t[3]), bshd(t[4]),
                         bshd(t[5]), bshd(t[6]), bshd(t[7]), bshd(t[8]), ptr<void>(lse), ptr<void>(dlse),
                         ptr<void>(sink), ptr<void>(dsink), view(mask), scale, softcap, threads};
    const Kernels& k = kernels();
    py::gil_scoped_release release;
    k.backward(a);
}

void gather_sum(int dtype, int64_t rows, int64_t width, int64_t terms, int64_t x, int64_t index, int64_t weight,
                int64_t bias0, int64_t bias1, int64_t y, int threads) {
    const GatherSumArgs a{(DType)dtype, rows, width, terms, ptr<void>(x), ptr<int64_t>(index), ptr<float>(weight),
                          ptr<void>(bias0), ptr<void>(bias1), ptr<void>(y), threads};
    const Kernels& k = kernels();
    py::gil_scoped_release release;
    k.gather_sum(a);
}

struct Copy {
    int64_t rows, bytes;
    const char* x;
    const int64_t* index;
    char* y;
};

// y[r] = x[index[r]], rows of `bytes` bytes; zeros where the index is below zero.
void gather_rows(int64_t rows, int64_t bytes, int64_t x, int64_t index, int64_t y, int threads) {
    Copy c{rows, bytes, ptr<char>(x), ptr<int64_t>(index), ptr<char>(y)};
    py::gil_scoped_release release;
    parallel((rows + 31) / 32, threads, [](void* p, int64_t t, int) {
        const Copy& c = *(Copy*)p;
        for (int64_t r = t * 32; r < c.rows && r < (t + 1) * 32; ++r) {
            if (c.index[r] < 0)
                std::memset(c.y + r * c.bytes, 0, c.bytes);
            else
                std::memcpy(c.y + r * c.bytes, c.x + c.index[r] * c.bytes, c.bytes);
        }
    }, &c);
}

int64_t layout(bool wide, int64_t topk, int64_t tokens, int64_t k, int64_t experts, int64_t ranks, int64_t per_rank,
            int64_t per_expert, int64_t in_rank, int threads) {
    py::gil_scoped_release release;
    if (wide)
        return moe_layout(ptr<int64_t>(topk), tokens, k, experts, ranks, ptr<int32_t>(per_rank), ptr<int32_t>(per_expert),
                          ptr<uint8_t>(in_rank), threads);
    return moe_layout(ptr<int32_t>(topk), tokens, k, experts, ranks, ptr<int32_t>(per_rank), ptr<int32_t>(per_expert),
                      ptr<uint8_t>(in_rank), threads);
}

}  // namespace

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "Compiled kernels of the cpu backend: addresses and strides in, nothing of torch.";
    m.def("isa_list", [] {
        std::vector<std::pair<std::string, bool>> all;
        for (const Entry& e : table()) all.emplace_back(e.kernels->name, e.supported);
        return all;
    });
    m.def("isa", [] { return std::string(kernels().name); });
    m.def("set_isa", [](const std::string& isa) { g_kernels = find(isa); });
    m.def("forward", &forward);
    m.def("backward", &backward);
    m.def("gather_sum", &gather_sum);
    m.def("gather_rows", &gather_rows);
    m.def("moe_layout", &layout);
    m.def("exp2_f32", [](int64_t x, int64_t y, int64_t n) { kernels().exp2_f32(ptr<float>(x), ptr<float>(y), n); });
    m.def("tanh_f32", [](int64_t x, int64_t y, int64_t n) { kernels().tanh_f32(ptr<float>(x), ptr<float>(y), n); });
}
