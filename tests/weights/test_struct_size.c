/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some public functions of penstock_weights.h copy a caller's struct, whose member `size` tells
 * its version. Each of them must refuse a garbage `size` without reading past the struct. The
 * test places each struct at the end of a page, and the next page is not readable: a read past
 * the struct ends with SIGSEGV.
 */
#include "load.h"

#include <sys/mman.h>

#define GARBAGE ((size_t)1 << 40)

static char *unreadable; /* First byte of the page that cannot be read. */
static const char *path;
static void *buf;

/* Copies a struct of `len` bytes to the end of the readable page, and sets the copy's member
 * `size`. */
static void *at_page_end(const void *from, size_t len, size_t size)
{
	char *to = unreadable - (len + 7) / 8 * 8;

	memset(to, 0, (size_t)(unreadable - to));
	memcpy(to, from, len);
	memcpy(to, &size, sizeof(size));
	return to;
}

#define AT_PAGE_END(s) at_page_end(&(s), sizeof(s), GARBAGE)

static void refused(int ret)
{
	assert_int_equal(ret, -EINVAL);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_ARGUMENT);
	assert_non_null(strstr(penstock_errmsg(), "size is 1099511627776"));
}

static void test_open(void **state)
{
	struct penstock_weights_opts open_opts = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_weights *model;

	(void)state;
	refused(penstock_weights_open(path, AT_PAGE_END(open_opts), &model));
	refused(penstock_weights_open_list(&path, 1, AT_PAGE_END(open_opts), &model));
}

static void test_load(void **state)
{
	struct penstock_shard_opts shard = PENSTOCK_SHARD_OPTS_INIT;
	struct penstock_loaded *loaded;

	(void)state;
	refused(penstock_weights_load(w, &host, 1, AT_PAGE_END(opts), NULL, &loaded));
	opts.shard = AT_PAGE_END(shard);
	refused(penstock_weights_load(w, &host, 1, &opts, NULL, &loaded));
}

static void test_load_into(void **state)
{
	struct penstock_piece piece = {.size = sizeof(piece), .ptr = buf, .room = 4096};

	(void)state;
	refused(penstock_weights_load_into(w, &piece, 1, AT_PAGE_END(opts), NULL));
	refused(penstock_weights_load_into(w, AT_PAGE_END(piece), 1, &opts, NULL));
}

static void test_iter_open(void **state)
{
	struct penstock_weights_iter *it;

	(void)state;
	refused(penstock_weights_iter_open(w, host, AT_PAGE_END(opts), &it));
}

static void test_shard(void **state)
{
	struct penstock_shard_opts shard_opts = PENSTOCK_SHARD_OPTS_INIT;
	struct penstock_shard shard = {.size = sizeof(shard)};

	(void)state;
	refused(penstock_weights_shard(w, 0, AT_PAGE_END(shard_opts), &shard));
}

static void test_group(void **state)
{
	struct penstock_group_opts group_opts = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_piece piece = {.size = sizeof(piece), .ptr = buf, .room = 4096};
	struct penstock_loaded *loaded;
	struct penstock_group *g;

	(void)state;
	refused(penstock_group_open("size", 0, 1, AT_PAGE_END(group_opts), &g));
	assert_int_equal(penstock_group_open("size", 0, 1, NULL, &g), 0);
	refused(penstock_group_load(g, w, &host, 1, AT_PAGE_END(opts), NULL, &loaded));
	refused(penstock_group_load_into(g, w, &piece, 1, AT_PAGE_END(opts), NULL));
	refused(penstock_group_load_into(g, w, AT_PAGE_END(piece), 1, &opts, NULL));
	penstock_group_close(g);
}

static void test_save(void **state)
{
	struct penstock_save_opts save_opts = PENSTOCK_SAVE_OPTS_INIT;
	uint64_t shape = 8;
	struct penstock_out out = {.size = sizeof(out),
				   .name = "t",
				   .dtype = PENSTOCK_DTYPE_U8,
				   .rank = 1,
				   .shape = &shape,
				   .ptr = buf};
	const char *to = made_path("saved.safetensors");

	(void)state;
	refused(penstock_weights_save(to, &out, 1, AT_PAGE_END(save_opts), NULL));
	refused(penstock_weights_save(to, AT_PAGE_END(out), 1, NULL, NULL));
}

/* If a result struct has a garbage `size`, the library fills only the members that it knows. */
static void test_results(void **state)
{
	struct penstock_weights_place place = {.size = sizeof(place)};
	struct penstock_weights_file file = {.size = sizeof(file)};
	struct penstock_tensor tensor = {.size = sizeof(tensor)}, *out = AT_PAGE_END(tensor);

	(void)state;
	assert_int_equal(penstock_weights_get(w, 0, out), 0);
	assert_string_equal(out->name, "t");
	assert_int_equal(penstock_weights_get_file(w, 0, AT_PAGE_END(file)), 0);
	penstock_weights_get_place(AT_PAGE_END(place));
}

/* Tests the largest `size` that is accepted, and the smallest `size` that is not. */
static void test_largest(void **state)
{
	static struct {
		struct penstock_weights_opts opts;
		char later[4096];
	} large;
	struct penstock_weights *model;

	(void)state;
	large.opts = (struct penstock_weights_opts)PENSTOCK_WEIGHTS_OPTS_INIT;
	large.opts.size = 4096;
	assert_int_equal(penstock_weights_open(path, &large.opts, &model), 0);
	penstock_weights_close(model);
	large.opts.size = 4097;
	assert_int_equal(penstock_weights_open(path, &large.opts, &model), -EINVAL);
	large.opts.size = sizeof(size_t) - 1;
	assert_int_equal(penstock_weights_open(path, &large.opts, &model), -EINVAL);
	large.opts.size = sizeof(large.opts) + 1;
	((char *)&large)[sizeof(large.opts)] = 1; /* sets an option of a later version */
	assert_int_equal(penstock_weights_open(path, &large.opts, &model), -E2BIG);
}

static int setup_model(void **state)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *pages =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) || setup_all(state))
		return -1;
	unreadable = pages + page;
	path = made_path("one.safetensors");
	made_file(path, &(struct made){"t", "U8", 8, 1, {8}}, 1, 0);
	return penstock_alloc(host, 4096, &buf);
}

static int teardown_model(void **state)
{
	penstock_free(host, buf);
	return teardown_all(state);
}

static int setup_open(void **state)
{
	open_model(path);
	return setup(state);
}

#define OPEN_CASE(name) cmocka_unit_test_setup_teardown(name, setup_open, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPEN_CASE(test_open),	   OPEN_CASE(test_load),    OPEN_CASE(test_load_into),
		OPEN_CASE(test_iter_open), OPEN_CASE(test_shard),   OPEN_CASE(test_group),
		OPEN_CASE(test_save),	   OPEN_CASE(test_results), OPEN_CASE(test_largest),
	};

	return cmocka_run_group_tests(tests, setup_model, teardown_model);
}
