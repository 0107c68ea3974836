/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two names that NVIDIA's cufile.h takes from its cuda.h, for machines that have
 * the one without the other. Only abi.c sees it, and only there.
 */
#ifndef SHIM_STUB_CUDA_H
#define SHIM_STUB_CUDA_H

typedef enum { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_st *CUstream;

#endif
