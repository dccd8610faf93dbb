// MoE layout: the counts of a routing table.
#pragma once
#include <cstdint>

namespace fm {

// topk [tokens, k] holds expert numbers in [0, experts), or -1 for "none"; expert e lives on rank
// e / (experts / ranks). Writes tokens per rank (each token once), pairs per expert, and in_rank [tokens, ranks].
// Returns how many entries are neither; they route nowhere.
template <class Index>
int64_t moe_layout(const Index* topk, int64_t tokens, int64_t k, int64_t experts, int64_t ranks, int32_t* per_rank,
                   int32_t* per_expert, uint8_t* in_rank, int threads);

}  // namespace fm
