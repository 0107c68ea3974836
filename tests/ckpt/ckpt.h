/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers of the checkpoint tests. They open two devices (the host and a GPU), and build parts in
 * memory. A part is one file of a checkpoint, and its items are byte ranges of that file. The bytes
 * of an item depend only on the item's index, so that a test can compute the expected bytes.
 */
#ifndef PST_TEST_CKPT_H
#define PST_TEST_CKPT_H

#include "../weights/make.h"

#include <errno.h>
#include <stdbool.h>

#include "copy.h"
#include "crc32c.h"
#include "penstock_ckpt.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct penstock_device *host, *gpu;

static inline int setup_devices(void **state)
{
	(void)state;
	test_use_standin();
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open("cuda:0", NULL, &gpu) < 0) {
		printf("# %s\n", penstock_errmsg());
		return -1;
	}
	return 0;
}

static inline int teardown_devices(void **state)
{
	(void)state;
	penstock_device_close(host);
	penstock_device_close(gpu);
	return 0;
}

static inline unsigned char item_byte(uint64_t item, uint64_t i)
{
	uint64_t h = (item + 1) * 0x9e3779b97f4a7c15u + i * 0xd1b54a32d192ed03u;

	return (unsigned char)((h ^ h >> 31) * 0xbf58476d1ce4e5b9u >> 56);
}

/* Reads a whole file. The caller frees the memory. */
static inline unsigned char *file_bytes(const char *path, uint64_t *len)
{
	int fd = open(path, O_RDONLY);
	struct stat stat;
	unsigned char *bytes;

	if (fd < 0)
		fail_msg("%s: %s", path, strerror(errno));
	assert_int_equal(fstat(fd, &stat), 0);
	bytes = malloc((size_t)stat.st_size + 1);
	assert_int_equal(read(fd, bytes, (size_t)stat.st_size), stat.st_size);
	close(fd);
	*len = (uint64_t)stat.st_size;
	return bytes;
}

/* ---- parts ---- */

#define PART_ITEMS 10000u

/* A part, which is one file of a checkpoint, and the memory of its items. Each item has one
 * segment. The items are in the order of their offsets in the file. */
struct part {
	struct penstock_item items[PART_ITEMS];
	struct penstock_seg segs[PART_ITEMS];
	char names[PART_ITEMS][16];
	void *blocks[PART_ITEMS]; /* memory of the items, which the test frees */
	struct penstock_device *devs[PART_ITEMS];
	unsigned count;
	uint64_t end;
};

/* Adds an item of `len` bytes at offset `off`, in memory of `dev` whose address is `shift` bytes
 * after a multiple of 4096. */
static inline void part_add(struct part *p, struct penstock_device *dev, uint64_t off, uint64_t len,
			    unsigned shift)
{
	unsigned i = p->count++;
	unsigned char *bytes = malloc(len + 1);

	snprintf(p->names[i], sizeof(p->names[i]), "item%u", i);
	assert_int_equal(penstock_alloc(dev, len + shift + 1, &p->blocks[i]), 0);
	p->devs[i] = dev;
	for (uint64_t b = 0; b < len; b++)
		bytes[b] = item_byte(i, b);
	test_copy(dev, (char *)p->blocks[i] + shift, host, bytes, len);
	free(bytes);
	p->segs[i] = (struct penstock_seg){.buf = (char *)p->blocks[i] + shift,
					   .dev = i % 3 ? dev : NULL,
					   .off = off,
					   .row_len = len};
	p->items[i] = (struct penstock_item){.size = sizeof(p->items[0]),
					     .name = p->names[i],
					     .off = off,
					     .len = len,
					     .segs = &p->segs[i],
					     .seg_count = 1};
	p->end = off + len;
}

/* Overwrites the memory of all items, so that a later read must restore it. */
static inline void part_wipe(struct part *p)
{
	for (unsigned i = 0; i < p->count; i++) {
		unsigned char *zeros = calloc(1, p->items[i].len + 1);

		test_copy(p->devs[i], p->segs[i].buf, host, zeros, p->items[i].len);
		free(zeros);
	}
}

/* Checks that the memory of all items has the items' bytes. */
static inline void part_check_memory(struct part *p)
{
	for (unsigned i = 0; i < p->count; i++) {
		unsigned char *bytes = malloc(p->items[i].len + 1);

		test_copy(host, bytes, p->devs[i], p->segs[i].buf, p->items[i].len);
		for (uint64_t b = 0; b < p->items[i].len; b++)
			if (bytes[b] != item_byte(i, b))
				fail_msg("item %u, byte %llu: %02x, expected %02x", i,
					 (unsigned long long)b, bytes[b], item_byte(i, b));
		free(bytes);
	}
}

/* Checks that the file has `length` bytes: the items' bytes at their offsets, and zeros between
 * them. */
static inline void part_check_file(const struct part *p, const char *path, uint64_t length)
{
	uint64_t len, at = 0;
	unsigned char *bytes = file_bytes(path, &len);

	assert_int_equal(len, length);
	for (unsigned i = 0; i < p->count; i++) {
		const struct penstock_item *item = &p->items[i];

		for (; at < item->off; at++)
			if (bytes[at])
				fail_msg("byte %llu of a gap is %02x", (unsigned long long)at,
					 bytes[at]);
		for (; at < item->off + item->len; at++)
			if (bytes[at] != item_byte(i, at - item->off))
				fail_msg("item %u, byte %llu: %02x, expected %02x", i,
					 (unsigned long long)(at - item->off), bytes[at],
					 item_byte(i, at - item->off));
	}
	for (; at < len; at++)
		if (bytes[at])
			fail_msg("byte %llu of a gap is %02x", (unsigned long long)at, bytes[at]);
	free(bytes);
}

static inline void part_free(struct part *p)
{
	for (unsigned i = 0; i < p->count; i++)
		penstock_free(p->devs[i], p->blocks[i]);
	memset(p, 0, sizeof(*p));
}

#endif
