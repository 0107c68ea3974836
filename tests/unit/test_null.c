/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes NULL to each pointer that a public function requires, one pointer at a time. A function
 * must fail with -EINVAL and a message. If its return type cannot express an error, it must return
 * NULL or 0. If it returns void, it must do nothing. Also tests arrays of structs whose elements
 * have different sizes, and memory that the library has not allocated. Every function of
 * src/libpenstock.map must occur here.
 */
#include "../weights/make.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "penstock_ckpt.h"
#include "penstock_model.h"
#include "penstock_object.h"

#define LEN 8192u

static struct penstock_storage *st;
static struct penstock_device *host;
static struct penstock_queue *q;
static struct penstock_weights *model;
static struct penstock_weights_iter *iter;
static struct penstock_loaded *loaded;
static struct penstock_group *group;
static void *buf;

/* ---- the table of calls ---- */

enum result { IS_EINVAL, IS_NULL, IS_ZERO, IS_VOID };

/* names of the functions that were called, in the order of the calls */
static const char *called[256];
static unsigned call_count;

/* Prints a call before it is made, so that the log names the call if it crashes. Replaces the
 * thread's error message by "no message". */
static void call_begin(const char *function, const char *arguments)
{
	printf("# %s(%s)\n", function, arguments);
	penstock_fail(EIO, PENSTOCK_WHY_IO_ERROR, "no message");
	if (call_count < sizeof(called) / sizeof(called[0]))
		called[call_count++] = function;
}

static void call_check(enum result want, intptr_t got)
{
	if (want == IS_VOID)
		return;
	assert_int_equal(got, want == IS_EINVAL ? -EINVAL : 0);
	if (!strcmp(penstock_errmsg(), "no message"))
		fail_msg("the call has left no message");
}

#define FAILS(function, ...)                                            \
	do {                                                            \
		call_begin(#function, #__VA_ARGS__);                    \
		call_check(IS_EINVAL, (intptr_t)function(__VA_ARGS__)); \
	} while (0)
#define NOTHING(want, function, ...)                               \
	do {                                                       \
		call_begin(#function, #__VA_ARGS__);               \
		call_check(want, (intptr_t)function(__VA_ARGS__)); \
	} while (0)
#define RUNS(function, ...)                          \
	do {                                         \
		call_begin(#function, #__VA_ARGS__); \
		function(__VA_ARGS__);               \
	} while (0)

static void null_storages(void **state)
{
	struct penstock_storage_info info = {.size = sizeof(info)};

	(void)state;
	FAILS(penstock_open, NULL, NULL, &st);
	FAILS(penstock_open, "mem:1MiB", NULL, NULL);
	FAILS(penstock_open_fd, STDIN_FILENO, NULL, NULL);
	FAILS(penstock_commit, NULL, 0);
	FAILS(penstock_abort, NULL);
	FAILS(penstock_commit_with, NULL, NULL);
	FAILS(penstock_abort_with, NULL, NULL);
	FAILS(penstock_s3_ask, NULL, &(struct penstock_s3_answer){.size = 0}, buf, LEN);
	FAILS(penstock_s3_ask, &(struct penstock_s3_question){.size = 0}, NULL, buf, LEN);
	FAILS(penstock_s3_ask, &(struct penstock_s3_question){.size = 0},
	      &(struct penstock_s3_answer){.size = 0}, NULL, LEN);
	FAILS(penstock_s3_give_keys, NULL, "key", "secret", NULL);
	FAILS(penstock_s3_give_keys, "name", "key", NULL, NULL);
	FAILS(penstock_storage_length, NULL);
	FAILS(penstock_storage_get_info, NULL, &info);
	FAILS(penstock_storage_get_info, st, NULL);
	RUNS(penstock_close, NULL);
}

static void null_devices(void **state)
{
	struct penstock_device_info info = {.size = sizeof(info)};

	(void)state;
	FAILS(penstock_device_open, NULL, NULL, &host);
	FAILS(penstock_device_open, "host", NULL, NULL);
	FAILS(penstock_device_get_info, NULL, &info);
	FAILS(penstock_device_get_info, host, NULL);
	FAILS(penstock_device_of, buf, NULL);
	NOTHING(IS_NULL, penstock_device_name, NULL);
	RUNS(penstock_device_close, NULL);
}

static void null_memory(void **state)
{
	struct penstock_export exported = PENSTOCK_EXPORT_INIT;
	struct penstock_sum_args sum = {.size = sizeof(sum), .dev = host, .len = 1};
	void *out;

	(void)state;
	FAILS(penstock_alloc, NULL, LEN, &out);
	FAILS(penstock_alloc, host, LEN, NULL);
	FAILS(penstock_free, NULL, buf);
	assert_int_equal(penstock_free(host, NULL), 0);
	assert_int_equal(penstock_free(NULL, NULL), 0);
	FAILS(penstock_export_memory, NULL, buf, LEN, &exported);
	FAILS(penstock_export_memory, host, NULL, LEN, &exported);
	FAILS(penstock_export_memory, host, buf, LEN, NULL);
	FAILS(penstock_import_memory, NULL, &exported, &out);
	FAILS(penstock_import_memory, host, NULL, &out);
	FAILS(penstock_import_memory, host, &exported, NULL);
	FAILS(penstock_register, NULL, buf, LEN);
	FAILS(penstock_register, host, NULL, LEN);
	FAILS(penstock_unregister, NULL, buf);
	FAILS(penstock_unregister, host, NULL);
	FAILS(penstock_copy, NULL, 1);
	assert_int_equal(penstock_copy(NULL, 0), 0);
	FAILS(penstock_sum, NULL, 1);
	FAILS(penstock_sum, &sum, 1);
	assert_int_equal(penstock_sum(NULL, 0), 0);
	RUNS(penstock_crc32c_join, 0, 0, 0);
}

static void null_requests(void **state)
{
	struct penstock_explanation explanation = {.size = sizeof(explanation)};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	(void)state;
	FAILS(penstock_read, NULL, host, buf, 1, 0);
	FAILS(penstock_read, st, host, NULL, 1, 0);
	FAILS(penstock_write, NULL, host, buf, 1, 0);
	FAILS(penstock_write, st, host, NULL, 1, 0);
	FAILS(penstock_transfer, NULL, NULL);
	FAILS(penstock_transfer, &req, NULL);
	FAILS(penstock_prepare, NULL, NULL, PENSTOCK_READ);
	FAILS(penstock_prepare, st, NULL, PENSTOCK_READ);
	/* A NULL storage is valid: it means to prepare only the device. */
	assert_int_equal(penstock_prepare(NULL, host, PENSTOCK_READ), 0);
	FAILS(penstock_explain, NULL, &explanation);
	FAILS(penstock_explain, &req, &explanation);
	FAILS(penstock_explain, &req, NULL);
	FAILS(penstock_queue_open, NULL, NULL);
	FAILS(penstock_queue_open, &opts, NULL);
	FAILS(penstock_submit, NULL, &req, 1, NULL);
	FAILS(penstock_submit, q, NULL, 1, NULL);
	FAILS(penstock_submit, q, &req, 1, NULL);
	assert_int_equal(penstock_submit(q, NULL, 0, NULL), 0);
	FAILS(penstock_poll, NULL, NULL, 0);
	FAILS(penstock_wait, NULL, NULL, 0, 0, 0);
	FAILS(penstock_cancel, NULL, 1);
	FAILS(penstock_queue_fd, NULL);
	FAILS(penstock_stream_passed, NULL, buf);
	RUNS(penstock_queue_close, NULL);
}

static void null_models(void **state)
{
	struct penstock_tensor tensor = {.size = sizeof(tensor)};
	struct penstock_weights_file file = {.size = sizeof(file)};
	struct penstock_shard shard = {.size = sizeof(shard)};
	struct penstock_weights *out;
	const char *text, *none = NULL;

	(void)state;
	FAILS(penstock_weights_open, NULL, NULL, &out);
	FAILS(penstock_weights_open, made_path("null.safetensors"), NULL, NULL);
	FAILS(penstock_weights_open_list, NULL, 1, NULL, &out);
	FAILS(penstock_weights_open_list, &none, 1, NULL, &out);
	FAILS(penstock_weights_get, NULL, 0, &tensor);
	FAILS(penstock_weights_get, model, 0, NULL);
	FAILS(penstock_weights_find, NULL, "a");
	FAILS(penstock_weights_find, model, NULL);
	FAILS(penstock_weights_get_file, NULL, 0, &file);
	FAILS(penstock_weights_get_file, model, 0, NULL);
	FAILS(penstock_weights_get_metadata, NULL, 0, 0, &text, &text);
	FAILS(penstock_weights_get_metadata, model, 0, 0, NULL, &text);
	FAILS(penstock_weights_get_metadata, model, 0, 0, &text, NULL);
	FAILS(penstock_weights_shard, NULL, 0, NULL, &shard);
	FAILS(penstock_weights_shard, model, 0, NULL, NULL);
	NOTHING(IS_ZERO, penstock_weights_count, NULL);
	NOTHING(IS_ZERO, penstock_weights_file_count, NULL);
	NOTHING(IS_NULL, penstock_cut_rules, NULL);
	RUNS(penstock_weights_get_place, NULL);
	RUNS(penstock_weights_close, NULL);
	call_begin("penstock_weights_effort", "NULL, 2");
	assert_int_equal(penstock_weights_effort(NULL, 2), PENSTOCK_THRIFTY);
}

static void null_loads(void **state)
{
	struct penstock_device *none = NULL;
	struct penstock_load_report report = {.size = sizeof(report)};
	struct penstock_loaded *out = NULL;
	struct penstock_weights_iter *it;
	uint64_t tensor;
	void *ptr;

	(void)state;
	FAILS(penstock_weights_load, NULL, &host, 1, NULL, NULL, &out);
	FAILS(penstock_weights_load, model, NULL, 1, NULL, NULL, &out);
	FAILS(penstock_weights_load, model, &none, 1, NULL, NULL, &out);
	FAILS(penstock_weights_load, model, &host, 0, NULL, NULL, &out);
	FAILS(penstock_weights_load, model, &host, 1, NULL, NULL, NULL);
	FAILS(penstock_weights_load_into, NULL, NULL, 0, NULL, NULL);
	FAILS(penstock_weights_load_into, model, NULL, 1, NULL, NULL);
	FAILS(penstock_weights_iter_open, NULL, host, NULL, &it);
	FAILS(penstock_weights_iter_open, model, NULL, NULL, &it);
	FAILS(penstock_weights_iter_open, model, host, NULL, NULL);
	FAILS(penstock_weights_iter_next, NULL, &tensor, &ptr);
	FAILS(penstock_weights_iter_next, iter, NULL, &ptr);
	FAILS(penstock_weights_iter_next, iter, &tensor, NULL);
	FAILS(penstock_weights_iter_release, NULL, 0);
	RUNS(penstock_weights_iter_report, NULL, &report);
	RUNS(penstock_weights_iter_report, iter, NULL);
	RUNS(penstock_weights_iter_close, NULL);
	RUNS(penstock_loaded_free, NULL);
	call_begin("penstock_loaded_ptr", "NULL, 0, 0");
	assert_null(penstock_loaded_ptr(NULL, 0, 0));
	FAILS(penstock_weights_save, NULL, NULL, 0, NULL, NULL);
	FAILS(penstock_weights_save, made_path("null.out"), NULL, 1, NULL, NULL);
	/* The iterator must still work after the failed calls above. */
	assert_int_equal(penstock_weights_iter_next(iter, &tensor, &ptr), 1);
	assert_int_equal(penstock_weights_iter_release(iter, tensor), 0);
}

static void null_parts(void **state)
{
	const struct penstock_seg seg = {.buf = buf, .row_len = 1};
	struct penstock_item item = {.size = sizeof(item), .len = 1, .segs = &seg, .seg_count = 1};

	(void)state;
	FAILS(penstock_part_write, NULL, &item, 1, NULL, NULL);
	FAILS(penstock_part_write, made_path("null.part"), NULL, 1, NULL, NULL);
	FAILS(penstock_part_read, NULL, &item, 1, NULL, NULL);
	FAILS(penstock_part_read, made_path("null.part"), NULL, 1, NULL, NULL);
	item.segs = NULL;
	FAILS(penstock_part_write, made_path("null.part"), &item, 1, NULL, NULL);
	FAILS(penstock_part_read, made_path("null.part"), &item, 1, NULL, NULL);
}

static void null_manifests(void **state)
{
	struct penstock_part part = {.size = sizeof(part), .name = "p"};
	struct penstock_item item = {.size = sizeof(item)};
	struct penstock_manifest *manifest = NULL;
	const char *dir = made_path("manifests"), *path = made_path("manifests/penstock.manifest");

	(void)state;
	made_dir(dir);
	FAILS(penstock_manifest_write, NULL, 1, &part, 1);
	FAILS(penstock_manifest_write, path, 1, NULL, 1);
	assert_int_equal(penstock_manifest_write(path, 1, &part, 1), 0);
	FAILS(penstock_manifest_open, NULL, &manifest);
	FAILS(penstock_manifest_open, dir, NULL);
	assert_int_equal(penstock_manifest_open(dir, &manifest), 0);
	NOTHING(IS_ZERO, penstock_manifest_parts, NULL);
	FAILS(penstock_manifest_get, NULL, 0, &part);
	FAILS(penstock_manifest_get, manifest, 0, NULL);
	FAILS(penstock_manifest_find, NULL, "p", 0, &item);
	FAILS(penstock_manifest_find, manifest, NULL, 0, &item);
	FAILS(penstock_manifest_find, manifest, "p", 0, NULL);
	penstock_manifest_close(manifest);
	RUNS(penstock_manifest_close, NULL);
}

static int ignore_ckpt(void *user, const struct penstock_ckpt *ckpt)
{
	(void)user;
	(void)ckpt;
	return 0;
}

static void null_checkpoints(void **state)
{
	(void)state;
	FAILS(penstock_ckpt_list, NULL, ignore_ckpt, NULL);
	FAILS(penstock_ckpt_list, made_path("manifests"), NULL, NULL);
	FAILS(penstock_ckpt_verify, NULL, NULL, NULL, NULL, NULL);
	FAILS(penstock_ckpt_prune, NULL, 1, 0, NULL, NULL);
}

static void null_groups(void **state)
{
	struct penstock_loaded *out = NULL;
	struct penstock_group *g;

	(void)state;
	FAILS(penstock_group_open, NULL, 0, 1, NULL, &g);
	FAILS(penstock_group_open, "null", 0, 1, NULL, NULL);
	FAILS(penstock_group_load, NULL, model, &host, 1, NULL, NULL, &out);
	FAILS(penstock_group_load, group, NULL, &host, 1, NULL, NULL, &out);
	FAILS(penstock_group_load, group, model, NULL, 1, NULL, NULL, &out);
	FAILS(penstock_group_load, group, model, &host, 1, NULL, NULL, NULL);
	FAILS(penstock_group_load_into, NULL, model, NULL, 0, NULL, NULL);
	FAILS(penstock_group_load_into, group, NULL, NULL, 0, NULL, NULL);
	FAILS(penstock_group_load_into, group, model, NULL, 1, NULL, NULL);
	RUNS(penstock_group_close, NULL);
}

static void null_object_clients(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window_info window_info = {.size = sizeof(window_info)};
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
	struct penstock_object_reply reply = {.size = sizeof(reply)};
	struct penstock_object_verdict verdict = {.size = sizeof(verdict)};
	struct penstock_object_request request = {.size = sizeof(request)};
	struct penstock_object_end end;
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;

	(void)state;
	FAILS(penstock_object_client_open, NULL, NULL);
	assert_int_equal(penstock_object_client_open(NULL, &client), 0);
	FAILS(penstock_object_client_get_info, NULL, &info);
	FAILS(penstock_object_client_get_info, client, NULL);
	FAILS(penstock_object_alloc, NULL, host, LEN, &buffer);
	FAILS(penstock_object_alloc, client, host, LEN, NULL);
	FAILS(penstock_object_register, NULL, host, buf, LEN, &buffer);
	FAILS(penstock_object_register, client, host, NULL, LEN, &buffer);
	FAILS(penstock_object_register, client, host, buf, LEN, NULL);
	NOTHING(IS_NULL, penstock_object_ptr, NULL);
	RUNS(penstock_object_unregister, NULL);
	assert_int_equal(penstock_object_alloc(client, host, LEN, &buffer), 0);
	FAILS(penstock_object_window_open, NULL, PENSTOCK_READ, 0, LEN, &window);
	FAILS(penstock_object_window_open, buffer, PENSTOCK_READ, 0, LEN, NULL);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, LEN, &window), 0);
	FAILS(penstock_object_window_get_info, NULL, &window_info);
	FAILS(penstock_object_window_get_info, window, NULL);
	FAILS(penstock_object_start, NULL, &request);
	FAILS(penstock_object_start, window, NULL);
	request.key = "key";
	FAILS(penstock_object_start, window, &request);
	request = (struct penstock_object_request){.size = sizeof(request), .bucket = "bucket"};
	FAILS(penstock_object_start, window, &request);
	FAILS(penstock_object_client_wait, NULL, &end, 1, 0);
	FAILS(penstock_object_client_wait, client, NULL, 1, 0);
	FAILS(penstock_object_client_fd, NULL);
	FAILS(penstock_object_headers, NULL, headers, PENSTOCK_OBJECT_HEADERS_MAX);
	FAILS(penstock_object_headers, window, NULL, PENSTOCK_OBJECT_HEADERS_MAX);
	FAILS(penstock_object_judge, NULL, &reply, &verdict);
	FAILS(penstock_object_judge, window, NULL, &verdict);
	FAILS(penstock_object_judge, window, &reply, NULL);
	RUNS(penstock_object_release, NULL);
	RUNS(penstock_object_client_close, NULL);
	penstock_object_release(window);
	penstock_object_unregister(buffer);
	penstock_object_client_close(client);
}

static void null_object_servers(void **state)
{
	struct penstock_object_server_info info = {.size = sizeof(info)};
	struct penstock_object_remote_info remote_info = {.size = sizeof(remote_info)};
	struct penstock_object_seg seg = {.len = 1};
	struct penstock_object_done done;
	struct penstock_object_server *server;
	struct penstock_object_remote *remote;
	void *memory;

	(void)state;
	FAILS(penstock_object_server_open, NULL, NULL);
	assert_int_equal(penstock_object_server_open(NULL, &server), 0);
	FAILS(penstock_object_server_get_info, NULL, &info);
	FAILS(penstock_object_server_get_info, server, NULL);
	FAILS(penstock_object_resolve, NULL, "t", 1, NULL, &remote);
	FAILS(penstock_object_resolve, server, NULL, 1, NULL, &remote);
	FAILS(penstock_object_resolve, server, "t", 1, NULL, NULL);
	FAILS(penstock_object_remote_get_info, NULL, &remote_info);
	FAILS(penstock_object_move, NULL, PENSTOCK_READ, 0, &seg, 1, 0);
	FAILS(penstock_object_poll, NULL, &done, 1);
	FAILS(penstock_object_poll, server, NULL, 1);
	FAILS(penstock_object_wait, NULL, &done, 1, 0);
	FAILS(penstock_object_wait, server, NULL, 1, 0);
	FAILS(penstock_object_fd, NULL);
	FAILS(penstock_object_answer_fill, NULL);
	FAILS(penstock_object_exchange, NULL, PENSTOCK_OBJECT_PREPARE, NULL, 0, NULL, NULL, 0);
	FAILS(penstock_object_paired, NULL, NULL, NULL);
	FAILS(penstock_object_prepare, NULL, NULL, 0, NULL, NULL, NULL);
	FAILS(penstock_object_ready, NULL, 0, 0, 0);
	FAILS(penstock_object_server_alloc, NULL, NULL, LEN, &memory);
	FAILS(penstock_object_server_alloc, server, NULL, LEN, NULL);
	FAILS(penstock_object_server_free, NULL, buf);
	assert_int_equal(penstock_object_server_free(server, NULL), 0);
	RUNS(penstock_object_forget, NULL);
	RUNS(penstock_object_server_close, NULL);
	penstock_object_server_close(server);
}

static void null_planner(void **state)
{
	const char *name = "total", *none = NULL;
	double value;
	char word[32];

	(void)state;
	FAILS(penstock_model_run, NULL, NULL, &name, &value, 1);
	FAILS(penstock_model_run, "pipeline", NULL, NULL, &value, 1);
	FAILS(penstock_model_run, "pipeline", NULL, &name, NULL, 1);
	FAILS(penstock_model_run, "pipeline", NULL, &none, &value, 1);
	FAILS(penstock_model_word, NULL, "slowest-hop", 0, word, sizeof(word));
	FAILS(penstock_model_word, "pipeline", NULL, 0, word, sizeof(word));
	FAILS(penstock_model_word, "pipeline", "slowest-hop", 0, NULL, sizeof(word));
}

static void null_texts(void **state)
{
	const char *volatile none = NULL;

	(void)state;
	RUNS(penstock_stats_note, NULL);
	call_begin("penstock_fail", "EIO, PENSTOCK_WHY_STALE, NULL");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	assert_int_equal(penstock_fail(EIO, PENSTOCK_WHY_STALE, none), -EIO);
#pragma GCC diagnostic pop
	assert_string_equal(penstock_errmsg(), penstock_why_text(PENSTOCK_WHY_STALE));
}

/* Public functions that have no pointer parameters, or accept NULL for each of them. So the cases
 * above need not call these functions. */
static const char *const without_pointers[] = {
	"penstock_dtype_bits", "penstock_dtype_name", "penstock_errmsg",
	"penstock_errwhy",     "penstock_stats",      "penstock_topo",
	"penstock_version",    "penstock_why_name",   "penstock_why_text",
};

static bool is_covered(const char *name)
{
	for (unsigned i = 0; i < sizeof(without_pointers) / sizeof(without_pointers[0]); i++)
		if (!strcmp(without_pointers[i], name))
			return true;
	for (unsigned i = 0; i < call_count; i++)
		if (!strcmp(called[i], name))
			return true;
	return false;
}

/* The cases above must call every function that the library exports. */
static void map_is_covered(void **state)
{
	FILE *f = fopen("src/libpenstock.map", "re");
	unsigned count = 0;
	char line[128];

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		const char *name = line + strspn(line, "\t ");

		if (strncmp(name, "penstock_", 9) != 0)
			continue;
		line[strcspn(line, ";\n")] = '\0';
		count++;
		if (!is_covered(name))
			fail_msg("no case passes NULL to %s", name);
	}
	fclose(f);
	assert_true(count > 60);
}

/* ---- arrays whose elements differ in size ---- */

/* Sizes for element 1 of an array, all different from the size of element 0. The functions must
 * refuse such an array, even if the size is valid in an array whose elements all have it. */
static const size_t wrong_sizes[] = {0, 1, 8, 16, 4096, 1u << 30};

static void requests_of_different_sizes(void **state)
{
	struct penstock_seg seg = {.buf = buf, .dev = host, .row_len = 16};
	struct penstock_req reqs[2] = {PENSTOCK_REQ_INIT, PENSTOCK_REQ_INIT};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		reqs[i].storage = st;
		reqs[i].segs = &seg;
		reqs[i].seg_count = 1;
	}
	for (unsigned i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); i++) {
		reqs[1].size = wrong_sizes[i];
		assert_int_equal(penstock_submit(q, reqs, 2, NULL), 1);
		assert_non_null(strstr(penstock_errmsg(), "element 1"));
		assert_int_equal(penstock_wait(q, NULL, 1, 0, -1), 1);
	}
	reqs[1].size = sizeof(reqs[0]);
	assert_int_equal(penstock_submit(q, reqs, 2, NULL), 2);
	assert_int_equal(penstock_wait(q, NULL, 2, 0, -1), 2);
}

static void copies_of_different_sizes(void **state)
{
	struct penstock_copy_args copies[2];

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		copies[i] = (struct penstock_copy_args){.size = sizeof(copies[0]),
							.dst_dev = host,
							.dst = (char *)buf + 4096,
							.src_dev = host,
							.src = buf,
							.row_len = 16};
	for (unsigned i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); i++) {
		copies[1].size = wrong_sizes[i];
		assert_int_equal(penstock_copy(copies, 2), -EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "element 1"));
	}
	copies[1].size = sizeof(copies[0]);
	assert_int_equal(penstock_copy(copies, 2), 0);
}

static void sums_of_different_sizes(void **state)
{
	struct penstock_sum_args sums[2];

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		sums[i] = (struct penstock_sum_args){
			.size = sizeof(sums[0]), .dev = host, .ptr = buf, .len = 16};
	for (unsigned i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); i++) {
		sums[1].size = wrong_sizes[i];
		assert_int_equal(penstock_sum(sums, 2), -EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "element 1"));
	}
	sums[1].size = sizeof(sums[0]);
	assert_int_equal(penstock_sum(sums, 2), 0);
}

static void pieces_of_different_sizes(void **state)
{
	struct penstock_piece pieces[2];

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		pieces[i] = (struct penstock_piece){
			.size = sizeof(pieces[0]), .dev = host, .ptr = buf, .room = LEN};
	for (unsigned i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); i++) {
		pieces[1].size = wrong_sizes[i];
		assert_int_equal(penstock_weights_load_into(model, pieces, 2, NULL, NULL), -EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "element 1"));
	}
	pieces[1].size = sizeof(pieces[0]);
	assert_int_equal(penstock_weights_load_into(model, pieces, 2, NULL, NULL), 0);
}

static void tensors_of_different_sizes(void **state)
{
	struct penstock_out tensors[2];
	const uint64_t shape = 16;

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		tensors[i] = (struct penstock_out){.size = sizeof(tensors[0]),
						   .name = i ? "b" : "a",
						   .dtype = PENSTOCK_DTYPE_U8,
						   .rank = 1,
						   .shape = &shape,
						   .dev = host,
						   .ptr = buf};
	for (unsigned i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); i++) {
		tensors[1].size = wrong_sizes[i];
		assert_int_equal(
			penstock_weights_save(made_path("null.out"), tensors, 2, NULL, NULL),
			-EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "element 1"));
	}
	tensors[1].size = sizeof(tensors[0]);
	assert_int_equal(penstock_weights_save(made_path("null.out"), tensors, 2, NULL, NULL), 0);
}

/* ---- memory that the library has not allocated ---- */

/* penstock_free refuses every address that penstock_alloc has not returned, and unmaps nothing. */
static void foreign_memory_is_kept(void **state)
{
	char *map = mmap(NULL, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *mem;

	(void)state;
	assert_true(map != MAP_FAILED);
	/* The bytes before the address look like the header of an allocation. penstock_free must
	 * not trust them. */
	for (size_t i = 0; i < LEN / sizeof(uintptr_t); i++)
		((uintptr_t *)(void *)map)[i] = i % 2 ? LEN : (uintptr_t)map + LEN;
	map[LEN] = 'x';
	assert_int_equal(penstock_free(host, map + LEN), -EINVAL);
	assert_int_equal(penstock_free(host, map), -EINVAL);
	assert_int_equal(map[LEN], 'x');
	munmap(map, 2 * LEN);
	for (size_t len = 1; len <= 8u << 20; len *= 16) {
		assert_int_equal(penstock_alloc(host, len, &mem), 0);
		memset(mem, 1, len);
		assert_int_equal(penstock_free(host, (char *)mem + 4096), -EINVAL);
		assert_int_equal(penstock_free(host, mem), 0);
		assert_int_equal(penstock_free(host, mem), -EINVAL);
	}
}

static int setup(void **state)
{
	static const struct made tensors[] = {{"a", "U8", 8, 1, {100}}};

	struct penstock_storage_opts writable = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	writable.flags = PENSTOCK_O_WRITE;
	made_file(made_path("null.safetensors"), tensors, 1, 0);
	return penstock_device_open("host", NULL, &host) < 0 || penstock_alloc(host, LEN, &buf) ||
	       penstock_open("mem:1MiB", &writable, &st) || penstock_queue_open(NULL, &q) ||
	       penstock_weights_open(made_path("null.safetensors"), NULL, &model) ||
	       penstock_weights_iter_open(model, host, NULL, &iter) ||
	       penstock_weights_load(model, &host, 1, NULL, NULL, &loaded) ||
	       penstock_group_open("null", 0, 1, NULL, &group);
}

static int teardown(void **state)
{
	(void)state;
	penstock_group_close(group);
	penstock_loaded_free(loaded);
	penstock_weights_iter_close(iter);
	penstock_weights_close(model);
	penstock_queue_close(q);
	penstock_close(st);
	penstock_free(host, buf);
	penstock_device_close(host);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(null_storages),
		cmocka_unit_test(null_devices),
		cmocka_unit_test(null_memory),
		cmocka_unit_test(null_requests),
		cmocka_unit_test(null_models),
		cmocka_unit_test(null_loads),
		cmocka_unit_test(null_parts),
		cmocka_unit_test(null_manifests),
		cmocka_unit_test(null_checkpoints),
		cmocka_unit_test(null_groups),
		cmocka_unit_test(null_object_clients),
		cmocka_unit_test(null_object_servers),
		cmocka_unit_test(null_planner),
		cmocka_unit_test(null_texts),
		cmocka_unit_test(map_is_covered),
		cmocka_unit_test(requests_of_different_sizes),
		cmocka_unit_test(copies_of_different_sizes),
		cmocka_unit_test(sums_of_different_sizes),
		cmocka_unit_test(pieces_of_different_sizes),
		cmocka_unit_test(tensors_of_different_sizes),
		cmocka_unit_test(foreign_memory_is_kept),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
