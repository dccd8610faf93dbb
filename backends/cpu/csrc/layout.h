// MoE layout: counts of a routing table, and the stable order that brings the tokens of one expert together.
#pragma once
#include <cstdint>

namespace fm {

// topk [tokens, k] holds expert numbers in [0, experts), or -1 for "none"; expert e lives on rank
// e / (experts / ranks). Writes tokens per rank (each token once), pairs per expert, and in_rank [tokens, ranks].
// Returns how many entries are neither; they route nowhere.
template <class Index>
int64_t moe_layout(const Index* topk, int64_t tokens, int64_t k, int64_t experts, int64_t ranks, int32_t* per_rank,
                   int32_t* per_expert, uint8_t* in_rank, int threads);

// Stable counting sort of n keys in [0, buckets); keys below zero are left out. order[p] = position of the p-th key in
// bucket order, starts[b] = where bucket b begins (buckets + 1 entries). order has room for n entries.
template <class Index>
bool stable_order(const Index* keys, int64_t n, int64_t buckets, int64_t* order, int64_t* starts, int threads);

}  // namespace fm
