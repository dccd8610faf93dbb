#include "layout.h"

#include <cstring>
#include <vector>

#include "api.h"

namespace fm {
namespace {

template <class F>
void run(int64_t tasks, int threads, F& fn) {
    parallel(tasks, threads, [](void* f, int64_t t, int w) { (*(F*)f)(t, w); }, &fn);
}

int64_t parts_for(int64_t n, int threads) {
    const int64_t by_size = (n + 16383) / 16384;
    return by_size < 1 ? 1 : by_size < threads ? by_size : threads;
}

}  // namespace

template <class Index>
int64_t moe_layout(const Index* topk, int64_t tokens, int64_t k, int64_t experts, int64_t ranks, int32_t* per_rank,
                   int32_t* per_expert, uint8_t* in_rank, int threads) {
    const int64_t parts = parts_for(tokens * k, threads), width = experts + ranks, local = experts / ranks;
    std::vector<int32_t> counts(parts * width, 0), rank_of(experts);
    std::vector<int64_t> invalid(parts, 0);
    for (int64_t e = 0; e < experts; ++e) rank_of[e] = (int32_t)(e / local);
    auto part = [&](int64_t p, int) {
        int32_t* expert = &counts[p * width];
        int32_t* rank = expert + experts;
        int64_t wrong = 0, t = tokens * p / parts;
        const int64_t end = tokens * (p + 1) / parts;
        for (; ranks <= 64 && t < end; ++t) {  // a token's ranks fit a word: no byte is read back
            uint64_t hits = 0;
            for (int64_t j = 0; j < k; ++j) {
                const int64_t e = topk[t * k + j];
                if ((uint64_t)e >= (uint64_t)experts) {
                    wrong += e != -1;
                    continue;
                }
                ++expert[e];
                hits |= (uint64_t)1 << rank_of[e];
            }
            for (int64_t r = 0; r < ranks; ++r) {
                const int32_t hit = hits >> r & 1;
                rank[r] += hit;
                in_rank[t * ranks + r] = (uint8_t)hit;
            }
        }
        for (; t < end; ++t) {
            uint8_t* hit = in_rank + t * ranks;
            std::memset(hit, 0, ranks);
            for (int64_t j = 0; j < k; ++j) {
                const int64_t e = topk[t * k + j];
                if (e < 0 || e >= experts) {
                    wrong += e != -1;
                    continue;
                }
                ++expert[e];
                const int32_t r = rank_of[e];
                rank[r] += !hit[r];
                hit[r] = 1;
            }
        }
        invalid[p] = wrong;
    };
    run(parts, threads, part);
    std::memset(per_expert, 0, experts * sizeof(int32_t));
    std::memset(per_rank, 0, ranks * sizeof(int32_t));
    int64_t wrong = 0;
    for (int64_t p = 0; p < parts; ++p) {
        for (int64_t e = 0; e < experts; ++e) per_expert[e] += counts[p * width + e];
        for (int64_t r = 0; r < ranks; ++r) per_rank[r] += counts[p * width + experts + r];
        wrong += invalid[p];
    }
    return wrong;
}

template int64_t moe_layout(const int64_t*, int64_t, int64_t, int64_t, int64_t, int32_t*, int32_t*, uint8_t*, int);
template int64_t moe_layout(const int32_t*, int64_t, int64_t, int64_t, int64_t, int32_t*, int32_t*, uint8_t*, int);

}  // namespace fm
