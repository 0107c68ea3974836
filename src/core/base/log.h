/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines to stderr, chosen by PENSTOCK_LOG: a level for all, then levels by
 * backend name: "warn,rdma:debug". Lower case, value after word. Never called on
 * the success path of an open queue.
 */
#ifndef PST_CORE_LOG_H
#define PST_CORE_LOG_H

enum pst_log_level { PST_LOG_ERROR, PST_LOG_WARN, PST_LOG_INFO, PST_LOG_DEBUG };

void pst_log(enum pst_log_level level, const char *backend, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
