/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests cancelling through the `look` callback, in each way to receive a model and in a save.
 * The file is sparse and its chunks are delayed, so that most of it is unread when the callback
 * cancels.
 */
#include "load.h"

#define TENSORS 64u
#define EACH (16u << 20)
#define ALL ((uint64_t)TENSORS * EACH)
#define LATE "fault:bounce?delay_us=300000"

/* How often the callback was called, and which call cancels (1 is the first; 0: none). */
static unsigned look_count, cancel_at;

static int count_and_answer(void *user)
{
	assert_ptr_equal(user, &look_count);
	return ++look_count == cancel_at;
}

static void set_look(const char *path, unsigned no)
{
	opts.path = path;
	opts.look = count_and_answer;
	opts.user = &look_count;
	look_count = 0;
	cancel_at = no;
}

static void open_sparse_model(void)
{
	const char *path = made_path("many.safetensors");
	size_t room = TENSORS * 96, n = 8;
	char *text = malloc(room);
	int fd;

	for (unsigned long long i = 0; i < TENSORS; i++)
		n += (size_t)snprintf(text + n, room - n,
				      "%c\"t%05llu\":{\"dtype\":\"U8\",\"shape\":[%u],"
				      "\"data_offsets\":[%llu,%llu]}",
				      i ? ',' : '{', i, EACH, EACH * i, EACH * (i + 1));
	n += (size_t)snprintf(text + n, room - n, "}");
	for (unsigned i = 0; i < 8; i++)
		text[i] = (char)((uint64_t)(n - 8) >> 8 * i);
	made_write(path, text, n);
	free(text);
	fd = open(path, O_WRONLY);
	assert_int_equal(ftruncate(fd, (off_t)(n + ALL)), 0);
	close(fd);
	open_model(path);
}

/* Checks that most of the file was not read, and that the callback was not called again after it
 * had cancelled the load. */
static void check_cancelled(int ret, uint64_t read)
{
	assert_int_equal(ret, -ECANCELED);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_CANCELLED);
	assert_non_null(strstr(penstock_errmsg(), "cancelled by the caller"));
	assert_int_equal(look_count, cancel_at);
	if (read >= ALL / 2)
		fail_msg("%llu bytes were read", (unsigned long long)read);
}

static void test_load(void **state)
{
	struct penstock_loaded *loaded = NULL;
	int ret;

	(void)state;
	open_sparse_model();
	set_look(LATE, 2);
	ret = penstock_weights_load(w, &host, 1, &opts, &report, &loaded);
	check_cancelled(ret, report.read);
	assert_null(loaded);
}

/* The callback is called and never cancels, so the load completes. */
static void test_not_cancelled(void **state)
{
	struct penstock_loaded *loaded;

	(void)state;
	open_sparse_model();
	set_look("fault:bounce?delay_us=500000", 0);
	opts.count = 2;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	assert_true(look_count > 0 && look_count < 100);
	assert_int_equal(report.bytes, 2 * EACH);
	penstock_loaded_free(loaded);
}

/* penstock_weights_load_into loads all tensors to the same memory. A cancel by the callback must
 * end this load, too. */
static void test_into(void **state)
{
	struct penstock_piece *list = calloc(TENSORS, sizeof(*list));
	static char place[EACH];
	int ret;

	(void)state;
	open_sparse_model();
	for (unsigned i = 0; i < TENSORS; i++)
		list[i] = (struct penstock_piece){
			.size = sizeof(list[0]), .tensor = i, .ptr = place, .room = EACH};
	set_look(LATE, 1);
	ret = penstock_weights_load_into(w, list, TENSORS, &opts, &report);
	check_cancelled(ret, report.read);
	free(list);
}

/* After the cancel the iterator moves no more bytes, although it is still open. */
static void test_iterator(void **state)
{
	struct penstock_load_report later = {.size = sizeof(later)};
	struct penstock_weights_iter *it;
	uint64_t tensor;
	void *ptr;
	int ret;

	(void)state;
	open_sparse_model();
	set_look(LATE, 3);
	assert_int_equal(penstock_weights_iter_open(w, host, &opts, &it), 0);
	do {
		ret = penstock_weights_iter_next(it, &tensor, &ptr);
	} while (ret == 1 && !penstock_weights_iter_release(it, tensor));
	penstock_weights_iter_report(it, &report);
	check_cancelled(ret, report.read);
	/* The report counts only completed requests. The cancelled requests complete, too. */
	assert_true(report.requests > 0);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), -ECANCELED);
	penstock_weights_iter_report(it, &later);
	assert_int_equal(later.read, report.read);
	penstock_weights_iter_close(it);
}

/* A cancelled save must leave the old file unchanged, and must leave no other file behind. */
static void test_save(void **state)
{
	static const uint64_t shape[] = {EACH};
	static char mem[EACH], names[TENSORS][8];
	struct penstock_save_opts how = PENSTOCK_SAVE_OPTS_INIT;
	const char *dir = made_path("saved"), *path = made_path("saved/kept.safetensors");
	struct penstock_out *list = calloc(TENSORS, sizeof(*list));
	int ret;

	(void)state;
	made_dir(dir);
	for (unsigned i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t%05u", i);
		list[i] = (struct penstock_out){.size = sizeof(list[0]),
						.name = names[i],
						.dtype = PENSTOCK_DTYPE_U8,
						.rank = 1,
						.shape = shape,
						.ptr = mem};
	}
	assert_int_equal(penstock_weights_save(path, list, 1, &how, NULL), 0);
	how.path = LATE;
	how.look = count_and_answer;
	how.user = &look_count;
	look_count = 0;
	cancel_at = 2;
	ret = penstock_weights_save(path, list, TENSORS, &how, &report);
	check_cancelled(ret, report.read);
	open_model(path);
	assert_int_equal(penstock_weights_count(w), 1);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
	free(list);
}

/* Opens a device with one lane (worker thread), which has at most 256 chunks in flight. */
static int setup_one_lane(void **state)
{
	struct penstock_device_opts how = PENSTOCK_DEVICE_OPTS_INIT;

	(void)state;
	how.lanes = 1;
	how.slot_bytes = 65536;
	return penstock_device_open("host", &how, &host) < 0;
}

static int close_host(void **state)
{
	(void)state;
	penstock_device_close(host);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_load),     CASE(test_not_cancelled), CASE(test_into),
		CASE(test_iterator), CASE(test_save),
	};

	return cmocka_run_group_tests(tests, setup_one_lane, close_host);
}
