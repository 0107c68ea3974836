/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several opens of one name, which create, replace, write, commit, give up and close in any
 * order, against a model of what the header says of each: after every step the file has the
 * model's length and bytes, and nothing stands beside it that no open is still writing.
 * Each round prints its seed when it fails; PENSTOCK_SEED begins with that one.
 */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"

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
	struct penstock_storage *st; /* NULL: none */
	struct file *file;
	uint64_t length, end; /* asked for; behind what it has written */
	bool created, replaces, placed, decided, given_up;
};

static struct penstock_device *host;
static char dir[200], name[256];
static unsigned char *mem, *back;
static struct file *named, files[STEPS];
static unsigned file_count;
static struct open opens[OPENS];
static uint64_t seed;
static char told[16384];
static size_t told_len;

static uint64_t any(uint64_t n)
{
	return test_random(&seed) % n;
}

#define tell(...) \
	(told_len += (size_t)snprintf(told + told_len, sizeof(told) - told_len - 200, __VA_ARGS__))
#define wrong(...)                     \
	do {                           \
		printf("%s", told);    \
		fail_msg(__VA_ARGS__); \
	} while (0)

static struct file *new_file(uint64_t len)
{
	struct file *file = &files[file_count++];

	memset(file, 0, sizeof(*file));
	file->len = len;
	return file;
}

static void cut(struct file *file, uint64_t len)
{
	if (len < file->len)
		memset(file->bytes + len, 0, file->len - len);
	file->len = len;
}

/* ---- steps ---- */

static void open_one(struct open *o)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	static const unsigned flags[] = {PENSTOCK_O_WRITE, PENSTOCK_O_CREATE, PENSTOCK_O_REPLACE};
	struct penstock_storage *st;
	unsigned how = (unsigned)any(3);
	int ret;

	opts.flags = flags[how];
	opts.length = any(2) ? 1 + any(any(2) ? LEN_MAX / 2 : 9000) : 0;
	ret = penstock_open(name, &opts, &st);
	tell("open %td, flags %u, length %llu: %d\n", o - opens, opts.flags,
	     (unsigned long long)opts.length, ret);
	if (ret != (how == 0 && !named ? -ENOENT : 0))
		wrong("open: %s", penstock_errmsg());
	if (ret)
		return;
	*o = (struct open){.st = st, .length = opts.length};
	o->replaces = how == 2;
	o->created = o->replaces || !named;
	o->file = o->created ? new_file(opts.length) : named;
	if (!o->replaces)
		named = o->file;
}

static void write_one(struct open *o)
{
	uint64_t off = any(2) ? any(LEN_MAX / 2) : any(64) * 4096;
	struct penstock_seg seg = {.buf = mem + any(2) * any(5000), .dev = host, .off = off};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned char fill = (unsigned char)(1 + any(255));

	seg.row_len = 1 + any(any(3) ? 20000 : LEN_MAX / 2);
	if (o->length > off && !any(3))
		seg.row_len = o->length - off;
	seg.room = any(2) * ROOM;
	memset(mem, 0xaa, LEN_MAX + 2 * ROOM);
	memset(seg.buf, fill, seg.row_len);
	req.storage = o->st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	req.flags = any(3) ? 0 : PENSTOCK_R_DURABLE;
	tell("write %td, %llu at %llu, room %llu, byte %02x\n", o - opens,
	     (unsigned long long)seg.row_len, (unsigned long long)off, (unsigned long long)seg.room,
	     fill);
	if (penstock_transfer(&req, NULL) != (int64_t)seg.row_len)
		wrong("write: %s", penstock_errmsg());
	memset(o->file->bytes + off, fill, seg.row_len);
	off += seg.row_len;
	o->file->len = off > o->file->len ? off : o->file->len;
	o->end = off > o->end ? off : o->end;
}

static void commit_one(struct open *o)
{
	int ret = penstock_commit(o->st, any(2) != 0);

	tell("commit %td: %d\n", o - opens, ret);
	if (ret != (o->given_up ? -ESTALE : 0))
		wrong("commit: %s", penstock_errmsg());
	if (ret)
		return;
	if (o->created && o->length && !o->decided)
		cut(o->file, o->length);
	if (o->replaces && !o->placed)
		named = o->file;
	o->placed = o->decided = true;
}

static void abort_one(struct open *o)
{
	int ret = penstock_abort(o->st);

	tell("abort %td: %d\n", o - opens, ret);
	if (ret)
		wrong("abort: %s", penstock_errmsg());
	if (o->created && !o->decided) {
		o->given_up = true;
		named = named == o->file ? NULL : named;
	}
	o->decided = true;
}

static void close_one(struct open *o)
{
	tell("close %td\n", o - opens);
	penstock_close(o->st);
	o->st = NULL;
	if (o->created && !o->replaces && !o->decided && o->length)
		cut(o->file, o->end < o->length ? o->end : o->length);
}

/* ---- what there is ---- */

/* An open whose file will be cut to its length: what lies behind that is nobody's till then,
 * and the file may be longer by a padded tail. */
static bool is_growing(const struct open *o, const struct file *file)
{
	return o->st && o->file == file && o->created && !o->decided && o->length;
}

static unsigned beside(void)
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

static void compare(void)
{
	int fd = open(name, O_RDONLY);
	uint64_t owned = named ? named->len : 0, slack = 0;
	unsigned aside = 0;
	struct stat there;

	for (unsigned i = 0; i < OPENS; i++) {
		const struct open *o = &opens[i];

		aside += o->st && o->replaces && !o->placed && !o->given_up;
		if (!is_growing(o, named))
			continue;
		slack = ROOM - 1;
		owned = o->length < owned ? o->length : owned;
	}
	if (beside() != aside)
		wrong("%u files stand beside it, %u are being written", beside(), aside);
	if ((fd >= 0) != (named != NULL))
		wrong("the name %s", named ? "has gone" : "is there");
	if (fd < 0)
		return;
	assert_int_equal(fstat(fd, &there), 0);
	if ((uint64_t)there.st_size < named->len || (uint64_t)there.st_size > named->len + slack)
		wrong("%lld bytes long, not %llu", (long long)there.st_size,
		      (unsigned long long)named->len);
	assert_int_equal(pread(fd, back, owned, 0), owned);
	close(fd);
	for (uint64_t i = 0; i < owned; i++)
		if (back[i] != named->bytes[i])
			wrong("byte %llu is %02x, not %02x", (unsigned long long)i, back[i],
			      named->bytes[i]);
}

static void round_of(uint64_t number)
{
	seed = number * 2 + 1;
	told_len = 0;
	tell("PENSTOCK_SEED=%llu\n", (unsigned long long)number);
	named = NULL;
	file_count = 0;
	for (unsigned i = 0; i < STEPS; i++) {
		struct open *o = &opens[any(OPENS)];
		uint64_t step = any(10);

		if (!o->st)
			open_one(o);
		else if (step < 6)
			write_one(o);
		else if (step < 8)
			commit_one(o);
		else if (step == 8)
			abort_one(o);
		else
			close_one(o);
		compare();
	}
	for (unsigned i = 0; i < OPENS; i++)
		if (opens[i].st)
			close_one(&opens[i]);
	compare();
	unlink(name);
}

static void any_order(void **state)
{
	uint64_t first = test_seed(20261121);

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++)
		round_of(first + i);
}

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	snprintf(dir, sizeof(dir), "%s/penstock-opens-%d", tmp ? tmp : "/tmp", (int)getpid());
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
	const struct CMUnitTest tests[] = {cmocka_unit_test(any_order)};

	return cmocka_run_group_tests_name("opens", tests, setup, teardown);
}
