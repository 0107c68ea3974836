/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path "vendor": NVIDIA's own libcufile moves the bytes, by the module nvidia-fs or by its
 * peer-to-peer mode. libcufile may fall back to plain reads without reporting it. So the path
 * counts as direct only if libcufile's compat mode is off and a trial read was direct. That read
 * must raise libcufile's counter of peer-to-peer or nvidia-fs reads, but not its counter of posix
 * reads. A test transfer, the canary, then proves that the bytes arrive. If the path is not direct,
 * it serves only requests that accept every class of path (PENSTOCK_ANY), and the library tries it
 * last. A call of libcufile blocks, so each lane makes only one at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backends.h"
#include "core/lane/chunk.h"
#include "core/base/scratch.h"
#include "core/request/spans.h"
#include "core/request/plan.h"
#include "path/vendor.h"
#include "path/vendor_lib.h"

#define TRIAL_BLOCK 4096u
#define CHUNK_MAX (16u << 20) /* Bytes of one call. */

struct vendor_route {
	const struct pst_vendor *lib;
	void *handle;
	bool direct;
};

/* Arguments and result of one call of libcufile, which is made while the device's context is
 * current. */
struct vendor_call {
	struct vendor_route *s;
	void *mem;
	uint64_t len, off;
	bool write;
	ssize_t result;
	int errnum;
};

static int vendor_call_make(void *arg)
{
	struct vendor_call *c = arg;
	const struct pst_vendor *lib = c->s->lib;

	errno = 0;
	c->result = c->write ? lib->cuFileWrite(c->s->handle, c->mem, c->len, (off_t)c->off, 0)
			     : lib->cuFileRead(c->s->handle, c->mem, c->len, (off_t)c->off, 0);
	c->errnum = errno;
	return 0;
}

/* Makes the call. Returns the number of bytes that it moved, or -errno with the reason in `err`. */
static int64_t vendor_call_run(struct penstock_device *dev, struct vendor_call *c,
			       struct pst_err *err)
{
	int ret = dev->ops->inside(dev, vendor_call_make, c);

	if (ret)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				      "entering the device's context: %m");
	if (c->result >= 0)
		return c->result;
	if (c->result == -1)
		return pst_fail_errno(err, c->errnum ? c->errnum : EIO,
				      pst_why_from_errno(c->errnum ? c->errnum : EIO),
				      "libcufile: %llu bytes at %llu: %m",
				      (unsigned long long)c->len, (unsigned long long)c->off);
	return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
			      "libcufile: %llu bytes at %llu: %s (%zd)", (unsigned long long)c->len,
			      (unsigned long long)c->off, pst_vendor_name((int)-c->result),
			      c->result);
}

/* ---- the trial read ---- */

/* Reads some bytes and checks in libcufile's counters how they were moved. */
static int vendor_trial_read(struct pst_route *route, struct vendor_route *s, struct pst_err *err)
{
	struct penstock_device *dev = route->dev;
	struct pst_vendor_counts before = {0}, after = {0};
	struct vendor_call c = {.s = s};
	int64_t n;
	bool counts;
	int ret;

	if (pst_written_blocks(route->st, TRIAL_BLOCK, PST_SCRATCH_BYTES, &c.off, &c.len))
		return pst_fail(err, PENSTOCK_WHY_UNPROVEN, "%s",
				penstock_why_text(PENSTOCK_WHY_UNPROVEN));
	ret = pst_scratch_get(dev, &c.mem, err);
	if (ret)
		return ret;
	counts = !pst_vendor_count(s->lib, &before);
	n = vendor_call_run(dev, &c, err);
	counts = counts && !pst_vendor_count(s->lib, &after);
	pst_scratch_put(dev, c.mem);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != c.len)
		return pst_fail(err, PENSTOCK_WHY_SHORT_IO, "libcufile's trial read was short");
	s->direct = counts && !s->lib->compat && after.direct > before.direct &&
		    after.posix == before.posix && after.bytes - before.bytes >= c.len;
	return 0;
}

static int vendor_handle_open(struct pst_route *route, struct vendor_route *s, struct pst_err *err)
{
	const struct pst_storage_facts *st = &route->st->facts;
	struct cuf_descr descr = {.type = CUF_FD};
	struct cuf_error e;

	descr.handle.fd = st->fd_direct >= 0 ? st->fd_direct : st->fd;
	e = s->lib->cuFileHandleRegister(&s->handle, &descr);
	if (!e.err)
		return 0;
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
			      "cuFileHandleRegister: %s (%d)", pst_vendor_name(e.err), e.err);
}

static void vendor_route_free(struct vendor_route *s)
{
	if (s->handle)
		s->lib->cuFileHandleDeregister(s->handle);
	free(s);
}

/* Loads libcufile, opens a handle of the file, and makes the trial read. Runs once for each route,
 * which is a storage, a device and a direction. */
static int vendor_route_open(struct pst_route *route, struct vendor_route **out,
			     struct pst_err *err)
{
	struct vendor_route *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for libcufile's handle");
	s->lib = pst_vendor_get(err);
	ret = s->lib ? vendor_handle_open(route, s, err) : err->code;
	if (!ret)
		ret = vendor_trial_read(route, s, err);
	if (ret) {
		vendor_route_free(s);
		return ret;
	}
	*out = s;
	return 0;
}

static unsigned vendor_index(void)
{
	unsigned i = 0;

	while (pst_paths[i] != &pst_path_vendor)
		i++;
	return i;
}

static int vendor_probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
			char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	struct vendor_route *s = NULL;
	int ret;

	if (!route->dev->ops->inside)
		return pst_fail(err, PENSTOCK_WHY_DEVICE_ONLY, "libcufile serves NVIDIA GPUs only");
	if (st->fd < 0)
		return pst_fail(err, PENSTOCK_WHY_NO_FD, "%s storage has no file descriptor",
				route->st->ops->name);
	ret = vendor_route_open(route, &s, err);
	if (ret) {
		snprintf(fix, PENSTOCK_TEXT_MAX, "set up GPUDirect Storage (nvidia-fs)");
		return ret;
	}
	route->path_priv[vendor_index()] = s;
	facts->class_ = s->direct ? PENSTOCK_DIRECT : PENSTOCK_ANY;
	facts->off_align = st->off_align;
	facts->mem_align = 4096;
	facts->exact = true;
	facts->chunk_max = CHUNK_MAX;
	facts->quick = facts->canary = s->direct;
	return 0;
}

static void vendor_route_close(struct pst_route *route, unsigned index)
{
	struct vendor_route *s = route->path_priv[index];

	route->path_priv[index] = NULL;
	if (s)
		vendor_route_free(s);
}

/* ---- chunks ---- */

static int vendor_start(struct pst_chunk *chunk)
{
	struct vendor_route *s = chunk->route->path_priv[chunk->path];
	struct vendor_call c = {.s = s,
				.len = chunk->len + chunk->pad,
				.off = chunk->off,
				.write = chunk->route->op == PENSTOCK_WRITE};
	struct pst_part part;
	int64_t n;
	int ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);

	if (ret)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
				"the chunk belongs to several buffers");
	if (!part.dev->ops->inside)
		return pst_fail(&chunk->err, PENSTOCK_WHY_DEVICE_ONLY,
				"libcufile serves NVIDIA GPUs only");
	c.mem = part.mem;
	n = vendor_call_run(part.dev, &c, &chunk->err);
	if (n < 0)
		return (int)n;
	chunk->engine = "libcufile";
	chunk->moved = (uint64_t)n < chunk->len ? (uint64_t)n : chunk->len;
	/* libcufile does not report whether the CPU copied, so count one CPU copy of every byte. */
	if (!s->direct) {
		chunk->cpu_copied += chunk->moved;
		chunk->dram_laid += chunk->moved;
	}
	if (c.write && chunk->moved < chunk->len)
		return pst_fail(&chunk->err, PENSTOCK_WHY_SHORT_IO, "libcufile wrote %lld of %llu",
				(long long)n, (unsigned long long)chunk->len);
	pst_chunk_done(chunk, 0);
	return 0;
}

const struct pst_path_ops pst_path_vendor = {
	.name = "vendor",
	.traits = {.reads = true, .writes = true, .needs_file = true, .class_ = PENSTOCK_DIRECT},
	.probe = vendor_probe,
	.start = vendor_start,
	.route_close = vendor_route_close,
};
