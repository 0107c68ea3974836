/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_weights_load and penstock_weights_load_into, on the host and on the stand-in's
 * CUDA device. Every byte must be in its place, and tensors must be aligned. The load must need
 * no more memory than the header promises, and read each byte of a file once. Failures must have
 * the right messages.
 */
#include "load.h"

/* ---- penstock_weights_load ---- */

static uint64_t sum_bytes(const struct made *list, unsigned count)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++)
		sum += made_bytes(&list[i]);
	return sum;
}

static void load_all_dtypes(unsigned pad, uint64_t align)
{
	struct penstock_device *devs[] = {host, gpu};
	struct penstock_loaded *loaded;
	const char *path = made_path("zoo.safetensors");
	uint64_t sum = sum_bytes(all_dtypes, COUNT(all_dtypes));

	made_file(path, all_dtypes, COUNT(all_dtypes), pad);
	open_model(path);
	use_counter();
	opts.align = align;
	for (unsigned n = 1; n <= 2; n++) {
		if (penstock_weights_load(w, devs, n, &opts, &report, &loaded))
			fail_msg("%s", penstock_errmsg());
		/* The file is read once for all devices. Up to one page more may be read. */
		assert_int_equal(report.bytes, n * sum);
		assert_true(report.read >= sum && report.read < sum + 4096);
		assert_int_equal(report.device_bytes, held_most);
		assert_true(held_most >= n * sum &&
			    held_most < n * (sum + COUNT(all_dtypes) * 8192));
		assert_string_not_equal(report.path, "none");
		for (unsigned d = 0; d < n; d++) {
			for (unsigned i = 0; i < COUNT(all_dtypes); i++) {
				char *at = penstock_loaded_ptr(
					loaded, d,
					(uint64_t)penstock_weights_find(w, all_dtypes[i].name));
				uint64_t want = all_dtypes[i].bits / 8 > align
							? all_dtypes[i].bits / 8
							: align;

				assert_non_null(at);
				if (want && made_bytes(&all_dtypes[i]))
					assert_int_equal((uintptr_t)at % want, 0);
				check_tensor(devs[d], at, all_dtypes[i].name,
					     made_bytes(&all_dtypes[i]));
			}
		}
		assert_null(penstock_loaded_ptr(loaded, n, 0));
		assert_null(penstock_loaded_ptr(loaded, 0, COUNT(all_dtypes)));
		penstock_loaded_free(loaded);
		assert_int_equal(held_count, 0);
		held_most = 0;
	}
}

static void test_load(void **state)
{
	(void)state;
	for (unsigned pad = 0; pad < 9; pad++)
		load_all_dtypes(pad, 0);
	load_all_dtypes(1, 16);
	load_all_dtypes(0, 256);
}

/* In a file as most programs write it, the tensors are contiguous. A load then needs memory for
 * their bytes and less than one more page. */
static void test_load_contiguous(void **state)
{
	static const struct made list[] = {
		{"a", "F32", 32, 2, {300, 100}},
		{"b", "BF16", 16, 2, {1000, 100}},
		{"c", "F8_E4M3", 8, 1, {12345}},
	};
	struct penstock_loaded *loaded;
	const char *path = made_path("plain.safetensors");
	uint64_t sum = sum_bytes(list, 3);

	(void)state;
	for (unsigned pad = 0; pad < 9; pad += 3) {
		made_file(path, list, 3, pad);
		open_model(path);
		use_counter();
		assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), 0);
		assert_true(held_most >= sum && held_most < sum + 8192);
		assert_int_equal(report.requests, 1);
		penstock_loaded_free(loaded);
	}
}

/* A long tensor has the same offset within a page in memory as in the file. Direct paths can
 * therefore write to its memory. */
static void test_page_offset(void **state)
{
	static const struct made list[] = {{"odd", "U8", 8, 1, {777}},
					   {"long", "U8", 8, 1, {100000}}};
	struct penstock_tensor t = {.size = sizeof(t)};
	struct penstock_loaded *loaded;
	const char *path = made_path("pages.safetensors");

	(void)state;
	for (unsigned pad = 0; pad < 9; pad += 2) {
		made_file(path, list, 2, pad);
		open_model(path);
		assert_int_equal(penstock_weights_get(w, 1, &t), 0);
		assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), 0);
		assert_int_equal(((uintptr_t)penstock_loaded_ptr(loaded, 0, 1) - t.off) % 4096, 0);
		penstock_loaded_free(loaded);
	}
}

static unsigned request_count;
static int request_code;

static int count_request(void *user, unsigned file, const struct penstock_report *r)
{
	(void)user;
	(void)file;
	assert_true(r->bytes > 0);
	request_count++;
	return request_code;
}

static void test_each(void **state)
{
	struct penstock_device *both[] = {host, gpu};
	static struct made list[40];
	static char names[40][8];
	struct penstock_loaded *loaded = NULL;
	const char *path = made_path("each.safetensors");

	(void)state;
	for (unsigned i = 0; i < COUNT(list); i++) {
		snprintf(names[i], sizeof(names[i]), "t%02u", i);
		list[i] = (struct made){names[i], "F32", 32, 1, {10000}};
	}
	made_file(path, list, COUNT(list), 0);
	open_model(path);
	opts.each = count_request;
	opts.request_bytes = 80000;
	request_count = 0;
	request_code = 0;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	assert_int_equal(request_count, 20);
	assert_int_equal(report.bytes, 1600000);
	penstock_loaded_free(loaded);
	/* The same bytes have two destinations, on two devices. Each request must carry its bytes
	 * to both, because otherwise the library would read the bytes twice. */
	assert_int_equal(penstock_weights_load(w, both, 2, &opts, &report, &loaded), 0);
	assert_int_equal(report.bytes, 3200000);
	assert_true(report.read < 1700000);
	penstock_loaded_free(loaded);
	loaded = NULL;
	request_code = 1;
	request_count = 0;
	use_counter();
	opts.user = &held;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -ECANCELED);
	assert_int_equal(request_count, 1);
	assert_null(loaded);
	assert_int_equal(held_count, 0);
}

static void *no_memory(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	(void)user;
	(void)dev;
	(void)len;
	(void)align;
	return NULL;
}

static void test_no_memory(void **state)
{
	struct penstock_loaded *loaded = NULL;

	(void)state;
	made_file(made_path("zoo.safetensors"), all_dtypes, COUNT(all_dtypes), 0);
	open_model(made_path("zoo.safetensors"));
	use_counter();
	opts.alloc = no_memory;
	assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), -ENOMEM);
	assert_non_null(strstr(penstock_errmsg(), "bytes on cuda:0"));
	assert_int_equal(report.read, 0);
	assert_null(loaded);
}

/* ---- penstock_weights_load_into ---- */

/* Loads one range of a tensor, and compares it with the bytes that the range should have. */
static void check_piece(struct penstock_device *dev, const struct made *m, unsigned dim,
			uint64_t first, uint64_t count, uint64_t outer_first, uint64_t outer_count,
			uint64_t gap)
{
	uint64_t inner = m->bits, extent = m->rank ? m->shape[dim] : 1, outer = 1, row, rows;
	struct penstock_piece p = {.size = sizeof(p),
				   .dim = dim,
				   .first = first,
				   .count = count,
				   .outer_first = outer_first,
				   .outer_count = outer_count,
				   .dev = dev};
	unsigned char *bytes;
	void *mem;

	for (unsigned i = 0; i < dim; i++)
		outer *= m->shape[i];
	for (unsigned i = dim + 1; i < m->rank; i++)
		inner *= m->shape[i];
	row = (count ? count : extent - first) * inner / 8;
	rows = outer_count ? outer_count : outer - outer_first;
	p.tensor = (uint64_t)penstock_weights_find(w, m->name);
	p.pitch = gap ? row + gap : 0;
	p.room = rows * (row + gap);
	assert_int_equal(penstock_alloc(dev, p.room + 64, &mem), 0);
	p.ptr = (char *)mem + 3;
	if (penstock_weights_load_into(w, &p, 1, &opts, &report))
		fail_msg("%s", penstock_errmsg());
	bytes = read_back(dev, p.ptr, p.room);
	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t i = 0; i < row; i++)
			assert_int_equal(bytes[r * (row + gap) + i],
					 made_byte(m->name, (outer_first + r) * extent * inner / 8 +
								    first * inner / 8 + i));
	free(bytes);
	penstock_free(dev, mem);
}

static void test_into(void **state)
{
	const struct made *last = &all_dtypes[11], *half = &all_dtypes[4], *four = &all_dtypes[7],
			  *big = &all_dtypes[5];

	(void)state;
	made_file(made_path("zoo.safetensors"), all_dtypes, COUNT(all_dtypes), 1);
	open_model(made_path("zoo.safetensors"));
	for (unsigned d = 0; d < 2; d++) {
		struct penstock_device *dev = d ? gpu : host;

		check_piece(dev, last, 0, 0, 0, 0, 0, 0);
		check_piece(dev, last, 0, 1, 2, 0, 0, 0);
		check_piece(dev, last, 1, 2, 3, 0, 0, 0);
		check_piece(dev, last, 1, 2, 3, 1, 2, 5);
		check_piece(dev, last, 2, 9, 1, 3, 7, 1);
		check_piece(dev, half, 1, 4, 6, 0, 0, 100);
		check_piece(dev, four, 1, 2, 4, 0, 0, 0);
		check_piece(dev, &all_dtypes[2], 0, 0, 0, 0, 0, 0);
		check_piece(dev, big, 1, 100, 300, 0, 0, 0);
		check_piece(dev, big, 0, 500, 13, 0, 0, 0);
	}
	/* A load of a part of dimension 0 reads only the bytes of that part. */
	check_piece(gpu, big, 0, 100, 200, 0, 0, 0);
	assert_true(report.read <= 200 * 1021 * 2 * 105 / 100);
}

/* Loads eight column parts of one matrix to two devices in one call. The library must read the
 * matrix once. */
static void test_columns(void **state)
{
	static const struct made m = {"m", "BF16", 16, 2, {256, 1024}};
	struct penstock_piece p[8];
	const char *path = made_path("columns.safetensors");
	char *mem[8];

	(void)state;
	made_file(path, &m, 1, 0);
	open_model(path);
	for (unsigned i = 0; i < 8; i++) {
		struct penstock_device *dev = i % 2 ? gpu : host;

		assert_int_equal(penstock_alloc(dev, 256 * 256, (void **)&mem[i]), 0);
		p[i] = (struct penstock_piece){.size = sizeof(p[0]),
					       .dim = 1,
					       .first = i * 128,
					       .count = 128,
					       .ptr = mem[i],
					       .room = 256 * 256,
					       .dtype = PENSTOCK_DTYPE_BF16};
	}
	if (penstock_weights_load_into(w, p, 8, &opts, &report))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(report.bytes, made_bytes(&m));
	assert_int_equal(report.read, made_bytes(&m));
	for (unsigned i = 0; i < 8; i++) {
		unsigned char *bytes = read_back(i % 2 ? gpu : host, mem[i], 256 * 256);

		for (unsigned r = 0; r < 256; r++)
			for (unsigned c = 0; c < 256; c++)
				assert_int_equal(bytes[r * 256 + c],
						 made_byte("m", r * 2048 + i * 256 + c));
		free(bytes);
		penstock_free(i % 2 ? gpu : host, mem[i]);
	}
}

static void check_refused(struct penstock_piece p, int code, const char *words)
{
	int ret;

	p.size = sizeof(p);
	report.read = 0;
	ret = penstock_weights_load_into(w, &p, 1, &opts, &report);
	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected %d '%s'", ret, penstock_errmsg(), -code, words);
	assert_int_equal(report.read, 0);
}

static void test_refusals(void **state)
{
	static char mem[4000];
	struct penstock_weights_place place = {.size = sizeof(place)};
	uint64_t last, four, half;
	void *on_gpu;

	(void)state;
	made_file(made_path("zoo.safetensors"), all_dtypes, COUNT(all_dtypes), 0);
	open_model(made_path("zoo.safetensors"));
	assert_int_equal(penstock_alloc(gpu, 4000, &on_gpu), 0);
	last = (uint64_t)penstock_weights_find(w, "last");
	four = (uint64_t)penstock_weights_find(w, "four");
	half = (uint64_t)penstock_weights_find(w, "half");
	/* The tensor `last` has 4 x 6 x 10 elements of four bytes. */
#define P .ptr = mem, .room = sizeof(mem)
	check_refused((struct penstock_piece){P, .tensor = COUNT(all_dtypes)}, ENOENT,
		      "tensor 12 is out of range: the model has 12");
	check_refused((struct penstock_piece){P, .tensor = last, .dim = 3}, ERANGE, "outside");
	check_refused((struct penstock_piece){P, .tensor = last, .first = 4, .count = 1}, ERANGE,
		      "outside");
	check_refused((struct penstock_piece){P, .tensor = last, .first = UINT64_MAX, .count = 2},
		      ERANGE, "outside");
	check_refused((struct penstock_piece){P, .tensor = last, .first = 5}, ERANGE, "outside");
	check_refused((struct penstock_piece){P, .tensor = last, .dim = 1, .outer_first = 3,
					      .outer_count = 2},
		      ERANGE, "outside");
	check_refused((struct penstock_piece){.ptr = mem, .room = 959, .tensor = last}, ENOSPC,
		      "959 bytes, it needs 960");
	check_refused(
		(struct penstock_piece){P, .tensor = last, .dim = 1, .count = 3, .pitch = 2000},
		ENOSPC, "it needs 6120");
	check_refused(
		(struct penstock_piece){P, .tensor = last, .dim = 1, .count = 3, .pitch = 119},
		EINVAL, "pitch is shorter");
	check_refused((struct penstock_piece){P, .tensor = last, .dim = 1, .count = 3,
					      .pitch = UINT64_MAX},
		      ENOSPC, "it needs");
	check_refused((struct penstock_piece){P, .tensor = last, .dtype = PENSTOCK_DTYPE_F16},
		      EINVAL, "it is F32, but its destination is F16");
	check_refused((struct penstock_piece){P, .tensor = last, .dev = gpu}, EINVAL,
		      "on host, but the piece says cuda:0");
	check_refused(
		(struct penstock_piece){.ptr = on_gpu, .room = 4000, .tensor = half, .dev = host},
		EINVAL, "on cuda:0, but the piece says host");
	check_refused((struct penstock_piece){.room = 4000, .tensor = half}, EINVAL, "NULL");
	check_refused((struct penstock_piece){P, .tensor = four, .dim = 1, .first = 1, .count = 2},
		      EINVAL, "whole bytes");
	penstock_weights_get_place(&place);
	assert_string_equal(place.tensor, "four");
	assert_non_null(strstr(place.file, "zoo.safetensors"));
	made_file(made_path("odd.safetensors"), &(struct made){"odd", "F4", 4, 2, {2, 3}}, 1, 0);
	open_model(made_path("odd.safetensors"));
	check_refused((struct penstock_piece){P, .tensor = 0, .dim = 1, .count = 2}, EINVAL,
		      "whole bytes");
	open_model(made_path("zoo.safetensors"));
	opts.align = 3;
	check_refused((struct penstock_piece){P, .tensor = last}, EINVAL, "align");
	opts.align = 0;
	opts.alloc = no_memory;
	check_refused((struct penstock_piece){P, .tensor = last}, EINVAL,
		      "alloc and free must be given together");
	penstock_free(gpu, on_gpu);
}

/* ---- files that change ---- */

static void test_file_changes(void **state)
{
	static const struct made list[] = {
		{"first", "U8", 8, 1, {1 << 20}},
		{"second", "U8", 8, 1, {1 << 20}},
		{"third", "U8", 8, 1, {1 << 20}},
	};
	struct penstock_weights_place place = {.size = sizeof(place)};
	struct penstock_tensor third = {.size = sizeof(third)};
	struct penstock_loaded *loaded = NULL;
	const char *path = made_path("changes.safetensors");
	struct timespec times[2] = {{1, 0}, {1, 0}};

	(void)state;
	made_file(path, list, 3, 0);
	open_model(path);
	use_counter();
	opts.path = "fault:bounce?eio=1";
	assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), -EIO);
	penstock_weights_get_place(&place);
	assert_non_null(strstr(place.file, "changes"));
	assert_true(place.off < 4u << 20);
	assert_true(place.tensor[0]);
	assert_non_null(strstr(penstock_errmsg(), place.tensor));
	assert_non_null(strstr(place.text, path));
	assert_non_null(strstr(place.text, place.tensor));
	/* After a failure of the core library, `text` is the message of that failure. */
	assert_int_equal(
		penstock_device_open("no such device", NULL, &(struct penstock_device *){0}),
		-ENODEV);
	penstock_weights_get_place(&place);
	assert_string_equal(place.text, penstock_errmsg());
	assert_null(loaded);
	assert_int_equal(held_count, 0);
	opts.path = NULL;
	/* The file is open since the previous load. This line cuts off the file's end. */
	assert_int_equal(truncate(path, (2 << 20) + 5000), 0);
	assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), -ENODATA);
	penstock_weights_get_place(&place);
	assert_string_equal(place.tensor, "third");
	assert_int_equal(place.off, (2 << 20) + 5000);
	assert_int_equal(held_count, 0);
	/* The only wanted tensor shares its first page with the tensor before it. This line cuts
	 * the file before that page. */
	assert_int_equal(truncate(path, 5000), 0);
	assert_int_equal(penstock_weights_get(w, 2, &third), 0);
	assert_true(third.off % 4096);
	opts.first = 2;
	opts.count = 1;
	assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), -ENODATA);
	opts.first = opts.count = 0;
	penstock_weights_get_place(&place);
	assert_string_equal(place.tensor, "third");
	assert_int_equal(place.off, third.off);
	assert_int_equal(held_count, 0);
	/* The file changes before the first byte is read. */
	made_file(path, list, 3, 0);
	open_model(path);
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -ESTALE);
	assert_int_equal(report.read, 0);
	assert_non_null(strstr(penstock_errmsg(), "changed after its header"));
}

/* An open model keeps its file open, so a load succeeds although the file was removed or replaced.
 * But if a model has more files than the library keeps open, the load fails when a file is
 * missing. */
static void test_replaced(void **state)
{
	static const struct made m = {"m", "U8", 8, 1, {1 << 16}};
	static const struct made other = {"n", "U8", 8, 1, {1 << 16}};
	struct penstock_loaded *loaded = NULL;
	const char *path = made_path("replaced.safetensors"), *dir = made_path("many");

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		made_file(path, &m, 1, 0);
		open_model(path);
		made_file(made_path("new.safetensors"), &other, 1, 0);
		assert_int_equal(i ? unlink(path) : rename(made_path("new.safetensors"), path), 0);
		assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
		check_tensor(host, penstock_loaded_ptr(loaded, 0, 0), "m", 1 << 16);
		penstock_loaded_free(loaded);
	}
	made_many(dir);
	open_model(dir);
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	penstock_loaded_free(loaded);
	loaded = NULL;
	open_model(dir);
	assert_int_equal(unlink(made_path("many/64.safetensors")), 0);
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -ENOENT);
	assert_null(loaded);
	assert_non_null(strstr(penstock_errmsg(), "64.safetensors: No such file"));
}

/* The library notices a change of the file's time by one nanosecond, and a change of its length
 * alone. */
static void test_small_changes(void **state)
{
	static const struct made m = {"m", "U8", 8, 1, {1 << 16}};
	struct penstock_loaded *loaded = NULL;
	const char *path = made_path("little.safetensors");
	struct stat st;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		made_file(path, &m, 1, 0);
		open_model(path);
		assert_int_equal(stat(path, &st), 0);
		if (i)
			assert_int_equal(truncate(path, st.st_size + 1), 0);
		else
			st.st_mtim.tv_nsec ^= 1;
		utimensat(AT_FDCWD, path, (struct timespec[2]){st.st_mtim, st.st_mtim}, 0);
		assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded),
				 -ESTALE);
		assert_null(loaded);
	}
}

static int touch_file(void *user, unsigned file, const struct penstock_report *r)
{
	struct timespec times[2] = {{2, 0}, {2, 0}};

	(void)file;
	(void)r;
	return utimensat(AT_FDCWD, user, times, 0);
}

/* If the file changes while it is read, the library must notice the change after the last byte, and
 * the load must fail. */
static void test_change_during_read(void **state)
{
	static const struct made m = {"m", "U8", 8, 1, {1 << 16}};
	struct penstock_loaded *loaded = NULL;
	const char *path = made_path("late.safetensors");

	(void)state;
	made_file(path, &m, 1, 0);
	open_model(path);
	opts.each = touch_file;
	opts.user = (void *)(uintptr_t)path;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -ESTALE);
	assert_null(loaded);
}

/* If several ranks load, the default effort is fast. With effort thrifty, each rank would register
 * page cache with the GPU's driver, which lets only one rank at a time do so. If the model is
 * opened as immutable, the library keeps the registrations. The effort then stays thrifty, because
 * later loads are faster. */
static void test_effort(void **state)
{
	struct penstock_weights_opts kept = PENSTOCK_WEIGHTS_OPTS_INIT;
	static const struct made m = {"m", "U8", 8, 1, {64}};
	const char *path = made_path("effort.safetensors");

	(void)state;
	made_file(path, &m, 1, 0);
	open_model(path);
	assert_int_equal(penstock_weights_effort(w, 0), PENSTOCK_THRIFTY);
	assert_int_equal(penstock_weights_effort(w, 1), PENSTOCK_THRIFTY);
	assert_int_equal(penstock_weights_effort(w, 2), PENSTOCK_FAST);
	penstock_weights_close(w);
	kept.flags = PENSTOCK_WEIGHTS_IMMUTABLE;
	assert_int_equal(penstock_weights_open(path, &kept, &w), 0);
	assert_int_equal(penstock_weights_effort(w, 8), PENSTOCK_THRIFTY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_load),
		CASE(test_load_contiguous),
		CASE(test_each),
		CASE(test_no_memory),
		CASE(test_into),
		CASE(test_columns),
		CASE(test_refusals),
		CASE(test_file_changes),
		CASE(test_change_during_read),
		CASE(test_replaced),
		CASE(test_page_offset),
		CASE(test_small_changes),
		CASE(test_effort),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
