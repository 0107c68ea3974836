/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda for test_async.c that behaves as if another thread captured a blocking stream in the
 * global capture mode. A query of the NULL stream reports the capture. A wait for a stream is
 * refused unless the calling thread is in the relaxed capture mode. This libcuda counts the waits
 * that would have made the capture fail. All other functions are those of the stand-in (simulated)
 * driver.
 */
#include "device/cuda_api.h"

#define CAPTURING_API __attribute__((visibility("default")))

/* This reference keeps the linker from removing the dependency on the simulated driver (the
 * stand-in). */
extern enum pst_cu_result cuInit(unsigned flags);
CAPTURING_API extern enum pst_cu_result (*const capturing_cu_init)(unsigned);
enum pst_cu_result (*const capturing_cu_init)(unsigned) = cuInit;

enum { RELAXED = 2 };
static _Thread_local int mode;
static unsigned ended;

CAPTURING_API unsigned capturing_ended(void);
CAPTURING_API enum pst_cu_result cuThreadExchangeStreamCaptureMode(int *with);
CAPTURING_API enum pst_cu_result cuStreamIsCapturing(struct pst_cu_stream *stream,
						     enum pst_cu_capture *status);
CAPTURING_API enum pst_cu_result cuStreamSynchronize(struct pst_cu_stream *stream);

unsigned capturing_ended(void)
{
	return ended;
}

enum pst_cu_result cuThreadExchangeStreamCaptureMode(int *with)
{
	int was = mode;

	mode = *with;
	*with = was;
	return PST_CU_OK;
}

enum pst_cu_result cuStreamIsCapturing(struct pst_cu_stream *stream, enum pst_cu_capture *status)
{
	*status = PST_CU_CAPTURE_NONE;
	return stream ? PST_CU_OK : PST_CU_CAPTURE_IMPLICIT;
}

enum pst_cu_result cuStreamSynchronize(struct pst_cu_stream *stream)
{
	if (stream && mode == RELAXED)
		return PST_CU_OK;
	ended++;
	return PST_CU_CAPTURE_UNSUPPORTED;
}
