/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what happens if a group ends before its load is complete: which error the other ranks get
 * when a rank fails, dies, hangs, leaves, or loads another file than rank 0.
 */
#include "group.h"

#include <stdarg.h>

/* ---- fault: mmap fails ---- */

void *__real_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off);

/* In a rank of kind BLIND, makes the mapping of another rank's window fail. A window is the shared
 * memory through which a rank passes bytes to others. A mapping of a window is recognised by its
 * length, which small_chunks sets. The first such mapping is the rank's own window, so the second
 * one fails. */
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	static unsigned windows;

	if (blind && flags == MAP_SHARED && len == 2 * (64 << 10) && windows++) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap64(addr, len, prot, flags, fd, off);
}

/* ---- fault: open never returns ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

/* Makes open calls hang in a rank whose file never opens (`stuck`). Only calls that open the file
 * through a descriptor hang: the library opens the file by its name to read the header, and through
 * its descriptor to read tensors. */
int __wrap_open64(const char *path, int flags, ...)
{
	va_list args;
	int mode;

	va_start(args, flags);
	mode = flags & O_CREAT ? va_arg(args, int) : 0;
	va_end(args);
	while (stuck && !strncmp(path, "/proc/self/fd/", 14))
		pause();
	return __real_open64(path, flags, mode);
}

/* ---- fault: one rank sees a file on another device (st_dev) ---- */

int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);

int __wrap_fstat64(int fd, struct stat *st)
{
	int ret = __real_fstat64(fd, st);

	if (!ret && other_device_len && st->st_size == other_device_len)
		st->st_dev++;
	return ret;
}

/* ---- one rank ends ---- */

static struct job small_chunks(const char *name, enum end end)
{
	return (struct job){.name = name,
			    .path = model_path(),
			    .ranks = 4,
			    .end = end,
			    .opts = {.window = 64 << 10, .windows = 2}};
}

static void check_others_end_soon(const struct job *job)
{
	for (unsigned i = 0; i < job->ranks; i++)
		if (i != job->bad_rank &&
		    outcomes[i].ended_ms > outcomes[job->bad_rank].ended_ms + LIMIT_MS)
			fail_msg("rank %u ended %llu ms after rank %u", i,
				 (unsigned long long)(outcomes[i].ended_ms -
						      outcomes[job->bad_rank].ended_ms),
				 job->bad_rank);
}

static void check_death(enum end end)
{
	struct job job = small_chunks("dies", end);
	char text[80];

	for (job.bad_rank = 0; job.bad_rank < 4; job.bad_rank++) {
		job.gpus = job.bad_rank % 2 ? 4 : 0;
		job_run(&job);
		if (end == SURVIVED) {
			assert_true(outcomes[job.bad_rank].child > 0);
			assert_int_equal(kill(outcomes[job.bad_rank].child, SIGKILL), 0);
		}
		snprintf(text, sizeof(text),
			 "rank %u of group 'dies' is lost: its process %ld "
			 "was killed by signal 9",
			 job.bad_rank, (long)job.pids[job.bad_rank]);
		check_others_failed(&job, -ECONNRESET, text);
		check_others_end_soon(&job);
	}
}

static void test_rank_dies(void **state)
{
	(void)state;
	check_death(DIES);
}

/* A child process of the dead rank keeps the rank's socket open. The other ranks can notice the
 * death only because the rank's process has ended. */
static void test_rank_dies_leaving_child(void **state)
{
	(void)state;
	check_death(SURVIVED);
}

/* A read by one rank takes more than an hour, and another rank dies. All ranks must learn which
 * rank died without waiting for the read. This must hold whether rank 0 is the dead rank, the
 * slow rank or neither. All ranks can close their objects. In the last job the reads complete
 * later, and then the memory of the reads is freed. */
static void test_rank_dies_during_slow_read(void **state)
{
	static const struct {
		const char *name, *path;
		unsigned bad_rank, slow, gpus;
	} rows[AREAS] = {
		{"slow-0", "fault:bounce?delay_us=4000000000", 1, 0, 0},
		{"slow-1", "fault:bounce?delay_us=4000000000", 0, 1, 0},
		{"slow-2", "fault:staged?delay_us=4000000000", 1, 2, 3},
		{"late-2", "fault:staged?delay_us=6000000", 0, 2, 3},
	};
	struct outcome *areas = outcomes;
	struct job jobs[AREAS];
	char text[80];

	(void)state;
	for (unsigned i = 0; i < AREAS; i++) /* each call writes the one file of all jobs */
		jobs[i] = small_chunks(rows[i].name, DIES);
	for (unsigned i = 0; i < AREAS; i++) {
		jobs[i].ranks = 3;
		jobs[i].after = 1;
		jobs[i].bad_rank = rows[i].bad_rank;
		jobs[i].slow = rows[i].slow;
		jobs[i].gpus = rows[i].gpus;
		jobs[i].slow_path = rows[i].path;
		jobs[i].left_behind = i == AREAS - 1;
		outcomes = areas + i * RANKS_MAX;
		job_start(&jobs[i]);
	}
	for (unsigned i = 0; i < AREAS; i++) {
		outcomes = areas + i * RANKS_MAX;
		job_wait(&jobs[i]);
		snprintf(text, sizeof(text),
			 "rank %u of group '%s' is lost: its process %ld "
			 "was killed by signal 9",
			 jobs[i].bad_rank, jobs[i].name, (long)jobs[i].pids[jobs[i].bad_rank]);
		check_others_failed(&jobs[i], -ECONNRESET, text);
		check_others_end_soon(&jobs[i]);
	}
	outcomes = areas;
}

/* A rank dies while another rank is blocked in the call that opens the file. Unlike a read, this
 * call is no request for which the library can wait in a queue. The load of the blocked rank must
 * still fail and name the dead rank. */
static void test_rank_dies_during_stuck_open(void **state)
{
	struct outcome *areas = outcomes;
	struct job jobs[2];
	char text[100];

	(void)state;
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		jobs[i] = small_chunks(i ? "stuck-1" : "stuck-0", DIES);
		jobs[i].ranks = 3;
		jobs[i].after = 1;
		jobs[i].bad_rank = i;
		jobs[i].slow = i ? 0 : 2;
		jobs[i].stuck = true;
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		job_start(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		job_wait(&jobs[i]);
		snprintf(text, sizeof(text),
			 "rank %u of group 'stuck-%u' is lost: its process "
			 "%ld was killed by signal 9",
			 i, i, (long)jobs[i].pids[i]);
		check_others_failed(&jobs[i], -ECONNRESET, text);
		check_others_end_soon(&jobs[i]);
	}
	outcomes = areas;
}

/* The test has stopped the process of rank bad_rank by SIGSTOP. Returns true if all other ranks
 * report only this rank as hanging. Returns false if one reports another rank: on a busy machine a
 * rank may seem to hang because it got no CPU time. */
static bool right_rank_blamed(const struct job *job)
{
	char text[40];

	snprintf(text, sizeof(text), "rank %u of group", job->bad_rank);
	for (unsigned i = 0; i < job->ranks; i++)
		if (i != job->bad_rank && outcomes[i].ret == -ETIMEDOUT &&
		    !strstr(outcomes[i].text, text))
			return false;
	return true;
}

/* Stops one rank of each job by SIGSTOP, and checks that the other ranks report this rank after
 * stall_ms. Returns false if the result does not count, because a rank reported another rank that
 * got no CPU time. The caller then repeats the test with a longer time limit. */
static bool check_hangs(unsigned stall_ms)
{
	struct job jobs[] = {small_chunks("hangs-0", HANGS), small_chunks("hangs-2", HANGS)};
	struct outcome *areas = outcomes;
	bool right = true;
	char text[100];

	for (unsigned i = 0; i < COUNT(jobs); i++) {
		jobs[i].bad_rank = 2 * i;
		jobs[i].opts.stall_ms = stall_ms;
		outcomes = areas + i * RANKS_MAX;
		job_start(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		job_wait(&jobs[i]);
		right = right && right_rank_blamed(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs) && right; i++) {
		outcomes = areas + i * RANKS_MAX;
		snprintf(text, sizeof(text),
			 "rank %u of group '%s' hangs: the other ranks "
			 "waited %.1f s for it",
			 jobs[i].bad_rank, jobs[i].name, stall_ms / 1000.0);
		check_others_failed(&jobs[i], -ETIMEDOUT, text);
		assert_true(outcomes[jobs[i].bad_rank].ret < 0);
		assert_non_null(strstr(outcomes[jobs[i].bad_rank].text, "of group 'hangs-"));
		assert_string_equal(outcomes[jobs[i].bad_rank].mismatch, "");
	}
	outcomes = areas;
	return right;
}

/* The other ranks report a stopped rank as hanging, and the stopped rank gets an error when it
 * resumes. The first time limit is short, because the test waits for all of it. If the machine is
 * too busy for that limit, the test repeats with ten times the limit. */
static void test_rank_hangs(void **state)
{
	(void)state;
	if (!check_hangs(6000))
		assert_true(check_hangs(60000));
}

/* If a rank closes the group, the others do not report it as dead. */
static void test_rank_leaves(void **state)
{
	struct job job = small_chunks("leaves", LEAVES);
	char text[80];

	(void)state;
	for (job.bad_rank = 0; job.bad_rank < 4; job.bad_rank += 3) {
		job_run(&job);
		assert_int_equal(outcomes[job.bad_rank].ret, 0);
		snprintf(text, sizeof(text),
			 "rank %u of group 'leaves' is lost: it closed the "
			 "group",
			 job.bad_rank);
		check_others_failed(&job, -ECONNRESET, text);
	}
}

static void test_rank_fails(void **state)
{
	struct job job = small_chunks("fails", FAILS);
	char text[64];

	(void)state;
	job.gpus = 4;
	job.again = true;
	for (job.bad_rank = 0; job.bad_rank < 4; job.bad_rank += 3) {
		snprintf(text, sizeof(text), "rank %u: cancelled by the caller", job.bad_rank);
		job_run(&job);
		check_others_failed(&job, -ECANCELED, text);
		assert_int_equal(outcomes[job.bad_rank].ret, -ECANCELED);
		assert_string_equal(outcomes[job.bad_rank].text, "cancelled by the caller");
	}
}

/* ---- many loads, some of which fail ---- */

#define ROUNDS 40u
#define CROWD_RANKS 4u

enum fate { WELL, WRONG_OPTIONS, NO_MEMORY, AT_A_READ };

struct turn {
	enum fate fate;
	unsigned reads; /* Number of reads before the rank fails, if `fate` is AT_A_READ. */
};

static struct turn draw_turn(uint64_t seed, unsigned round, unsigned rank)
{
	uint64_t x = (seed + round * 64 + rank + 1) * 0x9e3779b97f4a7c15u;
	uint64_t r = test_random(&x) >> 8;

	return (struct turn){r % 24 < 3 ? (enum fate)(1 + r % 24) : WELL,
			     1 + (unsigned)(r / 24 % 6)};
}

static int fail_at_read(void *user, unsigned file, const struct penstock_report *r)
{
	unsigned *left = user;

	(void)file;
	(void)r;
	return !--*left;
}

static void *no_memory(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	(void)user;
	(void)dev;
	(void)len;
	(void)align;
	return NULL;
}

static void never_freed(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	(void)user;
	(void)dev;
	(void)ptr;
	(void)len;
}

/* Runs all loads of one rank and writes their results to `rets`. Returns -1 if something other than
 * the results is wrong. */
static int run_random_loads(const struct job *job, unsigned rank, uint64_t seed, int *rets)
{
	struct penstock_group_opts go = job->opts;
	struct penstock_shard_opts so = PENSTOCK_SHARD_OPTS_INIT;
	struct outcome *o = &outcomes[rank];
	struct penstock_weights *m;
	struct penstock_device *dev;
	struct penstock_group *g;
	char name[16];

	alarm(ALARM_S);
	snprintf(name, sizeof(name), "cuda:%u", rank);
	go.size = sizeof(go);
	go.dir = group_dir();
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open(rank % 2 ? name : "cuda:0", NULL, &dev) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, CROWD_RANKS, &go, &g))
		return -1;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		struct turn turn = draw_turn(seed, i, rank);

		if (turn.fate == WRONG_OPTIONS)
			lo.align = 3;
		if (turn.fate == NO_MEMORY) {
			lo.alloc = no_memory;
			lo.free = never_freed;
		}
		if (turn.fate == AT_A_READ)
			lo.each = fail_at_read;
		lo.user = &turn.reads;
		rets[i] = penstock_group_load(g, m, &dev, 1, &lo, NULL, &loaded);
		if (!rets[i])
			compare_model(o, m, dev, &so, loaded, NULL);
		penstock_loaded_free(loaded);
		if (*o->mismatch)
			return -1;
	}
	penstock_group_close(g);
	penstock_weights_close(m);
	penstock_device_close(dev);
	penstock_device_close(host);
	return 0;
}

/* After a failed load the group can still be used. The failed load ends with the same code on
 * all ranks, which is the code of a rank that failed. Then the next load starts. */
static void test_random_failures(void **state)
{
	struct job job = small_chunks("again", DONE);
	int(*rets)[ROUNDS] = mmap(NULL, CROWD_RANKS * sizeof(*rets), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = test_seed(3);
	pid_t pids[CROWD_RANKS];
	unsigned well = 0;

	(void)state;
	assert_ptr_not_equal(rets, MAP_FAILED);
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	setenv("PENSTOCK_STANDIN_DEVICES", "4", 1);
	setenv("PENSTOCK_STANDIN_MEM", "64MiB", 1);
	setenv("PENSTOCK_STANDIN_PEER", "1", 1);
	for (unsigned r = 0; r < CROWD_RANKS; r++) {
		pids[r] = fork();
		if (!pids[r])
			_exit(run_random_loads(&job, r, seed, rets[r]) ? 1 : 0);
	}
	for (unsigned r = 0; r < CROWD_RANKS; r++) {
		int status = 0;

		assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		if (status)
			fail_msg("rank %u: status %#x, %s", r, status, outcomes[r].mismatch);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		bool early = false, late = false;

		for (unsigned r = 0; r < CROWD_RANKS; r++) {
			enum fate fate = draw_turn(seed, i, r).fate;

			early |= fate == WRONG_OPTIONS || fate == NO_MEMORY;
			late |= fate == AT_A_READ;
			if (rets[r][i] != rets[0][i])
				fail_msg("load %u: %d on rank 0, %d on rank %u", i, rets[0][i],
					 rets[r][i], r);
		}
		if (early)
			assert_true(rets[0][i] == -EINVAL || rets[0][i] == -ENOMEM);
		else if (!late)
			assert_int_equal(rets[0][i], 0);
		else
			assert_true(!rets[0][i] || rets[0][i] == -ECANCELED);
		well += !rets[0][i];
	}
	assert_true(well > 2 && well < ROUNDS);
	munmap(rets, CROWD_RANKS * sizeof(*rets));
}

/* A read by one rank takes more than an hour, and another rank's read fails. All ranks must get
 * the second rank's failure, with its file and reason, without waiting for the slow read. This
 * must hold whichever rank is rank 0. */
static void test_rank_fails_during_slow_read(void **state)
{
	static const struct {
		const char *name, *slow_path, *broken_path;
		unsigned bad_rank, slow, gpus;
	} rows[AREAS] = {
		{"kept-0", "fault:bounce?delay_us=4000000000", "fault:bounce?eio=1", 1, 0, 0},
		{"kept-1", "fault:bounce?delay_us=4000000000", "fault:bounce?eio=1", 0, 1, 0},
		{"kept-2", "fault:staged?delay_us=4000000000", "fault:staged?eio=1", 1, 2, 3},
		{"kept-3", "fault:staged?delay_us=4000000000", "fault:staged?eio=1", 0, 2, 3},
	};
	struct outcome *areas = outcomes;
	struct job jobs[AREAS];
	char text[80];

	(void)state;
	for (unsigned i = 0; i < AREAS; i++)
		jobs[i] = small_chunks(rows[i].name, BROKEN);
	for (unsigned i = 0; i < AREAS; i++) {
		jobs[i].ranks = 3;
		jobs[i].bad_rank = rows[i].bad_rank;
		jobs[i].slow = rows[i].slow;
		jobs[i].gpus = rows[i].gpus;
		jobs[i].slow_path = rows[i].slow_path;
		jobs[i].broken_path = rows[i].broken_path;
		outcomes = areas + i * RANKS_MAX;
		job_start(&jobs[i]);
	}
	for (unsigned i = 0; i < AREAS; i++) {
		struct outcome *own = &areas[i * RANKS_MAX + jobs[i].bad_rank];

		outcomes = areas + i * RANKS_MAX;
		job_wait(&jobs[i]);
		assert_int_equal(own->ret, -EIO);
		assert_non_null(strstr(own->text, "group.safetensors: tensor '"));
		snprintf(text, sizeof(text), "rank %u: ", jobs[i].bad_rank);
		check_others_failed(&jobs[i], -EIO, text);
		check_others_failed(&jobs[i], -EIO, own->text);
		check_others_end_soon(&jobs[i]);
	}
	outcomes = areas;
}

/* If a file changes while it is read, no rank gets the model. */
static void test_file_changes(void **state)
{
	struct job job = small_chunks("changes", CHANGES);

	(void)state;
	job.bad_rank = 2;
	job_run(&job);
	check_others_failed(&job, -ESTALE, "the file changed after its header was read");
	assert_int_equal(outcomes[2].ret, -ESTALE);
}

/* If one rank has too little device memory, all ranks fail before the first byte is read. */
static void test_rank_short_of_memory(void **state)
{
	struct job job = small_chunks("poor", POOR);

	(void)state;
	job.gpus = 4;
	job.bad_rank = 3;
	job_run(&job);
	check_others_failed(&job, -ENOMEM, "rank 3: ");
	check_others_failed(&job, -ENOMEM, "bytes on cuda:3");
	assert_int_equal(outcomes[3].ret, -ENOMEM);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(outcomes[i].read, 0);
}

/* One rank cannot map another rank's window. Only this rank itself can notice that, but the load
 * must fail on all ranks. */
static void test_rank_cannot_map_window(void **state)
{
	struct job job = small_chunks("blind", BLIND);
	char text[80];

	(void)state;
	for (job.bad_rank = 0; job.bad_rank < 4; job.bad_rank += 3) {
		snprintf(text, sizeof(text), "rank %u: the window of rank %u: Cannot allocate",
			 job.bad_rank, job.bad_rank ? 0 : 1);
		job_run(&job);
		check_others_failed(&job, -ENOMEM, text);
		assert_int_equal(outcomes[job.bad_rank].ret, -ENOMEM);
	}
}

static void test_other_file(void **state)
{
	struct job job = {.name = "other", .path = model_path(), .ranks = 3};
	const char *other = made_path("other.safetensors");

	(void)state;
	made_file(other, model, COUNT(model), 5);
	job.other_path = other;
	job_run(&job);
	check_others_failed(&job, -ESTALE, "rank 2 has another file than rank 0");
	assert_non_null(strstr(outcomes[0].text, "group.safetensors"));
	assert_non_null(strstr(outcomes[2].text, "other.safetensors"));
}

/* One rank sees two files in different file systems (st_dev), and the other ranks see both in the
 * same file system. A load reads files of different file systems at the same time. So all ranks
 * must agree which files share a file system, and the load must succeed. */
static void test_other_stores(void **state)
{
	struct job job = small_chunks("stores", DONE);
	const char *dir = made_path("stores");
	struct stat st;

	(void)state;
	made_dir(dir);
	made_file(made_path("stores/one.safetensors"), model, 3, 5);
	made_file(made_path("stores/two.safetensors"), model + 3, COUNT(model) - 3, 5);
	assert_int_equal(stat(made_path("stores/two.safetensors"), &st), 0);
	job.path = dir;
	job.other_device_len = st.st_size;
	for (job.bad_rank = 0; job.bad_rank < 4; job.bad_rank += 3) {
		job_run(&job);
		for (unsigned i = 0; i < job.ranks; i++)
			if (outcomes[i].ret || *outcomes[i].mismatch)
				fail_msg("rank %u: %d, %s%s", i, outcomes[i].ret, outcomes[i].text,
					 outcomes[i].mismatch);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rank_dies),
		cmocka_unit_test(test_rank_dies_leaving_child),
		cmocka_unit_test(test_rank_dies_during_slow_read),
		cmocka_unit_test(test_rank_dies_during_stuck_open),
		cmocka_unit_test(test_rank_hangs),
		cmocka_unit_test(test_rank_leaves),
		cmocka_unit_test(test_rank_fails),
		cmocka_unit_test(test_random_failures),
		cmocka_unit_test(test_rank_fails_during_slow_read),
		cmocka_unit_test(test_file_changes),
		cmocka_unit_test(test_rank_short_of_memory),
		cmocka_unit_test(test_rank_cannot_map_window),
		cmocka_unit_test(test_other_file),
		cmocka_unit_test(test_other_stores),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
