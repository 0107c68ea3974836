/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the counters of a gateway, see metrics.h. */
#include "metrics.h"

#include <time.h>

static const unsigned bounds_us[GW_LATENCY_BUCKETS] = {
	500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 500000, 1000000, 5000000, 30000000};

void gw_metrics_count(struct gw_metrics *m, unsigned op, unsigned status, uint64_t in, uint64_t out,
		      uint64_t duration_ns)
{
	uint64_t us = duration_ns / 1000;
	unsigned i = 0;

	atomic_fetch_add(&m->requests[op < GW_OPS_MAX ? op : 0][status / 100 % 6], 1);
	atomic_fetch_add(&m->bytes_in, in);
	atomic_fetch_add(&m->bytes_out, out);
	while (i < GW_LATENCY_BUCKETS && us > bounds_us[i])
		i++;
	atomic_fetch_add(&m->latency[i], 1);
	atomic_fetch_add(&m->latency_us, us);
}

void gw_metrics_reload(struct gw_metrics *m, enum gw_reload what, bool ok)
{
	struct timespec now;

	if (!ok) {
		atomic_fetch_add(&m->reload_failed[what], 1);
		return;
	}
	/* A script may compare the result with its own clock. time() could return the second before
	 * the script's, because time() lags behind this clock by up to one tick of the kernel. */
	clock_gettime(CLOCK_REALTIME, &now);
	atomic_store(&m->reload_s[what], (unsigned long long)now.tv_sec);
}

static void put_one(struct pst_text *out, const char *name, const char *type, const char *help,
		    unsigned long long value)
{
	pst_text_printf(out, "# HELP penstock_%s %s\n# TYPE penstock_%s %s\n", name, help, name,
			type);
	pst_text_printf(out, "penstock_%s %llu\n", name, value);
}

static void put_declines(const struct gw_metrics *m, struct pst_text *out)
{
	static const char *const reasons[GW_DECLINE_COUNT] = {
		[GW_DECLINE_TRANSPORT] = "no-transport",
		[GW_DECLINE_ENCRYPTION] = "not-encrypted",
		[GW_DECLINE_ADDRESS] = "other-address",
		[GW_DECLINE_NO_GPU] = "no-gpu",
		[GW_DECLINE_SHORT_WINDOW] = "short-window",
		[GW_DECLINE_BUSY] = "busy",
		[GW_DECLINE_UNREACHABLE] = "unreachable",
		[GW_DECLINE_FILE] = "no-file",
		[GW_DECLINE_MESSAGE] = "malformed-message",
		[GW_DECLINE_TOO_LONG] = "too-long",
		[GW_DECLINE_OTHER] = "other",
	};

	pst_text_printf(out, "# HELP penstock_rdma_declined_total Requests with an RDMA token that "
			     "were answered by HTTP, by reason.\n"
			     "# TYPE penstock_rdma_declined_total counter\n");
	for (unsigned i = 0; i < GW_DECLINE_COUNT; i++)
		pst_text_printf(out, "penstock_rdma_declined_total{reason=\"%s\"} %llu\n",
				reasons[i], (unsigned long long)atomic_load(&m->rdma_declined[i]));
}

static void put_reloads(const struct gw_metrics *m, struct pst_text *out)
{
	static const char *const names[GW_RELOAD_COUNT] = {
		[GW_RELOAD_KEYS] = "keys",
		[GW_RELOAD_CERTIFICATE] = "certificate",
		[GW_RELOAD_LOG] = "access-log",
	};

	pst_text_printf(out, "# HELP penstock_reload_failed_total Failed reloads, by file.\n"
			     "# TYPE penstock_reload_failed_total counter\n");
	for (unsigned i = 0; i < GW_RELOAD_COUNT; i++)
		if (atomic_load(&m->reload_s[i]))
			pst_text_printf(out, "penstock_reload_failed_total{file=\"%s\"} %llu\n",
					names[i],
					(unsigned long long)atomic_load(&m->reload_failed[i]));
	pst_text_printf(out, "# HELP penstock_reload_success_seconds Unix time of the last "
			     "successful reload or of the start, by file.\n"
			     "# TYPE penstock_reload_success_seconds gauge\n");
	for (unsigned i = 0; i < GW_RELOAD_COUNT; i++)
		if (atomic_load(&m->reload_s[i]))
			pst_text_printf(out, "penstock_reload_success_seconds{file=\"%s\"} %llu\n",
					names[i], (unsigned long long)atomic_load(&m->reload_s[i]));
	if (atomic_load(&m->certificate_expires_s))
		put_one(out, "certificate_expires_seconds", "gauge",
			"Unix time at which the certificate expires.",
			atomic_load(&m->certificate_expires_s));
}

static void put_latency(const struct gw_metrics *m, struct pst_text *out)
{
	unsigned long long sum = 0;

	pst_text_printf(
		out,
		"# HELP penstock_request_seconds Time from a request's first byte to its end.\n"
		"# TYPE penstock_request_seconds histogram\n");
	for (unsigned i = 0; i < GW_LATENCY_BUCKETS; i++) {
		sum += atomic_load(&m->latency[i]);
		pst_text_printf(out, "penstock_request_seconds_bucket{le=\"%g\"} %llu\n",
				bounds_us[i] / 1e6, sum);
	}
	sum += atomic_load(&m->latency[GW_LATENCY_BUCKETS]);
	pst_text_printf(out, "penstock_request_seconds_bucket{le=\"+Inf\"} %llu\n", sum);
	pst_text_printf(out, "penstock_request_seconds_sum %.6f\n",
			(double)atomic_load(&m->latency_us) / 1e6);
	pst_text_printf(out, "penstock_request_seconds_count %llu\n", sum);
}

void gw_metrics_write(const struct gw_metrics *m, unsigned op_count,
		      const char *(*op_name)(unsigned op), struct pst_text *out)
{
	pst_text_printf(out, "# HELP penstock_requests_total Requests by operation and status.\n"
			     "# TYPE penstock_requests_total counter\n");
	for (unsigned op = 0; op < op_count && op < GW_OPS_MAX; op++)
		for (unsigned digit = 1; digit < 6; digit++) {
			unsigned long long n = atomic_load(&m->requests[op][digit]);

			if (n)
				pst_text_printf(
					out,
					"penstock_requests_total{operation=\"%s\",status=\"%uxx\"}"
					" %llu\n",
					op_name(op), digit, n);
		}
	pst_text_printf(
		out,
		"# HELP penstock_bytes_total Bytes of bodies by transport and direction.\n"
		"# TYPE penstock_bytes_total counter\n"
		"penstock_bytes_total{transport=\"http\",side=\"front\",direction=\"in\"} %llu\n",
		(unsigned long long)atomic_load(&m->bytes_in));
	pst_text_printf(
		out,
		"penstock_bytes_total{transport=\"http\",side=\"front\",direction=\"out\"} %llu\n",
		(unsigned long long)atomic_load(&m->bytes_out));
	for (unsigned i = 0; i < 2 * GW_TRANSPORTS_MAX && m->rdma_names[i / 2]; i++)
		pst_text_printf(
			out,
			"penstock_bytes_total{transport=\"%s\",side=\"front\",direction=\"%s\"} "
			"%llu\n",
			m->rdma_names[i / 2], i % 2 ? "out" : "in",
			(unsigned long long)atomic_load(&m->rdma_bytes[i / 2][i % 2]));
	for (unsigned i = 0; i < 2; i++)
		pst_text_printf(out,
				"penstock_bytes_total{transport=\"http\",side=\"upstream\","
				"direction=\"%s\"} "
				"%llu\n",
				i ? "in" : "out",
				(unsigned long long)atomic_load(&m->upstream_bytes[i]));
	put_declines(m, out);
	put_one(out, "rdma_failed_total", "counter", "Requests whose transfer by RDMA failed.",
		atomic_load(&m->rdma_failed));
	put_one(out, "sessions_refused_total", "counter",
		"Sessions of hipobj-rc-v2 that were refused because of a limit.",
		atomic_load(&m->session_refused));
	put_one(out, "aborted_total", "counter", "Requests whose reply was not sent to its end.",
		atomic_load(&m->aborted));
	put_one(out, "refused_heads_total", "counter",
		"Requests whose head broke a limit, was malformed or was incomplete.",
		atomic_load(&m->refused_head));
	put_one(out, "slow_connections_total", "counter",
		"Connections that were ended because the client was too slow.",
		atomic_load(&m->slow));
	put_one(out, "refused_signatures_total", "counter",
		"Requests with a wrong or missing signature.", atomic_load(&m->refused_auth));
	put_latency(m, out);
	put_reloads(m, out);
}

void gw_metrics_write_connections(unsigned connections, unsigned long long refused,
				  unsigned requests, struct pst_text *out)
{
	put_one(out, "refused_connections_total", "counter",
		"Connections that were closed at once because of a limit.", refused);
	put_one(out, "connections", "gauge", "Open connections.", connections);
	put_one(out, "requests_in_flight", "gauge", "Requests without a complete reply.", requests);
}

void gw_metrics_write_upstream(const struct gw_metrics *m, struct pst_text *out)
{
	static const char *const reasons[] = {"refused", "timeout", "lost"};

	pst_text_printf(
		out, "# HELP penstock_upstream_replies_total Replies of the upstream by status.\n"
		     "# TYPE penstock_upstream_replies_total counter\n");
	for (unsigned digit = 2; digit < 6; digit++)
		pst_text_printf(out, "penstock_upstream_replies_total{status=\"%uxx\"} %llu\n",
				digit,
				(unsigned long long)atomic_load(&m->upstream_replies[digit]));
	pst_text_printf(
		out, "# HELP penstock_upstream_failed_total Requests to which the upstream gave no "
		     "whole reply.\n# TYPE penstock_upstream_failed_total counter\n");
	for (unsigned i = 0; i < 3; i++)
		pst_text_printf(out, "penstock_upstream_failed_total{reason=\"%s\"} %llu\n",
				reasons[i],
				(unsigned long long)atomic_load(&m->upstream_failed[i]));
	put_one(out, "buffer_bytes", "gauge", "Memory that stages requests.",
		atomic_load(&m->buffer_bytes));
	put_one(out, "buffer_refused_total", "counter",
		"Requests that were refused because the memory was in use.",
		atomic_load(&m->buffer_refused));
}
