/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel remembers of a file's writing, and what follows from it. It tells each
 * open descriptor once, at fdatasync, that something has gone wrong since it last asked.
 * Two things may have:
 * - bytes in the page cache could not be brought to the drive. They are lost, and no later
 *   fdatasync knows of them: so a commit of that handle is never durable again.
 * - a direct write could not drop old bytes from the page cache, because another process
 *   had dirtied the folio (within this one file_gate.c keeps it from happening). Then the
 *   drive has everything; the write is made again, which brings the cache up to date.
 * The error is EIO both times, but only a loss is also the file system's, which syncfs
 * tells (include/linux/pagemap.h, mapping_set_error; mm/filemap.c,
 * dio_warn_stale_pagecache). Called by file.c and file_open.c. Must never call a loss
 * anything else.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/base/log.h"
#include "storage/file.h"

#define NOWHERE ((off_t)1 << 62) /* behind all files: there are no pages to wait for */
#define AGAIN_MAX 16

static const char *name_of(const struct pst_file *file)
{
	return file->path ? pst_path_tail(file->path) : "descriptor";
}

/* How often something has gone wrong, asked by the descriptor that is never synced. By one
 * at a time: who is told has counted it before the next one looks. */
static unsigned look(struct pst_file *file)
{
	unsigned marks;

	if (file->fd_direct < 0 || file->fd_direct == file->fd)
		return 0;
	while (atomic_exchange_explicit(&file->looking, true, memory_order_acquire))
		sched_yield();
	if (sync_file_range(file->fd_direct, NOWHERE, 1, SYNC_FILE_RANGE_WAIT_BEFORE) &&
	    errno == EIO)
		atomic_fetch_add_explicit(&file->marks, 1, memory_order_relaxed);
	marks = atomic_load_explicit(&file->marks, memory_order_relaxed);
	atomic_store_explicit(&file->looking, false, memory_order_release);
	return marks;
}

/* ---- direct writes ---- */

void pst_file_begin(struct pst_io *io)
{
	const struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);

	own->marks = atomic_load_explicit(&file->marks, memory_order_relaxed);
	own->remade = 0;
}

/* Whose mark it is nobody can tell: all that were on their way are made again. */
int pst_file_remake(struct pst_io *io)
{
	struct pst_file *file = io->st->priv;
	struct pst_file_io *own = pst_file_io(io);
	unsigned marks = look(file);

	if (marks == own->marks)
		return 0;
	if (++own->remade > AGAIN_MAX)
		return -EIO;
	own->marks = marks;
	pst_log(PST_LOG_INFO, "file", "%s at %llu is written again: the page cache kept old bytes",
		name_of(file), (unsigned long long)io->off);
	return 1;
}

/* ---- fdatasync and fsync ---- */

bool pst_file_forgive(struct pst_file *file, int code)
{
	unsigned marks;

	if (code != EIO || !file->tells_loss)
		return false;
	marks = look(file);
	/* A flush that the drive has refused leaves no mark. */
	if (marks == atomic_load(&file->forgiven))
		return false;
	/* Slow, as all files there are written: but the other answer is that data is lost. */
	if (syncfs(file->fd))
		return false;
	atomic_store(&file->forgiven, marks);
	pst_log(PST_LOG_INFO, "file",
		"%s: the sync failed for the page cache's sake, nothing is "
		"lost",
		name_of(file));
	return true;
}

void pst_file_lose(struct pst_file *file, int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&file->lost, &none, code);
}

int pst_file_settle(struct pst_file *file, struct pst_err *err)
{
	int ret = atomic_load(&file->lost);

	if (ret)
		ret = pst_fail_errno(err, ret, pst_why_of_errno(ret),
				     "a sync of %s has failed before, and what it could not write "
				     "is lost: %m (open it anew and write it again)",
				     name_of(file));
	for (unsigned tries = 0; !ret && fsync(file->fd); tries++) {
		int code = errno;

		if (tries < AGAIN_MAX && (code == EINTR || pst_file_forgive(file, code)))
			continue;
		if (code != EINTR)
			pst_file_lose(file, code);
		ret = pst_fail_errno(err, code, pst_why_of_errno(code), "cannot sync %s: %m",
				     name_of(file));
	}
	return ret;
}
