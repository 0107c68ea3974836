/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program saves a checkpoint into a folder that has an older one, lists both, verifies the new
 * one and prunes the old one. In each run, another allocation or another system call fails. The
 * program then gets an error, or the failure did no harm. Afterwards, a checkpoint that counts as
 * complete must have all its bytes, at least one checkpoint must be complete, and no descriptor
 * may stay open.
 */
#include "child.h"

#include <dirent.h>
#include <limits.h>

#include "calls.h"
#include "memory.h"
#include "penstock_ckpt.h"

#define TURNS_MAX 600
#define LEN 100000u
#define ITEMS 3u

struct outcome {
	struct child_result end;
	unsigned hits, mark;
	const char *what;
	size_t what_len;
};

static struct outcome *out;
static char root[256];
static unsigned char *bytes;
static struct penstock_device *host;

static int setup(void **state)
{
	(void)state;
	bytes = malloc(LEN);
	out = child_shared_memory(sizeof(*out));
	snprintf(root, sizeof(root), "%s", fixture_name("ckpt", false));
	fixture_fill(bytes, LEN, 1);
	return !bytes || !out || mkdir(root, 0700);
}

static void remove_folder(const char *name)
{
	char path[PATH_MAX];
	struct dirent *e;
	DIR *d = opendir(name);

	while (d && (e = readdir(d))) {
		snprintf(path, sizeof(path), "%s/%s", name, e->d_name);
		unlink(path);
	}
	if (d)
		closedir(d);
	rmdir(name);
}

static void clear_root(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/old", root);
	remove_folder(path);
	snprintf(path, sizeof(path), "%s/new", root);
	remove_folder(path);
}

static int teardown(void **state)
{
	(void)state;
	clear_root();
	rmdir(root);
	free(bytes);
	return 0;
}

/* ---- the scenario ---- */

static int write_file(const char *dir, const char *name, struct penstock_item *items,
		      uint64_t count)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	opts.sum = opts.durable = 1;
	return penstock_part_write(path, items, count, &opts, NULL);
}

static int save(const char *name)
{
	struct penstock_item items[ITEMS], marker;
	struct penstock_seg segs[ITEMS];
	struct penstock_part part = {.size = sizeof(part), .name = "__0_0.distcp", .bytes = LEN};
	char dir[PATH_MAX / 2], path[PATH_MAX];
	uint64_t off = 0;
	int ret;

	snprintf(dir, sizeof(dir), "%s/%s", root, name);
	snprintf(path, sizeof(path), "%s/penstock.manifest", dir);
	if (mkdir(dir, 0700) && errno != EEXIST)
		return -errno;
	for (unsigned i = 0; i < ITEMS; i++) {
		uint64_t len = i + 1 < ITEMS ? 10000 + 60000 * i : LEN - off;

		segs[i] = (struct penstock_seg){.buf = bytes + off, .off = off, .row_len = len};
		items[i] = (struct penstock_item){.size = sizeof(items[i]),
						  .name = "item",
						  .off = off,
						  .len = len,
						  .segs = &segs[i],
						  .seg_count = 1};
		off += len;
	}
	marker = items[0];
	ret = write_file(dir, part.name, items, ITEMS);
	part.items = items;
	part.item_count = ITEMS;
	if (!ret)
		ret = penstock_manifest_write(path, 1, &part, 1);
	return ret ? ret : write_file(dir, ".metadata", &marker, 1);
}

struct found {
	unsigned complete, count;
	char path[PATH_MAX]; /* the newest complete checkpoint */
};

static int note(void *user, const struct penstock_ckpt *ckpt)
{
	struct found *f = user;

	f->count++;
	if (ckpt->state == PENSTOCK_CKPT_COMPLETE) {
		f->complete++;
		snprintf(f->path, sizeof(f->path), "%s", ckpt->path);
	}
	return 0;
}

static int read_back(const char *name)
{
	unsigned char *back = calloc(1, LEN);
	struct penstock_seg seg = {.buf = back, .row_len = LEN};
	struct penstock_item item = {
		.size = sizeof(item), .len = LEN, .segs = &seg, .seg_count = 1};
	char path[PATH_MAX];
	int ret;

	if (!back)
		return penstock_fail(ENOMEM, PENSTOCK_WHY_NO_MEMORY, NULL);
	snprintf(path, sizeof(path), "%s/%s/__0_0.distcp", root, name);
	ret = penstock_part_read(path, &item, 1, NULL, NULL);
	if (!ret && memcmp(back, bytes, LEN))
		child_fail(&out->end, "the bytes that were read are wrong");
	free(back);
	return ret;
}

static int scenario(void)
{
	struct penstock_verified verified = {.size = sizeof(verified)};
	struct found found = {.count = 0};
	int ret = save("new");

	if (!ret)
		ret = read_back("new");
	if (!ret)
		ret = penstock_ckpt_list(root, note, &found);
	if (!ret && found.complete)
		ret = penstock_ckpt_verify(found.path, NULL, NULL, NULL, &verified);
	return ret ? ret : penstock_ckpt_prune(root, 1, 0, NULL, NULL);
}

/* Checks the folder without injected failures. */
static void check_folder(void)
{
	struct found found = {.count = 0};

	if (penstock_ckpt_list(root, note, &found) || !found.complete)
		child_fail(&out->end, "%u of %u checkpoints are complete", found.complete,
			   found.count);
	else if (penstock_ckpt_verify(found.path, NULL, NULL, NULL, NULL))
		child_fail(&out->end, "%s", penstock_errmsg());
}

/* Opens the device and makes the older checkpoint. */
static int begin(void)
{
	clear_root();
	if (penstock_device_open("host", NULL, &host) < 0 || save("old"))
		child_fail(&out->end, "the first save: %s", penstock_errmsg());
	return 0;
}

/* ---- allocations ---- */

static void run_allocation(void *arg)
{
	const unsigned nth = *(const unsigned *)arg;
	unsigned hits;
	int ret;

	begin();
	memory_arm(nth);
	ret = out->end.ret = scenario();
	memory_disarm(&hits);
	out->hits = hits;
	out->what = memory_failed_name(&out->what_len);
	if (ret && (ret != -ENOMEM || penstock_errwhy() != PENSTOCK_WHY_NO_MEMORY))
		child_fail(&out->end, "it ended with %d, %s, '%s'", ret,
			   penstock_why_name(penstock_errwhy()), penstock_errmsg());
	check_folder();
	penstock_device_close(host);
}

static void fail_each_allocation(void **state)
{
	unsigned nth = 0, wrong = 0, failed = 0;
	struct outcome clean;

	(void)state;
	memset(out, 0, sizeof(*out));
	child_run(run_allocation, &nth, &out->end);
	clean = *out;
	if (clean.end.text[0])
		fail_msg("untouched: %s", clean.end.text);
	for (nth = 1; nth <= TURNS_MAX; nth++) {
		memset(out, 0, sizeof(*out));
		child_run(run_allocation, &nth, &out->end);
		child_check_leaks(&out->end, &clean.end, false);
		if (out->end.text[0]) {
			printf("# allocation %u, %s of %zu bytes: %s\n", nth,
			       out->what ? out->what : "?", out->what_len, out->end.text);
			wrong++;
		}
		if (!out->hits && !out->end.text[0])
			break;
		failed += out->end.ret != 0;
	}
	printf("# %u allocations, %u of them needed\n", nth - 1, failed);
	assert_int_equal(wrong, 0);
	assert_in_range(nth, 10, TURNS_MAX);
}

/* ---- system calls ---- */

struct call {
	enum calls_kind kind;
	unsigned nth;
	int code;
};

static void run_call(void *arg)
{
	const struct call *call = arg;
	int ret;

	begin();
	calls_arm(call->kind, call->nth, call->code);
	ret = out->end.ret = scenario();
	out->hits = calls_disarm();
	if (ret && strlen(penstock_errmsg()) < 8)
		child_fail(&out->end, "it ended with %d, '%s'", ret, penstock_errmsg());
	if (ret && !out->hits)
		child_fail(&out->end, "it failed by itself: %s", penstock_errmsg());
	check_folder();
	penstock_device_close(host);
}

static void fail_each_call(void **state)
{
	static const struct {
		enum calls_kind kind;
		int code;
	} kinds[] = {
		{CALLS_OPEN, EMFILE},	    {CALLS_OPEN, EACCES},  {CALLS_LIST, ENOMEM},
		{CALLS_READ, EIO},	    {CALLS_STAT, EIO},	   {CALLS_FALLOCATE, ENOSPC},
		{CALLS_RENAME, EIO},	    {CALLS_SYNC, EIO},	   {CALLS_FSYNC, EIO},
		{CALLS_TRUNCATE, EIO},	    {CALLS_DRAIN, ENOSPC}, {CALLS_FILL, EIO},
		{CALLS_DRAIN, CALLS_SHORT},
	};
	unsigned wrong = 0;

	(void)state;
	for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct call call = {.kind = kinds[k].kind, .code = kinds[k].code};
		unsigned failed = 0;

		for (call.nth = 1; call.nth <= TURNS_MAX; call.nth++) {
			memset(out, 0, sizeof(*out));
			child_run(run_call, &call, &out->end);
			if (out->end.text[0]) {
				printf("# %s %u as %d: %s\n", calls_name(call.kind), call.nth,
				       call.code, out->end.text);
				wrong++;
			}
			if (!out->hits)
				break;
			failed += out->end.ret != 0;
		}
		printf("# %s as %d: %u calls, %u of them needed\n", calls_name(call.kind),
		       call.code, call.nth - 1, failed);
	}
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fail_each_allocation),
		cmocka_unit_test(fail_each_call),
	};

	setenv("PENSTOCK_LOG", "error", 0);
	fixture_use_standin();
	return cmocka_run_group_tests_name("ckpt", tests, setup, teardown);
}
