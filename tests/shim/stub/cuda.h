/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Defines the two types that NVIDIA's cufile.h needs from NVIDIA's cuda.h. Only abi.c includes
 * this file, on machines that have cufile.h but not cuda.h.
 */
#ifndef SHIM_STUB_CUDA_H
#define SHIM_STUB_CUDA_H

typedef enum { CUDA_SUCCESS = 0 } CUresult;
typedef struct CUstream_st *CUstream;

#endif
