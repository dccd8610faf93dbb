// AVX2 with FMA and F16C.
#define FM_VBYTES 32
#define FM_NAME "avx2"
#define FM_TABLE kernels_avx2
#include "kernels.inc"
