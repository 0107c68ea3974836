/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_ckpt_list, penstock_ckpt_verify and penstock_ckpt_prune with folders that the test
 * makes: complete, incomplete and damaged checkpoints of several kinds. penstock_ckpt_verify must
 * report every changed bit and every truncation with file, item and offset. PENSTOCK_DAMAGES is the
 * number of random changes that the test makes.
 */
#include "ckpt.h"

#include <dirent.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/resource.h>

#define DAMAGES 500u
#define PARTS 3u
#define ITEMS 5u

static char root[PATH_MAX];

static const char *in_root(const char *name)
{
	static char paths[8][3 * PATH_MAX];
	static unsigned at;
	char *path = paths[at++ % 8];

	snprintf(path, sizeof(paths[0]), "%s/%s", root, name);
	return path;
}

static int setup(void **state)
{
	static unsigned number;
	char name[32];

	(void)state;
	snprintf(name, sizeof(name), "folder%u", number++);
	snprintf(root, sizeof(root), "%s", made_path(name));
	made_dir(root);
	return 0;
}

/* ---- checkpoints that the test makes ---- */

/* Writes a file and sets its modification time to `time` seconds after the start of 2020. */
static void make_file(const char *name, const void *bytes, size_t len, unsigned time)
{
	const struct timespec times[2] = {{1577836800 + time, 0}, {1577836800 + time, 0}};
	const char *path = in_root(name);

	made_write(path, bytes, len);
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static uint64_t item_len(unsigned part, unsigned item)
{
	return 1000u * item * (part + 1) + (item == 3 ? 200000 : 7);
}

#define MARKER "pickle"
static bool lists_marker; /* whether make_checkpoint's manifest lists .metadata */

/* Makes a checkpoint in the format of torch.distributed.checkpoint, with three parts. The last
 * item of each part has no checksum. */
static void make_checkpoint(const char *name, unsigned time, bool marker, bool manifest)
{
	static struct penstock_item items[PARTS][ITEMS];
	static char names[PARTS][ITEMS][16], part_names[PARTS][32];
	struct penstock_item marked = {.size = sizeof(marked),
				       .len = sizeof(MARKER) - 1,
				       .flags = PENSTOCK_ITEM_SUMMED,
				       .crc32c = test_crc32c(MARKER, sizeof(MARKER) - 1)};
	struct penstock_part parts[PARTS + 1];
	char path[128];

	parts[PARTS] = (struct penstock_part){.size = sizeof(parts[0]),
					      .name = ".metadata",
					      .bytes = marked.len,
					      .items = &marked,
					      .item_count = 1};
	made_dir(in_root(name));
	for (unsigned p = 0; p < PARTS; p++) {
		unsigned char *bytes = calloc(1, 1 << 20);
		uint64_t off = 0;

		snprintf(part_names[p], sizeof(part_names[p]), "__%u_0.distcp", p);
		for (unsigned i = 0; i < ITEMS; i++) {
			uint64_t len = item_len(p, i);

			snprintf(names[p][i], sizeof(names[p][i]), "item%u.%u", p, i);
			for (uint64_t b = 0; b < len; b++)
				bytes[off + b] = item_byte(p * ITEMS + i, b);
			items[p][i] = (struct penstock_item){
				.size = sizeof(items[p][i]),
				.name = names[p][i],
				.off = off,
				.len = len,
				.flags = i + 1 < ITEMS ? PENSTOCK_ITEM_SUMMED : 0,
				.crc32c = test_crc32c(bytes + off, len)};
			off += len;
		}
		snprintf(path, sizeof(path), "%s/%s", name, part_names[p]);
		make_file(path, bytes, off, time);
		parts[p] = (struct penstock_part){.size = sizeof(parts[p]),
						  .name = part_names[p],
						  .bytes = off,
						  .items = items[p],
						  .item_count = ITEMS};
		free(bytes);
	}
	snprintf(path, sizeof(path), "%s/penstock.manifest", name);
	if (manifest)
		assert_int_equal(penstock_manifest_write(in_root(path), PARTS, parts,
							 PARTS + lists_marker),
				 0);
	snprintf(path, sizeof(path), "%s/.metadata", name);
	if (marker)
		make_file(path, MARKER, sizeof(MARKER) - 1, time);
}

/* ---- list ---- */

struct listed {
	char names[16][64], texts[16][PENSTOCK_TEXT_MAX];
	struct penstock_ckpt ckpts[16];
	unsigned count, end_at;
};

static int note(void *user, const struct penstock_ckpt *ckpt)
{
	struct listed *l = user;

	assert_true(l->count < 16);
	snprintf(l->names[l->count], sizeof(l->names[0]), "%s", strrchr(ckpt->path, '/') + 1);
	snprintf(l->texts[l->count], sizeof(l->texts[0]), "%s", ckpt->text);
	l->ckpts[l->count++] = *ckpt;
	return l->count == l->end_at ? 77 : 0;
}

static struct listed list_root(void)
{
	struct listed l = {.count = 0};

	if (penstock_ckpt_list(root, note, &l))
		fail_msg("%s", penstock_errmsg());
	return l;
}

static void check_one(unsigned i, const struct listed *l, const char *name,
		      enum penstock_ckpt_state state, const char *words)
{
	assert_true(i < l->count);
	if (strcmp(l->names[i], name) != 0 || l->ckpts[i].state != state ||
	    !strstr(l->texts[i], words))
		fail_msg("%u: %s, state %d, '%s'; expected %s, state %d, '%s'", i, l->names[i],
			 l->ckpts[i].state, l->texts[i], name, state, words);
}

static void test_list(void **state)
{
	struct listed l;

	(void)state;
	make_checkpoint("step-1", 10, true, true);
	make_checkpoint("step-2", 40, true, false);
	make_checkpoint("step-3", 20, false, true);
	make_checkpoint("step-4", 30, true, true);
	make_file("step-4/__3_0.distcp", "stray", 5, 5);
	make_file("step-4/.__0_0.distcp.penstock-0123456789abcdef", "temp", 4, 5);
	make_file("step-4/notes.txt", "mine", 4, 5);
	made_dir(in_root("other"));
	make_file("other/readme", "x", 1, 1);
	assert_int_equal(symlink(in_root("step-1"), in_root("latest")), 0);
	l = list_root();
	assert_int_equal(l.count, 4);
	check_one(0, &l, "step-1", PENSTOCK_CKPT_COMPLETE, "all parts");
	check_one(1, &l, "step-4", PENSTOCK_CKPT_COMPLETE, "all parts");
	check_one(2, &l, "step-2", PENSTOCK_CKPT_COMPLETE, "no manifest");
	/* step-3 has no marker, so penstock_ckpt_list takes the time of its newest file. That is
	 * the manifest, which the test has just written, so step-3 is the newest checkpoint. */
	check_one(3, &l, "step-3", PENSTOCK_CKPT_INCOMPLETE, "no marker");
	assert_int_equal(l.ckpts[0].part_count, 3);
	assert_int_equal(l.ckpts[0].ranks, 3);
	assert_int_equal(l.ckpts[0].summed, 1);
	assert_int_equal(l.ckpts[0].stray_count, 0);
	assert_int_equal(l.ckpts[0].saved_ns, (1577836800 + 10) * 1000000000ll);
	assert_int_equal(l.ckpts[1].part_count, 3);
	assert_int_equal(l.ckpts[1].stray_count, 2);
	assert_int_equal(l.ckpts[1].stray_bytes, 9);
	assert_int_equal(l.ckpts[1].bytes, l.ckpts[0].bytes);
	assert_int_equal(l.ckpts[2].summed, 0);
	assert_int_equal(l.ckpts[2].ranks, 0);
	l = (struct listed){.end_at = 2};
	assert_int_equal(penstock_ckpt_list(root, note, &l), 77);
	assert_int_equal(l.count, 2);
	/* If the folder itself is a checkpoint, list reports only this checkpoint. */
	l = (struct listed){.count = 0};
	assert_int_equal(penstock_ckpt_list(in_root("latest"), note, &l), 0);
	assert_int_equal(l.count, 1);
	check_one(0, &l, "latest", PENSTOCK_CKPT_COMPLETE, "all parts");
	assert_int_equal(penstock_ckpt_list(in_root("none"), note, &l), -ENOENT);
	assert_int_equal(penstock_ckpt_list(in_root("other/readme"), note, &l), -ENOTDIR);
}

static void test_damaged(void **state)
{
	struct listed l;

	(void)state;
	make_checkpoint("a", 1, true, true);
	assert_int_equal(unlink(in_root("a/__1_0.distcp")), 0);
	make_checkpoint("b", 2, true, true);
	assert_int_equal(truncate(in_root("b/__0_0.distcp"), 100), 0);
	assert_int_equal(unlink(in_root("b/__2_0.distcp")), 0);
	make_checkpoint("c", 3, true, true);
	make_file("c/.metadata", "", 0, 3);
	make_checkpoint("d", 4, true, true);
	assert_int_equal(truncate(in_root("d/penstock.manifest"), 100), 0);
	make_checkpoint("e", 5, true, true);
	assert_int_equal(unlink(in_root("e/__1_0.distcp")), 0);
	assert_int_equal(symlink("__0_0.distcp", in_root("e/__1_0.distcp")), 0);
	l = list_root();
	assert_int_equal(l.count, 5);
	check_one(0, &l, "a", PENSTOCK_CKPT_DAMAGED, "__1_0.distcp is missing");
	check_one(1, &l, "b", PENSTOCK_CKPT_DAMAGED, "has 100 bytes instead of");
	check_one(1, &l, "b", PENSTOCK_CKPT_DAMAGED, "1 more parts");
	check_one(2, &l, "c", PENSTOCK_CKPT_DAMAGED, ".metadata is empty");
	check_one(3, &l, "d", PENSTOCK_CKPT_DAMAGED, "penstock.manifest");
	check_one(4, &l, "e", PENSTOCK_CKPT_DAMAGED, "__1_0.distcp is missing");
}

static void make_index(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", name);
	make_file(path, text, strlen(text), 3);
}

/* If a checkpoint has no manifest but an index, the files that the index names must exist. */
static void test_index(void **state)
{
	static const struct {
		const char *text, *words;
	} cases[] = {
		{"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}",
		 "2.safetensors of its index is missing"},
		{"{\"weight_map\":{\"a\":\"1.safetensors\"", "malformed"},
		{"{\"weight_map\":{\"a\":1}}", "malformed"},
		{"{\"weight_map\":[]}", "malformed"},
		{"{}", "no weight_map"},
		{"[", "malformed"},
		{"", "is empty"},
		{"{\"weight_map\":{\"a\":\"../other/x\"}}", "is missing"},
	};
	struct listed l;

	(void)state;
	made_dir(in_root("a"));
	make_file("a/1.safetensors", "x", 1, 1);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		make_index("a", cases[i].text);
		l = list_root();
		check_one(0, &l, "a", PENSTOCK_CKPT_DAMAGED, cases[i].words);
	}
	make_index("a", "{\"weight_map\":{\"a\":\"1.safetensors\"},\"x\":[1,NaN]}");
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_COMPLETE, "no manifest");
}

/* Each format of checkpoints has a marker of its own: the file that exists only if the checkpoint
 * is complete. */
static void test_markers(void **state)
{
	struct listed l;

	(void)state;
	made_dir(in_root("a"));
	make_file("a/model.safetensors", "x", 1, 1);
	made_dir(in_root("b"));
	make_file("b/model-00001-of-00002.safetensors", "x", 1, 2);
	made_dir(in_root("c"));
	make_file("c/model-00001-of-00002.safetensors", "x", 1, 3);
	make_index("c", "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":"
			"\"model-00001-of-00002.safetensors\"}}");
	made_dir(in_root("d"));
	make_file("d/__0_0.distcp", "x", 1, 4);
	make_file("d/__1_0.distcp", "x", 1, 4);
	make_file("d/__0.metadata", "x", 1, 4);
	made_dir(in_root("e"));
	make_file("e/__0_0.distcp", "x", 1, 5);
	make_file("e/__10_0.distcp", "x", 1, 5);
	make_file("e/__0.metadata", "x", 1, 5);
	make_file("e/__10.metadata", "x", 1, 5);
	make_checkpoint("f", 6, false, true);
	make_file("f/__0.metadata", "x", 1, 6);
	make_file("f/__1.metadata", "x", 1, 6);
	make_checkpoint("g", 7, false, false);
	make_file("g/.metadata.tmp", "x", 1, 7);
	l = list_root();
	assert_int_equal(l.count, 7);
	check_one(0, &l, "a", PENSTOCK_CKPT_COMPLETE, "no manifest");
	check_one(1, &l, "b", PENSTOCK_CKPT_INCOMPLETE, "no marker");
	check_one(2, &l, "c", PENSTOCK_CKPT_COMPLETE, "no manifest");
	check_one(3, &l, "d", PENSTOCK_CKPT_INCOMPLETE, "__1.metadata");
	check_one(4, &l, "e", PENSTOCK_CKPT_COMPLETE, "no manifest");
	check_one(5, &l, "g", PENSTOCK_CKPT_INCOMPLETE, "no marker");
	assert_int_equal(l.ckpts[5].stray_count, 1);
	check_one(6, &l, "f", PENSTOCK_CKPT_INCOMPLETE, "__2.metadata");
	make_file("f/__2.metadata", "x", 1, 6);
	l = list_root();
	check_one(6, &l, "f", PENSTOCK_CKPT_COMPLETE, "all parts");
}

/* ---- verify ---- */

struct found {
	unsigned count;
	char part[32], item[32], text[PENSTOCK_TEXT_MAX];
	uint64_t off, len;
	int code;
};

/* Counts the faults that verify reports, and keeps the first one. */
static void note_fault(void *user, const struct penstock_ckpt_fault *fault)
{
	struct found *f = user;

	if (f->count++)
		return;
	snprintf(f->part, sizeof(f->part), "%s", fault->part);
	snprintf(f->item, sizeof(f->item), "%s", fault->item);
	snprintf(f->text, sizeof(f->text), "%s", fault->text);
	f->off = fault->off;
	f->len = fault->len;
	f->code = fault->code;
}

static struct found verify(const char *name, int code)
{
	struct found f = {.count = 0};
	struct penstock_verified v = {.size = sizeof(v)};
	int ret = penstock_ckpt_verify(in_root(name), NULL, note_fault, &f, &v);

	if (ret != code)
		fail_msg("%d '%s', expected %d", ret, penstock_errmsg(), code);
	assert_int_equal(v.faults, f.count);
	return f;
}

static void test_verify(void **state)
{
	struct penstock_verified v = {.size = sizeof(v)};
	uint64_t bytes = 0, unsummed = 0;
	struct found f;

	(void)state;
	make_checkpoint("a", 1, true, true);
	for (unsigned p = 0; p < PARTS; p++)
		for (unsigned i = 0; i < ITEMS; i++)
			*(i + 1 < ITEMS ? &bytes : &unsummed) += item_len(p, i);
	if (penstock_ckpt_verify(in_root("a"), NULL, NULL, NULL, &v))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(v.items, PARTS * (ITEMS - 1));
	assert_int_equal(v.bytes, bytes);
	assert_int_equal(v.items_unsummed, PARTS);
	assert_int_equal(v.bytes_unsummed, unsummed);
	assert_int_equal(v.faults, 0);
	assert_int_equal(unlink(in_root("a/.metadata")), 0);
	f = verify("a", -EBADMSG);
	assert_string_equal(f.part, "");
	assert_int_equal(f.code, -ENOENT);
	make_file("a/.metadata", "x", 1, 1);
	assert_int_equal(unlink(in_root("a/__1_0.distcp")), 0);
	f = verify("a", -EBADMSG);
	assert_string_equal(f.part, "__1_0.distcp");
	assert_int_equal(f.code, -ENOENT);
	assert_int_equal(symlink("__0_0.distcp", in_root("a/__1_0.distcp")), 0);
	f = verify("a", -EBADMSG);
	assert_int_equal(f.code, -EBADMSG);
	assert_non_null(strstr(f.text, "symbolic link"));
	assert_int_equal(f.count, 1);
	make_checkpoint("b", 1, true, false);
	verify("b", -ENOENT);
	verify("none", -ENOENT);
}

/* The manifest lists .metadata, the marker file of a complete checkpoint, with its checksum.
 * Another program then saves over the checkpoint and replaces .metadata. penstock_ckpt_verify must
 * not compare the new parts with the old manifest, and penstock_ckpt_list must not count new parts
 * that the old manifest lacks as stray files. */
static void test_other_marker(void **state)
{
	struct listed l;

	(void)state;
	lists_marker = true;
	make_checkpoint("a", 1, true, true);
	lists_marker = false;
	verify("a", 0);
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_COMPLETE, "all parts");
	assert_int_equal(l.ckpts[0].part_count, PARTS);

	make_file("a/__0_0.distcp", "theirs", 6, 2);
	make_file("a/__7_0.distcp", "theirs", 6, 2);
	verify("a", -EBADMSG); /* the other program has not written .metadata yet */
	make_file("a/.metadata", "PICKLE", 6, 2);
	verify("a", -ENOENT);
	assert_non_null(strstr(penstock_errmsg(), "belongs to another marker"));
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_COMPLETE, "its manifest belongs to another one");
	assert_int_equal(l.ckpts[0].summed, 0);
	assert_int_equal(l.ckpts[0].part_count, PARTS + 1);
	assert_int_equal(l.ckpts[0].stray_count, 0);

	assert_int_equal(unlink(in_root("a/.metadata")), 0);
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_INCOMPLETE, "no marker");
}

static int cancel(void *user, uint64_t bytes)
{
	(void)bytes;
	++*(unsigned *)user;
	return 1;
}

static void test_verify_cancelled(void **state)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	unsigned looks = 0;
	struct found f = {.count = 0};

	(void)state;
	make_checkpoint("a", 1, true, true);
	opts.path = "fault:bounce?delay_us=2000000";
	opts.look = cancel;
	opts.user = &looks;
	assert_int_equal(penstock_ckpt_verify(in_root("a"), &opts, note_fault, &f, NULL),
			 -ECANCELED);
	assert_int_equal(looks, 1);
	assert_int_equal(f.count, 0);
	opts.look = NULL;
	opts.path = "fault:bounce?eio=1";
	assert_int_equal(penstock_ckpt_verify(in_root("a"), &opts, note_fault, &f, NULL), -EBADMSG);
	assert_int_equal(f.count, PARTS);
	assert_int_equal(f.code, -EIO);
}

/* Truncates a part at a random place or changes a random bit. Returns what verify must report. */
static struct found damage(unsigned part, unsigned char *bytes, uint64_t len, uint64_t *seed)
{
	struct found want = {.count = 1};
	uint64_t at = test_random(seed) % len, off = 0;
	unsigned item = 0;
	char name[64];

	while (at >= off + item_len(part, item))
		off += item_len(part, item++);
	snprintf(want.part, sizeof(want.part), "__%u_0.distcp", part);
	snprintf(want.item, sizeof(want.item), "item%u.%u", part, item);
	snprintf(name, sizeof(name), "a/%s", want.part);
	if (test_random(seed) % 2 || item + 1 == ITEMS) {
		made_write(in_root(name), bytes, at);
		want.off = at;
		want.len = len - at;
		want.code = -ENODATA;
	} else {
		unsigned char bit = (unsigned char)(1u << test_random(seed) % 8);

		bytes[at] ^= bit;
		made_write(in_root(name), bytes, len);
		bytes[at] ^= bit;
		want.off = off;
		want.len = item_len(part, item);
		want.code = -EBADMSG;
	}
	return want;
}

static void test_damages(void **state)
{
	const char *number = getenv("PENSTOCK_DAMAGES");
	unsigned long count = number ? strtoul(number, NULL, 0) : DAMAGES;
	uint64_t seed = test_seed(99), lens[PARTS];
	unsigned char *bytes[PARTS];
	char name[64];

	(void)state;
	make_checkpoint("a", 1, true, true);
	for (unsigned p = 0; p < PARTS; p++) {
		snprintf(name, sizeof(name), "a/__%u_0.distcp", p);
		bytes[p] = file_bytes(in_root(name), &lens[p]);
	}
	for (unsigned long i = 0; i < count; i++) {
		unsigned p = (unsigned)(test_random(&seed) % PARTS);
		struct found want = damage(p, bytes[p], lens[p], &seed), f;

		f = verify("a", -EBADMSG);
		if (f.count != 1 || strcmp(f.part, want.part) || strcmp(f.item, want.item) ||
		    f.off != want.off || f.len != want.len || f.code != want.code)
			fail_msg("damage %lu: %u faults, %s %s %llu+%llu %d; expected %s %s "
				 "%llu+%llu %d",
				 i, f.count, f.part, f.item, (unsigned long long)f.off,
				 (unsigned long long)f.len, f.code, want.part, want.item,
				 (unsigned long long)want.off, (unsigned long long)want.len,
				 want.code);
		snprintf(name, sizeof(name), "a/%s", want.part);
		made_write(in_root(name), bytes[p], lens[p]);
	}
	verify("a", 0);
	for (unsigned p = 0; p < PARTS; p++)
		free(bytes[p]);
}

/* verify must also check an item that is longer than the buffer into which it reads. */
static void test_long_item(void **state)
{
	const uint64_t len = (300u << 20) + 12345;
	struct penstock_seg seg = {.row_len = len, .off = 777};
	struct penstock_item items[2] = {
		{.size = sizeof(items[0]), .name = "small", .len = 777},
		{.size = sizeof(items[0]), .name = "long", .off = 777, .len = len}};
	struct penstock_seg small = {.row_len = 777};
	struct penstock_part part = {.size = sizeof(part), .name = "__0_0.distcp"};
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	struct found f;
	int fd;

	(void)state;
	seg.buf = small.buf = calloc(1, len);
	memset((char *)seg.buf + len / 2, 7, 1000);
	items[0].segs = &small;
	items[1].segs = &seg;
	items[0].seg_count = items[1].seg_count = 1;
	opts.sum = 1;
	made_dir(in_root("a"));
	assert_int_equal(penstock_part_write(in_root("a/__0_0.distcp"), items, 2, &opts, NULL), 0);
	part.bytes = 777 + len;
	part.items = items;
	part.item_count = 2;
	assert_int_equal(penstock_manifest_write(in_root("a/penstock.manifest"), 1, &part, 1), 0);
	make_file("a/.metadata", "x", 1, 1);
	verify("a", 0);
	fd = open(in_root("a/__0_0.distcp"), O_WRONLY);
	assert_int_equal(pwrite(fd, "x", 1, 200 << 20), 1);
	close(fd);
	f = verify("a", -EBADMSG);
	assert_int_equal(f.count, 1);
	assert_string_equal(f.item, "long");
	assert_int_equal(f.off, 777);
	free(seg.buf);
	unlink(in_root("a/__0_0.distcp"));
}

/* ---- prune ---- */

struct removals {
	char names[32][64];
	unsigned count, end_at;
	uint64_t bytes;
};

static int note_removal(void *user, const char *path, uint64_t bytes)
{
	struct removals *r = user;

	assert_true(r->count < 32);
	snprintf(r->names[r->count++], sizeof(r->names[0]), "%s", path + strlen(root) + 1);
	r->bytes += bytes;
	return r->count == r->end_at ? 55 : 0;
}

static struct removals prune(unsigned keep, unsigned flags)
{
	struct removals r = {.count = 0};

	if (penstock_ckpt_prune(root, keep, flags, note_removal, &r))
		fail_msg("%s", penstock_errmsg());
	return r;
}

static void make_old(const char *name, unsigned time)
{
	const struct timespec times[2] = {{1577836800 + time, 0}, {1577836800 + time, 0}};

	assert_int_equal(utimensat(AT_FDCWD, in_root(name), times, 0), 0);
}

static bool exists(const char *name)
{
	return !access(in_root(name), F_OK);
}

static void make_several(void)
{
	make_checkpoint("s1", 10, true, true);
	make_checkpoint("s2", 20, true, true);
	make_checkpoint("s3", 30, false, false);
	make_checkpoint("s4", 40, true, true);
	assert_int_equal(unlink(in_root("s4/__0_0.distcp")), 0);
	make_checkpoint("s5", 50, true, true);
	make_file("s5/__9_0.distcp", "old", 3, 5);
	make_file("s5/.__0_0.distcp.penstock-0123456789abcdef", "old", 3, 5);
	make_file("s5/.__1_0.distcp.penstock-0123456789abcdef", "new", 3, 60);
	make_checkpoint("s6", 60, false, false);
	make_file("s2/notes.txt", "mine", 4, 1);
}

static void test_prune(void **state)
{
	struct removals r;

	(void)state;
	make_several();
	r = prune(0, PENSTOCK_PRUNE_DRY_RUN);
	assert_int_equal(r.count, 3);
	assert_string_equal(r.names[0], "s3");
	assert_string_equal(r.names[1], "s5/.__0_0.distcp.penstock-0123456789abcdef");
	assert_string_equal(r.names[2], "s5/__9_0.distcp");
	assert_true(exists("s3/__0_0.distcp") && exists("s5/__9_0.distcp"));
	r = prune(0, 0);
	assert_int_equal(r.count, 3);
	assert_false(exists("s3") || exists("s5/__9_0.distcp"));
	assert_true(exists("s5/.__1_0.distcp.penstock-0123456789abcdef") && exists("s6"));
	/* Keeping one complete checkpoint (s5) removes all older ones, also the damaged s4. */
	r = prune(1, 0);
	assert_int_equal(r.count, 3);
	assert_string_equal(r.names[0], "s1");
	assert_string_equal(r.names[1], "s2");
	assert_string_equal(r.names[2], "s4");
	assert_false(exists("s1") || exists("s4") || exists("s2/.metadata") ||
		     exists("s2/penstock.manifest"));
	assert_true(exists("s2/notes.txt") && exists("s5/.metadata") && exists("s6"));
	r = prune(1, PENSTOCK_PRUNE_NEWEST);
	assert_int_equal(r.count, 2);
	assert_false(exists("s6") || exists("s5/.__1_0.distcp.penstock-0123456789abcdef"));
	verify("s5", 0);
	assert_int_equal(prune(1, PENSTOCK_PRUNE_NEWEST).count, 0);
}

/* If no checkpoint is complete, prune removes nothing unless the caller sets
 * PENSTOCK_PRUNE_NEWEST. */
static void test_prune_incomplete(void **state)
{
	struct removals r = {.end_at = 1};

	(void)state;
	make_checkpoint("a", 1, false, false);
	make_checkpoint("b", 2, false, false);
	assert_int_equal(prune(1, 0).count, 0);
	assert_int_equal(penstock_ckpt_prune(root, 1, PENSTOCK_PRUNE_NEWEST, note_removal, &r), 55);
	assert_true(exists("a/__0_0.distcp"));
	assert_int_equal(prune(1, PENSTOCK_PRUNE_NEWEST).count, 2);
	assert_false(exists("a") || exists("b"));
	assert_int_equal(penstock_ckpt_prune(root, 1, 8, NULL, NULL), -EINVAL);
	assert_int_equal(penstock_ckpt_prune(in_root("none"), 1, 0, NULL, NULL), -ENOENT);
}

/* The folder itself is a checkpoint. prune must neither follow nor remove files that are links. */
static void test_prune_self(void **state)
{
	char whole[PATH_MAX];

	(void)state;
	make_checkpoint("a", 10, true, true);
	make_file("target", "mine", 4, 1);
	assert_int_equal(symlink("../target", in_root("a/__7_0.distcp")), 0);
	make_file("a/__8_0.distcp", "old", 3, 5);
	make_old("a/__8_0.distcp", 5);
	snprintf(whole, sizeof(whole), "%s", in_root("a"));
	assert_int_equal(penstock_ckpt_prune(whole, 1, 0, NULL, NULL), 0);
	assert_false(exists("a/__8_0.distcp"));
	assert_true(exists("a/__7_0.distcp") && exists("target"));
	assert_int_equal(unlink(in_root("a/.metadata")), 0);
	assert_int_equal(penstock_ckpt_prune(whole, 1, 0, NULL, NULL), 0);
	assert_true(exists("a/__0_0.distcp"));
	assert_int_equal(penstock_ckpt_prune(whole, 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL), 0);
	assert_false(exists("a/__0_0.distcp"));
	assert_true(exists("a/__7_0.distcp") && exists("target"));
}

/* Moves a part of a checkpoint to another drive and links it, as a save with option `stripe`
 * does. */
static void move_part(const char *name, const char *to, const char *part)
{
	char target[PATH_MAX + 64], from[128], path[128];

	made_dir(in_root(to));
	snprintf(path, sizeof(path), "%s/%s", to, name);
	made_dir(in_root(path));
	snprintf(path, sizeof(path), "%s/%s/%s", to, name, part);
	snprintf(from, sizeof(from), "%s/%s", name, part);
	snprintf(target, sizeof(target), "%s", in_root(path));
	assert_int_equal(rename(in_root(from), target), 0);
	assert_int_equal(symlink(target, in_root(from)), 0);
}

/* A part may be on another drive, if the checkpoint has a symbolic link of the part's name. */
static void test_linked_part(void **state)
{
	struct listed l;

	(void)state;
	make_checkpoint("a", 10, true, true);
	make_checkpoint("b", 20, true, true);
	move_part("a", "drive", "__1_0.distcp");
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_COMPLETE, "");
	assert_int_equal(verify("a", 0).count, 0);
	assert_int_equal(truncate(in_root("drive/a/__1_0.distcp"), 5), 0);
	assert_int_equal(verify("a", -EBADMSG).code, -ENODATA);
	assert_int_equal(penstock_ckpt_prune(root, 1, 0, NULL, NULL), 0);
	assert_false(exists("a") || exists("drive/a"));
	assert_true(exists("b/.metadata") && exists("drive"));
}

/* A checkpoint has a link to a part that does not exist, because the drive is not mounted or
 * because a removal was interrupted. */
static void test_dangling_link(void **state)
{
	struct listed l;

	(void)state;
	make_checkpoint("a", 10, true, false);
	make_checkpoint("b", 20, true, true);
	make_checkpoint("c", 30, true, true);
	move_part("a", "drive", "__1_0.distcp");
	move_part("b", "drive", "__1_0.distcp");
	assert_int_equal(unlink(in_root("drive/a/__1_0.distcp")), 0);
	assert_int_equal(unlink(in_root("drive/b/__1_0.distcp")), 0);
	l = list_root();
	check_one(0, &l, "a", PENSTOCK_CKPT_DAMAGED, "__1_0.distcp is a link");
	check_one(1, &l, "b", PENSTOCK_CKPT_DAMAGED, "__1_0.distcp is missing");
	assert_int_equal(penstock_ckpt_prune(root, 1, 0, NULL, NULL), 0);
	assert_false(exists("a") || exists("b"));
	assert_true(exists("c/.metadata"));
}

/* A folder that has only links to the parts of another checkpoint does not count as a checkpoint.
 * Otherwise prune could remove it together with the targets of its links, and the other checkpoint
 * would lose its parts. */
static void test_links_to_another_checkpoint(void **state)
{
	char target[PATH_MAX + 64];
	const char *const names[] = {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp"};

	(void)state;
	make_checkpoint("new", 20, true, true);
	made_dir(in_root("best"));
	made_dir(in_root("other"));
	made_dir(in_root("other/new"));
	for (unsigned i = 0; i < COUNT(names); i++) {
		char from[64];

		snprintf(from, sizeof(from), "new/%s", names[i]);
		snprintf(target, sizeof(target), "%s", in_root(from));
		snprintf(from, sizeof(from), "best/%s", names[i]);
		assert_int_equal(symlink(target, in_root(from)), 0);
		/* The folder other/new has the same name as the checkpoint `new`, so its links look
		 * like those of a save with option `stripe`. */
		snprintf(from, sizeof(from), "other/new/%s", names[i]);
		assert_int_equal(symlink(target, in_root(from)), 0);
	}
	assert_int_equal(list_root().count, 1);
	assert_int_equal(penstock_ckpt_prune(root, 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL), 0);
	assert_int_equal(
		penstock_ckpt_prune(in_root("other"), 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL), 0);
	for (unsigned i = 0; i < COUNT(names); i++) {
		snprintf(target, sizeof(target), "new/%s", names[i]);
		assert_true(exists(target));
	}
	assert_int_equal(verify("new", 0).count, 0);
}

/* Prunes while the process can open only `left` more descriptors. */
static int prune_with_descriptors(unsigned left)
{
	struct rlimit old, limit;
	int next = open("/dev/null", O_RDONLY), ret;

	assert_true(next >= 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	limit = (struct rlimit){.rlim_cur = (rlim_t)next + left, .rlim_max = old.rlim_max};
	close(next);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ret = penstock_ckpt_prune(root, 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	return ret;
}

/* While a save replaces a checkpoint, prune removes neither this checkpoint nor the files of the
 * save. */
static void test_save_runs(void **state)
{
	unsigned left = 0;
	int fd, ret;

	(void)state;
	make_checkpoint("a", 10, true, true);
	make_checkpoint("b", 20, true, true);
	make_file("a/__0_1.distcp", "new", 3, 30);
	assert_int_equal(penstock_ckpt_prune(root, 1, 0, NULL, NULL), 0);
	assert_true(exists("a/__0_1.distcp") && exists("a/.metadata"));
	make_file("a/.penstock-saving", "", 0, 5);
	fd = open(in_root("a/.penstock-saving"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(penstock_ckpt_prune(root, 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL), 0);
	assert_true(exists("a/__0_1.distcp") && exists("a/.metadata"));
	/* prune must keep the part and .metadata even if the process has no descriptor left to open
	 * the lock file of the save. */
	do {
		ret = prune_with_descriptors(left++);
		assert_true(!ret || ret == -EMFILE);
		assert_true(exists("a/__0_1.distcp") && exists("a/.metadata"));
	} while (ret);
	assert_in_range(left, 4, 100);
	close(fd);
	assert_int_equal(penstock_ckpt_prune(root, 1, PENSTOCK_PRUNE_NEWEST, NULL, NULL), 0);
	/* The lock file that the save left behind must not stop prune from removing the folder. */
	assert_false(exists("a/.penstock-saving") || exists("a"));
}

#define CASE(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_list),	  CASE(test_damaged),
		CASE(test_markers),	  CASE(test_index),
		CASE(test_verify),	  CASE(test_verify_cancelled),
		CASE(test_damages),	  CASE(test_long_item),
		CASE(test_prune),	  CASE(test_prune_incomplete),
		CASE(test_prune_self),	  CASE(test_linked_part),
		CASE(test_dangling_link), CASE(test_links_to_another_checkpoint),
		CASE(test_save_runs),	  CASE(test_other_marker),
	};

	return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
