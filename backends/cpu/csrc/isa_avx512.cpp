// AVX-512 (F, BW, DQ, VL).
#define FM_VBYTES 64
#define FM_NAME "avx512"
#define FM_TABLE kernels_avx512
#include "kernels.inc"
