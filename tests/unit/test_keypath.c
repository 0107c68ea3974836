/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how the gateway maps keys of objects to paths of files: random keys become paths and keys
 * again, no path leads out of its bucket, and a walk through a folder finds all keys in byte order.
 * Also tests the parsers of ranges and of lists of parts.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "gateway/partlist.h"
#include "gateway/range.h"
#include "gateway/walk.h"
#include "gateway_key.h"

#define KEYS 400

/* Pieces from which the random keys are made. Many of them are names with a special meaning in the
 * mapping. */
static const char *const pieces[] = {
	"a",	    "b",	"/",	 "/",	    "/",  ".",	"..", "%", "%e",
	"%.",	    "%25",	"%self", "%moving", "%+", "%-", " ",  "-", "\x01",
	"\xff\xfe", "\xc3\xbc", "0",	 "~",	    "\\", "\n", "*",
};

/* Writes a random key. Returns its length, at least 1. */
static size_t key_make(uint64_t *seed, char key[GW_KEY_MAX])
{
	size_t len = 0, want = 1 + test_random(seed) % 6;

	if (test_random(seed) % 4 == 0) {
		size_t run = 240 + test_random(seed) % 40 + 253 * (test_random(seed) % 3);

		if (test_random(seed) % 2)
			key[len++] = '%';
		memset(key + len, test_random(seed) % 2 ? 'a' : 'L', run);
		len += run;
	}
	while (want--) {
		const char *piece = pieces[test_random(seed) % (sizeof(pieces) / sizeof(*pieces))];

		if (len + strlen(piece) > GW_KEY_MAX)
			break;
		memcpy(key + len, piece, strlen(piece));
		len += strlen(piece);
	}
	return len;
}

static void keys_come_back(void **state)
{
	uint64_t seed = test_seed(1);
	char key[GW_KEY_MAX], path[GW_PATH_MAX], back[GW_PATH_MAX];

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		size_t len = key_make(&seed, key);
		long got;

		assert_true(gw_keypath(key, len, path) > 0);
		got = gateway_key(path, back);
		if (got != (long)len || memcmp(back, key, len) != 0)
			fail_msg("key '%.*s' has path '%s', which is key '%.*s' (%ld)", (int)len,
				 key, path, got < 0 ? 0 : (int)got, back, got);
	}
}

static void keys_refused(void **state)
{
	char path[GW_PATH_MAX], key[GW_KEY_MAX + 1];

	(void)state;
	memset(key, 'k', sizeof(key));
	assert_int_equal(gw_keypath(key, 0, path), -EINVAL);
	assert_int_equal(gw_keypath("a\0b", 3, path), -EINVAL);
	assert_int_equal(gw_keypath(key, GW_KEY_MAX + 1, path), -ENAMETOOLONG);
	assert_true(gw_keypath(key, GW_KEY_MAX, path) > 0);
	memset(key, '/', sizeof(key));
	assert_true(gw_keypath(key, GW_KEY_MAX, path) > 0);
}

/* A plain key is also the path of its file, so that POSIX users find the file by its key. */
static void plain_keys_stay(void **state)
{
	static const char *const plain[] = {"a", "a/b.txt", "x y/\xc3\xbc", ".hidden", "a%25/b%"};
	char path[GW_PATH_MAX];

	(void)state;
	for (unsigned i = 0; i < sizeof(plain) / sizeof(*plain); i++) {
		gw_keypath(plain[i], strlen(plain[i]), path);
		assert_string_equal(path, plain[i]);
	}
}

/* The gateway ignores file names that its mapping of keys never produces. So two files never have
 * the same key. */
static void other_names(void **state)
{
	static const char *const names[] = {"%", "%x", "%2",   "%-a", "%+a",
					    ".", "..", "%...", "%ee"};
	char part[256];
	size_t len;

	(void)state;
	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (gw_name_parse(names[i], "", 0, part, &len) != GW_NAME_NONE)
			fail_msg("the name '%s' is a part of a key", names[i]);
	/* "ab" is short enough for one name, so a name that splits it into "a" and "b" is
	 * refused. */
	assert_int_equal(gw_name_parse("%-b", "a", 1, part, &len), GW_NAME_NONE);
}

/* ---- the walk ---- */

struct key {
	char bytes[GW_KEY_MAX];
	size_t len;
};

static struct key keys[KEYS];
static unsigned key_count, found_count;

static int key_compare(const void *a, const void *b)
{
	const struct key *x = a, *y = b;
	int ret = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

	return ret ? ret : (x->len > y->len) - (x->len < y->len);
}

static int key_found(void *user, const char *bytes, size_t len, int dir, const char *path)
{
	const struct key *want = &keys[found_count++];
	struct stat st;

	(void)user;
	assert_true(found_count <= key_count);
	if (len != want->len || memcmp(bytes, want->bytes, len) != 0)
		fail_msg("key %u is '%.*s', wanted '%.*s'", found_count, (int)len, bytes,
			 (int)want->len, want->bytes);
	assert_int_equal(fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW), 0);
	return 0;
}

static void key_store(const struct gw_store *store, int bucket, const struct key *key)
{
	struct gw_draft draft = {.fd = -1};
	struct gw_meta meta = {0};

	gw_meta_add(&meta, "etag", "x");
	assert_int_equal(gw_draft_open(store, &draft), 0);
	assert_int_equal(gw_draft_finish(store, &draft, &meta), 0);
	assert_int_equal(gw_draft_publish(store, &draft, bucket, key->bytes, key->len, false), 0);
	gw_meta_close(&meta);
}

/* Stores random keys. Then walks through the bucket several times, each time from another key on,
 * and removes all keys. `unnamed` tells whether drafts (objects that are still being written) are
 * files without a name (O_TMPFILE). */
static void walk_in_order(bool unnamed)
{
	char place[512], why[256], command[600];
	const char *temp = getenv("TMPDIR");
	uint64_t seed = test_seed(2);
	struct gw_store store;
	int bucket;

	snprintf(place, sizeof(place), "%s/penstock-walk.XXXXXX", temp ? temp : "/tmp");
	assert_non_null(mkdtemp(place));
	assert_int_equal(gw_store_open(&store, place, why, sizeof(why)), 0);
	store.sync = false;
	if (unnamed && !store.unnamed)
		test_skip("the file system has no O_TMPFILE");
	store.unnamed = unnamed;
	assert_int_equal(gw_bucket_make(&store, "bucket"), 0);
	bucket = gw_bucket_open(&store, "bucket");
	for (key_count = 0; key_count < KEYS;) {
		struct key *key = &keys[key_count];

		key->len = key_make(&seed, key->bytes);
		key_store(&store, bucket, key);
		for (unsigned i = 0; key && i < key_count; i++)
			key = key_compare(&keys[i], key) ? key : NULL;
		key_count += key != NULL;
	}
	qsort(keys, key_count, sizeof(*keys), key_compare);
	for (unsigned from = 0; from < key_count; from += 37) {
		struct gw_walk walk = {.store = &store,
				       .prefix = "",
				       .object = key_found,
				       .after = from ? keys[from - 1].bytes : NULL,
				       .after_len = from ? keys[from - 1].len : 0};

		found_count = from;
		assert_int_equal(gw_walk(&walk, bucket), 0);
		assert_int_equal(found_count, key_count);
	}
	for (unsigned i = 0; i < key_count; i++)
		assert_int_equal(gw_object_remove(&store, bucket, keys[i].bytes, keys[i].len), 0);
	close(bucket);
	assert_int_equal(gw_bucket_remove(&store, "bucket"), 0);
	gw_store_close(&store);
	snprintf(command, sizeof(command), "rm -r '%s'", place);
	assert_int_equal(system(command), 0);
}

static void walk_unnamed(void **state)
{
	(void)state;
	walk_in_order(true);
}

/* Runs the same case with drafts that have names, as on a file system without O_TMPFILE. */
static void walk_named(void **state)
{
	(void)state;
	walk_in_order(false);
}

/* ---- ranges and parts ---- */

static void ranges(void **state)
{
	static const struct {
		const char *text;
		enum gw_range want;
		uint64_t at, len;
	} rows[] = {
		{"bytes=0-0", GW_RANGE_OK, 0, 1},
		{"bytes=0-", GW_RANGE_OK, 0, 100},
		{"bytes=99-", GW_RANGE_OK, 99, 1},
		{"bytes=-1", GW_RANGE_OK, 99, 1},
		{"bytes=-1000", GW_RANGE_OK, 0, 100},
		{"bytes=10-99999999999999999999999", GW_RANGE_OK, 10, 90},
		{"bytes=100-", GW_RANGE_BEYOND, 0, 0},
		{"bytes=99999999999999999999999-", GW_RANGE_BEYOND, 0, 0},
		{"bytes=-0", GW_RANGE_BEYOND, 0, 0},
		{"bytes=2-1", GW_RANGE_NONE, 0, 0},
		{"bytes=0-1,3-4", GW_RANGE_NONE, 0, 0},
		{"bytes=", GW_RANGE_NONE, 0, 0},
		{"bytes=-", GW_RANGE_NONE, 0, 0},
		{"bytes=a-b", GW_RANGE_NONE, 0, 0},
		{"items=0-1", GW_RANGE_NONE, 0, 0},
		{NULL, GW_RANGE_NONE, 0, 0},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		uint64_t at = 0, len = 0;
		enum gw_range got = gw_range_parse(rows[i].text, 100, &at, &len);

		if (got != rows[i].want ||
		    (got == GW_RANGE_OK && (at != rows[i].at || len != rows[i].len)))
			fail_msg("range '%s': got %d %llu+%llu", rows[i].text, got,
				 (unsigned long long)at, (unsigned long long)len);
	}
}

static void part_lists(void **state)
{
	static const uint64_t lens[] = {5, 5, 5, 7, 5, 0, 0};
	struct gw_partlist_writer writer = {0};
	struct gw_partlist list = {0};
	uint64_t len;

	(void)state;
	for (unsigned i = 0; i < 7; i++)
		gw_partlist_add(&writer, lens[i]);
	gw_partlist_end(&writer);
	assert_string_equal(writer.text.at, "5x3,7,5,0x2");
	list.at = writer.text.at;
	for (unsigned i = 0; i < 7; i++) {
		assert_true(gw_partlist_next(&list, &len));
		assert_int_equal(len, lens[i]);
	}
	assert_false(gw_partlist_next(&list, &len));
	list = (struct gw_partlist){.at = "5x0,1"};
	assert_false(gw_partlist_next(&list, &len));
	list = (struct gw_partlist){.at = "x"};
	assert_false(gw_partlist_next(&list, &len));
	free(writer.text.at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_come_back),  cmocka_unit_test(keys_refused),
		cmocka_unit_test(plain_keys_stay), cmocka_unit_test(other_names),
		cmocka_unit_test(walk_unnamed),	   cmocka_unit_test(walk_named),
		cmocka_unit_test(ranges),	   cmocka_unit_test(part_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
