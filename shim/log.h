/* SPDX-License-Identifier: Apache-2.0 */
/* The drop-in's log. Any thread may write a line; only an open of the driver sets it up. */
#ifndef SHIM_LOG_H
#define SHIM_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum shim_level { SHIM_NOTICE, SHIM_ERROR, SHIM_WARN, SHIM_INFO, SHIM_DEBUG, SHIM_TRACE };

/* Extends an FNV-1a hash by a text. Files remember logged lines by their hash, to log each line
 * once. The first call starts with SHIM_HASH. */
#define SHIM_HASH 1469598103934665603u
static inline uint64_t shim_hash(uint64_t hash, const char *text)
{
	while (*text)
		hash = (hash ^ (unsigned char)*text++) * 1099511628211u;
	return hash;
}

/* Writes one line if `level` is enabled; NOTICE always is. Keeps errno. */
void shim_log(enum shim_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Logs a refusal due to compat mode off, as NOTICE and as a note of `penstock stats`. */
void shim_log_refused(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Sets the level and the log file: `file` if not empty, else cufile.log in `dir` if not empty,
 * else stderr. The caller holds shim.lock. */
void shim_log_setup(const char *level, const char *file, const char *dir);
/* Whether the log goes to a file instead of stderr. */
bool shim_log_to_file(void);
/* Returns the level of that name, -1 if the name is unknown. */
int shim_log_level(const char *name);

#endif
