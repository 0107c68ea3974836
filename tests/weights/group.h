/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the group tests. It runs jobs, in which several processes, one for each rank, load a
 * model together. Each rank compares every byte of the model with the byte that the test wrote to
 * the file. Each rank writes its result to memory that it shares with the test's own process.
 */
#ifndef PST_TEST_GROUP_H
#define PST_TEST_GROUP_H

#include "load.h"

#include "weights/open.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define RANKS_MAX 8u
/* Number of arrays of outcomes (the results of a job's ranks). Jobs that run at the same time use
 * different arrays. */
#define AREAS 4u
/* Milliseconds; six times the time limit that penstock_weights.h promises, because a test machine
 * may be short of CPU time. */
#define LIMIT_MS 60000
#define ALARM_S 100 /* Time in seconds; only a rank that hangs runs this long. */

/* How one rank's loads ended, in memory shared with the test's own process. */
struct outcome {
	int ret;
	uint64_t read, bytes, cpu_copied, device_bytes, ended_ms;
	size_t contexts; /* Number of CUDA contexts that the rank had made. */
	/* Process ID of a child process that survived the rank and still has the rank's
	 * sockets open. */
	pid_t child;
	char text[PENSTOCK_TEXT_MAX], mismatch[PENSTOCK_TEXT_MAX];
};
static struct outcome *outcomes;

/* What goes wrong in rank `bad_rank` of a job. Unless a comment below says otherwise, it happens
 * when this rank has made as many reads as the job's member `after` says; if `after` is 0, after
 * two reads. */
enum end {
	DONE,
	DIES, /* SIGKILL kills the rank. */
	/* SIGKILL kills the rank, but its child process survives and keeps the sockets open. */
	SURVIVED,
	HANGS,	 /* The rank stops itself by SIGSTOP until the other ranks have ended. */
	FAILS,	 /* The rank's callback cancels the load. */
	BROKEN,	 /* The rank's first read fails. */
	CHANGES, /* The rank changes the file and continues. Then no rank may get the model. */
	/* Before any read, the rank finds out that its device has less memory than the model
	 * needs. */
	POOR,
	/* Before any read, the rank finds out that it cannot map another rank's window, the memory
	 * through which that rank passes bytes to the others. */
	BLIND,
	LEAVES, /* The rank closes the group before the second load. */
};

/* True if this process is a rank of kind BLIND, which cannot map another rank's window. */
static bool blind __attribute__((unused));
/* True if this process is the rank whose file never opens. */
static bool stuck __attribute__((unused));
/* Length in bytes of the files for which fstat reports a changed device number in this process; 0:
 * there are none. */
static off_t other_device_len __attribute__((unused));

/* A load by several ranks, and the fault that occurs in it. */
struct job {
	const char *name, *path, *other_path; /* other_path: file that the last rank loads; NULL if
					       * it also loads `path`. */
	unsigned ranks, gpus; /* gpus: number of GPUs; 0 if the ranks load into host memory. */
	struct penstock_group_opts opts;
	bool shard, into, no_peer; /* no_peer: true if the GPUs cannot reach each other's memory. */
	unsigned shard_first, shard_ranks; /* shard_ranks: number of ranks of the tensor
					    * parallelism; 0 means `ranks`. */
	uint64_t first, count; /* First tensor to load, and number of tensors; 0 means all. */
	enum end end;			   /* Fault of rank `bad_rank`. */
	unsigned bad_rank, after; /* after: number of reads before `end` happens; 0 means two. */
	const char *slow_path;	  /* Path that rank `slow` uses for its reads. */
	const char *broken_path;  /* Path that rank `bad_rank` uses if `end` is BROKEN. */
	unsigned slow;
	bool stuck; /* True if rank `slow` waits forever for its file to open. */
	/* Length in bytes of the files for which fstat reports a changed device number in rank
	 * `bad_rank`; 0: there are none. */
	off_t other_device_len;
	/* True if a second load in the group must succeed after a failed one. */
	bool again;
	/* True if reads complete only after the load has ended. Each rank then waits for its
	 * reads. */
	bool left_behind;
	pid_t pids[RANKS_MAX];
};

/* The model has a little more than 2 MiB. The device of a POOR rank has only 2 MiB of memory. */
static const struct made model[] = {
	{"model.embed_tokens.weight", "BF16", 16, 2, {1024, 256}},
	{"model.layers.0.self_attn.o_proj.weight", "BF16", 16, 2, {512, 512}},
	{"model.layers.0.mlp.up_proj.weight", "BF16", 16, 2, {1024, 256}},
	{"model.layers.0.mlp.down_proj.weight", "BF16", 16, 2, {256, 1024}},
	{"model.norm.weight", "F32", 32, 1, {511}},
	{"byte", "U8", 8, 1, {3}},
	{"lm_head.weight", "F32", 32, 2, {300, 256}},
};
static unsigned char *model_bytes[COUNT(model)];

static inline uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static inline const char *group_dir(void)
{
	static char dir[1024];

	snprintf(dir, sizeof(dir), "%s", made_path("meet"));
	mkdir(dir, 0700);
	return dir;
}

/* ---- a rank ---- */

struct self {
	const struct job *job;
	unsigned rank, reads;
};

static inline void rank_die(struct outcome *o, bool survived)
{
	pid_t child = survived ? fork() : 0;

	if (!child && survived) {
		alarm(ALARM_S);
		pause();
		_exit(0);
	}
	o->child = child;
	o->ended_ms = now_ms();
	raise(SIGKILL);
}

static inline int on_read(void *user, unsigned file, const struct penstock_report *r)
{
	struct self *self = user;
	const struct job *job = self->job;
	unsigned last = job->after ? job->after : 2;

	(void)file;
	(void)r;
	if (++self->reads != last || job->end == DONE || job->bad_rank != self->rank)
		return 0;
	if (job->end == DIES || job->end == SURVIVED)
		rank_die(&outcomes[self->rank], job->end == SURVIVED);
	if (job->end == HANGS)
		raise(SIGSTOP);
	if (job->end == CHANGES)
		utimensat(AT_FDCWD, job->path, (struct timespec[2]){{1, 0}, {1, 0}}, 0);
	return job->end == FAILS;
}

/* Returns the bytes of a tensor, which are computed once for all ranks. */
static inline const unsigned char *expected_bytes(const char *name)
{
	unsigned i = 0;

	while (i < COUNT(model) && strcmp(model[i].name, name))
		i++;
	assert_true(i < COUNT(model));
	return model_bytes[i];
}

static inline void make_expected(void)
{
	for (unsigned i = 0; i < COUNT(model); i++) {
		uint64_t len = made_bytes(&model[i]);

		model_bytes[i] = malloc(len);
		assert_non_null(model_bytes[i]);
		for (uint64_t b = 0; b < len; b++)
			model_bytes[i][b] = made_byte(model[i].name, b);
	}
}

static inline void compare_row(struct outcome *o, const char *name, const unsigned char *got,
			       uint64_t from, uint64_t len)
{
	const unsigned char *want = expected_bytes(name) + from;
	uint64_t i = 0;

	if (!memcmp(got, want, len))
		return;
	while (got[i] == want[i])
		i++;
	snprintf(o->mismatch, sizeof(o->mismatch), "%.60s: byte %llu is %u, not %u", name,
		 (unsigned long long)(from + i), got[i], want[i]);
}

static inline void compare_tensor(struct outcome *o, struct penstock_device *dev, const void *at,
				  const struct penstock_shard *s, const struct penstock_tensor *t)
{
	unsigned char *bytes = malloc(s->bytes + 1);
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = host,
					  .dst = bytes,
					  .src_dev = dev,
					  .src = at,
					  .row_len = s->bytes};

	if (s->bytes && penstock_copy(&args, 1))
		snprintf(o->mismatch, sizeof(o->mismatch), "%s", penstock_errmsg());
	for (unsigned p = 0; p < s->piece_count; p++) {
		const struct penstock_piece *c = &s->pieces[p];
		uint64_t inner = penstock_dtype_bits(t->dtype) / 8, outer = 1, extent, count;

		for (unsigned i = 0; i < c->dim; i++)
			outer *= t->shape[i];
		for (unsigned i = c->dim + 1; i < t->rank; i++)
			inner *= t->shape[i];
		extent = t->shape[c->dim];
		count = c->count ? c->count : extent;
		for (uint64_t row = 0; row < outer && !*o->mismatch; row++) {
			uint64_t pitch = c->pitch ? c->pitch : count * inner;
			uint64_t from = (row * extent + c->first) * inner;

			compare_row(o, t->name, bytes + (uintptr_t)c->ptr + row * pitch, from,
				    count * inner);
		}
	}
	free(bytes);
}

static inline void compare_model(struct outcome *o, struct penstock_weights *m,
				 struct penstock_device *dev, const struct penstock_shard_opts *so,
				 struct penstock_loaded *loaded, char **ptrs)
{
	for (uint64_t i = 0; i < penstock_weights_count(m) && !*o->mismatch; i++) {
		struct penstock_shard s = {.size = sizeof(s)};
		struct penstock_tensor t = {.size = sizeof(t)};
		void *at = loaded ? penstock_loaded_ptr(loaded, 0, i) : ptrs[i];

		if (!at && loaded)
			continue; /* the load left this tensor out */
		penstock_weights_get(m, i, &t);
		if (penstock_weights_shard(m, i, so, &s))
			snprintf(o->mismatch, sizeof(o->mismatch), "%s", penstock_errmsg());
		else
			compare_tensor(o, dev, at, &s, &t);
	}
}

/* Loads each tensor, or the rank's part of it, into memory that the rank allocated. */
static inline int rank_load_into(struct self *self, struct penstock_group *g,
				 struct penstock_weights *m, struct penstock_device *dev,
				 const struct penstock_shard_opts *so, struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct penstock_piece pieces[3 * COUNT(model)];
	char *ptrs[COUNT(model)] = {NULL};
	unsigned n = 0;
	int ret = 0;

	for (unsigned i = 0; i < COUNT(model) && !ret; i++) {
		struct penstock_shard s = {.size = sizeof(s)};
		void *ptr = NULL;

		ret = penstock_weights_shard(m, i, so, &s);
		if (!ret)
			ret = penstock_alloc(dev, s.bytes, &ptr);
		ptrs[i] = ptr;
		for (unsigned p = 0; p < s.piece_count && !ret; p++) {
			pieces[n] = s.pieces[p];
			pieces[n].ptr = ptrs[i] + (uintptr_t)pieces[n].ptr;
			pieces[n++].dev = dev;
		}
	}
	lo.each = on_read;
	lo.user = self;
	if (!ret)
		ret = penstock_group_load_into(g, m, pieces, n, &lo, &r);
	o->read = r.read;
	o->bytes = r.bytes;
	o->cpu_copied = r.cpu_copied;
	if (!ret)
		compare_model(o, m, dev, so, NULL, ptrs);
	return ret;
}

static inline int rank_load(struct self *self, struct penstock_group *g, struct penstock_weights *m,
			    struct penstock_device *dev, const struct penstock_shard_opts *so,
			    struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct penstock_loaded *loaded = NULL;
	int ret;

	lo.each = on_read;
	lo.user = self;
	lo.shard = self->job->shard ? so : NULL;
	lo.first = self->job->first;
	lo.count = self->job->count;
	lo.path = self->rank == self->job->slow ? self->job->slow_path : NULL;
	if (self->job->end == BROKEN && self->rank == self->job->bad_rank)
		lo.path = self->job->broken_path;
	ret = penstock_group_load(g, m, &dev, 1, &lo, &r, &loaded);
	o->read = r.read;
	o->bytes = r.bytes;
	o->cpu_copied = r.cpu_copied;
	o->device_bytes = r.device_bytes;
	if (!ret)
		compare_model(o, m, dev, so, loaded, NULL);
	else if (loaded)
		snprintf(o->mismatch, sizeof(o->mismatch), "a load that failed gave something out");
	penstock_loaded_free(loaded);
	return ret;
}

/* Returns the number of CUDA contexts that this process has made. A context on another GPU than the
 * rank's counts as 100, so that the test fails. */
static inline size_t count_contexts(const struct job *job, unsigned rank)
{
	int (*state)(int, unsigned *, int *) = NULL;
	void *driver = dlopen(getenv("PENSTOCK_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
	size_t count = 0;

	if (!driver || !job->gpus)
		return 0;
	*(void **)&state = dlsym(driver, "cuDevicePrimaryCtxGetState");
	for (unsigned i = 0; i < job->gpus; i++) {
		unsigned flags;
		int active = 0;

		state((int)i, &flags, &active);
		count += active && i != rank % job->gpus ? 100 : (size_t)active;
	}
	dlclose(driver);
	return count;
}

/* Waits for the reads that a load left behind. Such reads hold references to the model. */
static inline void await_reads(struct penstock_weights *m)
{
	const struct timespec moment = {.tv_nsec = 10000000};

	while (atomic_load(&m->refs) > 1)
		nanosleep(&moment, NULL);
	penstock_weights_close(m);
}

static inline int run_rank(struct self *self, struct outcome *o)
{
	const struct job *job = self->job;
	struct penstock_group_opts go = job->opts;
	struct penstock_shard_opts so = PENSTOCK_SHARD_OPTS_INIT;
	const char *path =
		job->other_path && self->rank == job->ranks - 1 ? job->other_path : job->path;
	struct penstock_weights *m;
	struct penstock_device *dev;
	struct penstock_group *g;
	char name[32] = "host";
	int ret;

	if (job->gpus)
		snprintf(name, sizeof(name), "cuda:%u", self->rank % job->gpus);
	so.ranks = !job->shard ? 1 : job->shard_ranks ? job->shard_ranks : job->ranks;
	so.rank = job->shard ? job->shard_first + self->rank : 0;
	go.size = sizeof(go);
	go.dir = group_dir();
	go.timeout_ms = 1000 * ALARM_S / 2;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open(name, NULL, &dev) < 0)
		return -1;
	ret = penstock_weights_open(path, NULL, &m);
	if (!ret)
		ret = penstock_group_open(job->name, self->rank, job->ranks, &go, &g);
	if (ret)
		return ret;
	ret = job->into ? rank_load_into(self, g, m, dev, &so, o)
			: rank_load(self, g, m, dev, &so, o);
	/* A second load in the same group must succeed as well. */
	if (!ret && !(job->end == LEAVES && job->bad_rank == self->rank))
		ret = rank_load(self, g, m, dev, &so, o);
	if (ret)
		snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
	if (ret && job->again && rank_load(self, g, m, dev, &so, o))
		snprintf(o->mismatch, sizeof(o->mismatch), "again: %s", penstock_errmsg());
	o->contexts = count_contexts(job, self->rank);
	penstock_group_close(g);
	pst_weights_ref(m);
	penstock_weights_close(m);
	penstock_device_close(dev);
	penstock_device_close(host);
	if (job->left_behind)
		await_reads(m);
	return ret;
}

static inline pid_t fork_rank(const struct job *job, unsigned rank)
{
	pid_t pid = fork();

	if (!pid) {
		struct self self = {job, rank, 0};
		struct outcome *o = &outcomes[rank];

		alarm(ALARM_S);
		blind = job->end == BLIND && job->bad_rank == rank;
		stuck = job->stuck && job->slow == rank;
		other_device_len = job->bad_rank == rank ? job->other_device_len : 0;
		if (job->end == POOR && job->bad_rank == rank)
			setenv("PENSTOCK_STANDIN_MEM", "2MiB", 1);
		o->ret = run_rank(&self, o);
		if (o->ret && !*o->text)
			snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
		o->ended_ms = now_ms();
		_exit(0);
	}
	return pid;
}

static inline void job_start(struct job *job)
{
	char gpus[16];

	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	snprintf(gpus, sizeof(gpus), "%u", job->gpus ? job->gpus : 1);
	setenv("PENSTOCK_STANDIN_DEVICES", gpus, 1);
	setenv("PENSTOCK_STANDIN_MEM", "64MiB", 1);
	setenv("PENSTOCK_STANDIN_PEER", job->no_peer ? "0" : "1", 1);
	for (unsigned i = 0; i < job->ranks; i++) {
		outcomes[i].ret = 1; /* 1 until the rank writes its result */
		job->pids[i] = fork_rank(job, i);
	}
}

/* Waits until all ranks have exited. Waits for the bad rank last, so that the other ranks can
 * still find out how its process ended. */
static inline void job_wait(const struct job *job)
{
	for (unsigned n = 0; n < job->ranks; n++) {
		unsigned i = (n + job->bad_rank + 1) % job->ranks;
		bool killed = i == job->bad_rank && (job->end == DIES || job->end == SURVIVED);
		int status = 0;

		if (i == job->bad_rank && job->end == HANGS)
			kill(job->pids[i], SIGCONT);
		assert_int_equal(waitpid(job->pids[i], &status, 0), job->pids[i]);
		if (status != (killed ? SIGKILL : 0))
			fail_msg("rank %u ended with status %#x", i, status);
	}
}

static inline void job_run(struct job *job)
{
	job_start(job);
	job_wait(job);
}

static inline uint64_t file_length(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

/* Checks that every rank has every byte, and that the ranks together read the file once. */
static inline void check_job_loaded(const struct job *job)
{
	uint64_t read = 0;

	for (unsigned i = 0; i < job->ranks; i++) {
		if (outcomes[i].ret || *outcomes[i].mismatch)
			fail_msg("rank %u of %u: %d, %s%s", i, job->ranks, outcomes[i].ret,
				 outcomes[i].text, outcomes[i].mismatch);
		assert_true(outcomes[i].read > 0 || job->opts.reads_max);
		assert_int_equal(outcomes[i].contexts, job->gpus ? 1 : 0);
		/* Ranks pass bytes to each other through windows. If the GPUs cannot access each
		 * other's memory, the windows are in host memory, and the CPU copies more bytes
		 * than the rank has read. Otherwise the CPU may copy at most as many bytes as the
		 * rank has read. */
		if (job->gpus)
			assert_int_equal(outcomes[i].cpu_copied > outcomes[i].read, job->no_peer);
		read += outcomes[i].read;
	}
	assert_true(read * 100 <= file_length(job->path) * 105);
}

static inline void run_and_check(struct job *job)
{
	job_run(job);
	check_job_loaded(job);
}

static inline const char *model_path(void)
{
	const char *path = made_path("group.safetensors");

	made_file(path, model, COUNT(model), 5);
	return path;
}

/* Checks that all ranks failed with this code and message, except the bad rank if there is one. */
static inline void check_others_failed(const struct job *job, int code, const char *text)
{
	for (unsigned i = 0; i < job->ranks; i++) {
		if (i == job->bad_rank && job->end != DONE)
			continue;
		if (outcomes[i].ret != code || !strstr(outcomes[i].text, text) ||
		    *outcomes[i].mismatch)
			fail_msg("rank %u: %d, '%s' (%s), expected %d, '%s'", i, outcomes[i].ret,
				 outcomes[i].text, outcomes[i].mismatch, code, text);
	}
}

static inline int setup_group(void **state)
{
	(void)state;
	test_use_standin();
	make_expected();
	outcomes = mmap(NULL, AREAS * RANKS_MAX * sizeof(*outcomes), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return outcomes == MAP_FAILED ? -1 : 0;
}

#endif
