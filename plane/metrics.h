/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of a plane. A thread answers HTTP requests for GET /metrics and GET /healthz. */
#ifndef PLANE_METRICS_H
#define PLANE_METRICS_H

#include "plane.h"

struct pl_metrics;

/* Starts to listen at `where`, which is ADDRESS:PORT. Stores the port in *port. Returns NULL after
 * an error, with a sentence in `why`. */
struct pl_metrics *pl_metrics_open(struct pl_plane *plane, const char *where, unsigned *port,
				   char *why, size_t why_len);
void pl_metrics_close(struct pl_metrics *metrics);
/* Appends all counters to `out`, in the text format of Prometheus. */
void pl_metrics_write(const struct pl_counts *counts, struct pst_text *out);

#endif
