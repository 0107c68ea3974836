/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller's descriptor: opened again where that gives the same file, else used as it is,
 * with the reason; its flags and its offset stay what they were. And what a durable commit
 * brings to the drive: the bytes, and the name.
 */
#include "world.h"

#include "calls.h"

#define LEN 100000u

static struct penstock_device *host;
static const char *name;

static int setup(void **state)
{
	(void)state;
	host = world_device("host", "auto", 0);
	name = world_name("fd", false);
	world_file(name, LEN, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	calls_disarm();
	unlink(name);
	penstock_device_close(host);
	return 0;
}

static void read_right(struct penstock_storage *st)
{
	unsigned char *back = malloc(LEN), *want = malloc(LEN);

	world_fill(want, LEN, 1);
	assert_int_equal(penstock_read(st, host, back, LEN, 0), LEN);
	assert_memory_equal(back, want, LEN);
	free(back);
	free(want);
}

/* What is said of a descriptor whose second open goes so. */
static void opened(int flags, enum calls_kind kind, unsigned nth, int how, bool as_it_is)
{
	const char *text = penstock_why_text(PENSTOCK_WHY_REOPEN);
	struct penstock_storage_info info = {.size = sizeof(info)};
	struct penstock_storage *st;
	int fd = open(name, flags), was;

	assert_true(fd >= 0);
	assert_int_equal(lseek(fd, 77, SEEK_SET), 77);
	was = fcntl(fd, F_GETFL);
	calls_arm(kind, nth, how);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(calls_disarm(), nth ? 1 : 0);
	assert_int_equal(penstock_storage_get_info(st, &info), 0);
	if (as_it_is != !!strstr(info.text, text))
		fail_msg("flags %o: '%s'", (unsigned)flags, info.text);
	read_right(st);
	assert_int_equal(fcntl(fd, F_GETFL), was);
	penstock_close(st);
	assert_int_equal(fcntl(fd, F_GETFL), was); /* it is open still */
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 77);
	close(fd);
}

static void opened_again_or_as_it_is(void **state)
{
	static const int flags[] = {O_RDONLY, O_RDWR, O_RDWR | O_APPEND, O_RDWR | O_NONBLOCK};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		opened(flags[i], CALLS_OPEN, 0, 0, false);
		opened(flags[i], CALLS_OPEN, 1, EACCES, true);
		opened(flags[i], CALLS_OPEN, 1, ENXIO, true);
		/* The first look is at the caller's, the second at what was opened. */
		opened(flags[i], CALLS_STAT, 2, CALLS_OTHER, true);
		opened(flags[i], CALLS_STAT, 2, EIO, true);
	}
}

/* Syncs of a commit: of the file, and of the folder that has its name. */
static unsigned syncs(unsigned flags, int durable, bool relative)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	char there[300], here[4096];
	const char *made = there;

	snprintf(there, sizeof(there), "%s.made", name);
	assert_non_null(getcwd(here, sizeof(here)));
	if (relative) {
		*strrchr(there, '/') = '\0';
		assert_int_equal(chdir(there), 0);
		made = there + strlen(there) + 1;
	}
	opts.flags = flags;
	assert_int_equal(penstock_open(made, &opts, &st), 0);
	assert_int_equal(penstock_write(st, host, "x", 1, 0), 1);
	for (unsigned nth = 2; durable && nth; nth--) { /* neither may fail unnoticed */
		calls_arm(CALLS_FSYNC, nth, EIO);
		assert_int_equal(penstock_commit(st, 1), -EIO);
		assert_int_equal(calls_disarm(), 1);
		penstock_close(st);
		assert_int_equal(penstock_open(made, &opts, &st), 0);
		assert_int_equal(penstock_write(st, host, "x", 1, 0), 1);
	}
	calls_arm(CALLS_FSYNC, 0, 0);
	assert_int_equal(penstock_commit(st, durable), 0);
	calls_disarm();
	penstock_close(st);
	assert_int_equal(unlink(made), 0);
	assert_int_equal(chdir(here), 0);
	return calls_seen();
}

static void durable_with_its_name(void **state)
{
	(void)state;
	for (unsigned relative = 0; relative < 2; relative++) {
		assert_int_equal(syncs(PENSTOCK_O_REPLACE, 1, relative), 2);
		assert_int_equal(syncs(PENSTOCK_O_REPLACE, 0, relative), 0);
	}
	assert_int_equal(syncs(PENSTOCK_O_CREATE, 0, false), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opened_again_or_as_it_is),
		cmocka_unit_test(durable_with_its_name),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("descriptors", tests, setup, teardown);
}
