/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the load tests. It has two devices, a model with every kind of tensor, an allocator
 * that counts its blocks, and a comparison of loaded tensors with the bytes that the test wrote.
 */
#ifndef PST_TEST_LOAD_H
#define PST_TEST_LOAD_H

#include "make.h"

#include <errno.h>
#include <stdbool.h>

#include "copy.h"
#include "penstock_weights.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct penstock_device *host, *gpu;
static struct penstock_weights *w;
static struct penstock_load_opts opts;
static struct penstock_load_report report;

/* Tensors of every dtype, with various shapes. Their lengths misalign the tensors that follow
 * them. */
static const struct made all_dtypes[] = {
	{"byte", "U8", 8, 1, {3}},	  {"wide", "F64", 64, 2, {5, 7}},
	{"scalar", "BF16", 16, 0, {0}},	  {"empty", "F32", 32, 2, {0, 9}},
	{"half", "F16", 16, 2, {33, 17}}, {"big", "BF16", 16, 2, {513, 1021}},
	{"bool", "BOOL", 8, 1, {5}},	  {"four", "F4", 4, 2, {6, 8}},
	{"six", "F6_E2M3", 6, 1, {12}},	  {"fp8", "F8_E4M3", 8, 2, {64, 32}},
	{"complex", "C64", 64, 1, {11}},  {"last", "F32", 32, 3, {4, 6, 10}},
};

static inline void *read_back(struct penstock_device *dev, const void *from, size_t len)
{
	char *to = malloc(len + 1);

	test_copy(host, to, dev, from, len);
	return to;
}

static inline void check_tensor(struct penstock_device *dev, const void *at, const char *name,
				uint64_t len)
{
	unsigned char *bytes = read_back(dev, at, len);

	for (uint64_t i = 0; i < len; i++)
		if (bytes[i] != made_byte(name, i))
			fail_msg("%s: byte %llu is %u, expected %u", name, (unsigned long long)i,
				 bytes[i], made_byte(name, i));
	free(bytes);
}

static inline void open_model(const char *path)
{
	penstock_weights_close(w);
	w = NULL;
	if (penstock_weights_open(path, NULL, &w))
		fail_msg("%s", penstock_errmsg());
}

static inline int setup_all(void **state)
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

static inline int teardown_all(void **state)
{
	(void)state;
	penstock_device_close(host);
	penstock_device_close(gpu);
	return 0;
}

static inline int setup(void **state)
{
	(void)state;
	opts = (struct penstock_load_opts)PENSTOCK_LOAD_OPTS_INIT;
	report = (struct penstock_load_report){.size = sizeof(report)};
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	penstock_weights_close(w);
	w = NULL;
	return 0;
}

/* ---- an allocator that counts ---- */

static size_t held, held_most;
static unsigned held_count;

static inline void *count_alloc(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	void *ptr = NULL;

	assert_ptr_equal(user, &held);
	assert_int_equal(align, 4096);
	if (penstock_alloc(dev, len, &ptr))
		return NULL;
	held += len;
	held_count++;
	held_most = held > held_most ? held : held_most;
	return ptr;
}

static inline void count_free(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	assert_ptr_equal(user, &held);
	assert_int_equal(penstock_free(dev, ptr), 0);
	held -= len;
	held_count--;
}

static inline void use_counter(void)
{
	held = held_most = held_count = 0;
	opts.alloc = count_alloc;
	opts.free = count_free;
	opts.user = &held;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
