/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Determines the cause of the write-back errors that the kernel remembers for a file. fdatasync
 * reports once to each open descriptor that an error has occurred since the descriptor's last
 * fdatasync. The error can have two causes.
 *
 * The first cause is a loss: the kernel could not write bytes of the page cache to the drive. The
 * bytes are lost, and later fdatasync calls succeed without them. So no later commit of this
 * storage may report success as durable.
 *
 * The second cause is old bytes: a direct write could not drop old bytes from the page cache,
 * because another process had dirtied the folio (the run of pages). Within one process, file_gate.c
 * prevents this. The drive has all bytes, and repeating the write updates the page cache.
 *
 * The error is EIO in both cases. But only a loss is also recorded for the whole file system, where
 * syncfs reports it (include/linux/pagemap.h, mapping_set_error; mm/filemap.c,
 * dio_warn_stale_pagecache). file.c and file_open.c call these functions. They must never mistake a
 * loss for old bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/base/log.h"
#include "storage/file_sync.h"

/* An offset beyond the end of every file. sync_file_range has no pages to write there, and only
 * returns the file's pending error. */
#define OFF_BEYOND_FILES ((off_t)1 << 62)
#define RETRIES_MAX 16

static const char *file_name(const struct pst_file *file)
{
	return file->path ? pst_path_tail(file->path) : "descriptor";
}

/* Returns how many errors the kernel has reported for the file. The kernel reports an error once to
 * each descriptor. So this function queries the O_DIRECT descriptor, on which the library never
 * calls fdatasync. fdatasync on the other descriptor still gets its own report. The thread that
 * receives the report counts the error under error_lock, before any other thread can read the
 * count. */
static unsigned errors_poll(struct pst_file *file)
{
	unsigned errors;

	if (file->fd_direct < 0 || file->fd_direct == file->fd)
		return 0;
	while (atomic_exchange_explicit(&file->error_lock, true, memory_order_acquire))
		sched_yield();
	if (sync_file_range(file->fd_direct, OFF_BEYOND_FILES, 1, SYNC_FILE_RANGE_WAIT_BEFORE) &&
	    errno == EIO)
		atomic_fetch_add_explicit(&file->errors_seen, 1, memory_order_relaxed);
	errors = atomic_load_explicit(&file->errors_seen, memory_order_relaxed);
	atomic_store_explicit(&file->error_lock, false, memory_order_release);
	return errors;
}

/* ---- direct writes ---- */

/* The kernel does not report which write has caused an error. So each direct write that was in
 * flight when an error was reported is repeated. */
int pst_file_direct_recheck(struct pst_io *io)
{
	struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);
	unsigned errors = errors_poll(file);

	if (errors == own->errors)
		return 0;
	if (++own->remade > RETRIES_MAX)
		return -EIO;
	own->errors = errors;
	pst_log(PST_LOG_INFO, "file", "%s at %llu is rewritten: the page cache kept old bytes",
		file_name(file), (unsigned long long)io->off);
	return 1;
}

/* ---- fdatasync and fsync ---- */

bool pst_file_forgive(struct pst_file *file, int code)
{
	unsigned errors;

	if (code != EIO || !file->tells_loss)
		return false;
	errors = errors_poll(file);
	/* The kernel has reported no write-back error since syncfs last succeeded. So this EIO has
	 * another cause: the drive itself refused to flush its cache. */
	if (errors == atomic_load(&file->errors_forgiven))
		return false;
	/* syncfs is slow, because it writes all files of the file system. But only its success
	 * proves that no data is lost. */
	if (syncfs(file->fd))
		return false;
	atomic_store(&file->errors_forgiven, errors);
	pst_log(PST_LOG_INFO, "file",
		"%s: the sync failed only because the page cache kept old bytes; no data is lost",
		file_name(file));
	return true;
}

void pst_file_mark_lost(struct pst_file *file, int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&file->lost_errno, &none, code);
}

int pst_file_sync_all(struct pst_file *file, struct pst_err *err)
{
	int ret = atomic_load(&file->lost_errno);

	if (ret)
		ret = pst_fail_errno(err, ret, pst_why_from_errno(ret),
				     "an earlier sync of %s failed, and the data that it could not "
				     "write is lost: %m (open it anew and write it again)",
				     file_name(file));
	for (unsigned tries = 0; !ret && fsync(file->fd); tries++) {
		int code = errno;

		if (tries < RETRIES_MAX && (code == EINTR || pst_file_forgive(file, code)))
			continue;
		if (code != EINTR)
			pst_file_mark_lost(file, code);
		ret = pst_fail_errno(err, code, pst_why_from_errno(code), "cannot sync %s: %m",
				     file_name(file));
	}
	return ret;
}
