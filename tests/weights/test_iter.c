/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the iterator, which returns the tensors of a model one by one, on the host and on the
 * stand-in's CUDA device. It must return every byte in file order, and use no more device memory
 * than promised. It must report when its window (the memory for tensors read ahead) is full, or
 * when a read fails.
 */
#include "load.h"

/* Returns how many descriptors of this process refer to the file. */
static uint64_t open_files_of(const char *path)
{
	struct stat want, have;
	uint64_t found = 0;

	assert_int_equal(stat(path, &want), 0);
	for (int fd = 0; fd < 1024; fd++)
		if (!fstat(fd, &have) && have.st_dev == want.st_dev && have.st_ino == want.st_ino)
			found++;
	return found;
}

static void iterate(struct penstock_device *dev, uint64_t window, unsigned keep, uint64_t most)
{
	struct penstock_weights_iter *it;
	uint64_t tensor, next = 0, kept[8];
	unsigned kept_count = 0;
	void *ptr;
	int ret;

	use_counter();
	opts.window = window;
	if (penstock_weights_iter_open(w, dev, &opts, &it))
		fail_msg("%s", penstock_errmsg());
	while ((ret = penstock_weights_iter_next(it, &tensor, &ptr)) == 1) {
		struct penstock_tensor t = {.size = sizeof(t)};

		assert_int_equal(tensor, next++);
		penstock_weights_get(w, tensor, &t);
		if (t.bytes && penstock_dtype_bits(t.dtype) >= 8)
			assert_int_equal((uintptr_t)ptr % (penstock_dtype_bits(t.dtype) / 8), 0);
		assert_int_equal(opts.align ? (uintptr_t)ptr % opts.align : 0, 0);
		check_tensor(dev, ptr, t.name, t.bytes);
		kept[kept_count++] = tensor;
		if (kept_count > keep) {
			assert_int_equal(penstock_weights_iter_release(it, kept[0]), 0);
			memmove(kept, kept + 1, --kept_count * sizeof(kept[0]));
		}
		assert_int_equal(penstock_weights_iter_release(it, tensor + 1), -ENOENT);
	}
	if (ret)
		fail_msg("%d: %s", ret, penstock_errmsg());
	assert_int_equal(next, penstock_weights_count(w));
	penstock_weights_iter_report(it, &report);
	assert_int_equal(report.device_bytes, held_most);
	if (held_most > most)
		fail_msg("%zu bytes of device memory, at most %llu were promised", held_most,
			 (unsigned long long)most);
	penstock_weights_iter_close(it);
	assert_int_equal(held_count, 0);
}

static void test_iterate(void **state)
{
	static struct made list[300];
	static char names[300][16];
	const char *path = made_path("iterate.safetensors");
	uint64_t seed = test_seed(11), largest = 0;

	(void)state;
	for (unsigned i = 0; i < COUNT(list); i++) {
		uint64_t len = test_random(&seed) % (i % 10 ? 3000 : 200000);

		snprintf(names[i], sizeof(names[i]), "t%u", i);
		list[i] = (struct made){names[i], i % 3 ? "U8" : "F32", i % 3 ? 8 : 32, 1, {len}};
		largest = made_bytes(&list[i]) > largest ? made_bytes(&list[i]) : largest;
	}
	made_file(path, list, COUNT(list), 5);
	open_model(path);
	for (unsigned d = 0; d < 2; d++) {
		struct penstock_device *dev = d ? gpu : host;
		uint64_t two = 2 * (largest + 8192);

		/* The third argument is the number of tensors that the loop in iterate() still
		 * holds when it gets the next one. In the last of the four calls, the window is so
		 * large that every tensor counts as short, so the iterator needs no memory for long
		 * tensors. */
		iterate(dev, 0, 0, 1u << 30);
		iterate(dev, 1, 1, (1u << 18) + two);
		iterate(dev, 1u << 20, 1, (1u << 20) + two);
		iterate(dev, 4u << 20, 3, 4u << 20);
	}
	made_file(made_path("zoo.safetensors"), all_dtypes, COUNT(all_dtypes), 1);
	open_model(made_path("zoo.safetensors"));
	iterate(gpu, 0, 2, 2u << 20);
	iterate(host, 1, 1, (1u << 18) + made_bytes(&all_dtypes[5]) + 8192);
}

/* The gaps between the tensors take most of the window (the memory for tensors read ahead). The
 * iterator must still return every tensor. */
static void test_large_gaps(void **state)
{
	static struct made list[900];
	static char names[900][16];

	(void)state;
	for (unsigned i = 0; i < COUNT(list); i++) {
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		list[i] = (struct made){names[i], "U8", 8, 1, {i % 100 ? 5 : 20000}};
	}
	made_file(made_path("apart.safetensors"), list, COUNT(list), 0);
	open_model(made_path("apart.safetensors"));
	for (opts.align = 512; opts.align <= 4096; opts.align *= 2) {
		iterate(gpu, 1, 1, 1u << 18);
		iterate(host, 1u << 20, 1, 1u << 20);
	}
}

static void test_window_full(void **state)
{
	static const struct made list[] = {
		{"a", "U8", 8, 1, {98304}},
		{"b", "U8", 8, 1, {98304}},
		{"c", "U8", 8, 1, {98304}},
	};
	struct penstock_weights_iter *it;
	uint64_t tensor;
	void *ptr;

	(void)state;
	made_file(made_path("full.safetensors"), list, 3, 0);
	open_model(made_path("full.safetensors"));
	opts.window = 300000;
	assert_int_equal(penstock_weights_iter_open(w, host, &opts, &it), 0);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 1);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 1);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), -ENOBUFS);
	assert_non_null(strstr(penstock_errmsg(), "not released"));
	assert_int_equal(penstock_weights_iter_release(it, 0), 0);
	assert_int_equal(penstock_weights_iter_release(it, 0), -ENOENT);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 1);
	check_tensor(host, ptr, "c", 98304);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 0);
	penstock_weights_iter_close(it);
	/* The iterator can be closed early, while reads are in flight. */
	assert_int_equal(penstock_weights_iter_open(w, gpu, &opts, &it), 0);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 1);
	penstock_weights_iter_close(it);
	assert_int_equal(penstock_weights_iter_open(w, NULL, &opts, &it), -EINVAL);
	opts.path = "fault:bounce?eio=1";
	assert_int_equal(penstock_weights_iter_open(w, gpu, &opts, &it), 0);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), -EIO);
	penstock_weights_iter_close(it);
}

/* The window (a ring of memory for tensors read ahead) is full: its newest tensor ends where its
 * oldest tensor begins. The next tensor is empty. The tensor after the empty one must wait until
 * the oldest tensor is released. */
static void test_empty_tensor_in_full_window(void **state)
{
	static const struct made list[] = {
		{"a", "U8", 8, 1, {65536}}, {"b", "U8", 8, 1, {65536}}, {"c", "U8", 8, 1, {65536}},
		{"d", "U8", 8, 1, {65536}}, {"e", "U8", 8, 1, {65536}}, {"none", "U8", 8, 1, {0}},
		{"f", "U8", 8, 1, {65536}}, {"g", "U8", 8, 1, {65536}},
	};
	const char *path = made_path("nothing.safetensors");
	struct penstock_weights_file f = {.size = sizeof(f)};
	struct penstock_weights_iter *it;
	void *ptrs[COUNT(list)];
	uint64_t tensor;

	(void)state;
	made_file(path, list, COUNT(list), 0);
	open_model(path);
	assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
	made_file(path, list, COUNT(list),
		  4096 - f.data_off % 4096); /* makes the data begin at a page boundary */
	open_model(path);
	opts.window = 4 * 65536;
	for (unsigned d = 0; d < 2; d++) {
		assert_int_equal(penstock_weights_iter_open(w, d ? gpu : host, &opts, &it), 0);
		for (unsigned i = 0; i < 6; i++) {
			if (penstock_weights_iter_next(it, &tensor, &ptrs[i]) != 1)
				fail_msg("%s: %s", list[i].name, penstock_errmsg());
			if (i == 1)
				assert_int_equal(penstock_weights_iter_release(it, 0), 0);
		}
		assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptrs[6]), -ENOBUFS);
		for (unsigned i = 1; i < 5; i++)
			check_tensor(d ? gpu : host, ptrs[i], list[i].name, 65536);
		assert_int_equal(penstock_weights_iter_release(it, 1), 0);
		assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptrs[6]), 1);
		assert_ptr_equal(ptrs[6], ptrs[1]);
		check_tensor(d ? gpu : host, ptrs[6], "f", 65536);
		penstock_weights_iter_close(it);
	}
}

/* One tensor is a little longer than a quarter of the window. No other tensor forces the library
 * to make the window larger. */
static void test_just_too_long(void **state)
{
	struct made m = {"m", "U8", 8, 1, {0}};

	(void)state;
	for (uint64_t more = 0; more < 3; more++) {
		m.shape[0] = 65536 + more * 4100;
		made_file(made_path("quarter.safetensors"), &m, 1, 0);
		open_model(made_path("quarter.safetensors"));
		iterate(gpu, 1u << 18, 1, (1u << 18) + 2 * (m.shape[0] + 8192));
	}
}

static int touch_file(void *user, unsigned file, const struct penstock_report *r)
{
	struct timespec times[2] = {{2, 0}, {2, 0}};

	(void)file;
	(void)r;
	return utimensat(AT_FDCWD, user, times, 0);
}

/* All tensors in the window are short, and the caller releases none of them. The iterator must
 * say that the window is full (-ENOBUFS), and continue when they are released. */
static void test_all_held(void **state)
{
	static struct made list[40];
	static char names[40][8];
	struct penstock_weights_iter *it;
	uint64_t tensor = 0, count = 0;
	void *ptr[40], *next;
	int ret;

	(void)state;
	for (unsigned i = 0; i < COUNT(list); i++) {
		snprintf(names[i], sizeof(names[i]), "t%02u", i);
		list[i] = (struct made){names[i], "U8", 8, 1, {30000}};
	}
	made_file(made_path("held.safetensors"), list, COUNT(list), 0);
	open_model(made_path("held.safetensors"));
	opts.window = 1;
	assert_int_equal(penstock_weights_iter_open(w, gpu, &opts, &it), 0);
	while ((ret = penstock_weights_iter_next(it, &tensor, &next)) == 1)
		ptr[count++] = next;
	assert_int_equal(ret, -ENOBUFS);
	assert_true(count >= 4 && count < 10);
	for (uint64_t i = 0; i < count; i++) {
		check_tensor(gpu, ptr[i], names[i], 30000);
		assert_int_equal(penstock_weights_iter_release(it, i), 0);
	}
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &next), 1);
	assert_int_equal(tensor, count);
	penstock_weights_iter_close(it);
}

/* If a file changes while it is read, none of its tensors is returned. */
static void test_file_changes(void **state)
{
	static const struct made m = {"m", "U8", 8, 1, {1 << 16}};
	struct penstock_weights_iter *it;
	const char *path = made_path("iter-late.safetensors");
	uint64_t tensor;
	void *ptr;

	(void)state;
	opts.each = touch_file;
	opts.user = (void *)(uintptr_t)path;
	made_file(path, &m, 1, 0);
	open_model(path);
	assert_int_equal(penstock_weights_iter_open(w, host, &opts, &it), 0);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), -ESTALE);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_STALE);
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), -ESTALE);
	penstock_weights_iter_close(it);
}

/* An allocator of the test that returns unaligned memory at one of its calls. The library must free
 * this memory once. The iterator must fail, either when it is opened or at the tensor that needs
 * the memory. */
static unsigned unaligned_calls, unaligned_call;
static char *unaligned_ptr;

static void *unaligned_alloc(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	char *ptr = count_alloc(user, dev, len + align, align);

	held -= ptr ? align : 0;
	if (!ptr || unaligned_calls++ != unaligned_call)
		return ptr;
	unaligned_ptr = ptr + 64;
	return unaligned_ptr;
}

static void unaligned_free(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	count_free(user, dev, ptr == unaligned_ptr ? unaligned_ptr - 64 : ptr, len);
}

static void test_unaligned_allocator(void **state)
{
	static const struct made list[] = {
		{"a", "U8", 8, 1, {98304}},
		{"long", "U8", 8, 1, {300000}},
		{"longer", "U8", 8, 1, {400000}},
	};
	struct penstock_weights_iter *it;
	uint64_t tensor;
	void *ptr;

	(void)state;
	made_file(made_path("askew.safetensors"), list, 3, 0);
	open_model(made_path("askew.safetensors"));
	use_counter();
	opts.window = 1u << 18;
	opts.alloc = unaligned_alloc;
	opts.free = unaligned_free;
	/* Call 0 is for the window, calls 1 and 2 are trial allocations for long tensors, and calls
	 * 3 and 4 are for the long tensors themselves. */
	for (unaligned_call = 0; unaligned_call < 5; unaligned_call++) {
		int ret, next = 1;

		unaligned_calls = 0;
		unaligned_ptr = NULL;
		ret = penstock_weights_iter_open(w, gpu, &opts, &it);
		assert_int_equal(ret, unaligned_call < 3 ? -EINVAL : 0);
		while (!ret && next == 1) {
			next = penstock_weights_iter_next(it, &tensor, &ptr);
			assert_true(next == 1 || next == -EINVAL);
			if (next == 1)
				penstock_weights_iter_release(it, tensor);
		}
		assert_non_null(unaligned_ptr);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_UNALIGNED);
		if (!ret)
			penstock_weights_iter_close(it);
		assert_int_equal(held_count, 0);
		assert_int_equal(held, 0);
	}
}

/* A model of several files is opened with a name pattern and loaded twice. */
static void test_several_files(void **state)
{
	static const struct made a = {"a", "F32", 32, 1, {50000}};
	static const struct made b[] = {{"b", "F32", 32, 1, {70000}},
					{"skip", "F32", 32, 1, {1000}},
					{"c", "F16", 16, 1, {1001}}};
	struct penstock_weights_opts wanted = PENSTOCK_WEIGHTS_OPTS_INIT;
	const char *paths[] = {made_path("s1.safetensors"), made_path("s2.safetensors")};
	struct penstock_loaded *loaded;

	(void)state;
	made_file(paths[0], &a, 1, 0);
	made_file(paths[1], b, 3, 2);
	wanted.names = (const char *const[]){"?"};
	wanted.name_count = 1;
	wanted.flags = PENSTOCK_WEIGHTS_IMMUTABLE;
	assert_int_equal(penstock_weights_open_list(paths, 2, &wanted, &w), 0);
	assert_int_equal(penstock_weights_count(w), 3);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), 0);
		assert_int_equal(report.bytes, 200000 + 280000 + 2002);
		assert_int_equal(report.requests, 2);
		check_tensor(gpu, penstock_loaded_ptr(loaded, 0, 0), "a", 200000);
		check_tensor(gpu, penstock_loaded_ptr(loaded, 0, 1), "b", 280000);
		check_tensor(gpu, penstock_loaded_ptr(loaded, 0, 2), "c", 2002);
		penstock_loaded_free(loaded);
	}
	iterate(host, 1, 1, (1u << 18) + 480000 + 2 * 8192);
}

/* An iterator keeps its model: the caller may close the model first. */
static void test_model_closed_first(void **state)
{
	static const struct made list[] = {{"a", "F32", 32, 1, {40000}},
					   {"b", "F32", 32, 1, {50000}},
					   {"c", "F16", 16, 1, {1001}}};
	const char *path = made_path("closed.safetensors");
	struct penstock_weights_iter *it;
	uint64_t tensor, files;
	void *ptr;

	(void)state;
	made_file(path, list, COUNT(list), 0);
	files = open_files_of(path);
	open_model(path);
	opts.window = 1;
	assert_int_equal(penstock_weights_iter_open(w, host, &opts, &it), 0);
	penstock_weights_close(w);
	w = NULL;
	for (unsigned i = 0; i < COUNT(list); i++) {
		assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 1);
		assert_int_equal(tensor, i);
		check_tensor(host, ptr, list[i].name, made_bytes(&list[i]));
		assert_int_equal(penstock_weights_iter_release(it, tensor), 0);
	}
	assert_int_equal(penstock_weights_iter_next(it, &tensor, &ptr), 0);
	penstock_weights_iter_close(it);
	assert_int_equal(open_files_of(path), files);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_iterate),
		CASE(test_large_gaps),
		CASE(test_empty_tensor_in_full_window),
		CASE(test_window_full),
		CASE(test_all_held),
		CASE(test_just_too_long),
		CASE(test_file_changes),
		CASE(test_several_files),
		CASE(test_model_closed_first),
		CASE(test_unaligned_allocator),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
