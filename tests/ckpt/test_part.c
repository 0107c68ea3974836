/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests penstock_part_write and penstock_part_read in host memory and in the memory of the stand-in
 * driver's GPU. Items of any offset, length and address must be read back with the same bytes and
 * checksums. After a failed write, the old file must be unchanged. A read must report changed
 * bytes.
 */
#include "ckpt.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sys/statvfs.h>

#define PAYLOAD (256u << 10)

static struct part part;
static struct penstock_part_opts opts;
static struct penstock_load_report report;

static int setup(void **state)
{
	(void)state;
	opts = (struct penstock_part_opts)PENSTOCK_PART_OPTS_INIT;
	report = (struct penstock_load_report){.size = sizeof(report)};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	part_free(&part);
	return 0;
}

static void write_part(const char *path)
{
	if (penstock_part_write(path, part.items, part.count, &opts, &report))
		fail_msg("%s", penstock_errmsg());
}

static void read_part(const char *path)
{
	if (penstock_part_read(path, part.items, part.count, &opts, &report))
		fail_msg("%s", penstock_errmsg());
}

static void check_sums(void)
{
	for (unsigned i = 0; i < part.count; i++) {
		const struct penstock_item *item = &part.items[i];
		unsigned char *bytes = malloc(item->len + 1);

		for (uint64_t b = 0; b < item->len; b++)
			bytes[b] = item_byte(i, b);
		if (!(item->flags & PENSTOCK_ITEM_SUMMED) ||
		    item->crc32c != test_crc32c(bytes, item->len))
			fail_msg("item %u: flags %x, crc %08x, expected %08x", i, item->flags,
				 item->crc32c, test_crc32c(bytes, item->len));
		free(bytes);
	}
}

static void check_refused(const char *path, int code, const char *words)
{
	int ret = penstock_part_write(path, part.items, part.count, &opts, &report);

	if (ret != -code || !strstr(penstock_errmsg(), words))
		fail_msg("%d '%s', expected %d '%s'", ret, ret ? penstock_errmsg() : "", -code,
			 words);
}

/* Writes and reads items of many lengths at many offsets and addresses. */
static void round_trip(struct penstock_device *dev)
{
	static const uint64_t lens[] = {1,    17,    4096,  0,	     65536,  100000,
					4095, 65537, 12289, 1 << 20, 131071, (1 << 20) + 4097,
					3};
	const char *path = made_path("round.part");
	uint64_t off = 5;

	for (unsigned i = 0; i < COUNT(lens) * 3; i++) {
		uint64_t len = lens[i % COUNT(lens)];

		part_add(&part, dev, off, len, i % 2 ? (unsigned)(off % 4096) : i * 7);
		off += len + (i % 4 ? 0 : 12345);
		off = i % 5 ? off : (off + 4095) / 4096 * 4096;
	}
	opts.sum = 1;
	opts.length = part.end + 9999;
	write_part(path);
	part_check_file(&part, path, opts.length);
	assert_true(report.bytes && report.bytes == report.read);
	if (opts.sum)
		check_sums();
	part_wipe(&part);
	read_part(path);
	part_check_memory(&part);
	for (unsigned i = 0; i < part.count; i++)
		assert_int_equal(part.items[i].flags,
				 opts.sum ? PENSTOCK_ITEM_SUMMED | PENSTOCK_ITEM_CHECKED : 0);
}

static void test_host(void **state)
{
	(void)state;
	round_trip(host);
}

static void test_gpu(void **state)
{
	(void)state;
	round_trip(gpu);
}

static void test_many_items(void **state)
{
	const char *path = made_path("many.part");

	(void)state;
	for (unsigned i = 0; i < PART_ITEMS; i++)
		part_add(&part, host, part.end + i % 3, i % 97, i % 64);
	opts.sum = 1;
	write_part(path);
	part_check_file(&part, path, part.end);
	check_sums();
	part_wipe(&part);
	read_part(path);
	part_check_memory(&part);
}

/* An item may have several segments, on several devices, whose rows have gaps between them in
 * memory. */
static void test_segments(void **state)
{
	const char *path = made_path("segments.part");
	struct penstock_seg segs[4];
	static unsigned char rows[100][64], flat[6400], back[6400 + 70000];
	struct penstock_item item = {.size = sizeof(item), .off = 3, .segs = segs, .seg_count = 4};
	unsigned char *far;
	uint64_t len;

	(void)state;
	part_add(&part, host, 0, 70000, 11);
	memset(segs, 0, sizeof(segs));
	far = malloc(70000);
	test_copy(host, far, host, part.segs[0].buf, 70000);
	for (unsigned i = 0; i < 100; i++)
		for (unsigned b = 0; b < 64; b++)
			rows[i][b] = flat[i * 40 + b % 40] = (unsigned char)(i * 3 + b % 40);
	segs[0] = (struct penstock_seg){
		.buf = rows, .off = 3, .row_len = 40, .rows = 100, .pitch = 40, .buf_pitch = 64};
	segs[1] = (struct penstock_seg){.buf = far, .off = 4003, .row_len = 0};
	segs[2] = (struct penstock_seg){.buf = far, .buf_off = 1, .off = 4003, .row_len = 69999};
	item.len = 4000 + 69999;
	item.seg_count = 3;
	opts.sum = 1;
	if (penstock_part_write(path, &item, 1, &opts, NULL))
		fail_msg("%s", penstock_errmsg());
	unsigned char *bytes = file_bytes(path, &len);

	assert_int_equal(len, 3 + item.len);
	assert_memory_equal(bytes + 3, flat, 4000);
	assert_memory_equal(bytes + 4003, far + 1, 69999);
	assert_int_equal(item.crc32c, test_crc32c(bytes + 3, item.len));
	memset(rows, 0, sizeof(rows));
	assert_int_equal(penstock_part_read(path, &item, 1, &opts, NULL), 0);
	assert_true(item.flags & PENSTOCK_ITEM_CHECKED);
	for (unsigned i = 0; i < 100; i++)
		for (unsigned b = 0; b < 64; b++)
			assert_int_equal(rows[i][b], b < 40 ? (unsigned char)(i * 3 + b % 40) : 0);
	/* If only a piece of the item is read, its bytes cannot be compared with the item's
	 * checksum. */
	segs[0] = (struct penstock_seg){.buf = back, .off = 100, .row_len = 1000};
	item.seg_count = 1;
	item.crc32c ^= 1;
	assert_int_equal(penstock_part_read(path, &item, 1, &opts, NULL), 0);
	assert_int_equal(item.flags, PENSTOCK_ITEM_SUMMED);
	assert_memory_equal(back, bytes + 100, 1000);
	free(bytes);
	free(far);
}

/* A direct path, which transfers bytes between the drive and the buffer without the page cache,
 * must carry payloads at multiples of 4096, even if short items are between them. */
static void test_direct(void **state)
{
	const char *path = made_path("direct.part");
	struct penstock_part_opts direct = PENSTOCK_PART_OPTS_INIT;
	struct statvfs fs;

	(void)state;
	part_add(&part, host, 0, PAYLOAD, 0);
	direct.require = PENSTOCK_DIRECT;
	if (penstock_part_write(path, part.items, 1, &direct, NULL))
		test_skip("no direct path here: %s", penstock_errmsg());
	part_free(&part);
	assert_int_equal(statvfs(path, &fs), 0);
	for (unsigned i = 0; i < 8; i++) {
		part_add(&part, host, part.end, 4096, 1);
		part_add(&part, host, part.end, PAYLOAD, 0);
	}
	write_part(path);
	part_check_file(&part, path, part.end);
	/* The CPU may copy each of the 8 short items (4096 bytes) twice, but no payload. */
	if (report.cpu_copied > 8 * 4096ull * 2)
		fail_msg("%llu bytes were copied by a CPU", (unsigned long long)report.cpu_copied);
	assert_int_equal(posix_fadvise(open(path, O_RDONLY), 0, 0, POSIX_FADV_DONTNEED), 0);
	part_wipe(&part);
	read_part(path);
	part_check_memory(&part);
	if (report.cpu_copied > 8 * 8192ull * 2)
		fail_msg("%llu bytes were copied by a CPU", (unsigned long long)report.cpu_copied);
}

static void test_empty(void **state)
{
	const char *path = made_path("empty.part");

	(void)state;
	assert_int_equal(penstock_part_write(path, NULL, 0, NULL, NULL), 0);
	part_check_file(&part, path, 0);
	opts.length = 5000;
	assert_int_equal(penstock_part_write(path, NULL, 0, &opts, &report), 0);
	part_check_file(&part, path, 5000);
	assert_int_equal(penstock_part_read(path, NULL, 0, NULL, NULL), 0);
}

static void test_refusals(void **state)
{
	const char *path = made_path("kept.part");
	struct penstock_part_opts older = {.size = 1};

	(void)state;
	part_add(&part, host, 0, 1000, 0);
	part_add(&part, host, 1000, 1000, 0);
	write_part(path);
	part.items[1].off = 999;
	part.segs[1].off = 999;
	check_refused(path, EINVAL, "begins before");
	part.items[1].off = 1000;
	check_refused(path, EINVAL, "not inside its range");
	part.segs[1].off = 1001;
	part.segs[1].row_len = 999;
	check_refused(path, EINVAL, "do not cover");
	part.segs[1].off = 1000;
	check_refused(path, EINVAL, "do not cover");
	part.segs[1].row_len = UINT64_MAX;
	check_refused(path, EINVAL, "not inside its range");
	part.segs[1].row_len = 1000;
	part.items[1].len = UINT64_MAX - 5;
	check_refused(path, EINVAL, "beyond 2^63");
	part.items[1].len = 1000;
	part.segs[1].buf = NULL;
	check_refused(path, EINVAL, "is NULL");
	part.items[1].segs = NULL;
	check_refused(path, EINVAL, "without their list");
	part.items[1].segs = &part.segs[1];
	part.segs[1].buf = part.blocks[1];
	part.items[1].flags = PENSTOCK_ITEM_CHECKED << 1;
	check_refused(path, EINVAL, "a flag of the item is unknown");
	assert_int_equal(penstock_part_read(path, part.items, 2, NULL, NULL), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "a flag of the item is unknown"));
	part.items[1].flags = 0;
	opts.length = 1999;
	check_refused(path, EINVAL, "beyond the length");
	opts.length = 0;
	opts.path = "fault:bounce?eio=1";
	check_refused(path, EIO, "kept.part");
	part_check_file(&part, path, 2000);
	assert_int_equal(penstock_part_write(path, part.items, 2, &older, NULL), -EINVAL);
	assert_int_equal(penstock_part_write("/proc/none/x", part.items, 2, NULL, NULL), -ENOENT);
	assert_int_equal(penstock_part_read(made_path("absent"), part.items, 2, NULL, NULL),
			 -ENOENT);
}

/* Before the first byte is written, the library checks that the drive has enough space. The
 * message must say how many bytes are missing. */
static void test_no_space(void **state)
{
	const char *path = made_path("space.part");
	unsigned long long need, has, missing;
	const char *numbers;

	(void)state;
	part_add(&part, host, 0, 1000, 0);
	write_part(path);
	opts.length = 1ull << 55;
	check_refused(path, ENOSPC, "bytes are missing");
	assert_int_equal(report.requests, 0);
	numbers = strstr(penstock_errmsg(), "needs ");
	assert_int_equal(sscanf(numbers,
				"needs %llu bytes, but the file system has %llu free: %llu", &need,
				&has, &missing),
			 3);
	assert_int_equal(need, 1ull << 55);
	assert_int_equal(missing, need - has);
	part_check_file(&part, path, 1000);
}

/* ---- callbacks ---- */

static unsigned look_count, cancel_at;
static uint64_t looked_bytes;
static char folder[PATH_MAX];

static int count_and_cancel(void *user, uint64_t bytes)
{
	assert_ptr_equal(user, &look_count);
	assert_true(bytes >= looked_bytes && bytes <= part.end);
	looked_bytes = bytes;
	return ++look_count == cancel_at;
}

static unsigned files_in(const char *dir)
{
	struct dirent *e;
	unsigned n = 0;
	DIR *d = opendir(dir);

	while ((e = readdir(d)))
		n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(d);
	return n;
}

static void test_cancel(void **state)
{
	char path[PATH_MAX + 8];

	(void)state;
	snprintf(folder, sizeof(folder), "%s", made_path("cancel"));
	snprintf(path, sizeof(path), "%s/a.part", folder);
	made_dir(folder);
	part_add(&part, host, 0, 40 << 20, 0);
	opts.path = "fault:bounce?delay_us=400000";
	opts.look = count_and_cancel;
	opts.user = &look_count;
	look_count = 0;
	cancel_at = 2;
	check_refused(path, ECANCELED, "cancelled");
	assert_int_equal(look_count, 2);
	assert_int_equal(files_in(folder), 0);
	look_count = cancel_at = 0;
	looked_bytes = 0;
	write_part(path);
	assert_true(look_count > 1);
	look_count = 0;
	cancel_at = 2;
	looked_bytes = 0;
	assert_int_equal(penstock_part_read(path, part.items, 1, &opts, NULL), -ECANCELED);
	part_check_file(&part, path, part.end);
}

static int remove_folder(void *user, uint64_t bytes)
{
	(void)user;
	(void)bytes;
	if (rmdir(folder) && errno != ENOENT)
		look_count = (unsigned)errno;
	return 0;
}

/* The folder of the part is removed while the part is written, so the write must fail with
 * ENOENT. */
static void test_folder_removed(void **state)
{
	char path[PATH_MAX + 8];
	int fd;

	(void)state;
	snprintf(folder, sizeof(folder), "%s", made_path("gone"));
	snprintf(path, sizeof(path), "%s/a.part", folder);
	made_dir(folder);
	fd = open(folder, O_TMPFILE | O_RDWR, 0600);
	if (fd < 0)
		test_skip("no O_TMPFILE: %s", strerror(errno));
	close(fd);
	part_add(&part, host, 0, 40 << 20, 0);
	opts.path = "fault:bounce?delay_us=400000";
	opts.look = remove_folder;
	look_count = 0;
	check_refused(path, ENOENT, "a.part");
	assert_int_equal(look_count, 0);
	assert_int_equal(access(folder, F_OK), -1);
}

/* ---- two writers ---- */

struct writer {
	const char *path;
	unsigned char bytes[300000];
	int ret;
};

static void *write_often(void *arg)
{
	struct writer *w = arg;
	struct penstock_seg seg = {.buf = w->bytes, .dev = host, .row_len = sizeof(w->bytes)};
	struct penstock_item item = {
		.size = sizeof(item), .len = sizeof(w->bytes), .segs = &seg, .seg_count = 1};

	for (unsigned i = 0; i < 20 && !w->ret; i++)
		w->ret = penstock_part_write(w->path, &item, 1, NULL, NULL);
	return NULL;
}

/* Two threads write files of the same name. At any time, all bytes of the file must be from one of
 * the two threads. */
static void test_two_writers(void **state)
{
	const char *path = made_path("two.part");
	static struct writer writers[2];
	pthread_t threads[2];
	unsigned char *bytes;
	uint64_t len;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		writers[i].path = path;
		memset(writers[i].bytes, (int)i + 1, sizeof(writers[i].bytes));
	}
	write_often(&writers[0]);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_often, &writers[i]), 0);
	for (unsigned i = 0; i < 50; i++) {
		bytes = file_bytes(path, &len);
		assert_int_equal(len, sizeof(writers[0].bytes));
		for (uint64_t b = 1; b < len; b++)
			assert_int_equal(bytes[b], bytes[0]);
		free(bytes);
	}
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(writers[i].ret, 0);
	}
}

/* ---- damage ---- */

static void test_changed_bytes(void **state)
{
	struct penstock_weights_place place = {.size = sizeof(place)};
	const char *path = made_path("changed.part");
	int fd;

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		part_add(&part, host, part.end, 70000, 0);
	opts.sum = 1;
	write_part(path);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "\1", 1, 140000), 1);
	assert_int_equal(penstock_part_read(path, part.items, part.count, &opts, NULL), -EBADMSG);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_MALFORMED);
	penstock_weights_get_place(&place);
	assert_string_equal(place.file, path);
	assert_string_equal(place.tensor, "item2");
	assert_int_equal(place.off, 140000);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(!(part.items[i].flags & PENSTOCK_ITEM_CHECKED), i == 2);
	opts.sum = 0;
	read_part(path);
	assert_int_equal(part.items[0].flags, PENSTOCK_ITEM_SUMMED);
	assert_int_equal(ftruncate(fd, 300000), 0);
	close(fd);
	assert_int_equal(penstock_part_read(path, part.items, part.count, &opts, NULL), -ENODATA);
	penstock_weights_get_place(&place);
	assert_string_equal(place.tensor, "item4");
	assert_int_equal(place.off, 300000);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_host),	   CASE(test_gpu),	   CASE(test_many_items),
		CASE(test_segments),	   CASE(test_direct),	   CASE(test_empty),
		CASE(test_refusals),	   CASE(test_no_space),	   CASE(test_cancel),
		CASE(test_folder_removed), CASE(test_two_writers), CASE(test_changed_bytes),
	};

	return cmocka_run_group_tests(tests, setup_devices, teardown_devices);
}
