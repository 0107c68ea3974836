/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging to stderr. The environment variable PENSTOCK_LOG sets the level: one for all backends,
 * then one for each backend that it names: "warn,rdma:debug". Messages are lower case, with a
 * value after its name. It must never be called on the success path of an open queue.
 */
#ifndef PST_CORE_LOG_H
#define PST_CORE_LOG_H

enum pst_log_level { PST_LOG_ERROR, PST_LOG_WARN, PST_LOG_INFO, PST_LOG_DEBUG };

/* Writes a line to stderr, unless the level of `backend` excludes it. */
void pst_log(enum pst_log_level level, const char *backend, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
