/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of a plane: a thread answers GET /metrics and GET /healthz by HTTP. */
#ifndef PLANE_METRICS_H
#define PLANE_METRICS_H

#include "plane.h"

struct pl_metrics;

/* Listens at ADDRESS:PORT. *port receives the port. Returns NULL with a sentence in `why`. */
struct pl_metrics *pl_metrics_open(struct pl_plane *plane, const char *where, unsigned *port,
				   char *why, size_t why_len);
void pl_metrics_close(struct pl_metrics *metrics);
/* Appends the counters in the text format of Prometheus. */
void pl_metrics_write(const struct pl_counts *counts, struct pst_text *out);

#endif
