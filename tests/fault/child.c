/* SPDX-License-Identifier: Apache-2.0 */
/* Implements child.h. If a child exceeds its time limit, it is killed and its case fails. */
#include "child.h"
#include "request.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "device/cuda_api.h"
#include "memory.h"
#include "standin/pst_standin.h"

#define HANG_S 25

void *child_shared_memory(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

void *child_standin_symbol(const char *function)
{
	const char *path = getenv("PENSTOCK_LIBCUDA");
	void *lib = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;

	return lib ? dlsym(lib, function) : NULL;
}

static long standin_live(void)
{
	void (*get_live)(struct pst_standin_live *);
	struct pst_standin_live live;

	*(void **)&get_live = child_standin_symbol("pst_standin_live");
	if (!get_live)
		return 0;
	get_live(&live);
	return (long)(live.allocs + live.host_allocs + live.registrations + live.streams +
		      live.events + live.ctx_retains + live.ops_pending);
}

void child_run(void (*child)(void *arg), void *arg, struct child_result *out)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		alarm(HANG_S);
		child(arg);
		out->blocks = memory_blocks();
		out->mapped = memory_mapped();
		out->fds = fixture_open_fds() + fixture_open_rings();
		out->live = standin_live();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		snprintf(out->text, sizeof(out->text), "killed by %s",
			 WTERMSIG(status) == SIGALRM ? "its time limit: it hung"
						     : strsignal(WTERMSIG(status)));
}

void child_check_leaks(struct child_result *out, const struct child_result *clean, bool lax)
{
	if (out->blocks > clean->blocks || out->mapped > clean->mapped || out->fds > clean->fds ||
	    (!lax && out->live > clean->live))
		child_fail(out,
			   "not freed (result %d): %ld blocks, %ld bytes mapped, %ld "
			   "descriptors, %ld objects of the driver",
			   out->ret, out->blocks - clean->blocks, out->mapped - clean->mapped,
			   out->fds - clean->fds, out->live - clean->live);
}

struct penstock_device *child_open_device(const char *name, const char *engine, int *ret)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_device *dev = NULL;

	opts.lanes = 2;
	opts.slot_bytes = 256u << 10;
	opts.ring_bytes = 2u << 20;
	opts.engine = engine;
	*ret = penstock_device_open(name, &opts, &dev);
	if (*ret > 0)
		*ret = 0;
	return dev;
}

int child_read_in_stream_order(struct penstock_storage *st, struct penstock_device *dev, void *mem,
			       uint64_t len, struct child_result *out)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = len};
	struct penstock_req req;
	struct penstock_queue *q = NULL;
	struct penstock_done done;
	int ret;

	opts.requests_max = 2;
	opts.segs_max = 2;
	ret = penstock_queue_open(&opts, &q);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.stream = (void *)1;
	if (!ret)
		ret = penstock_submit(q, &req, 1, NULL);
	if (ret == 1) {
		ret = 0;
		if (penstock_wait(q, &done, 1, 1, 20000000000LL) != 1)
			child_fail(out, "the request did not complete within 20 s");
		else if (done.result < 0)
			ret = penstock_fail((int)done.result, done.report->why, "%s",
					    done.report->text);
	}
	penstock_queue_close(q);
	return ret;
}
