/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the two kinds of sides: the core (Penstock's own API), and a libcufile. The core gets
 * exactly the requests that Penstock's libcufile (the drop-in) would make. A libcufile is loaded by
 * its path with dlopen, so that the same program can measure Penstock's and NVIDIA's. main.c,
 * work.c and overhead.c use the sides.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/cufile_calls.h"
#include "shim.h"

static int fail_report(const char *what, long code)
{
	fprintf(stderr, "bench_shim: %s: %ld %s\n", what, code, code < 0 ? penstock_errmsg() : "");
	return code < 0 ? (int)code : -EIO;
}

static int side_open_file(struct side *s, const char *path)
{
	s->fd = open(path, O_RDONLY | O_CLOEXEC | (s->direct ? O_DIRECT : 0));
	return s->fd < 0 ? fail_report(path, -errno) : 0;
}

/* ---- the core ---- */

static int core_open(struct side *s, const char *path)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	int ret = penstock_device_open("cuda:0", NULL, &s->dev);

	if (ret >= 0)
		ret = side_open_file(s, path);
	if (ret >= 0)
		ret = penstock_open_fd(s->fd, NULL, &s->st);
	opts.requests_max = 2 * BATCH;
	if (ret >= 0)
		ret = penstock_queue_open(&opts, &s->queue);
	return ret < 0 ? fail_report("core", ret) : 0;
}

static struct penstock_req core_req(struct side *s, struct penstock_seg *seg)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = s->st;
	req.segs = seg;
	req.seg_count = 1;
	req.effort = PENSTOCK_FAST;
	return req;
}

static int64_t core_read(struct side *s, void *buf, size_t len, uint64_t off, uint64_t buf_off)
{
	struct penstock_seg seg = {
		.buf = (char *)buf + buf_off, .dev = s->dev, .off = off, .row_len = len, .rows = 1};
	struct penstock_req req = core_req(s, &seg);

	return penstock_transfer(&req, NULL);
}

static int core_batch(struct side *s, const struct piece *pieces, unsigned count)
{
	struct penstock_seg segs[BATCH];
	struct penstock_req reqs[BATCH];
	struct penstock_done done[BATCH];
	int ret;

	if (!count || count > BATCH)
		return -EINVAL;
	for (unsigned i = 0; i < count; i++) {
		segs[i] = (struct penstock_seg){.buf = (char *)s->gpu + pieces[i].buf_off,
						.dev = s->dev,
						.off = pieces[i].off,
						.row_len = pieces[i].len,
						.rows = 1};
		reqs[i] = core_req(s, &segs[i]);
	}
	ret = penstock_submit(s->queue, reqs, count, NULL);
	if (ret != (int)count)
		return fail_report("submit", ret);
	for (unsigned left = count; left; left -= (unsigned)ret) {
		ret = penstock_wait(s->queue, done, left, left, -1);
		if (ret <= 0)
			return fail_report("wait", ret);
		for (int i = 0; i < ret; i++)
			if (done[i].result <= 0)
				return fail_report("batch", done[i].result);
	}
	return 0;
}

static void core_close(struct side *s)
{
	penstock_queue_close(s->queue);
	penstock_close(s->st);
	penstock_device_close(s->dev);
	close(s->fd);
}

const struct side_ops side_core = {core_open, core_read, core_batch, core_close};

/* ---- a libcufile ---- */

/* clang-format is off, because it formats this macro list differently each time. */
/* clang-format off */
#define CALLS(X) \
	X(cuFileDriverOpen) X(cuFileHandleRegister) X(cuFileHandleDeregister) X(cuFileBufRegister) \
	X(cuFileRead) X(cuFileBatchIOSetUp) X(cuFileBatchIOSubmit) X(cuFileBatchIOGetStatus) \
	X(cuFileBatchIODestroy) X(cuFileDriverClose_v2)
static struct {
#define MEMBER(name) __typeof__(&(name)) name;
	CALLS(MEMBER)
#undef MEMBER
} lib;
/* clang-format on */

static int symbols_find(void *handle)
{
	const char *missing = NULL;

#define FIND(call)                                    \
	{                                             \
		void *sym = dlsym(handle, #call);     \
		memcpy(&lib.call, &sym, sizeof(sym)); \
		missing = sym ? missing : #call;      \
	}
	CALLS(FIND)
#undef FIND
	if (missing)
		fprintf(stderr, "bench_shim: the library lacks %s\n", missing);
	return missing ? -ENOSYS : 0;
}

static int cufile_open(struct side *s, const char *path)
{
	struct cuf_descr descr = {.type = CUF_FD};
	struct cuf_error error;

	s->handle = dlopen(s->lib, RTLD_NOW | RTLD_LOCAL);
	if (!s->handle) {
		fprintf(stderr, "bench_shim: %s\n", dlerror());
		return -ENOENT;
	}
	if (symbols_find(s->handle) || side_open_file(s, path))
		return -ENOSYS;
	error = lib.cuFileDriverOpen();
	if (error.err)
		return fail_report("cuFileDriverOpen", error.err);
	descr.handle.fd = s->fd;
	error = lib.cuFileHandleRegister(&s->fh, &descr);
	if (error.err)
		return fail_report("cuFileHandleRegister", error.err);
	error = lib.cuFileBufRegister(s->gpu, s->gpu_len, 0);
	if (error.err)
		return fail_report("cuFileBufRegister", error.err);
	error = lib.cuFileBatchIOSetUp(&s->batch, BATCH);
	if (error.err)
		s->batch = NULL;
	return 0;
}

static int64_t cufile_read(struct side *s, void *buf, size_t len, uint64_t off, uint64_t buf_off)
{
	return lib.cuFileRead(s->fh, buf, len, (off_t)off, (off_t)buf_off);
}

static int cufile_batch(struct side *s, const struct piece *pieces, unsigned count)
{
	struct cuf_io_params params[BATCH];
	struct cuf_io_event events[BATCH];
	struct cuf_error error;
	unsigned done = 0;

	if (!s->batch)
		return fail_report("cuFileBatchIOSetUp", 1);
	for (unsigned i = 0; i < count; i++) {
		params[i] = (struct cuf_io_params){
			.mode = CUF_BATCH, .fh = s->fh, .opcode = CUF_READ, .cookie = &params[i]};
		params[i].u.batch.base = s->gpu;
		params[i].u.batch.base_offset = (off_t)pieces[i].buf_off;
		params[i].u.batch.file_offset = (off_t)pieces[i].off;
		params[i].u.batch.size = pieces[i].len;
	}
	error = lib.cuFileBatchIOSubmit(s->batch, count, params, 0);
	if (error.err)
		return fail_report("cuFileBatchIOSubmit", error.err);
	while (done < count) {
		struct timespec limit = {10, 0};
		unsigned nr = count - done;

		error = lib.cuFileBatchIOGetStatus(s->batch, nr, &nr, events, &limit);
		if (error.err || !nr)
			return fail_report("cuFileBatchIOGetStatus", error.err ? error.err : 1);
		for (unsigned i = 0; i < nr; i++)
			if (events[i].status != CUF_COMPLETE)
				return fail_report("event", events[i].status);
		done += nr;
	}
	return 0;
}

static void cufile_close(struct side *s)
{
	if (s->batch)
		lib.cuFileBatchIODestroy(s->batch);
	lib.cuFileHandleDeregister(s->fh);
	lib.cuFileDriverClose_v2();
	close(s->fd);
}

const struct side_ops side_cufile = {cufile_open, cufile_read, cufile_batch, cufile_close};
