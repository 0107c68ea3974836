/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path vendor: NVIDIA's own libcufile moves the bytes, by nvidia-fs or its peer-to-peer
 * mode. It falls back to plain reads without a word, so it counts as direct only if its
 * compat mode is off and, over a trial read, its own peer-to-peer or nvidia-fs counter
 * rose and its posix counter did not; the canary proves the bytes. Else it meets no class
 * and stands behind every other path. Its calls block: a lane is in one at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/lane/pump.h"
#include "core/route/route.h"
#include "path/paths.h"
#include "path/vendor_lib.h"

#define TRIAL_BLOCK 4096u
#define CHUNK_MAX (16u << 20) /* of one call */

struct state {
	const struct pst_vendor *lib;
	void *handle;
	bool direct;
};

/* One call of the library, made where the device's context is current. */
struct call {
	struct state *s;
	void *mem;
	uint64_t len, off;
	bool write;
	ssize_t result;
	int errnum;
};

static int make(void *arg)
{
	struct call *c = arg;
	const struct pst_vendor *lib = c->s->lib;

	errno = 0;
	c->result = c->write ? lib->cuFileWrite(c->s->handle, c->mem, c->len, (off_t)c->off, 0)
			     : lib->cuFileRead(c->s->handle, c->mem, c->len, (off_t)c->off, 0);
	c->errnum = errno;
	return 0;
}

/* Bytes, or -errno with the reason. */
static int64_t carry(struct penstock_device *dev, struct call *c, struct pst_err *err)
{
	int ret = dev->ops->inside(dev, make, c);

	if (ret)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				      "entering the device's context: %m");
	if (c->result >= 0)
		return c->result;
	if (c->result == -1)
		return pst_fail_errno(err, c->errnum ? c->errnum : EIO,
				      pst_why_of_errno(c->errnum ? c->errnum : EIO),
				      "libcufile: %llu bytes at %llu: %m",
				      (unsigned long long)c->len, (unsigned long long)c->off);
	return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
			      "libcufile: %llu bytes at %llu: %s (%zd)", (unsigned long long)c->len,
			      (unsigned long long)c->off, pst_vendor_name((int)-c->result),
			      c->result);
}

/* ---- the trial ---- */

/* Reads once and asks the library's counters how. */
static int try_read(struct pst_route *route, struct state *s, struct pst_err *err)
{
	struct penstock_device *dev = route->dev;
	struct pst_vendor_counts before = {0}, after = {0};
	struct call c = {.s = s};
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
	n = carry(dev, &c, err);
	counts = counts && !pst_vendor_count(s->lib, &after);
	pst_scratch_put(dev, c.mem);
	if (n < 0)
		return (int)n;
	if ((uint64_t)n != c.len)
		return pst_fail(err, PENSTOCK_WHY_SHORT_IO, "the trial read came short");
	s->direct = counts && !s->lib->compat && after.direct > before.direct &&
		    after.posix == before.posix && after.bytes - before.bytes >= c.len;
	return 0;
}

static int open_handle(struct pst_route *route, struct state *s, struct pst_err *err)
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

static void drop(struct state *s)
{
	if (s->handle)
		s->lib->cuFileHandleDeregister(s->handle);
	free(s);
}

/* The state, once a route: both what it may be used for and what it costs. */
static int open_state(struct pst_route *route, struct state **out, struct pst_err *err)
{
	struct state *s = calloc(1, sizeof(*s));
	int ret;

	if (!s)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for libcufile's handle");
	s->lib = pst_vendor_get(err);
	ret = s->lib ? open_handle(route, s, err) : err->code;
	if (!ret)
		ret = try_read(route, s, err);
	if (ret) {
		drop(s);
		return ret;
	}
	*out = s;
	return 0;
}

static unsigned own_index(void)
{
	unsigned i = 0;

	while (pst_paths[i] != &pst_path_vendor)
		i++;
	return i;
}

static int probe(struct pst_route *route, struct pst_path_facts *facts, struct pst_err *err,
		 char *fix)
{
	const struct pst_storage_facts *st = &route->st->facts;
	struct state *s = NULL;
	int ret;

	if (!route->dev->ops->inside)
		return pst_fail(err, PENSTOCK_WHY_DEVICE_ONLY, "libcufile serves NVIDIA GPUs only");
	if (st->fd < 0)
		return pst_fail(err, PENSTOCK_WHY_NO_FD, "%s storage has no file descriptor",
				route->st->ops->name);
	ret = open_state(route, &s, err);
	if (ret) {
		snprintf(fix, PENSTOCK_TEXT_MAX, "set up GPUDirect Storage (nvidia-fs)");
		return ret;
	}
	route->path_priv[own_index()] = s;
	facts->class_ = s->direct ? PENSTOCK_DIRECT : PENSTOCK_ANY;
	facts->off_align = st->off_align;
	facts->mem_align = 4096;
	facts->exact = true;
	facts->chunk_max = CHUNK_MAX;
	facts->quick = facts->canary = s->direct;
	return 0;
}

static void route_close(struct pst_route *route, unsigned index)
{
	struct state *s = route->path_priv[index];

	route->path_priv[index] = NULL;
	if (s)
		drop(s);
}

/* ---- chunks ---- */

static int start(struct pst_chunk *chunk)
{
	struct state *s = chunk->route->path_priv[chunk->path];
	struct call c = {.s = s,
			 .len = chunk->len + chunk->pad,
			 .off = chunk->off,
			 .write = chunk->route->op == PENSTOCK_WRITE};
	struct pst_part part;
	int64_t n;
	int ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);

	if (ret)
		return pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED, "no single piece of memory");
	if (!part.dev->ops->inside)
		return pst_fail(&chunk->err, PENSTOCK_WHY_DEVICE_ONLY,
				"libcufile serves NVIDIA GPUs only");
	c.mem = part.mem;
	n = carry(part.dev, &c, &chunk->err);
	if (n < 0)
		return (int)n;
	chunk->engine = "libcufile";
	chunk->moved = (uint64_t)n < chunk->len ? (uint64_t)n : chunk->len;
	if (!s->direct) { /* who copied is not known: count the worst */
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
	.traits = {.reads = true, .writes = true, .class_ = PENSTOCK_DIRECT},
	.probe = probe,
	.start = start,
	.route_close = route_close,
};
