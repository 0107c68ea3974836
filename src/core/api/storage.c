/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_open, penstock_open_fd, penstock_commit and penstock_abort, with and without
 * options, penstock_close, penstock_storage_length and penstock_storage_get_info. Opening a URL
 * tries the kinds of storage in the backends' table, in order, until one accepts the URL. This file
 * must never name a backend. Read and write requests do not use this file.
 */
#include "core/api/storage.h"

#include <stdlib.h>

#include "core/backends.h"
#include "core/base/devices.h"
#include "core/base/end.h"
#include "core/base/fork.h"
#include "core/base/spin.h"
#include "core/base/struct_copy.h"
#include "core/queue/captured.h"
#include "core/request/cache_fill.h"
#include "core/route/route.h"

#define KNOWN_FLAGS                                                                         \
	(PENSTOCK_O_WRITE | PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE | PENSTOCK_O_IMMUTABLE | \
	 PENSTOCK_O_NOFOLLOW | PENSTOCK_O_PREFETCH)

/* Number of storages opened so far. It decides the cache_bit of the next storage. Each lane has a
 * 64-bit mask of the storages whose state it caches; cache_bit is the bit of one storage there. */
static _Atomic unsigned opened;

int pst_storage_open_ops(const struct pst_storage_ops *ops, const char *url, int fd,
			 const struct penstock_storage_opts *opts, struct penstock_storage **out,
			 struct pst_err *err)
{
	struct penstock_storage *st = calloc(1, sizeof(*st));
	int ret;

	if (!st)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a storage");
	st->ops = ops;
	st->facts.fd = st->facts.fd_direct = -1;
	st->facts.off_align = st->facts.mem_align = 1;
	st->facts.edge_align = 4096;
	st->generation = pst_fork_generation();
	st->cache_bit = (uint64_t)1 << atomic_fetch_add(&opened, 1) % 64;
	ret = ops->open(st, url, fd, opts, err);
	if (ret) {
		free(st);
		return ret;
	}
	pst_cache_fill_open(st);
	*out = st;
	return 0;
}

/* Opens `url`, or the caller's descriptor `fd` if `url` is NULL. */
static int storage_open(const char *url, int fd, const struct penstock_storage_opts *from,
			struct penstock_storage **out)
{
	struct penstock_storage_opts opts;
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	int ret;

	if (!out || (!url && fd < 0))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the URL or the output pointer is NULL");
	ret = pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_storage_opts", &err);
	if (ret)
		return pst_err_publish(&err);
	if (opts.flags & ~KNOWN_FLAGS)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"storage flags 0x%x: this library does not know 0x%x", opts.flags,
				opts.flags & ~KNOWN_FLAGS);
	if (opts.flags & (PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE))
		opts.flags |= PENSTOCK_O_WRITE;
	if (opts.length > INT64_MAX)
		return pst_fail_errno(NULL, EFBIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "a length of %llu bytes overflows",
				      (unsigned long long)opts.length);
	for (unsigned i = 0; pst_storages[i]; i++) {
		if (url ? !pst_storages[i]->match(url) : i > 0)
			continue;
		ret = pst_storage_open_ops(pst_storages[i], url, fd, &opts, out, &err);
		return ret ? pst_err_publish(&err) : 0;
	}
	return pst_fail(NULL, PENSTOCK_WHY_BAD_KIND,
			"'%s': no storage of that kind exists, use a path, file://, s3:// or mem:",
			pst_path_tail(url));
}

int penstock_open(const char *url, const struct penstock_storage_opts *opts,
		  struct penstock_storage **out)
{
	return storage_open(url, -1, opts, out);
}

int penstock_open_fd(int fd, const struct penstock_storage_opts *opts,
		     struct penstock_storage **out)
{
	if (fd < 0)
		return pst_fail_errno(NULL, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "descriptor %d is not open", fd);
	return storage_open(NULL, fd, opts, out);
}

/* The type of the functions commit and abort in a storage's table of functions. */
typedef int end_fn(struct penstock_storage *st, const struct penstock_end_opts *opts,
		   struct pst_err *err);

/* Calls `end`, which is the storage's commit or abort function, or NULL if it has none. Returns
 * -EBUSY if requests are in flight.
 */
static int storage_end_writing(struct penstock_storage *st, end_fn *end,
			       const struct penstock_end_opts *from)
{
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	struct penstock_end_opts opts;
	int ret = pst_fork_check(st->generation, NULL);

	if (ret)
		return ret;
	ret = pst_struct_copy_in(&opts, sizeof(opts), from, "penstock_end_opts", &err);
	if (!ret)
		ret = pst_end_check(&opts, &err);
	if (ret)
		return pst_err_publish(&err);
	if (atomic_load(&st->inflight))
		return pst_fail_errno(NULL, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "requests are in flight, wait for them first");
	ret = end ? end(st, &opts, &err) : 0;
	return ret ? pst_err_publish(&err) : 0;
}

int penstock_commit_with(struct penstock_storage *st, const struct penstock_end_opts *opts)
{
	if (!st)
		return pst_fail_null("the storage");
	return storage_end_writing(st, st->ops->commit, opts);
}

int penstock_commit(struct penstock_storage *st, int durable)
{
	struct penstock_end_opts opts = PENSTOCK_END_OPTS_INIT;

	opts.durable = durable;
	return penstock_commit_with(st, &opts);
}

int penstock_abort_with(struct penstock_storage *st, const struct penstock_end_opts *opts)
{
	if (!st)
		return pst_fail_null("the storage");
	return storage_end_writing(st, st->ops->abort, opts);
}

int penstock_abort(struct penstock_storage *st)
{
	return penstock_abort_with(st, NULL);
}

void penstock_close(struct penstock_storage *st)
{
	unsigned times = 0;

	if (!st)
		return;
	if (st->generation != pst_fork_generation())
		/* A forked child must not close the storage, which belongs to the parent
		 * process. */
		return;
	pst_captured_close_storage(st);
	while (atomic_load(&st->inflight)) {
		/* Requests may be in flight on inline lanes of this thread. An inline lane has no
		 * thread of its own, so it makes progress only if this loop calls it. */
		pst_devices_help();
		pst_backoff(&times);
	}
	/* Make the worker threads drop their cached state of this storage. This wakes all of them,
	 * so skip it if none has cached any. */
	if (atomic_load(&st->cached_by_lanes))
		pst_devices_invalidate(st);
	pst_routes_drop(st);
	st->ops->close(st);
	pst_cache_fill_close(st);
	free(st);
}

int penstock_storage_get_info(const struct penstock_storage *st, struct penstock_storage_info *info)
{
	const struct pst_storage_facts *facts;
	struct penstock_storage_info ours;

	if (!st)
		return pst_fail_null("the storage");
	facts = &st->facts;
	ours = (struct penstock_storage_info){
		.size = sizeof(ours),
		.length = facts->length,
		.kind = st->ops->name,
		.text = facts->text,
		.off_align = facts->off_align,
		.mem_align = facts->mem_align,
		.edge_align = facts->edge_align,
		.drive_count = facts->drive_count,
		.version = facts->version,
		.parts_rdma = facts->parts_far,
		.parts_http = facts->parts_near,
		.parts_why = facts->parts_near ? facts->why_near.text : NULL,
		.parts_device = facts->parts_device,
	};
	return pst_struct_copy_out(info, &ours, sizeof(ours));
}

int64_t penstock_storage_length(struct penstock_storage *st)
{
	struct pst_err err;
	uint64_t len;
	int ret;

	if (!st)
		return pst_fail_null("the storage");
	len = st->facts.length;
	ret = pst_fork_check(st->generation, &err);
	if (!ret && st->ops->length)
		ret = st->ops->length(st, &len, &err);
	if (ret)
		return pst_err_publish(&err);
	return (int64_t)len;
}
