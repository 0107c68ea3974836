/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging to stderr. The environment variable PENSTOCK_LOG sets the levels: "warn,rdma:debug" sets
 * the level "warn" for all backends, except "debug" for the backend "rdma". Messages are in lower
 * case, and each value follows its name. Code that carries requests may log only if something
 * fails, because each message is a system call.
 */
#ifndef PST_CORE_LOG_H
#define PST_CORE_LOG_H

enum pst_log_level { PST_LOG_ERROR, PST_LOG_WARN, PST_LOG_INFO, PST_LOG_DEBUG };

/* Writes a line to stderr, unless PENSTOCK_LOG suppresses messages of `level` from this backend. */
void pst_log(enum pst_log_level level, const char *backend, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
