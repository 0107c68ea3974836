/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens, creates, replaces, writes, commits, aborts and closes several storages of one file
 * name, in random order. A model in the test follows the rules of penstock.h. After every step
 * the file must have the length and the bytes of the model, and only open storages may have
 * temporary files. A failure prints the seed of its round, and with that number in
 * PENSTOCK_SEED the program starts with the same round.
 */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"
#include "request.h"

#define OPENS 4
#define STEPS 40
#define ROUNDS 30
#define LEN_MAX (512u << 10)
#define ROOM 4096u

struct file {
	unsigned char bytes[LEN_MAX];
	uint64_t len;
};

struct open {
	struct penstock_storage *st; /* NULL: not open */
	struct file *file;
	uint64_t length, end; /* length: file length that the open requested; end: offset after the
			       * last byte written */
	bool created, replaces, placed, decided, aborted;
};

static struct penstock_device *host;
static char dir[200], name[256];
static unsigned char *mem, *back;
static struct file *current_file, files[STEPS];
static unsigned file_count;
static struct open opens[OPENS];
static uint64_t seed;
static char description[16384];
static size_t description_len;

static uint64_t random_below(uint64_t n)
{
	return test_random(&seed) % n;
}

#define describe(...)                                    \
	(description_len +=                              \
	 (size_t)snprintf(description + description_len, \
			  sizeof(description) - description_len - 200, __VA_ARGS__))
#define case_fail(...)                     \
	do {                               \
		printf("%s", description); \
		fail_msg(__VA_ARGS__);     \
	} while (0)

static struct file *file_new(uint64_t len)
{
	struct file *file = &files[file_count++];

	memset(file, 0, sizeof(*file));
	file->len = len;
	return file;
}

static void file_truncate(struct file *file, uint64_t len)
{
	if (len < file->len)
		memset(file->bytes + len, 0, file->len - len);
	file->len = len;
}

/* ---- steps ---- */

static void storage_open(struct open *o)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	static const unsigned flags[] = {PENSTOCK_O_WRITE, PENSTOCK_O_CREATE, PENSTOCK_O_REPLACE};
	struct penstock_storage *st;
	unsigned how = (unsigned)random_below(3);
	int ret;

	opts.flags = flags[how];
	opts.length = random_below(2) ? 1 + random_below(random_below(2) ? LEN_MAX / 2 : 9000) : 0;
	ret = penstock_open(name, &opts, &st);
	describe("open %td, flags %u, length %llu: %d\n", o - opens, opts.flags,
		 (unsigned long long)opts.length, ret);
	if (ret != (how == 0 && !current_file ? -ENOENT : 0))
		case_fail("open: %s", penstock_errmsg());
	if (ret)
		return;
	*o = (struct open){.st = st, .length = opts.length};
	o->replaces = how == 2;
	o->created = o->replaces || !current_file;
	o->file = o->created ? file_new(opts.length) : current_file;
	if (!o->replaces)
		current_file = o->file;
}

static void storage_write(struct open *o)
{
	uint64_t off = random_below(2) ? random_below(LEN_MAX / 2) : random_below(64) * 4096;
	struct penstock_seg seg = {
		.buf = mem + random_below(2) * random_below(5000), .dev = host, .off = off};
	struct penstock_req req;
	unsigned char fill = (unsigned char)(1 + random_below(255));

	seg.row_len = 1 + random_below(random_below(3) ? 20000 : LEN_MAX / 2);
	if (o->length > off && !random_below(3))
		seg.row_len = o->length - off;
	seg.room = random_below(2) * ROOM;
	memset(mem, 0xaa, LEN_MAX + 2 * ROOM);
	memset(seg.buf, fill, seg.row_len);
	req = test_request(o->st, &seg, 1, PENSTOCK_WRITE);
	req.flags = random_below(3) ? 0 : PENSTOCK_R_DURABLE;
	describe("write %td, %llu at %llu, room %llu, byte %02x\n", o - opens,
		 (unsigned long long)seg.row_len, (unsigned long long)off,
		 (unsigned long long)seg.room, fill);
	if (penstock_transfer(&req, NULL) != (int64_t)seg.row_len)
		case_fail("write: %s", penstock_errmsg());
	memset(o->file->bytes + off, fill, seg.row_len);
	off += seg.row_len;
	o->file->len = off > o->file->len ? off : o->file->len;
	o->end = off > o->end ? off : o->end;
}

static void storage_commit(struct open *o)
{
	int ret = penstock_commit(o->st, random_below(2) != 0);

	describe("commit %td: %d\n", o - opens, ret);
	if (ret != (o->aborted ? -ESTALE : 0))
		case_fail("commit: %s", penstock_errmsg());
	if (ret)
		return;
	if (o->created && o->length && !o->decided)
		file_truncate(o->file, o->length);
	if (o->replaces && !o->placed)
		current_file = o->file;
	o->placed = o->decided = true;
}

static void storage_abort(struct open *o)
{
	int ret = penstock_abort(o->st);

	describe("abort %td: %d\n", o - opens, ret);
	if (ret)
		case_fail("abort: %s", penstock_errmsg());
	if (o->created && !o->decided) {
		o->aborted = true;
		current_file = current_file == o->file ? NULL : current_file;
	}
	o->decided = true;
}

static void storage_close(struct open *o)
{
	describe("close %td\n", o - opens);
	penstock_close(o->st);
	o->st = NULL;
	if (o->created && !o->replaces && !o->decided && o->length)
		file_truncate(o->file, o->end < o->length ? o->end : o->length);
}

/* ---- checks ---- */

/* Reports whether an open storage will truncate this file at its commit. Until the commit, the
 * file may be longer than the model's length, because of a padded tail. The model does not define
 * the bytes beyond that length. */
static bool is_growing(const struct open *o, const struct file *file)
{
	return o->st && o->file == file && o->created && !o->decided && o->length;
}

static unsigned count_temporary_files(void)
{
	struct dirent *entry;
	unsigned found = 0;
	DIR *d = opendir(dir);

	assert_non_null(d);
	while ((entry = readdir(d)))
		found += strstr(entry->d_name, ".penstock-") != NULL;
	closedir(d);
	return found;
}

/* Returns whether the file system has files without names (O_TMPFILE), which the library then
 * writes in place of temporary files. */
static bool files_are_nameless(void)
{
	static int known = -1;
	int fd = known < 0 ? open(dir, O_TMPFILE | O_RDWR, 0600) : -1;

	if (known < 0)
		known = fd >= 0 && !access("/proc/self/fd", F_OK);
	if (fd >= 0)
		close(fd);
	return known;
}

static void check_file(void)
{
	int fd = open(name, O_RDONLY);
	uint64_t checked_len = current_file ? current_file->len : 0, slack = 0;
	unsigned expected_temporary = 0;
	struct stat there;

	for (unsigned i = 0; i < OPENS; i++) {
		const struct open *o = &opens[i];

		expected_temporary += o->st && o->replaces && !o->placed && !o->aborted;
		if (!is_growing(o, current_file))
			continue;
		slack = ROOM - 1;
		checked_len = o->length < checked_len ? o->length : checked_len;
	}
	if (files_are_nameless())
		expected_temporary = 0;
	if (count_temporary_files() != expected_temporary)
		case_fail("%u temporary files exist, %u are being written", count_temporary_files(),
			  expected_temporary);
	if ((fd >= 0) != (current_file != NULL))
		case_fail("the file %s", current_file ? "does not exist" : "exists");
	if (fd < 0)
		return;
	assert_int_equal(fstat(fd, &there), 0);
	if ((uint64_t)there.st_size < current_file->len ||
	    (uint64_t)there.st_size > current_file->len + slack)
		case_fail("%lld bytes long, not %llu", (long long)there.st_size,
			  (unsigned long long)current_file->len);
	assert_int_equal(pread(fd, back, checked_len, 0), checked_len);
	close(fd);
	for (uint64_t i = 0; i < checked_len; i++)
		if (back[i] != current_file->bytes[i])
			case_fail("byte %llu is %02x, not %02x", (unsigned long long)i, back[i],
				  current_file->bytes[i]);
}

static void run_round(uint64_t number)
{
	seed = number * 2 + 1;
	description_len = 0;
	describe("PENSTOCK_SEED=%llu\n", (unsigned long long)number);
	current_file = NULL;
	file_count = 0;
	for (unsigned i = 0; i < STEPS; i++) {
		struct open *o = &opens[random_below(OPENS)];
		uint64_t step = random_below(10);

		if (!o->st)
			storage_open(o);
		else if (step < 6)
			storage_write(o);
		else if (step < 8)
			storage_commit(o);
		else if (step == 8)
			storage_abort(o);
		else
			storage_close(o);
		check_file();
	}
	for (unsigned i = 0; i < OPENS; i++)
		if (opens[i].st)
			storage_close(&opens[i]);
	check_file();
	unlink(name);
}

static void random_order_of_operations(void **state)
{
	uint64_t first = test_seed(20261121);

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++)
		run_round(first + i);
}

static int setup(void **state)
{
	(void)state;
	test_file_name(dir, sizeof(dir), "penstock-opens");
	snprintf(name, sizeof(name), "%s/file", dir);
	mem = aligned_alloc(4096, LEN_MAX + 4 * ROOM);
	back = malloc(LEN_MAX);
	return !mem || !back || mkdir(dir, 0700) || penstock_device_open("host", NULL, &host) < 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(host);
	free(mem);
	free(back);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_order_of_operations)};

	return cmocka_run_group_tests_name("opens", tests, setup, teardown);
}
