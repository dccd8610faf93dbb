// Portable: whatever the compiler targets by default (SSE2 on x86-64, NEON on AArch64).
#define FM_VBYTES 16
#define FM_NAME "baseline"
#define FM_TABLE kernels_baseline
#include "kernels.inc"
