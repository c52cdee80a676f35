/*
 * All block formats: `Blocks<DJINN_...>` for each, as blocks.cuh describes.
 */
#ifndef DJINN_BLOCK_FORMATS_CUH
#define DJINN_BLOCK_FORMATS_CUH

#include "blocks_groups.cuh"
#include "blocks_large.cuh"
#include "blocks_levels.cuh"
#include "blocks_small.cuh"

/* `MACRO(encoding)` for each block format. */
#define DJINN_FOR_BLOCKS(MACRO)                                                                              \
    MACRO(Q4_0) MACRO(Q4_1) MACRO(Q5_0) MACRO(Q5_1) MACRO(Q8_0) MACRO(Q2_K) MACRO(Q3_K) MACRO(Q4_K) MACRO(Q5_K)     \
    MACRO(Q6_K) MACRO(IQ4_NL) MACRO(IQ4_XS) MACRO(MXFP4) MACRO(INT4_G32) MACRO(INT4_G128) MACRO(FP8_G32) MACRO(FP8_G128)

#endif
