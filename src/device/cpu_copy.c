/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copier that is the CPU itself: it copies by memcpy. Each copy is done when the call that
 * queues it returns, so every ticket counts as done. Devices host and peermem use it.
 */
#include "device/cpu_copy.h"

#include <string.h>

static const char the_copier; /* This copier needs no state, so all lanes share one address. */

int pst_cpu_copier_open(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			struct pst_err *err)
{
	(void)dev;
	(void)tickets;
	(void)err;
	*out = (struct pst_copier *)(uintptr_t)&the_copier;
	return 0;
}

void pst_cpu_copier_close(struct pst_copier *copier)
{
	(void)copier;
}

int pst_cpu_copy(struct pst_copier *copier, const struct pst_rect *rect)
{
	char *dst = rect->dst;
	const char *src = rect->src;

	(void)copier;
	for (uint64_t i = 0; i < rect->rows; i++) {
		memcpy(dst, src, rect->row_len);
		dst += rect->dst_pitch;
		src += rect->src_pitch;
	}
	return 0;
}

int pst_cpu_record(struct pst_copier *copier, uint64_t *ticket)
{
	(void)copier;
	*ticket = 0;
	return 0;
}

int pst_cpu_query(struct pst_copier *copier, uint64_t ticket)
{
	(void)copier;
	(void)ticket;
	return 1;
}

int pst_cpu_wait(struct pst_copier *copier, uint64_t ticket)
{
	(void)copier;
	(void)ticket;
	return 0;
}
