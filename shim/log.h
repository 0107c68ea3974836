/* SPDX-License-Identifier: Apache-2.0 */
/* The log of the drop-in, which is Penstock's libcufile. Any thread may write a line. The log is
 * set up only when the driver is opened. */
#ifndef SHIM_LOG_H
#define SHIM_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum shim_level { SHIM_NOTICE, SHIM_ERROR, SHIM_WARN, SHIM_INFO, SHIM_DEBUG, SHIM_TRACE };

/* Continues an FNV-1a hash with the bytes of `text` and returns it. The first call passes
 * SHIM_HASH. config.c and move.c store the hash of each message, so that they log it only once. */
#define SHIM_HASH 1469598103934665603u
static inline uint64_t shim_hash(uint64_t hash, const char *text)
{
	while (*text)
		hash = (hash ^ (unsigned char)*text++) * 1099511628211u;
	return hash;
}

/* Writes one line if the log's level includes `level`; NOTICE is always included. Does not
 * change errno. */
void shim_log(enum shim_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Logs that a call was refused because compat mode (transfers without a direct path) is off. The
 * text becomes a NOTICE in the log, and a note that `penstock stats` shows. */
void shim_log_refused(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Sets the level and the destination of the log: `file` if it is not empty, else cufile.log in
 * the folder `dir` if it is not empty, else stderr. The caller holds shim.lock. */
void shim_log_setup(const char *level, const char *file, const char *dir);
/* Returns whether the log goes to a file instead of stderr. */
bool shim_log_to_file(void);
/* Returns the log level with this name, -1 if the name is unknown. */
int shim_log_level(const char *name);

#endif
