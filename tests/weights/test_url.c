/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests models behind URLs. The linker replaces penstock_open in this program: the URL
 * s3://bucket/KEY opens the file KEY of a folder, and the test records the opened URLs. It also
 * replaces penstock_storage_get_info, so that the test chooses the version of the objects.
 */
#include "load.h"

#include <sys/wait.h>

#include "weights/url.h"

#define QUERY "?endpoint=http://h:1&region=r"

int __real_penstock_open(const char *url, const struct penstock_storage_opts *o,
			 struct penstock_storage **out);
int __wrap_penstock_open(const char *url, const struct penstock_storage_opts *o,
			 struct penstock_storage **out);

int __real_penstock_storage_get_info(const struct penstock_storage *st,
				     struct penstock_storage_info *info);
int __wrap_penstock_storage_get_info(const struct penstock_storage *st,
				     struct penstock_storage_info *info);

static uint64_t version = 1;

int __wrap_penstock_storage_get_info(const struct penstock_storage *st,
				     struct penstock_storage_info *info)
{
	int ret = __real_penstock_storage_get_info(st, info);

	info->version = version;
	return ret;
}

static char folder[512];
static char opened[8192]; /* the opened URLs; a space follows each of them */

int __wrap_penstock_open(const char *url, const struct penstock_storage_opts *o,
			 struct penstock_storage **out)
{
	size_t at = strlen(opened);
	char path[1024];
	int ret;

	snprintf(opened + at, sizeof(opened) - at, "%s ", url);
	if (strncmp(url, "s3://bucket/", 12) != 0)
		return penstock_fail(EACCES, PENSTOCK_WHY_BAD_KIND,
				     "the server refuses the access");
	snprintf(path, sizeof(path), "%s/%.*s", folder, (int)strcspn(url + 12, "?"), url + 12);
	ret = __real_penstock_open(path, o, out);
	/* An object store has no folders, so the key "a" may exist beside the key "a/b". ENOTDIR
	 * then means that the key does not exist. */
	return ret == -ENOTDIR ? penstock_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, "no such key") : ret;
}

static const char *in_folder(const char *name)
{
	static char path[1024];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static int setup_folder(void **state)
{
	static unsigned number;
	char name[16];

	snprintf(name, sizeof(name), "url%u", number++);
	snprintf(folder, sizeof(folder), "%s", made_path(name));
	made_dir(folder);
	opened[0] = '\0';
	return setup(state);
}

static void check_opened(const char *want)
{
	assert_string_equal(opened, want);
	opened[0] = '\0';
}

/* Loads all tensors to both devices, and compares their bytes. */
static void check_load(const struct made *list, unsigned count)
{
	struct penstock_device *devices[] = {host, gpu};
	struct penstock_loaded *loaded;

	if (penstock_weights_load(w, devices, 2, &opts, &report, &loaded))
		fail_msg("%s", penstock_errmsg());
	for (unsigned d = 0; d < 2; d++)
		for (unsigned i = 0; i < count; i++) {
			int64_t at = penstock_weights_find(w, list[i].name);

			assert_true(at >= 0);
			check_tensor(devices[d], penstock_loaded_ptr(loaded, d, (uint64_t)at),
				     list[i].name, made_bytes(&list[i]));
		}
	penstock_loaded_free(loaded);
}

static void check_refused(const char *url, int code, const char *words)
{
	int ret = penstock_weights_open(url, NULL, &w);

	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected %d '%s'", ret, penstock_errmsg(), -code, words);
}

static void test_names(void **state)
{
	char to[PATH_MAX], longest[PATH_MAX];

	(void)state;
	assert_true(pst_url_match("s3://b/k"));
	assert_true(pst_url_match("https://h/k"));
	assert_false(pst_url_match("file:///k"));
	assert_false(pst_url_match("/a/s3://b"));
	assert_true(pst_url_ends_with("s3://b/m.json?a=.x", ".json"));
	assert_false(pst_url_ends_with("s3://b/m?a=.json", ".json"));
	assert_int_equal(pst_url_join(to, "s3://b/m//?a=1", "x y/%\xc3.bin"), 0);
	assert_string_equal(to, "s3://b/m/x%20y/%25%C3.bin?a=1");
	assert_int_equal(pst_url_join(to, "s3://b", "x"), 0);
	assert_string_equal(to, "s3://b/x");
	assert_int_equal(pst_url_dir(to, "s3://b/m/i.json?e=http://h/"), 0);
	assert_string_equal(to, "s3://b/m/?e=http://h/");
	memset(longest, '%', sizeof(longest));
	longest[PATH_MAX / 3] = '\0';
	assert_int_equal(pst_url_join(to, "s3://b", longest), -ENAMETOOLONG);
}

static void test_one_file(void **state)
{
	(void)state;
	made_file(in_folder("m.safetensors"), all_dtypes, COUNT(all_dtypes), 0);
	open_model("s3://bucket/m.safetensors" QUERY);
	check_load(all_dtypes, COUNT(all_dtypes));
	check_load(all_dtypes, COUNT(all_dtypes));
	/* The library reads the tensors through the storage that it opened to read the header, so
	 * the URL is opened only once. */
	check_opened("s3://bucket/m.safetensors" QUERY " ");
}

/* Tests headers that are longer than the first request for a header, which reads about 1 MiB. */
static void test_long_header(void **state)
{
	(void)state;
	for (int64_t pad = (1 << 20) - 300; pad < (1 << 20) + 1500; pad += 97) {
		made_file(in_folder("m.safetensors"), all_dtypes, 3, (unsigned)pad);
		open_model("s3://bucket/m.safetensors");
		check_load(all_dtypes, 3);
	}
}

static void test_index(void **state)
{
	static const char index[] = "{\"weight_map\":{\"byte\":\"a b.safetensors\","
				    "\"wide\":\"sub/2.safetensors\"}}";

	(void)state;
	made_dir(in_folder("model/sub"));
	made_file(in_folder("model/a%20b.safetensors"), all_dtypes, 1, 0);
	made_file(in_folder("model/sub/2.safetensors"), all_dtypes + 1, 1, 0);
	made_text(in_folder("model/model.safetensors.index.json"), index);
	open_model("s3://bucket/model/" QUERY);
	check_load(all_dtypes, 2);
	check_opened("s3://bucket/model/model.safetensors.index.json" QUERY " "
		     "s3://bucket/model/a%20b.safetensors" QUERY " "
		     "s3://bucket/model/sub/2.safetensors" QUERY " ");
	open_model("s3://bucket/model/model.safetensors.index.json");
	check_load(all_dtypes, 2);
}

static void test_folder(void **state)
{
	(void)state;
	made_dir(in_folder("model"));
	made_file(in_folder("model/model.safetensors"), all_dtypes, 4, 0);
	open_model("s3://bucket/model");
	check_load(all_dtypes, 4);
	check_opened("s3://bucket/model/model.safetensors.index.json "
		     "s3://bucket/model/model.safetensors s3://bucket/model/model.safetensors ");
	/* The name of this file does not end with ".safetensors". */
	made_file(in_folder("blob"), all_dtypes, 4, 0);
	open_model("s3://bucket/blob" QUERY);
	check_load(all_dtypes, 4);
}

/* Loads a model with more files than the library keeps open. */
static void test_many_files(void **state)
{
	struct made list[MADE_MANY];
	const char *urls[MADE_MANY];
	char names[MADE_MANY][2][40];

	(void)state;
	made_many(folder);
	for (unsigned i = 0; i < MADE_MANY; i++) {
		snprintf(names[i][0], sizeof(names[i][0]), "t%u", i);
		snprintf(names[i][1], sizeof(names[i][1]), "s3://bucket/%u.safetensors", i);
		list[i] = (struct made){names[i][0], "U8", 8, 1, {5}};
		urls[i] = names[i][1];
	}
	if (penstock_weights_open_list(urls, MADE_MANY, NULL, &w))
		fail_msg("%s", penstock_errmsg());
	check_load(list, MADE_MANY);
	penstock_weights_close(w);
	if (penstock_weights_open_list(urls, MADE_MANY, NULL, &w))
		fail_msg("%s", penstock_errmsg());
	/* Simulates a change of the object: another version with the same length. */
	version++;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report,
					       &(struct penstock_loaded *){NULL}),
			 -ESTALE);
	assert_non_null(strstr(penstock_errmsg(), "it changed after its header was read"));
	version--;
	check_load(list, MADE_MANY);
	penstock_weights_close(w);
	if (penstock_weights_open_list(urls, MADE_MANY, NULL, &w))
		fail_msg("%s", penstock_errmsg());
	made_text(in_folder("7.safetensors"), "changed");
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report,
					       &(struct penstock_loaded *){NULL}),
			 -ESTALE);
	assert_non_null(strstr(penstock_errmsg(), "it changed after its header was read"));
}

static void test_fork(void **state)
{
	struct penstock_loaded *loaded;
	struct penstock_device *mine;
	pid_t child;
	int status;

	(void)state;
	made_file(in_folder("m.safetensors"), all_dtypes, 1, 0);
	open_model("s3://bucket/m.safetensors");
	fflush(stdout);
	child = fork();
	if (!child) {
		version++;
		if (penstock_device_open("host", NULL, &mine) < 0 ||
		    penstock_weights_load(w, &mine, 1, NULL, NULL, &loaded) != -ESTALE)
			_exit(2);
		version--;
		if (penstock_weights_load(w, &mine, 1, NULL, NULL, &loaded))
			_exit(1);
		_exit(memcmp(penstock_loaded_ptr(loaded, 0, 0),
			     (unsigned char[]){made_byte("byte", 0), made_byte("byte", 1)},
			     2) != 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	check_load(all_dtypes, 1);
}

static void test_errors(void **state)
{
	struct penstock_weights_place place = {.size = sizeof(place)};

	(void)state;
	check_refused("s3://bucket/none.safetensors", ENOENT, "none.safetensors");
	check_refused("s3://bucket/none/", ENOENT, "none/model.safetensors");
	check_refused("s3://bucket/none", ENOENT, "s3://bucket/none: ");
	made_text(in_folder("short.safetensors"), "1234567");
	check_refused("s3://bucket/short.safetensors", EBADMSG, "is not a safetensors file");
	made_text(in_folder("bad.safetensors"), "12345678{}");
	check_refused("s3://bucket/bad.safetensors" QUERY, EBADMSG, "bad.safetensors");
	check_refused("https://h/i.json?X-Amz-Signature=secret", EINVAL, "from s3://");
	assert_null(strstr(penstock_errmsg(), "secret"));
	check_refused("https://h/m.safetensors?X-Amz-Signature=secret", EACCES, "refuses");
	assert_null(strstr(penstock_errmsg(), "secret"));
	penstock_weights_get_place(&place);
	assert_string_equal(place.file, "https://h/m.safetensors");
	assert_null(strstr(place.text, "secret"));
}

#undef CASE
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup_folder, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_names),  CASE(test_one_file),	  CASE(test_long_header), CASE(test_index),
		CASE(test_folder), CASE(test_many_files), CASE(test_fork),	  CASE(test_errors),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
