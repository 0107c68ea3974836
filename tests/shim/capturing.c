/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda in front of the stand-in, for test_async.c: some blocking stream is being
 * captured, in mode global, so questions about the NULL stream are answered as the driver
 * does then, and waiting for any is refused unless the thread is in mode relaxed; what
 * would have ended the capture is counted. All other functions are the stand-in's.
 */
#include "device/cuda_api.h"

#define CAPTURING_API __attribute__((visibility("default")))

/* One that is passed on, so that the linker keeps the stand-in. */
extern enum pst_cu_result cuInit(unsigned flags);
CAPTURING_API extern enum pst_cu_result (*const capturing_in_front_of)(unsigned);
enum pst_cu_result (*const capturing_in_front_of)(unsigned) = cuInit;

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
