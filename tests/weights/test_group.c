/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes of one host that load one model together, over the host's memory and
 * over the stand-in's GPUs, each rank its own or all the same: every byte on every rank,
 * every byte of the file read by one of them only, and what the others are told when one
 * fails, dies or is not what it should be. The uid of another user is not tried: such a
 * process cannot enter the directory in which they meet.
 */
#include "load.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#define RANKS_MAX 8u
#define LIMIT_MS 10000 /* the others know of a rank that died by then */

/* A rank's end, in memory that the test's own process sees. */
struct outcome {
	int ret;
	uint64_t read, bytes, cpu_copied, device_bytes, ended_ms;
	size_t ctxs; /* that the rank had */
	pid_t child; /* that it left behind, with its sockets */
	char text[PENSTOCK_TEXT_MAX], wrong[PENSTOCK_TEXT_MAX];
};
static struct outcome *outcomes;

/* What a rank does; NULL devices: the host. */
struct job {
	const char *name, *path, *other_path; /* of the last rank; NULL: the same */
	unsigned ranks, gpus;
	uint64_t window;
	unsigned windows;
	int dies;  /* this rank, by SIGKILL as it has read its second chunk; -1: none */
	int fails; /* this rank, by its callback */
	bool shard, into, apart; /* the GPUs do not reach each other */
	bool survived; /* who dies leaves a child behind that has its sockets */
};

static const struct made model[] = {
	{ "model.embed_tokens.weight", "BF16", 16, 2, { 1024, 512 } },
	{ "model.layers.0.self_attn.o_proj.weight", "BF16", 16, 2, { 512, 512 } },
	{ "model.layers.0.mlp.up_proj.weight", "BF16", 16, 2, { 1024, 512 } },
	{ "model.layers.0.mlp.down_proj.weight", "BF16", 16, 2, { 512, 1024 } },
	{ "model.norm.weight", "F32", 32, 1, { 511 } },
	{ "byte", "U8", 8, 1, { 3 } },
	{ "lm_head.weight", "F32", 32, 2, { 300, 512 } },
};

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static const char *meeting_place(void)
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

static int each(void *user, unsigned file, const struct penstock_report *r)
{
	struct self *self = user;

	(void)file;
	(void)r;
	if (++self->reads == 2 && self->job->dies == (int)self->rank) {
		pid_t child = self->job->survived ? fork() : 0;

		if (!child && self->job->survived) {
			alarm(35);
			pause();
			_exit(0);
		}
		outcomes[self->rank].child = child;
		raise(SIGKILL);
	}
	return self->reads == 2 && self->job->fails == (int)self->rank;
}

static void compare(struct outcome *o, struct penstock_device *dev, const void *at,
		    const struct penstock_shard *s, const struct penstock_tensor *t)
{
	unsigned char *bytes = malloc(s->bytes + 1);
	struct penstock_copy_args args = { .size = sizeof(args), .dst_dev = host, .dst = bytes,
					   .src_dev = dev, .src = at, .row_len = s->bytes };

	if (s->bytes && penstock_copy(&args, 1))
		snprintf(o->wrong, sizeof(o->wrong), "%s", penstock_errmsg());
	for (unsigned p = 0; p < s->piece_count; p++) {
		const struct penstock_piece *c = &s->pieces[p];
		uint64_t inner = penstock_dtype_bits(t->dtype) / 8, outer = 1, extent, count;

		for (unsigned i = 0; i < c->dim; i++)
			outer *= t->shape[i];
		for (unsigned i = c->dim + 1; i < t->rank; i++)
			inner *= t->shape[i];
		extent = t->shape[c->dim];
		count = c->count ? c->count : extent;
		for (uint64_t i = 0; i < outer * count * inner; i++) {
			uint64_t row = i / (count * inner), col = i % (count * inner);
			uint64_t pitch = c->pitch ? c->pitch : count * inner;
			uint64_t from = (row * extent + c->first) * inner + col;
			unsigned char got = bytes[(uintptr_t)c->ptr + row * pitch + col];

			if (got == made_byte(t->name, from))
				continue;
			snprintf(o->wrong, sizeof(o->wrong), "%.60s: byte %llu is %u, not %u",
				 t->name, (unsigned long long)from, got, made_byte(t->name, from));
			free(bytes);
			return;
		}
	}
	free(bytes);
}

static void look(struct outcome *o, struct penstock_weights *m, struct penstock_device *dev,
		 const struct penstock_shard_opts *so, struct penstock_loaded *loaded, char **ptrs)
{
	for (uint64_t i = 0; i < penstock_weights_count(m) && !*o->wrong; i++) {
		struct penstock_shard s = { .size = sizeof(s) };
		struct penstock_tensor t = { .size = sizeof(t) };
		void *at = loaded ? penstock_loaded_ptr(loaded, 0, i) : ptrs[i];

		penstock_weights_get(m, i, &t);
		if (penstock_weights_shard(m, i, so, &s))
			snprintf(o->wrong, sizeof(o->wrong), "%s", penstock_errmsg());
		else
			compare(o, dev, at, &s, &t);
	}
}

/* Each tensor's shard, or all of it, into memory of the rank's own. */
static int load_into(struct self *self, struct penstock_group *g, struct penstock_weights *m,
		     struct penstock_device *dev, const struct penstock_shard_opts *so,
		     struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report r = { .size = sizeof(r) };
	struct penstock_piece pieces[3 * COUNT(model)];
	char *ptrs[COUNT(model)] = { NULL };
	unsigned n = 0;
	int ret = 0;

	for (unsigned i = 0; i < COUNT(model) && !ret; i++) {
		struct penstock_shard s = { .size = sizeof(s) };
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
	lo.each = each;
	lo.user = self;
	if (!ret)
		ret = penstock_group_load_into(g, m, pieces, n, &lo, &r);
	o->read = r.read;
	o->bytes = r.bytes;
	o->cpu_copied = r.cpu_copied;
	if (!ret)
		look(o, m, dev, so, NULL, ptrs);
	return ret;
}

static int load_all(struct self *self, struct penstock_group *g, struct penstock_weights *m,
		    struct penstock_device *dev, const struct penstock_shard_opts *so,
		    struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_load_report r = { .size = sizeof(r) };
	struct penstock_loaded *loaded = NULL;
	int ret;

	lo.each = each;
	lo.user = self;
	lo.shard = self->job->shard ? so : NULL;
	ret = penstock_group_load(g, m, &dev, 1, &lo, &r, &loaded);
	o->read = r.read;
	o->bytes = r.bytes;
	o->cpu_copied = r.cpu_copied;
	o->device_bytes = r.device_bytes;
	if (!ret)
		look(o, m, dev, so, loaded, NULL);
	else if (loaded)
		snprintf(o->wrong, sizeof(o->wrong), "a load that failed gave something out");
	penstock_loaded_free(loaded);
	return ret;
}

/* Contexts that this process has made, one of the GPU named and none of another. */
static size_t count_ctxs(const struct job *job, unsigned rank)
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

static int be_rank(struct self *self, struct outcome *o)
{
	const struct job *job = self->job;
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_shard_opts so = PENSTOCK_SHARD_OPTS_INIT;
	const char *path = job->other_path && self->rank == job->ranks - 1 ? job->other_path
									  : job->path;
	struct penstock_weights *m;
	struct penstock_device *dev;
	struct penstock_group *g;
	char name[32] = "host";
	int ret;

	if (job->gpus)
		snprintf(name, sizeof(name), "cuda:%u", self->rank % job->gpus);
	so.ranks = job->shard ? job->ranks : 1;
	so.rank = job->shard ? self->rank : 0;
	go.dir = meeting_place();
	go.window = job->window;
	go.windows = job->windows;
	go.timeout_ms = 20000;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open(name, NULL, &dev) < 0)
		return -1;
	ret = penstock_weights_open(path, NULL, &m);
	if (!ret)
		ret = penstock_group_open(job->name, self->rank, job->ranks, &go, &g);
	if (ret)
		return ret;
	ret = job->into ? load_into(self, g, m, dev, &so, o) : load_all(self, g, m, dev, &so, o);
	if (!ret) /* and once more, in the same group */
		ret = load_all(self, g, m, dev, &so, o);
	if (ret)
		snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
	o->ctxs = count_ctxs(job, self->rank);
	penstock_group_close(g);
	penstock_weights_close(m);
	penstock_device_close(dev);
	penstock_device_close(host);
	return ret;
}

static pid_t start(const struct job *job, unsigned rank)
{
	pid_t pid = fork();

	if (!pid) {
		struct self self = { job, rank, 0 };
		struct outcome *o = &outcomes[rank];

		alarm(35);
		o->ret = be_rank(&self, o);
		if (o->ret && !*o->text)
			snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
		o->ended_ms = now_ms();
		_exit(0);
	}
	return pid;
}

/* All ranks, to their end. */
static void go(const struct job *job)
{
	pid_t pids[RANKS_MAX];
	char gpus[16];

	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	snprintf(gpus, sizeof(gpus), "%u", job->gpus ? job->gpus : 1);
	setenv("PENSTOCK_STANDIN_DEVICES", gpus, 1);
	setenv("PENSTOCK_STANDIN_MEM", "64MiB", 1);
	setenv("PENSTOCK_STANDIN_PEER", job->apart ? "0" : "1", 1);
	for (unsigned i = 0; i < job->ranks; i++) {
		outcomes[i].ret = 1; /* until it has said otherwise */
		pids[i] = start(job, i);
	}
	for (unsigned i = 0; i < job->ranks; i++) {
		int status = 0;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		if (status != (job->dies == (int)i ? SIGKILL : 0))
			fail_msg("rank %u ended with status %#x", i, status);
	}
}

static uint64_t length_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

static void all_right(const struct job *job)
{
	uint64_t read = 0;

	go(job);
	for (unsigned i = 0; i < job->ranks; i++) {
		if (outcomes[i].ret || *outcomes[i].wrong)
			fail_msg("rank %u of %u: %d, %s%s", i, job->ranks, outcomes[i].ret,
				 outcomes[i].text, outcomes[i].wrong);
		assert_true(outcomes[i].read > 0);
		assert_int_equal(outcomes[i].ctxs, job->gpus ? 1 : 0);
		if (job->gpus) /* by a CPU into the windows at most, never out of them */
			assert_int_equal(outcomes[i].cpu_copied > outcomes[i].read, job->apart);
		read += outcomes[i].read;
	}
	assert_true(read * 100 <= length_of(job->path) * 105);
}

static const char *model_path(void)
{
	const char *path = made_path("group.safetensors");

	made_file(path, model, COUNT(model), 5);
	return path;
}

/* ---- what is tried ---- */

static void replicates(unsigned gpus)
{
	struct job job = { .name = "replicate", .path = model_path(), .gpus = gpus,
			   .window = 256 << 10, .windows = 3, .dies = -1, .fails = -1 };

	for (job.ranks = 1; job.ranks <= RANKS_MAX; job.ranks *= 2)
		all_right(&job);
}

static void test_host(void **state)
{
	(void)state;
	replicates(0);
}

static void test_one_gpu(void **state)
{
	(void)state;
	replicates(1);
}

static void test_gpus(void **state)
{
	(void)state;
	replicates(RANKS_MAX);
}

/* Where device memory cannot be shared the host's is. */
static void test_apart(void **state)
{
	struct job job = { .name = "apart", .path = model_path(), .ranks = 3, .gpus = 3,
			   .window = 128 << 10, .windows = 3, .dies = -1, .fails = -1,
			   .apart = true };

	(void)state;
	all_right(&job);
}

static void test_shards(void **state)
{
	struct job job = { .name = "shard", .path = model_path(), .gpus = 4, .window = 256 << 10,
			   .windows = 2, .dies = -1, .fails = -1, .shard = true };

	(void)state;
	for (job.ranks = 2; job.ranks <= 4; job.ranks *= 2) {
		job.into = false;
		all_right(&job);
		job.into = true;
		all_right(&job);
	}
}

static void others_say(const struct job *job, int rank, int code, const char *text)
{
	for (int i = 0; i < (int)job->ranks; i++) {
		if (i == rank)
			continue;
		if (outcomes[i].ret != code || !strstr(outcomes[i].text, text) ||
		    *outcomes[i].wrong)
			fail_msg("rank %d: %d, '%s' (%s), expected %d, '%s'", i, outcomes[i].ret,
				 outcomes[i].text, outcomes[i].wrong, code, text);
	}
}

static void someone_dies(bool survived)
{
	struct job job = { .name = "dies", .path = model_path(), .ranks = 4, .gpus = 4,
			   .window = 64 << 10, .windows = 2, .fails = -1,
			   .survived = survived };
	char text[32];

	for (job.dies = 0; job.dies < 4; job.dies++) {
		uint64_t begun = now_ms();

		job.gpus = job.dies % 2 ? 4 : 0;
		snprintf(text, sizeof(text), "rank %d of group 'dies'", job.dies);
		go(&job);
		if (survived) {
			assert_true(outcomes[job.dies].child > 0);
			assert_int_equal(kill(outcomes[job.dies].child, SIGKILL), 0);
		}
		others_say(&job, job.dies, -ECONNRESET, text);
		for (int i = 0; i < 4; i++)
			if (i != job.dies)
				assert_true(outcomes[i].ended_ms - begun < LIMIT_MS);
	}
}

static void test_dies(void **state)
{
	(void)state;
	someone_dies(false);
}

/* The end of a socket does not tell then, the end of the process does. */
static void test_dies_with_a_child(void **state)
{
	(void)state;
	someone_dies(true);
}

static void test_fails(void **state)
{
	struct job job = { .name = "fails", .path = model_path(), .ranks = 4, .gpus = 4,
			   .window = 64 << 10, .windows = 2, .dies = -1 };
	char text[64];

	(void)state;
	for (job.fails = 0; job.fails < 4; job.fails += 3) {
		snprintf(text, sizeof(text), "rank %d: cancelled by the caller", job.fails);
		go(&job);
		others_say(&job, job.fails, -ECANCELED, text);
		assert_int_equal(outcomes[job.fails].ret, -ECANCELED);
		assert_string_equal(outcomes[job.fails].text, "cancelled by the caller");
	}
}

static void test_other_file(void **state)
{
	struct job job = { .name = "other", .path = model_path(), .ranks = 3, .dies = -1,
			   .fails = -1 };
	const char *other = made_path("other.safetensors");

	(void)state;
	made_file(other, model, COUNT(model), 5);
	job.other_path = other;
	go(&job);
	others_say(&job, -1, -ESTALE, "rank 2 has another file than rank 0");
	assert_non_null(strstr(outcomes[0].text, "group.safetensors"));
	assert_non_null(strstr(outcomes[2].text, "other.safetensors"));
}

/* ---- who may join ---- */

static pid_t join_as(const char *name, unsigned rank, unsigned ranks, unsigned slot)
{
	pid_t pid = fork();

	if (!pid) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		struct outcome *o = &outcomes[slot];
		struct penstock_group *g = NULL;

		alarm(35);
		go.dir = meeting_place();
		go.timeout_ms = 15000;
		o->ret = penstock_group_open(name, rank, ranks, &go, &g);
		snprintf(o->text, sizeof(o->text), "%s", o->ret ? penstock_errmsg() : "");
		penstock_group_close(g);
		_exit(0);
	}
	return pid;
}

static void test_not_of_one_mind(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	a = join_as("sizes", 0, 2, 0);
	b = join_as("sizes", 1, 3, 1);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(outcomes[i].ret, -EINVAL);
		assert_non_null(strstr(outcomes[i].text, "rank 1 says that there are 3 ranks"));
	}
	a = join_as("twice", 0, 3, 0);
	b = join_as("twice", 2, 3, 1);
	waitpid(join_as("twice", 2, 3, 2), NULL, 0);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(outcomes[i].ret, -EEXIST);
		assert_non_null(strstr(outcomes[i].text, "two processes say that they are rank 2"));
	}
}

static int try_open(const char *name, unsigned rank, unsigned ranks, const char *dir,
		    const char *text)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g;
	int ret;

	go.dir = dir;
	go.timeout_ms = 30;
	ret = penstock_group_open(name, rank, ranks, &go, &g);
	if (!ret)
		penstock_group_close(g);
	else if (!strstr(penstock_errmsg(), text))
		fail_msg("'%s', expected '%s'", penstock_errmsg(), text);
	return ret;
}

static void test_refused(void **state)
{
	const char *dir = meeting_place();
	char open_dir[1024], name[200];

	(void)state;
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(try_open(name, 0, 2, dir, "63 bytes at most"), -ENAMETOOLONG);
	name[63] = '\0';
	snprintf(open_dir, sizeof(open_dir), "/tmp/%0100d", 1);
	assert_int_equal(try_open(name, 0, 2, open_dir, "longer than the 107"), -ENAMETOOLONG);
	assert_int_equal(try_open("", 0, 2, dir, "not empty"), -EINVAL);
	assert_int_equal(try_open("a/b", 0, 2, dir, "no slash"), -EINVAL);
	assert_int_equal(try_open("a", 2, 2, dir, "rank 2 of 2"), -EINVAL);
	assert_int_equal(try_open("a", 0, 0, dir, "rank 0 of 0"), -EINVAL);
	assert_int_equal(try_open("a", 0, 2, dir, "rank 1 of 2 has not come"), -ETIMEDOUT);
	assert_int_equal(try_open("a", 1, 2, dir, "rank 0 has not come"), -ETIMEDOUT);
	assert_int_equal(try_open("a", 0, 1, dir, ""), 0);
	snprintf(open_dir, sizeof(open_dir), "%s", made_path("open"));
	mkdir(open_dir, 0755);
	chmod(open_dir, 0755);
	assert_int_equal(try_open("a", 0, 2, open_dir, "this user alone"), -EPERM);
}

static int setup_group(void **state)
{
	(void)state;
	test_use_standin();
	outcomes = mmap(NULL, RANKS_MAX * sizeof(*outcomes), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return outcomes == MAP_FAILED ? -1 : 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),
		cmocka_unit_test(test_one_gpu),
		cmocka_unit_test(test_gpus),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_shards),
		cmocka_unit_test(test_dies),
		cmocka_unit_test(test_dies_with_a_child),
		cmocka_unit_test(test_fails),
		cmocka_unit_test(test_other_file),
		cmocka_unit_test(test_not_of_one_mind),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
