/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of device cuda that queue operations on CUDA streams. core/ops.h describes what
 * each of them must do. */
#ifndef PST_DEVICE_CUDA_STREAM_H
#define PST_DEVICE_CUDA_STREAM_H

#include "device/cuda_context.h"

int pst_cuda_stream_begin(struct penstock_device *dev, void *stream, struct pst_stream_seq *seq,
			  struct pst_err *err);
void pst_cuda_stream_end(struct pst_stream_seq *seq);
bool pst_cuda_stream_idle(struct pst_stream_seq *seq, uint64_t wait_ns);
int pst_cuda_stream_write(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			  struct pst_err *err);
int pst_cuda_stream_wait(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			 struct pst_err *err);
int pst_cuda_stream_write_wait(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			       uint64_t *waited, uint64_t least, struct pst_err *err);
int pst_cuda_stream_copy(struct pst_stream_seq *seq, const struct pst_rect *rect,
			 enum penstock_op op, struct pst_err *err);
int pst_cuda_stream_run(struct pst_stream_seq *seq, const struct pst_stream_round *round,
			const struct pst_stream_copy *copies, uint64_t len_bytes,
			struct pst_err *err);
int pst_cuda_stream_count(struct pst_stream_seq *seq, uint64_t *count, uint64_t *zero,
			  uint64_t *zero_too, struct pst_err *err);
int pst_cuda_stream_tie(struct pst_stream_seq *seq, void (*gone)(void *arg), void *arg,
			struct pst_err *err);
void pst_cuda_stream_prepare(struct penstock_device *dev);
int pst_cuda_alive(struct penstock_device *dev);

/* Frees all driver objects that the functions above have created. The caller has made the device's
 * context current. */
void pst_cuda_stream_close(struct pst_cuda_device *c);

#endif
