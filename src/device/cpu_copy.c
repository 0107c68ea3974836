/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the copy functions of devices whose memory the CPU can access (host and peermem): the
 * calling thread copies by memcpy. Each copy is done when the call that queues it returns. So a
 * query whether the copies up to a ticket are done always returns true.
 */
#include "device/cpu_copy.h"

#include <string.h>

static const char the_copier; /* a copier needs no state, so all lanes share this one */

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
