/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures checksums (penstock_sum) of device memory and of host memory. To check each measured
 * checksum, the program divides the same bytes into other pieces, sums these, and joins their
 * checksums. Section `sum` needs a GPU, section `sum_host` does not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define SHORT_COUNT 1000u
#define SHORT_LEN (64 * KIB)
#define LEN_MAX (4 * GIB)
/* The measured call is repeated until the calls of one sample have summed this many bytes. */
#define SAMPLE_BYTES (4 * GIB)

/* Returns an array of `count` arguments for penstock_sum. They describe adjacent ranges of `len`
 * bytes each, which begin at `mem`. */
static struct penstock_sum_args *ranges_make(struct penstock_device *dev, const char *mem,
					     uint64_t len, unsigned count)
{
	struct penstock_sum_args *sums = calloc(count, sizeof(*sums));

	for (unsigned i = 0; sums && i < count; i++)
		sums[i] = (struct penstock_sum_args){
			.size = sizeof(*sums), .dev = dev, .ptr = mem + i * len, .len = len};
	return sums;
}

/* Checks the measured checksums: their join must equal the checksum of the same bytes, computed
 * as three ranges of other lengths. */
static int ranges_check(struct bench *b, struct penstock_device *dev,
			const struct penstock_sum_args *sums, unsigned count)
{
	const char *mem = sums->ptr;
	const uint64_t len = sums->len * count, cuts[] = {0, len / 3 + 1, len - 12345, len};
	uint32_t all = 0, want = 0;

	for (unsigned i = 0; i < count; i++)
		all = penstock_crc32c_join(all, sums[i].crc32c, sums[i].len);
	for (unsigned i = 0; i < 3; i++) {
		struct penstock_sum_args part = {.size = sizeof(part),
						 .dev = dev,
						 .ptr = mem + cuts[i],
						 .len = cuts[i + 1] - cuts[i]};
		int ret = penstock_sum(&part, 1);

		if (ret)
			return ret;
		want = penstock_crc32c_join(want, part.crc32c, part.len);
	}
	if (all != want)
		bench_bad(b, "a checksum is wrong: %08x, not %08x", all, want);
	return 0;
}

static int sum_row(struct bench *b, struct penstock_device *dev, const char *mem, uint64_t len,
		   unsigned count, const char *name)
{
	struct penstock_sum_args *sums = ranges_make(dev, mem, len, count);
	const unsigned calls = (unsigned)(SAMPLE_BYTES / (len * count) ?: 1);
	int ret = sums ? penstock_sum(sums, count) : -ENOMEM;

	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		struct sample s = {.bytes = len * count * calls, .path = "sum"};
		struct meter m;

		meter_start(&m);
		for (unsigned i = 0; i < calls && !ret; i++)
			ret = penstock_sum(sums, count);
		meter_stop(&m, &s);
		meter_settle(&m, &s);
		snprintf(s.note, sizeof(s.note), "%u calls %.1f us each", calls,
			 s.seconds * 1e6 / calls);
		if (!ret)
			ret = ranges_check(b, dev, sums, count);
		if (!ret)
			meter_row(b, "sum", name, rep, &s);
	}
	if (ret)
		bench_bad(b, "%s: %s", name, penstock_errmsg());
	free(sums);
	return ret;
}

static int rows_all(struct bench *b, struct penstock_device *dev, const char *mem, uint64_t room,
		    const char *where)
{
	static const struct {
		uint64_t len;
		unsigned count;
		const char *name;
	} rows[] = {{MIB, 1, "1 MiB"},
		    {64 * MIB, 1, "64 MiB"},
		    {GIB, 1, "1 GiB"},
		    {LEN_MAX, 1, "4 GiB"},
		    {SHORT_LEN, SHORT_COUNT, "1000 x 64 KiB"}};
	int ret = 0;

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]) && !ret; i++) {
		char name[64];

		if (rows[i].len * rows[i].count > room)
			continue;
		snprintf(name, sizeof(name), "%s %s", where, rows[i].name);
		ret = sum_row(b, dev, mem, rows[i].len, rows[i].count, name);
	}
	return ret;
}

/* Opens the device "host", allocates `len` bytes of its memory, and fills them with different
 * numbers. */
static int host_make(uint64_t len, struct penstock_device **host, void **out)
{
	uint64_t *mem;
	int ret = penstock_device_open("host", NULL, host);

	if (ret < 0)
		return ret;
	ret = penstock_alloc(*host, len, out);
	if (ret) {
		penstock_device_close(*host);
		return ret;
	}
	mem = *out;
	for (uint64_t i = 0; i < len / sizeof(*mem); i++)
		mem[i] = i * 0x9e3779b97f4a7c15;
	return 0;
}

static void host_free(struct penstock_device *host, void *mem)
{
	penstock_free(host, mem);
	penstock_device_close(host);
}

/* Fills the device memory with copies of `len` bytes of host memory. */
static int gpu_fill(struct bench *b, struct penstock_device *host, const void *mem, uint64_t len)
{
	int ret = 0;

	for (uint64_t at = 0; at + len <= b->len && !ret; at += len) {
		struct penstock_copy_args copy = {.size = sizeof(copy),
						  .dst_dev = b->dev,
						  .dst = (char *)b->gpu + at,
						  .src_dev = host,
						  .src = mem,
						  .row_len = len};

		ret = penstock_copy(&copy, 1);
	}
	return ret;
}

static int section_sum(struct bench *b)
{
	const uint64_t len = 64 * MIB;
	struct penstock_device *host;
	void *mem;
	int ret = host_make(len, &host, &mem);

	if (ret)
		return ret;
	ret = gpu_fill(b, host, mem, len);
	host_free(host, mem);
	return ret ? ret : rows_all(b, b->dev, b->gpu, b->len, "gpu");
}

static int section_sum_host(struct bench *b)
{
	const uint64_t len = b->len < LEN_MAX ? b->len : LEN_MAX;
	struct penstock_device *host;
	void *mem;
	int ret = host_make(len, &host, &mem);

	if (ret)
		return ret;
	ret = rows_all(b, host, mem, len, "host");
	host_free(host, mem);
	return ret;
}

const struct bench_section bench_sum[] = {
	{"sum", "checksums of device memory", true, section_sum},
	{"sum_host", "checksums of host memory", false, section_sum_host},
	{NULL, NULL, false, NULL},
};
