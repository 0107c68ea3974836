/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a group ends before its load does: what the others are told when a rank fails, dies,
 * hangs, leaves or is not what it should be.
 */
#include "group.h"

#include <stdarg.h>

/* ---- a mapping that fails ---- */

void *__real_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off);

/* The first window that is mapped is the rank's own, of small_chunks' length. */
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	static unsigned windows;

	if (blind && flags == MAP_SHARED && len == 2 * (64 << 10) && windows++) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return __real_mmap64(addr, len, prot, flags, fd, off);
}

/* ---- an open that does not return ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

/* The file is opened by its name for its header, and by its descriptor to be read. */
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

/* ---- a file on another device, as one rank sees it ---- */

int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);

int __wrap_fstat64(int fd, struct stat *st)
{
	int ret = __real_fstat64(fd, st);

	if (!ret && elsewhere && st->st_size == elsewhere)
		st->st_dev++;
	return ret;
}

/* ---- one of them ends ---- */

static struct job small_chunks(const char *name, enum end end)
{
	return (struct job){.name = name,
			    .path = model_path(),
			    .ranks = 4,
			    .end = end,
			    .opts = {.window = 64 << 10, .windows = 2}};
}

static void others_end(const struct job *job)
{
	for (unsigned i = 0; i < job->ranks; i++)
		if (i != job->who && outcomes[i].ended_ms > outcomes[job->who].ended_ms + LIMIT_MS)
			fail_msg("rank %u ended %llu ms after rank %u", i,
				 (unsigned long long)(outcomes[i].ended_ms -
						      outcomes[job->who].ended_ms),
				 job->who);
}

static void someone_dies(enum end end)
{
	struct job job = small_chunks("dies", end);
	char text[80];

	for (job.who = 0; job.who < 4; job.who++) {
		job.gpus = job.who % 2 ? 4 : 0;
		go(&job);
		if (end == SURVIVED) {
			assert_true(outcomes[job.who].child > 0);
			assert_int_equal(kill(outcomes[job.who].child, SIGKILL), 0);
		}
		snprintf(text, sizeof(text),
			 "rank %u of group 'dies' is lost: its process %ld "
			 "was killed by signal 9",
			 job.who, (long)job.pids[job.who]);
		others_say(&job, -ECONNRESET, text);
		others_end(&job);
	}
}

static void test_dies(void **state)
{
	(void)state;
	someone_dies(DIES);
}

/* The end of a socket does not tell then, the end of the process does. */
static void test_dies_with_a_child(void **state)
{
	(void)state;
	someone_dies(SURVIVED);
}

/* A read that a store keeps for minutes delays neither the rank whose read it is nor the
 * others: who has died is named, whichever of them rank 0 is, and what was opened can be
 * closed. The reads of the last job end by themselves, and what they lie in goes then. */
static void test_dies_beside_a_slow_one(void **state)
{
	static const struct {
		const char *name, *path;
		unsigned who, slow, gpus;
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
	for (unsigned i = 0; i < AREAS; i++) /* this writes the file that all read */
		jobs[i] = small_chunks(rows[i].name, DIES);
	for (unsigned i = 0; i < AREAS; i++) {
		jobs[i].ranks = 3;
		jobs[i].after = 1;
		jobs[i].who = rows[i].who;
		jobs[i].slow = rows[i].slow;
		jobs[i].gpus = rows[i].gpus;
		jobs[i].slow_path = rows[i].path;
		jobs[i].left_behind = i == AREAS - 1;
		outcomes = areas + i * RANKS_MAX;
		begin(&jobs[i]);
	}
	for (unsigned i = 0; i < AREAS; i++) {
		outcomes = areas + i * RANKS_MAX;
		finish(&jobs[i]);
		snprintf(text, sizeof(text),
			 "rank %u of group '%s' is lost: its process %ld "
			 "was killed by signal 9",
			 jobs[i].who, jobs[i].name, (long)jobs[i].pids[jobs[i].who]);
		others_say(&jobs[i], -ECONNRESET, text);
		others_end(&jobs[i]);
	}
	outcomes = areas;
}

/* Nor does an open that a store keeps, which no queue can wait for. */
static void test_dies_beside_a_stuck_one(void **state)
{
	struct outcome *areas = outcomes;
	struct job jobs[2];
	char text[100];

	(void)state;
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		jobs[i] = small_chunks(i ? "stuck-1" : "stuck-0", DIES);
		jobs[i].ranks = 3;
		jobs[i].after = 1;
		jobs[i].who = i;
		jobs[i].slow = i ? 0 : 2;
		jobs[i].stuck = true;
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		begin(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		finish(&jobs[i]);
		snprintf(text, sizeof(text),
			 "rank %u of group 'stuck-%u' is lost: its process "
			 "%ld was killed by signal 9",
			 i, i, (long)jobs[i].pids[i]);
		others_say(&jobs[i], -ECONNRESET, text);
		others_end(&jobs[i]);
	}
	outcomes = areas;
}

/* Whether ranks blame the one that hung, and not one that this machine let wait. */
static bool blamed(const struct job *job)
{
	char text[40];

	snprintf(text, sizeof(text), "rank %u of group", job->who);
	for (unsigned i = 0; i < job->ranks; i++)
		if (i != job->who && outcomes[i].ret == -ETIMEDOUT &&
		    !strstr(outcomes[i].text, text))
			return false;
	return true;
}

/* True: nobody was blamed for what the machine did. */
static bool some_hang(unsigned stall_ms)
{
	struct job jobs[] = {small_chunks("hangs-0", HANGS), small_chunks("hangs-2", HANGS)};
	struct outcome *areas = outcomes;
	bool fair = true;
	char text[100];

	for (unsigned i = 0; i < COUNT(jobs); i++) {
		jobs[i].who = 2 * i;
		jobs[i].opts.stall_ms = stall_ms;
		outcomes = areas + i * RANKS_MAX;
		begin(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs); i++) {
		outcomes = areas + i * RANKS_MAX;
		finish(&jobs[i]);
		fair = fair && blamed(&jobs[i]);
	}
	for (unsigned i = 0; i < COUNT(jobs) && fair; i++) {
		outcomes = areas + i * RANKS_MAX;
		snprintf(text, sizeof(text),
			 "rank %u of group '%s' hangs: the other ranks "
			 "waited %.1f s for it",
			 jobs[i].who, jobs[i].name, stall_ms / 1000.0);
		others_say(&jobs[i], -ETIMEDOUT, text);
		assert_true(outcomes[jobs[i].who].ret < 0);
		assert_non_null(strstr(outcomes[jobs[i].who].text, "of group 'hangs-"));
		assert_string_equal(outcomes[jobs[i].who].wrong, "");
	}
	outcomes = areas;
	return fair;
}

/* Who is stopped hangs, until the others have ended; it learns of it when it goes on. What is
 * waited for in vain takes its time, so it is short at first; where the machine is so busy
 * that another rank took as long, it is many times that. */
static void test_hangs(void **state)
{
	(void)state;
	if (!some_hang(6000))
		assert_true(some_hang(60000));
}

/* A rank that closes the group is none that died. */
static void test_leaves(void **state)
{
	struct job job = small_chunks("leaves", LEAVES);
	char text[80];

	(void)state;
	for (job.who = 0; job.who < 4; job.who += 3) {
		go(&job);
		assert_int_equal(outcomes[job.who].ret, 0);
		snprintf(text, sizeof(text),
			 "rank %u of group 'leaves' is lost: it closed the "
			 "group",
			 job.who);
		others_say(&job, -ECONNRESET, text);
	}
}

static void test_fails(void **state)
{
	struct job job = small_chunks("fails", FAILS);
	char text[64];

	(void)state;
	job.gpus = 4;
	job.again = true;
	for (job.who = 0; job.who < 4; job.who += 3) {
		snprintf(text, sizeof(text), "rank %u: cancelled by the caller", job.who);
		go(&job);
		others_say(&job, -ECANCELED, text);
		assert_int_equal(outcomes[job.who].ret, -ECANCELED);
		assert_string_equal(outcomes[job.who].text, "cancelled by the caller");
	}
}

/* ---- one load after the other ---- */

#define ROUNDS 40u
#define CROWD 4u

enum fate { WELL, WRONG_OPTIONS, NO_MEMORY, AT_A_READ };

struct turn {
	enum fate fate;
	unsigned reads; /* after so many, AT_A_READ */
};

static struct turn turn_of(uint64_t seed, unsigned round, unsigned rank)
{
	uint64_t x = (seed + round * 64 + rank + 1) * 0x9e3779b97f4a7c15u;
	uint64_t r = test_random(&x) >> 8;

	return (struct turn){r % 24 < 3 ? (enum fate)(1 + r % 24) : WELL,
			     1 + (unsigned)(r / 24 % 6)};
}

static int at_a_read(void *user, unsigned file, const struct penstock_report *r)
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

/* How each of its loads ended; -1: not what it should be. */
static int one_of_a_crowd(const struct job *job, unsigned rank, uint64_t seed, int *rets)
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
	go.dir = meeting_place();
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open(rank % 2 ? name : "cuda:0", NULL, &dev) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, CROWD, &go, &g))
		return -1;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		struct turn turn = turn_of(seed, i, rank);

		if (turn.fate == WRONG_OPTIONS)
			lo.align = 3;
		if (turn.fate == NO_MEMORY) {
			lo.alloc = no_memory;
			lo.free = never_freed;
		}
		if (turn.fate == AT_A_READ)
			lo.each = at_a_read;
		lo.user = &turn.reads;
		rets[i] = penstock_group_load(g, m, &dev, 1, &lo, NULL, &loaded);
		if (!rets[i])
			look(o, m, dev, &so, loaded, NULL);
		penstock_loaded_free(loaded);
		if (*o->wrong)
			return -1;
	}
	penstock_group_close(g);
	penstock_weights_close(m);
	penstock_device_close(dev);
	penstock_device_close(host);
	return 0;
}

/* A group in which loads fail is as good as new: each load ends alike on all ranks, with
 * what one of them came to, and the next one begins. */
static void test_again_and_again(void **state)
{
	struct job job = small_chunks("again", DONE);
	int(*rets)[ROUNDS] = mmap(NULL, CROWD * sizeof(*rets), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = test_seed(3);
	pid_t pids[CROWD];
	unsigned well = 0;

	(void)state;
	assert_ptr_not_equal(rets, MAP_FAILED);
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	setenv("PENSTOCK_STANDIN_DEVICES", "4", 1);
	setenv("PENSTOCK_STANDIN_MEM", "64MiB", 1);
	setenv("PENSTOCK_STANDIN_PEER", "1", 1);
	for (unsigned r = 0; r < CROWD; r++) {
		pids[r] = fork();
		if (!pids[r])
			_exit(one_of_a_crowd(&job, r, seed, rets[r]) ? 1 : 0);
	}
	for (unsigned r = 0; r < CROWD; r++) {
		int status = 0;

		assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		if (status)
			fail_msg("rank %u: status %#x, %s", r, status, outcomes[r].wrong);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		bool early = false, late = false;

		for (unsigned r = 0; r < CROWD; r++) {
			enum fate fate = turn_of(seed, i, r).fate;

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
	munmap(rets, CROWD * sizeof(*rets));
}

/* Nor does a read that a store keeps delay what the others are told of one that failed: with
 * its file and its reason, whichever of them rank 0 is. */
static void test_fails_beside_a_slow_one(void **state)
{
	static const struct {
		const char *name, *slow_path, *broken_path;
		unsigned who, slow, gpus;
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
		jobs[i].who = rows[i].who;
		jobs[i].slow = rows[i].slow;
		jobs[i].gpus = rows[i].gpus;
		jobs[i].slow_path = rows[i].slow_path;
		jobs[i].broken_path = rows[i].broken_path;
		outcomes = areas + i * RANKS_MAX;
		begin(&jobs[i]);
	}
	for (unsigned i = 0; i < AREAS; i++) {
		struct outcome *own = &areas[i * RANKS_MAX + jobs[i].who];

		outcomes = areas + i * RANKS_MAX;
		finish(&jobs[i]);
		assert_int_equal(own->ret, -EIO);
		assert_non_null(strstr(own->text, "group.safetensors: tensor '"));
		snprintf(text, sizeof(text), "rank %u: ", jobs[i].who);
		others_say(&jobs[i], -EIO, text);
		others_say(&jobs[i], -EIO, own->text);
		others_end(&jobs[i]);
	}
	outcomes = areas;
}

/* Written to while it is read: nobody gets it. */
static void test_changes(void **state)
{
	struct job job = small_chunks("changes", CHANGES);

	(void)state;
	job.who = 2;
	go(&job);
	others_say(&job, -ESTALE, "the file changed after its header was read");
	assert_int_equal(outcomes[2].ret, -ESTALE);
}

/* Not enough device memory on one of them: all know before the first byte. */
static void test_poor(void **state)
{
	struct job job = small_chunks("poor", POOR);

	(void)state;
	job.gpus = 4;
	job.who = 3;
	go(&job);
	others_say(&job, -ENOMEM, "rank 3: ");
	others_say(&job, -ENOMEM, "bytes on cuda:3");
	assert_int_equal(outcomes[3].ret, -ENOMEM);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(outcomes[i].read, 0);
}

/* What only one of them can know, that it does not reach the others' windows. */
static void test_blind(void **state)
{
	struct job job = small_chunks("blind", BLIND);
	char text[80];

	(void)state;
	for (job.who = 0; job.who < 4; job.who += 3) {
		snprintf(text, sizeof(text), "rank %u: the window of rank %u: Cannot allocate",
			 job.who, job.who ? 0 : 1);
		go(&job);
		others_say(&job, -ENOMEM, text);
		assert_int_equal(outcomes[job.who].ret, -ENOMEM);
	}
}

static void test_other_file(void **state)
{
	struct job job = {.name = "other", .path = model_path(), .ranks = 3};
	const char *other = made_path("other.safetensors");

	(void)state;
	made_file(other, model, COUNT(model), 5);
	job.other_path = other;
	go(&job);
	others_say(&job, -ESTALE, "rank 2 has another file than rank 0");
	assert_non_null(strstr(outcomes[0].text, "group.safetensors"));
	assert_non_null(strstr(outcomes[2].text, "other.safetensors"));
}

/* Two files on one device for all ranks but one: which of them are read at the same time
 * follows from that, and is the same for all. */
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
	job.elsewhere = st.st_size;
	for (job.who = 0; job.who < 4; job.who += 3) {
		go(&job);
		for (unsigned i = 0; i < job.ranks; i++)
			if (outcomes[i].ret || *outcomes[i].wrong)
				fail_msg("rank %u: %d, %s%s", i, outcomes[i].ret, outcomes[i].text,
					 outcomes[i].wrong);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dies),
		cmocka_unit_test(test_dies_with_a_child),
		cmocka_unit_test(test_dies_beside_a_slow_one),
		cmocka_unit_test(test_dies_beside_a_stuck_one),
		cmocka_unit_test(test_hangs),
		cmocka_unit_test(test_leaves),
		cmocka_unit_test(test_fails),
		cmocka_unit_test(test_again_and_again),
		cmocka_unit_test(test_fails_beside_a_slow_one),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_poor),
		cmocka_unit_test(test_blind),
		cmocka_unit_test(test_other_file),
		cmocka_unit_test(test_other_stores),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
