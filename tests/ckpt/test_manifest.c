/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests manifests, the files that list the parts and items of a checkpoint. A manifest that was
 * written must be read with the same content. The reader must refuse every truncation, changed bit
 * and exchanged line. It must also refuse malformed text whose checksum is right.
 */
#include "ckpt.h"

#include <limits.h>

#define ITEMS 10000u
#define FLIPS 500u

static char folder[PATH_MAX], path[PATH_MAX + 64];
static struct penstock_manifest *manifest;

static int setup(void **state)
{
	static unsigned number;
	char name[32];

	(void)state;
	snprintf(name, sizeof(name), "m%u", number++);
	snprintf(folder, sizeof(folder), "%s", made_path(name));
	snprintf(path, sizeof(path), "%s/a.penstock.manifest", folder);
	made_dir(folder);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_manifest_close(manifest);
	manifest = NULL;
	return 0;
}

static void open_folder(void)
{
	penstock_manifest_close(manifest);
	manifest = NULL;
	if (penstock_manifest_open(folder, &manifest))
		fail_msg("%s", penstock_errmsg());
}

static void check_open(int code, const char *words)
{
	int ret = penstock_manifest_open(folder, &manifest);

	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected %d '%s'", ret, ret ? penstock_errmsg() : "", -code,
			 words);
	assert_null(manifest);
}

static struct penstock_part make_part(const char *name, uint64_t bytes,
				      const struct penstock_item *items, uint64_t count)
{
	return (struct penstock_part){.size = sizeof(struct penstock_part),
				      .name = name,
				      .bytes = bytes,
				      .items = items,
				      .item_count = count};
}

static struct penstock_item make_item(const char *name, uint64_t off, uint64_t len, int64_t crc)
{
	return (struct penstock_item){.size = sizeof(struct penstock_item),
				      .name = name,
				      .off = off,
				      .len = len,
				      .flags = crc < 0 ? 0 : PENSTOCK_ITEM_SUMMED,
				      .crc32c = crc < 0 ? 0 : (uint32_t)crc};
}

static void check_item(const struct penstock_item *got, const struct penstock_item *want)
{
	assert_int_equal(!got->name, !want->name);
	if (want->name)
		assert_string_equal(got->name, want->name);
	assert_int_equal(got->off, want->off);
	assert_int_equal(got->len, want->len);
	assert_int_equal(got->flags, want->flags);
	assert_int_equal(got->crc32c, want->crc32c);
	assert_null(got->segs);
}

static void test_round_trip(void **state)
{
	/* The order of the items in the list is not the order of their offsets. */
	const struct penstock_item items[] = {
		make_item("w\"\\\n\x01\xc3\xa4", 4096, 100, 0xffffffffu),
		make_item("empty", 4096, 0, 0),
		make_item(NULL, 0, 4096, 0),
		make_item("unsummed", 5000, 3000, -1),
	};
	const struct penstock_part parts[] = {
		make_part("b.distcp", 8000, items, 4),
		make_part("a.distcp", INT64_MAX, NULL, 0),
		make_part(".metadata", 77, &items[2], 0),
	};
	struct penstock_part part = {.size = sizeof(part)};
	struct penstock_item item = {.size = sizeof(item)};

	(void)state;
	assert_int_equal(penstock_manifest_write(path, 16, parts, 3), 0);
	open_folder();
	assert_int_equal(penstock_manifest_parts(manifest), 3);
	assert_int_equal(penstock_manifest_get(manifest, 1, &part), 0);
	assert_string_equal(part.name, "a.distcp");
	assert_int_equal(part.bytes, INT64_MAX);
	assert_int_equal(part.item_count, 0);
	assert_int_equal(penstock_manifest_get(manifest, 2, &part), 0);
	assert_string_equal(part.name, "b.distcp");
	assert_int_equal(part.item_count, 4);
	check_item(&part.items[0], &items[2]);
	check_item(&part.items[1], &items[1]);
	check_item(&part.items[2], &items[0]);
	check_item(&part.items[3], &items[3]);
	assert_int_equal(penstock_manifest_get(manifest, 3, &part), -ENOENT);
	assert_int_equal(penstock_manifest_find(manifest, "b.distcp", 4096, &item), 0);
	check_item(&item, &items[0]);
	assert_int_equal(penstock_manifest_find(manifest, "b.distcp", 0, &item), 0);
	check_item(&item, &items[2]);
	assert_int_equal(penstock_manifest_find(manifest, "b.distcp", 1, &item), -ENOENT);
	assert_int_equal(penstock_manifest_find(manifest, "a.distcp", 0, &item), -ENOENT);
	assert_int_equal(penstock_manifest_find(manifest, "c.distcp", 0, &item), -ENOENT);
}

/* If a folder has several manifests, they are read as one. */
static void test_several(void **state)
{
	const struct penstock_item item = make_item("x", 0, 8, 5);
	const struct penstock_part first = make_part("0", 8, &item, 1);
	const struct penstock_part second = make_part("1", 9, &item, 1);
	struct penstock_item found = {.size = sizeof(found)};
	char other[PATH_MAX + 64];

	(void)state;
	snprintf(other, sizeof(other), "%s/penstock.manifest", folder);
	check_open(ENOENT, "no manifest");
	assert_int_equal(penstock_manifest_write(path, 2, &first, 1), 0);
	assert_int_equal(penstock_manifest_write(other, 2, &second, 1), 0);
	open_folder();
	assert_int_equal(penstock_manifest_parts(manifest), 2);
	assert_int_equal(penstock_manifest_find(manifest, "1", 0, &found), 0);
	penstock_manifest_close(manifest);
	manifest = NULL;
	assert_int_equal(penstock_manifest_write(other, 3, &second, 1), 0);
	/* One manifest says that 2 processes (ranks) save the checkpoint, the other says 3. This
	 * happens while a save of 3 ranks replaces a checkpoint of 2 ranks. The reader accepts
	 * it. */
	open_folder();
	assert_int_equal(penstock_manifest_parts(manifest), 2);
	penstock_manifest_close(manifest);
	manifest = NULL;
	assert_int_equal(penstock_manifest_write(other, 2, &first, 1), 0);
	check_open(EBADMSG, "lists this part twice");
	assert_int_equal(unlink(other), 0);
	assert_int_equal(symlink(path, other), 0);
	check_open(EBADMSG, "symbolic link");
	assert_int_equal(unlink(other), 0);
	assert_int_equal(mkfifo(other, 0600), 0);
	check_open(EBADMSG, "no regular file");
}

static void test_many_items(void **state)
{
	static struct penstock_item items[ITEMS];
	static char names[ITEMS][16];
	struct penstock_part part = make_part("many", 100 * ITEMS, items, ITEMS);
	struct penstock_item found = {.size = sizeof(found)};

	(void)state;
	for (unsigned i = 0; i < ITEMS; i++) {
		snprintf(names[i], sizeof(names[i]), "item%u", i);
		items[i] = make_item(names[i], 100ull * i, 1 + i % 100, i % 7 ? (int64_t)i : -1);
	}
	assert_int_equal(penstock_manifest_write(path, 1, &part, 1), 0);
	open_folder();
	for (unsigned i = 0; i < ITEMS; i++) {
		assert_int_equal(penstock_manifest_find(manifest, "many", 100ull * i, &found), 0);
		check_item(&found, &items[i]);
	}
}

static void check_write(const char *name, const struct penstock_part *parts, uint64_t count,
			const char *words)
{
	int ret = penstock_manifest_write(name, 1, parts, count);

	if (ret != -EINVAL || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected EINVAL '%s'", ret, ret ? penstock_errmsg() : "", words);
	assert_int_equal(access(name, F_OK), -1);
}

static void test_refused_writes(void **state)
{
	static const char *const names[] = {"", ".", "..", "a/b", "/a", "../a", "\xff", NULL};
	struct penstock_item items[2] = {make_item("x", 0, 10, 1), make_item("y", 9, 10, 1)};
	struct penstock_part part = make_part("p", 100, items, 2), twice[2];
	char wrong[PATH_MAX + 64];

	(void)state;
	check_write(path, &part, 1, "overlaps");
	items[1] = make_item("y", 95, 10, 1);
	check_write(path, &part, 1, "ends beyond");
	items[1] = make_item("y", UINT64_MAX, 10, 1);
	check_write(path, &part, 1, "ends beyond");
	items[1] = make_item("\xc0\xaf", 20, 10, 1);
	check_write(path, &part, 1, "not UTF-8");
	items[1] = make_item("y", 20, 10, 1);
	items[1].flags |= PENSTOCK_ITEM_CHECKED << 1;
	check_write(path, &part, 1, "a flag of the item is unknown");
	items[1] = make_item("y", 20, 10, 1);
	part.items = NULL;
	check_write(path, &part, 1, "no items");
	part.items = items;
	part.bytes = UINT64_MAX;
	check_write(path, &part, 1, "too long");
	part.bytes = 100;
	for (unsigned i = 0; i < COUNT(names); i++) {
		part.name = names[i];
		check_write(path, &part, 1, "part's name");
	}
	part.name = "p";
	twice[0] = twice[1] = part;
	check_write(path, twice, 2, "twice");
	snprintf(wrong, sizeof(wrong), "%s/manifest", folder);
	check_write(wrong, &part, 1, "ends with penstock.manifest");
	snprintf(wrong, sizeof(wrong), "%s/none/penstock.manifest", folder);
	assert_int_equal(penstock_manifest_write(wrong, 1, &part, 1), -ENOENT);
}

/* ---- damage ---- */

#define HEAD "{\"penstock_manifest\":1,\"ranks\":2}\n"

/* Writes a manifest with the given lines, and a last line with the right checksum. */
static void write_text(const char *lines, size_t len, unsigned parts)
{
	char *text = malloc(len + 100);

	memcpy(text, lines, len);
	len += (size_t)snprintf(text + len, 100, "{\"parts\":%u,\"crc32c\":%u}\n", parts,
				test_crc32c(lines, len));
	made_write(path, text, len);
	free(text);
}

static void test_malformed(void **state)
{
	static const struct {
		const char *line, *words;
	} bad[] = {
		{"{\"part\":\"..\",\"bytes\":1,\"items\":[]}", "part's name"},
		{"{\"part\":\"../a\",\"bytes\":1,\"items\":[]}", "part's name"},
		{"{\"part\":\"/a\",\"bytes\":1,\"items\":[]}", "part's name"},
		{"{\"part\":\"\",\"bytes\":1,\"items\":[]}", "part's name"},
		{"{\"part\":\"a\\u0000b\",\"bytes\":1,\"items\":[]}", "NUL"},
		{"{\"part\":\"\xff\",\"bytes\":1,\"items\":[]}", "UTF-8"},
		{"{\"part\":\"a\",\"bytes\":9223372036854775808,\"items\":[]}", "too long"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[],\"x\":1}", "more members"},
		{"{\"part\":\"a\",\"items\":[],\"bytes\":1}", "describe a part"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[]} x", "behind the end"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[[\"x\",0,1]]}", "item is malformed"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[[\"x\",0,1,4294967296]]}",
		 "item is malformed"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[[\"x\",0,1,1,1]]}", "item is malformed"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[[\"x\",0,2,1]]}", "ends beyond"},
		{"{\"part\":\"a\",\"bytes\":9,\"items\":[[\"x\",0,2,1],[\"y\",1,2,1]]}",
		 "overlaps"},
		{"{\"part\":\"a\",\"bytes\":1,\"items\":[", ""},
		{"{\"part\":\"a\",\"bytes\":1}", "describe a part"},
		{"", "is missing"},
		{"nonsense", "is missing"},
	};
	static const char *const heads[][2] = {
		{"{\"penstock_manifest\":2,\"ranks\":2}\n", "later version"},
		{"{\"penstock_manifest\":1,\"ranks\":4294967296}\n", "first line"},
		{"{\"penstock_manifest\":1}\n", "first line"},
		{"{\"ranks\":1}\n", "no manifest"},
	};
	char text[300];

	(void)state;
	for (unsigned i = 0; i < COUNT(bad); i++) {
		int n = snprintf(text, sizeof(text), HEAD "%s\n", bad[i].line);

		write_text(text, (size_t)n, 1);
		check_open(EBADMSG, bad[i].words);
	}
	for (unsigned i = 0; i < COUNT(heads); i++) {
		write_text(heads[i][0], strlen(heads[i][0]), 0);
		check_open(EBADMSG, heads[i][1]);
	}
	write_text(HEAD, strlen(HEAD), 1);
	check_open(EBADMSG, "number of parts");
	write_text("", 0, 0);
	check_open(EBADMSG, "first line");
	made_write(path, "", 0);
	check_open(EBADMSG, "middle of a line");
	made_write(path, "\n", 1);
	check_open(EBADMSG, "");
	write_text(HEAD, strlen(HEAD), 0);
	open_folder();
	assert_int_equal(penstock_manifest_parts(manifest), 0);
}

/* Every truncation, every changed bit and every exchange of lines must be reported. */
static void test_damaged(void **state)
{
	uint64_t seed = test_seed(15), len;
	struct penstock_item items[20];
	struct penstock_part parts[20];
	char names[20][8], *second, *third, *swapped;
	unsigned char *bytes;

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		snprintf(names[i], sizeof(names[i]), "p%u", i);
		items[i] = make_item(names[i], 100, 50 + i, (int64_t)i * 12345);
		parts[i] = make_part(names[i], 1000, &items[i], 1);
	}
	assert_int_equal(penstock_manifest_write(path, 4, parts, 20), 0);
	bytes = file_bytes(path, &len);
	bytes[len] = '\0';
	for (uint64_t cut = 0; cut < len; cut++) {
		made_write(path, bytes, cut);
		check_open(EBADMSG, "penstock.manifest");
	}
	for (unsigned i = 0; i < FLIPS; i++) {
		uint64_t at = test_random(&seed) % len;
		unsigned char bit = (unsigned char)(1u << test_random(&seed) % 8);

		bytes[at] ^= bit;
		made_write(path, bytes, len);
		check_open(EBADMSG, "penstock.manifest");
		bytes[at] ^= bit;
	}
	second = strchr((char *)bytes, '\n') + 1;
	third = strchr(second, '\n') + 1;
	swapped = malloc(len);
	memcpy(swapped, bytes, len);
	len = (uint64_t)(third - second);
	memcpy(swapped + (second - (char *)bytes), third, len);
	memcpy(swapped + (third - (char *)bytes), second, len);
	made_write(path, swapped, strlen((char *)bytes));
	check_open(EBADMSG, "changed or damaged");
	free(swapped);
	made_write(path, bytes, strlen((char *)bytes));
	open_folder();
	free(bytes);
}

/* All manifests of a folder together may have at most 1 GiB. A file that exceeds this limit is
 * refused before it is read. The test uses a sparse file. */
static void test_too_large(void **state)
{
	static const uint64_t most = 1ull << 30;
	struct penstock_item item = make_item("a", 0, 10, 1);
	struct penstock_part part = make_part("p", 10, &item, 1);
	char other[PATH_MAX + 64];
	uint64_t len;

	(void)state;
	assert_int_equal(penstock_manifest_write(path, 1, &part, 1), 0);
	free(file_bytes(path, &len));
	snprintf(other, sizeof(other), "%s/b.penstock.manifest", folder);
	made_write(other, "", 0);
	assert_int_equal(truncate(other, (off_t)most + 1), 0);
	check_open(EFBIG, "the file has 1073741825 bytes");
	assert_int_equal(unlink(path), 0);
	check_open(EFBIG, "load without comparing checksums");
	assert_int_equal(truncate(other, 0), 0);
	check_open(EBADMSG, "the manifest ends in the middle of a line");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_round_trip),	   CASE(test_several),	 CASE(test_many_items),
		CASE(test_refused_writes), CASE(test_malformed), CASE(test_damaged),
		CASE(test_too_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
