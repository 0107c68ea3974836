/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which files a model consists of, and the messages if a file is missing or wrong. A model
 * can be one file, an index, a list of files, a directory or a Hugging Face cache.
 */
#include "make.h"

#include <errno.h>
#include <time.h>

#include "penstock_weights.h"

static const struct made a = {"a", "F32", 32, 2, {3, 5}};
static const struct made b = {"b", "BF16", 16, 1, {7}};
static const struct made c = {"layers.0.c", "U8", 8, 0, {0}};

static struct penstock_weights_opts opts;
static struct penstock_weights *w;

static int setup(void **state)
{
	(void)state;
	opts = (struct penstock_weights_opts)PENSTOCK_WEIGHTS_OPTS_INIT;
	w = NULL;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_weights_close(w);
	return 0;
}

/* Opens a model and compares the names of its tensors, in the order in which the model lists
 * them. Each letter of `names` is the last letter of one tensor's name. */
static void check_opens(const char *path, const char *names)
{
	penstock_weights_close(w);
	w = NULL;
	if (penstock_weights_open(path, &opts, &w))
		fail_msg("%s: %s", path, penstock_errmsg());
	if (penstock_weights_count(w) != strlen(names))
		fail_msg("%s: %llu tensors, expected %s", path,
			 (unsigned long long)penstock_weights_count(w), names);
	for (uint64_t i = 0; names[i]; i++) {
		struct penstock_tensor t = {.size = sizeof(t)};

		assert_int_equal(penstock_weights_get(w, i, &t), 0);
		assert_int_equal(t.name[strlen(t.name) - 1], names[i]);
		assert_int_equal(penstock_weights_find(w, t.name), i);
	}
}

static void check_fails(const char *path, int code, const char *words, const char *file,
			const char *tensor)
{
	struct penstock_weights *none = NULL;
	struct penstock_weights_place place = {.size = sizeof(place)};
	int ret = penstock_weights_open(path, &opts, &none);

	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%s: %d '%s', expected %d '%s'", path, ret, ret ? penstock_errmsg() : "",
			 -code, words);
	assert_null(none);
	penstock_weights_get_place(&place);
	if (!strstr(place.file, file))
		fail_msg("place '%s', expected '%s'", place.file, file);
	assert_string_equal(place.tensor, tensor);
}

static void test_file(void **state)
{
	const struct made list[] = {a, b, c};
	struct penstock_weights_file f = {.size = sizeof(f)};
	struct penstock_tensor t = {.size = sizeof(t)};
	const char *path = made_path("file.safetensors"), *key, *value;

	(void)state;
	made_file(path, list, 3, 3);
	check_opens(path, "abc");
	assert_int_equal(penstock_weights_get(w, 1, &t), 0);
	assert_string_equal(t.name, "b");
	assert_int_equal(t.dtype, PENSTOCK_DTYPE_BF16);
	assert_int_equal(t.rank, 1);
	assert_int_equal(t.shape[0], 7);
	assert_int_equal(t.bytes, 14);
	assert_int_equal(penstock_weights_file_count(w), 1);
	assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
	assert_string_equal(f.path, path);
	assert_int_equal(f.length, f.data_off + 60 + 14 + 1);
	assert_int_equal(t.off, f.data_off + 60);
	assert_int_equal(f.pair_count, 1);
	assert_int_equal(penstock_weights_get_metadata(w, 0, 0, &key, &value), 0);
	assert_string_equal(key, "format");
	assert_string_equal(value, "pt");
	assert_int_equal(penstock_weights_get(w, 3, &t), -ENOENT);
	assert_int_equal(penstock_weights_get_file(w, 1, &f), -ENOENT);
	assert_int_equal(penstock_weights_get_metadata(w, 0, 1, &key, &value), -ENOENT);
	assert_int_equal(penstock_weights_find(w, "x"), -ENOENT);
	assert_non_null(strstr(penstock_errmsg(), "'x'"));
	opts.names = (const char *const[]){"layers.*", "b"};
	opts.name_count = 2;
	check_opens(path, "bc");
	opts.names = (const char *const[]){"layers.*", "nothing*"};
	check_opens(path, "c");
	opts.names = (const char *const[]){"layers.*", "typo"};
	check_fails(path, ENOENT, "no such tensor", "file.safetensors", "typo");
	opts.names = (const char *const[]){"nothing*"};
	opts.name_count = 1;
	check_fails(path, ENOENT, "matches 'nothing*'", "file.safetensors", "");
}

static void test_bad_files(void **state)
{
	const struct made list[] = {a, b};
	const char *path = made_path("bad.safetensors");
	struct stat st;

	(void)state;
	check_fails(made_path("missing"), ENOENT, "No such file", "missing", "");
	check_fails("/dev/null", EINVAL, "neither a file nor a directory", "/dev/null", "");
	made_text(path, "abc");
	check_fails(path, EBADMSG, "3 bytes is not a safetensors file", "bad.safetensors", "");
	made_text(path, "\x02\x01\0\0\0\0\0\0{}");
	check_fails(path, EBADMSG, "no", "bad.safetensors", "");
	made_text(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}");
	check_fails(path, EBADMSG, "header of 18446744073709551615 bytes", "bad.safetensors", "");
	made_file(path, list, 2, 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(truncate(path, st.st_size - 1), 0);
	check_fails(path, EBADMSG, "truncated", "bad.safetensors", "b");
	assert_int_equal(truncate(path, st.st_size + 1), 0);
	check_fails(path, EBADMSG, "1 bytes follow", "bad.safetensors", "");
	assert_int_equal(truncate(path, 20), 0);
	check_fails(path, EBADMSG, "the file has only 20", "bad.safetensors", "");
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	check_fails(path, EINVAL, "neither", "bad.safetensors", "");
}

static void write_text(const char *dir, const char *name, const char *text)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	made_text(path, text);
}

static void write_model(const char *dir, const char *name, const struct made *m)
{
	char path[1024];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	made_file(path, m, 1, 0);
}

static void test_directory(void **state)
{
	const char *dir = made_path("dir");

	(void)state;
	made_dir(dir);
	check_fails(dir, ENOENT, "there is no *.safetensors", "dir", "");
	write_model(dir, "consolidated.00.safetensors", &a);
	check_opens(dir, "a");
	write_model(dir, "part-2.safetensors", &c);
	write_model(dir, "part-1.safetensors", &b);
	write_text(dir, ".hidden.safetensors", "x");
	write_text(dir, "config.json", "{}");
	check_opens(dir, "bc");
	write_model(dir, "part-3.safetensors", &c);
	check_fails(dir, EBADMSG, "another tensor of that name is in ", "part-3", "layers.0.c");
	write_model(dir, "model.safetensors", &a);
	check_opens(dir, "a");
	write_text(dir, "model.safetensors.index.json",
		   "{\"metadata\":{\"total_size\":1.5},\"weight_map\":{"
		   "\"layers.0.c\":\"part-3.safetensors\",\"b\":\"part-1.safetensors\"}}");
	check_opens(dir, "bc");
	check_opens(made_path("dir/model.safetensors.index.json"), "bc");
	/* A file may have tensors that the index does not assign to it: old tensors, or copies
	 * of tensors in another file. */
	made_file(made_path("dir/part-3.safetensors"), (const struct made[]){a, b, c}, 3, 0);
	check_opens(dir, "bc");
	write_model(dir, "part-3.safetensors", &c);
	write_text(dir, "other.safetensors.index.json",
		   "{\"weight_map\":{\"b\":\"part-1.safetensors\"}}");
	check_opens(dir, "bc");
	unlink(made_path("dir/model.safetensors.index.json"));
	check_opens(dir, "b");
	write_text(dir, "third.safetensors.index.json", "{}");
	check_fails(dir, EINVAL, "2 indices", "dir", "");
}

/* Options of a later version of the library have members that this version does not know. Such
 * members must be zero. */
static void test_later_options(void **state)
{
	struct {
		struct penstock_weights_opts known;
		uint64_t more;
	} later = {PENSTOCK_WEIGHTS_OPTS_INIT, 0};
	const char *path = made_path("later.safetensors");

	(void)state;
	later.known.size = sizeof(later);
	made_file(path, &a, 1, 0);
	assert_int_equal(penstock_weights_open(path, &later.known, &w), 0);
	penstock_weights_close(w);
	w = NULL;
	later.more = 1;
	assert_int_equal(penstock_weights_open(path, &later.known, &w), -E2BIG);
	assert_non_null(strstr(penstock_errmsg(), "penstock_weights_opts has fields"));
	later.known.size = 4;
	assert_int_equal(penstock_weights_open(path, &later.known, &w), -EINVAL);
}

/* If two files of a model have a tensor of the same name, the message names both files: the whole
 * path of the other file, or the end of a path that does not fit into PENSTOCK_TEXT_MAX bytes. */
static void test_duplicate(void **state)
{
	static const size_t lens[] = {160, PENSTOCK_TEXT_MAX + 160};
	struct penstock_weights_place place = {.size = sizeof(place)};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		char dir[900], first[1000];
		int len = snprintf(dir, sizeof(dir), "%s", made_path("twice"));

		while ((size_t)len < lens[i] - strlen("/part-one.safetensors"))
			len += snprintf(dir + len, sizeof(dir) - (size_t)len, "/abcdefghi");
		made_dir(dir);
		write_model(dir, "part-one.safetensors", &c);
		write_model(dir, "part-two.safetensors", &c);
		snprintf(first, sizeof(first), "%s/part-one.safetensors", dir);
		check_fails(dir, EBADMSG, "another tensor of that name is in ", "part-two",
			    "layers.0.c");
		penstock_weights_get_place(&place);
		if (!strstr(place.text, i ? "fghi/part-one.safetensors" : first))
			fail_msg("'%s' does not name '%s'", place.text, first);
	}
}

static void test_bad_index(void **state)
{
	static const struct {
		const char *text, *words, *tensor;
	} rows[] = {
		{"", "'{' is missing", ""},
		{"{}", "has no weight_map", ""},
		{"{\"weight_map\":{}}", "lists no tensors", ""},
		{"{\"weight_map\":{\"b\":1}}", "a string is missing", ""},
		{"{\"weight_map\":{\"b\":\"p.safetensors\"}} x", "behind the end", ""},
		{"{\"weight_map\":{\"b\":\"p.safetensors\"},\"weight_map\":{}}", "two weight maps",
		 ""},
		{"{\"weight_map\":{\"b\":\"p.safetensors\",\"b\":\"p.safetensors\"}}", "twice",
		 "b"},
		{"{\"weight_map\":{\"b\":\"../p.safetensors\"}}", "outside", "b"},
		{"{\"weight_map\":{\"b\":\"x/../../p.safetensors\"}}", "outside", "b"},
		{"{\"weight_map\":{\"b\":\"/etc/p.safetensors\"}}", "outside", "b"},
		{"{\"weight_map\":{\"b\":\"\"}}", "outside", "b"},
		{"{\"weight_map\":{\"x\":\"p.safetensors\"}}", "the index says", "x"},
	};
	const char *dir = made_path("bad-index"), *index;

	(void)state;
	made_dir(dir);
	write_model(dir, "p.safetensors", &b);
	index = made_path("bad-index/model.safetensors.index.json");
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		made_text(index, rows[i].text);
		check_fails(dir, EBADMSG, rows[i].words, "bad-index", rows[i].tensor);
	}
	made_text(index, "{\"weight_map\":{\"b\":\"q.safetensors\"}}");
	check_fails(dir, ENOENT, "names q.safetensors, which does not exist", "index.json", "b");
}

static void test_stripes(void **state)
{
	const char *one = made_path("stripe-1"), *two = made_path("stripe-2");

	(void)state;
	made_dir(one);
	made_dir(two);
	write_model(one, "p1.safetensors", &a);
	write_model(two, "p2.safetensors", &b);
	opts.dirs = &two;
	opts.dir_count = 1;
	check_opens(one, "ab");
	write_text(one, "model.safetensors.index.json",
		   "{\"weight_map\":{\"a\":\"p1.safetensors\",\"b\":\"p2.safetensors\"}}");
	check_opens(one, "ab");
	opts.dir_count = 0;
	check_fails(one, ENOENT, "p2.safetensors", "index.json", "b");
	/* A list names a directory that does not exist. That is an error even if the model needs
	 * nothing from it. */
	write_model(two, "whole.safetensors", &a);
	two = made_path("stripe-3");
	opts.dir_count = 1;
	check_fails(made_path("stripe-2/whole.safetensors"), ENOENT, "No such file", two, "");
	two = made_path("stripe-2/whole.safetensors");
	check_fails(two, ENOTDIR, "Not a directory", two, "");
}

static void test_cache(void **state)
{
	char blob[1024], link[1024];
	const char *repo = made_path("hub/models--own--tiny");
	int tree;

	(void)state;
	snprintf(link, sizeof(link), "%s/blobs", repo);
	made_dir(link);
	snprintf(link, sizeof(link), "%s/refs", repo);
	made_dir(link);
	snprintf(link, sizeof(link), "%s/snapshots/c0ffee", repo);
	made_dir(link);
	write_model(repo, "blobs/1234", &b);
	snprintf(blob, sizeof(blob), "../../blobs/1234");
	snprintf(link, sizeof(link), "%s/snapshots/c0ffee/model.safetensors", repo);
	assert_true(!symlink(blob, link) || errno == EEXIST);
	check_opens(repo, "b");
	write_text(repo, "refs/main", "c0ffee\n");
	check_opens(repo, "b");
	opts.cache = made_path("hub");
	check_opens("own/tiny", "b");
	/* The environment names the cache. An empty variable counts as not set. */
	opts.cache = NULL;
	setenv("HF_HUB_CACHE", "", 1);
	setenv("HF_HOME", "", 1);
	setenv("XDG_CACHE_HOME", made_path("xdg"), 1);
	made_dir(made_path("xdg/huggingface"));
	assert_true(!symlink(made_path("hub"), made_path("xdg/huggingface/hub")) ||
		    errno == EEXIST);
	check_opens("own/tiny", "b");
	unsetenv("XDG_CACHE_HOME");
	setenv("HF_HOME", made_path("xdg/huggingface"), 1);
	check_opens("own/tiny", "b");
	setenv("HF_HUB_CACHE", made_path("hub"), 1);
	check_opens("own/tiny", "b");
	unsetenv("HF_HUB_CACHE");
	unsetenv("HF_HOME");
	opts.cache = made_path("hub");
	/* The name of this model has no owner before a slash. */
	assert_true(!symlink("models--own--tiny", made_path("hub/models--old")) || errno == EEXIST);
	check_opens("old", "b");
	opts.revision = "c0ffee";
	check_opens("own/tiny", "b");
	opts.revision = "v2";
	check_fails("own/tiny", ENOENT, "no snapshot for revision 'v2'", "models--own--tiny", "");
	write_text(repo, "refs/v2", "c0ffee");
	check_opens("own/tiny", "b");
	opts.revision = "../../..";
	check_fails("own/tiny", ENOENT, "no snapshot", "models--own--tiny", "");
	opts.revision = NULL;
	write_text(repo, "refs/main", "gone");
	snprintf(link, sizeof(link), "%s/snapshots/second", repo);
	made_dir(link);
	check_fails("own/tiny", ENOENT, "revision 'main'", "models--own--tiny", "");
	write_text(repo, "refs/main", "c0ffee\n");
	check_opens("own/tiny", "b");
	check_fails("own/none", ENOENT, "No such file", "own/none", "");
	/* The current directory has a file that is named like the model's owner. The library must
	 * still find the model in the cache. */
	tree = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	made_dir(made_path("beside"));
	write_text(made_path("beside"), "own", "");
	assert_int_equal(chdir(made_path("beside")), 0);
	check_opens("own/tiny", "b");
	check_fails("own/none", ENOENT, "it is not in the cache", "own/none", "");
	assert_int_equal(fchdir(tree), 0);
	close(tree);
}

static void test_list(void **state)
{
	const char *paths[] = {made_path("l1.safetensors"), made_path("l2.safetensors")};

	(void)state;
	made_file(paths[0], &b, 1, 0);
	made_file(paths[1], &a, 1, 0);
	assert_int_equal(penstock_weights_open_list(paths, 2, NULL, &w), 0);
	assert_int_equal(penstock_weights_count(w), 2);
	assert_int_equal(penstock_weights_find(w, "a"), 1);
	made_file(paths[1], &b, 1, 0);
	assert_int_equal(penstock_weights_open_list(paths, 2, NULL, &w), -EBADMSG);
	assert_int_equal(penstock_weights_open_list(paths, 0, NULL, &w), -EINVAL);
	assert_int_equal(penstock_weights_open_list(NULL, 1, NULL, &w), -EINVAL);
	opts.names = opts.dirs = (const char *const[]){"a", NULL};
	opts.name_count = 2;
	assert_int_equal(penstock_weights_open(paths[0], &opts, &w), -EINVAL);
	opts.name_count = 0;
	opts.dir_count = 2;
	assert_int_equal(penstock_weights_open(paths[0], &opts, &w), -EINVAL);
	opts.dir_count = 0;
	opts.size = sizeof(opts.size) - 1;
	assert_int_equal(penstock_weights_open(paths[0], &opts, &w), -EINVAL);
}

/* The time that an open needs for a list of names grows with the length of the list, and not with
 * the product of this length and the number of tensors. */
static void test_many_names(void **state)
{
	enum { TENSORS = 20000 };
	static struct made list[TENSORS];
	static char text[TENSORS][24];
	static const char *names[TENSORS + 1];
	const char *path = made_path("many.safetensors");
	double seconds;
	clock_t start;

	(void)state;
	for (unsigned i = 0; i < TENSORS; i++) {
		snprintf(text[i], sizeof(text[i]), "layers.%05u.weight", i);
		list[i] = (struct made){text[i], "U8", 8, 1, {1}};
		/* Names every second tensor, the last one first. The rest of the list repeats
		 * them. */
		names[TENSORS - 1 - i] = text[i & ~1u];
	}
	made_file(path, list, TENSORS, 0);
	names[TENSORS] = "layers.0000[1-3].*"; /* Adds the tensors 1 and 3. */
	opts.names = names;
	opts.name_count = TENSORS + 1;
	start = clock();
	assert_int_equal(penstock_weights_open(path, &opts, &w), 0);
	seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
	assert_int_equal(penstock_weights_count(w), TENSORS / 2 + 2);
	for (unsigned i = 0; i < TENSORS; i++)
		assert_int_equal(penstock_weights_find(w, text[i]) >= 0, i % 2 == 0 || i < 4);
	/* Comparing each name with each tensor took 6 s. */
	if (seconds > 1)
		fail_msg("%.2f s of CPU time for %u names", seconds, TENSORS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_files, setup, teardown),
		cmocka_unit_test_setup_teardown(test_directory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_duplicate, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_index, setup, teardown),
		cmocka_unit_test_setup_teardown(test_later_options, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stripes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cache, setup, teardown),
		cmocka_unit_test_setup_teardown(test_list, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_names, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
