/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_weights_save: tensors of two devices are written to a file and loaded back
 * with the same names, shapes and bytes. A failed save leaves the old file.
 */
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/utf8.h"
#include "load.h"

#define MANY 2000u

static struct penstock_save_opts save_opts;

static void *copy_to_device(struct penstock_device *dev, const char *name, uint64_t len)
{
	unsigned char *bytes = malloc(len + 1);
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = dev,
					  .src_dev = host,
					  .src = bytes,
					  .row_len = len};

	for (uint64_t i = 0; i < len; i++)
		bytes[i] = made_byte(name, i);
	assert_int_equal(penstock_alloc(dev, len + 1, &args.dst), 0);
	assert_int_equal(penstock_copy(&args, 1), 0);
	free(bytes);
	return args.dst;
}

static struct penstock_out make_out(const struct made *m, struct penstock_device *dev)
{
	struct penstock_out t = {
		.size = sizeof(t), .name = m->name, .rank = m->rank, .shape = m->shape};

	for (unsigned d = 1; d < PENSTOCK_DTYPES; d++)
		if (!strcmp(penstock_dtype_name(d), m->dtype))
			t.dtype = (enum penstock_dtype)d;
	t.ptr = copy_to_device(dev, m->name, made_bytes(m));
	return t;
}

/* Tells the parent, through the descriptor at `user`, that the save is under way, and waits to be
 * killed. */
static int wait_in_save(void *user)
{
	if (write(*(const int *)user, "s", 1) == 1)
		for (;;)
			pause();
	return 1;
}

/* A process that is killed while it saves leaves no file behind, if the file system supports files
 * without names (O_TMPFILE). */
static void test_killed(void **state)
{
	const char *dir = made_path("killed");
	const uint64_t shape = 1000;
	char path[1200], byte;
	struct dirent *e;
	int pipes[2], status, fd;
	unsigned found = 0;
	pid_t pid;
	DIR *d;

	(void)state;
#ifdef __SANITIZE_THREAD__
	test_skip("the thread sanitizer follows no child that makes threads");
#endif
	made_dir(dir);
	fd = open(dir, O_TMPFILE | O_RDWR, 0600);
	if (fd < 0)
		test_skip("no O_TMPFILE: %s", strerror(errno));
	close(fd);
	snprintf(path, sizeof(path), "%s/a.safetensors", dir);
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (!pid) {
		struct penstock_device *own;
		struct penstock_out t = {.size = sizeof(t),
					 .name = "a",
					 .dtype = PENSTOCK_DTYPE_U8,
					 .rank = 1,
					 .shape = &shape};

		save_opts = (struct penstock_save_opts)PENSTOCK_SAVE_OPTS_INIT;
		save_opts.path = "fault:bounce?delay_us=100000000";
		save_opts.look = wait_in_save;
		save_opts.user = &pipes[1];
		t.ptr = calloc(1, shape);
		if (penstock_device_open("host", NULL, &own) >= 0)
			penstock_weights_save(path, &t, 1, &save_opts, NULL);
		_exit(1);
	}
	close(pipes[1]);
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	d = opendir(dir);
	while ((e = readdir(d)))
		found += e->d_name[0] != '.' || strstr(e->d_name, "penstock");
	closedir(d);
	assert_int_equal(found, 0);
	close(pipes[0]);
}

static void test_all_dtypes(void **state)
{
	struct penstock_out list[COUNT(all_dtypes)];
	struct penstock_loaded *loaded;
	struct penstock_weights_file f = {.size = sizeof(f)};
	const char *path = made_path("saved.safetensors"), *key, *value;
	uint64_t sum = 0;

	(void)state;
	save_opts = (struct penstock_save_opts)PENSTOCK_SAVE_OPTS_INIT;
	save_opts.keys = (const char *const[]){"format", "quote\"\n"};
	save_opts.values = (const char *const[]){"pt", "\xc3\xa4\\\x01\x1f"};
	save_opts.pair_count = 2;
	for (unsigned i = 0; i < COUNT(all_dtypes); i++) {
		list[i] = make_out(&all_dtypes[i], i % 2 ? gpu : host);
		sum += made_bytes(&all_dtypes[i]);
	}
	if (penstock_weights_save(path, list, COUNT(all_dtypes), &save_opts, &report))
		fail_msg("%s", penstock_errmsg());
	assert_true(report.read > sum && report.read == report.bytes);
	open_model(path);
	assert_int_equal(penstock_weights_count(w), COUNT(all_dtypes));
	assert_int_equal(penstock_weights_get_metadata(w, 0, 1, &key, &value), 0);
	assert_string_equal(key, "quote\"\n");
	assert_string_equal(value, "\xc3\xa4\\\x01\x1f");
	/* In a file of more than a megabyte, the tensors' data begin at a page boundary, and all
	 * tensors are aligned. */
	assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
	assert_int_equal(f.data_off % 4096, 0);
	assert_int_equal(penstock_weights_load(w, &host, 1, NULL, &report, &loaded), 0);
	for (unsigned i = 0; i < COUNT(all_dtypes); i++) {
		int64_t at = penstock_weights_find(w, all_dtypes[i].name);
		struct penstock_tensor t = {.size = sizeof(t)};

		assert_int_equal(penstock_weights_get(w, (uint64_t)at, &t), 0);
		assert_string_equal(penstock_dtype_name(t.dtype), all_dtypes[i].dtype);
		assert_int_equal(all_dtypes[i].bits < 8 ? 0 : t.off % (all_dtypes[i].bits / 8), 0);
		assert_int_equal(t.rank, all_dtypes[i].rank);
		assert_memory_equal(t.shape, all_dtypes[i].shape, t.rank * sizeof(t.shape[0]));
		check_tensor(host, penstock_loaded_ptr(loaded, 0, (uint64_t)at), all_dtypes[i].name,
			     t.bytes);
		penstock_free(i % 2 ? gpu : host, (void *)(uintptr_t)list[i].ptr);
	}
	penstock_loaded_free(loaded);
}

static void test_many_tensors(void **state)
{
	static char names[MANY][16];
	static struct penstock_out list[MANY];
	static uint64_t shape[1] = {7};
	struct penstock_weights_file f = {.size = sizeof(f)};
	const char *path = made_path("many.safetensors");
	uint32_t *mem = malloc(MANY * 7 * 4);
	struct penstock_loaded *loaded;

	(void)state;
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "t%04u", i);
		list[i] = (struct penstock_out){.size = sizeof(list[0]),
						.name = names[i],
						.dtype = PENSTOCK_DTYPE_U32,
						.rank = 1,
						.shape = shape,
						.ptr = mem + (size_t)i * 7};
	}
	for (unsigned i = 0; i < MANY * 7; i++)
		mem[i] = i * 2654435761u;
	assert_int_equal(penstock_weights_save(path, list, MANY, NULL, NULL), 0);
	open_model(path);
	assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
	assert_int_equal(f.data_off % 8, 0);
	opts.first = 100;
	opts.count = 50;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	assert_null(penstock_loaded_ptr(loaded, 0, 99));
	assert_null(penstock_loaded_ptr(loaded, 0, 150));
	assert_memory_equal(penstock_loaded_ptr(loaded, 0, 149), mem + (size_t)149 * 7, 28);
	penstock_loaded_free(loaded);
	opts.count = MANY;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -ERANGE);
	free(mem);
}

static void check_refused(const struct penstock_out *list, uint64_t count, int code,
			  const char *words)
{
	const char *path = made_path("kept.safetensors");
	int ret = penstock_weights_save(path, list, count, &save_opts, NULL);

	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected %d '%s'", ret, penstock_errmsg(), -code, words);
	open_model(path);
	assert_int_equal(penstock_weights_count(w), 1);
}

static void test_refusals(void **state)
{
	static uint64_t shape[2] = {4, 1ull << 62};
	static char mem[4] = "abc";
	struct penstock_out t = {.size = sizeof(t),
				 .name = "t",
				 .dtype = PENSTOCK_DTYPE_U8,
				 .rank = 1,
				 .shape = shape,
				 .ptr = mem};
	struct penstock_out two[2] = {t, t};
	const char *text = "x";

	(void)state;
	save_opts = (struct penstock_save_opts)PENSTOCK_SAVE_OPTS_INIT;
	assert_int_equal(
		penstock_weights_save(made_path("kept.safetensors"), &t, 1, &save_opts, NULL), 0);
	check_refused(two, 2, EINVAL, "twice");
	two[1].name = "\xff";
	check_refused(two, 2, EINVAL, "UTF-8");
	two[1].name = "__metadata__";
	check_refused(two, 2, EINVAL, "name, dtype or shape");
	two[1].name = "u";
	two[1].ptr = NULL;
	check_refused(two, 2, EINVAL, "address is NULL");
	two[1].rank = 2;
	check_refused(two, 2, EINVAL, "too many elements");
	two[1].dtype = PENSTOCK_DTYPE_NONE;
	check_refused(two, 2, EINVAL, "dtype");
	save_opts.path = "fault:bounce?eio=1";
	check_refused(&t, 1, EIO, "kept.safetensors");
	save_opts.path = NULL;
	save_opts.keys = save_opts.values = &text;
	save_opts.pair_count = 1;
	text = "\xc0\xaf";
	check_refused(&t, 1, EINVAL, "UTF-8");
	text = NULL;
	check_refused(&t, 1, EINVAL, "NULL");
	assert_int_equal(penstock_weights_save("/proc/none/x", &t, 1, NULL, NULL), -ENOENT);
}

/* A file name with colons is taken as a path, so that the file can be read again by its name. */
static void test_colons(void **state)
{
	static const char *const names[] = {"at 12:00:00.safetensors", "mem:1MiB", "file:x"};
	static const uint64_t shape[1] = {3};
	const struct penstock_out t = {.size = sizeof(t),
				       .name = "t",
				       .dtype = PENSTOCK_DTYPE_U8,
				       .rank = 1,
				       .shape = shape,
				       .ptr = "abc"};
	char here[PATH_MAX];

	(void)state;
	assert_non_null(getcwd(here, sizeof(here)));
	assert_int_equal(chdir(made_path(".")), 0);
	for (unsigned i = 0; i < COUNT(names); i++) {
		if (penstock_weights_save(names[i], &t, 1, NULL, NULL))
			fail_msg("%s", penstock_errmsg());
		open_model(names[i]);
		assert_int_equal(penstock_weights_count(w), 1);
		assert_int_equal(unlink(names[i]), 0);
	}
	assert_int_equal(penstock_weights_save("ftp://a/b", &t, 1, NULL, NULL), -EINVAL);
	assert_int_equal(chdir(here), 0);
}

/* Checks that the text is valid UTF-8. */
static void check_utf8(const char *text)
{
	for (unsigned n; *text; text += n) {
		n = pst_utf8_length(text, strlen(text));
		if (!n)
			fail_msg("no UTF-8 from here on: '%s'", text);
	}
}

/* File names are as long as those of model caches. The message must still contain the error, and
 * must not cut a name inside of a UTF-8 sequence. */
static void test_long_names(void **state)
{
	static const uint64_t shape[1] = {3};
	struct penstock_out t = {.size = sizeof(t),
				 .dtype = PENSTOCK_DTYPE_U8,
				 .rank = 1,
				 .shape = shape,
				 .ptr = "abc"};
	struct penstock_weights_place place = {.size = sizeof(place)};
	struct penstock_out two[2];
	char name[1024], file[1024];

	(void)state;
	for (unsigned pad = 0; pad < 3; pad++) {
		snprintf(name, sizeof(name), "%.*s", (int)pad, "xx");
		for (unsigned i = 0; i < 200; i++)
			snprintf(name + strlen(name), 4, "\xe6\x97\xa5");
		penstock_fail(EIO, PENSTOCK_WHY_IO_ERROR, "%s", name);
		check_utf8(penstock_errmsg());
		assert_true(strlen(penstock_errmsg()) > PENSTOCK_TEXT_MAX - 4);
		snprintf(file, sizeof(file), "/%s/model.safetensors", name);
		t.name = "t";
		assert_int_equal(penstock_weights_save(file, &t, 1, NULL, NULL), -ENAMETOOLONG);
		check_utf8(penstock_errmsg());
		snprintf(file, sizeof(file), "/not-here/%.*s/%.*s", (int)(240 + pad), name,
			 (int)(120 + pad), name);
		assert_int_equal(penstock_weights_save(file, &t, 1, NULL, NULL), -ENOENT);
		check_utf8(penstock_errmsg());
		penstock_weights_get_place(&place);
		assert_string_equal(place.file, file);
		if (!strstr(penstock_errmsg(), strerror(ENOENT)))
			fail_msg("'%s' does not say what happened", penstock_errmsg());
		t.name = name;
		t.ptr = NULL;
		snprintf(file, sizeof(file), "%s", made_path("none.safetensors"));
		assert_int_equal(penstock_weights_save(file, &t, 1, NULL, NULL), -EINVAL);
		check_utf8(penstock_errmsg());
		penstock_weights_get_place(&place);
		check_utf8(place.tensor);
		assert_true(strlen(place.tensor) > sizeof(place.tensor) - 4);
		t.ptr = "abc";
		two[0] = two[1] = t;
		assert_int_equal(penstock_weights_save(file, two, 2, NULL, NULL), -EINVAL);
		penstock_weights_get_place(&place);
		check_utf8(place.tensor);
		assert_true(strlen(place.tensor) > sizeof(place.tensor) - 4);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_all_dtypes), CASE(test_many_tensors), CASE(test_refusals),
		CASE(test_colons),     CASE(test_long_names),	CASE(test_killed),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
