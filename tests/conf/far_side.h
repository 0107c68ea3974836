/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests over async_storage.h: two devices, an object of known bytes, and
 * what every report of a transfer of it must say. Included by tests of tests/conf
 * only; each case ends with nothing left over on the far side.
 */
#ifndef FAR_SIDE_H
#define FAR_SIDE_H

#include "copy.h"

#include <errno.h>
#include <stdbool.h>

#include "async_storage.h"

#ifndef LEN
#define LEN (6u << 20)
#endif
#define GUARD 4096u
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The paths that need a descriptor, and what they say, for host memory and not. */
static const struct {
	const char *name;
	enum penstock_why host, other;
} shut_paths[] = {
	{"p2p", PENSTOCK_WHY_DEVICE_ONLY, PENSTOCK_WHY_NO_PEER_PAGES},
	{"odirect", PENSTOCK_WHY_NO_FD, PENSTOCK_WHY_HOST_ONLY},
	{"mapped", PENSTOCK_WHY_DEVICE_ONLY, PENSTOCK_WHY_NO_FD},
	{"staged", PENSTOCK_WHY_NO_FD, PENSTOCK_WHY_NO_FD},
};

static struct penstock_device *host, *gpu;
static unsigned char *bytes, *back; /* the object's, and what came */
static struct async_far *far;
static const struct penstock_device_opts *host_opts;
static bool far_cancels;	    /* the next far side can end transfers early, but */
static unsigned far_refuses_one_in; /* so many it does not */

static inline int setup(void **state)
{
	struct penstock_device_opts gpu_opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 3;

	(void)state;
	bytes = malloc(LEN);
	back = malloc(LEN + 3 * GUARD);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	gpu_opts.lanes = 8; /* as on the machines that have one, however small this is */
	return penstock_device_open("host", host_opts, &host) < 0 ||
	       penstock_device_open("cuda:0", &gpu_opts, &gpu) < 0;
}

static inline int teardown(void **state)
{
	(void)state;
	penstock_device_close(gpu);
	penstock_device_close(host);
	free(bytes);
	free(back);
	return 0;
}

/* Each case has a far side of its own, on which nothing may be left over. */
static inline void far_side(unsigned fail_one_in)
{
	struct async_opts opts = {.seed = test_seed(11),
				  .fail_one_in = fail_one_in,
				  .cancels = far_cancels,
				  .refuse_one_in = far_refuses_one_in};

	far = async_far_new(&opts);
	async_publish(far, bytes, LEN);
}

static inline int end_case(void **state)
{
	struct async_seen seen = {0};

	(void)state;
	if (far) {
		async_release(far);
		async_seen(far, &seen);
		async_far_free(far);
	}
	far = NULL;
	far_cancels = false;
	far_refuses_one_in = 0;
	return seen.open || seen.waiting;
}

static inline struct penstock_storage *open_it(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = flags;
	assert_int_equal(async_open(far, &opts, &st), 0);
	return st;
}

static inline struct penstock_req request(struct penstock_storage *st,
					  const struct penstock_seg *segs, unsigned count,
					  enum penstock_op op)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = segs;
	req.seg_count = count;
	req.op = op;
	return req;
}

/* A report of `moved` bytes that the CPU copied, all by bounce. */
static inline void check_report(const struct penstock_report *r, struct penstock_device *dev,
				int64_t result, uint64_t moved)
{
	uint64_t sum = 0;

	assert_int_equal(r->result, result);
	assert_int_equal(r->bytes, moved);
	for (unsigned i = 0; i < r->path_count; i++)
		sum += r->paths[i].bytes;
	assert_int_equal(sum, moved);
	assert_string_equal(r->path, moved ? "bounce" : "none");
	if (moved)
		assert_string_equal(r->engine, "async");
	assert_true(r->cpu_copied >= moved);
	assert_int_equal(r->dram_laid, dev == host ? r->dram_laid : moved);
	for (unsigned p = 0; p < COUNT(shut_paths) && result > 0; p++) {
		enum penstock_why why = dev == host ? shut_paths[p].host : shut_paths[p].other;
		bool found = false;

		for (unsigned i = 0; i < r->path_count; i++) {
			if (strcmp(r->paths[i].name, shut_paths[p].name))
				continue;
			found = true;
			assert_int_equal(r->paths[i].bytes, 0);
			assert_true(r->paths[i].why == why ||
				    r->paths[i].why == PENSTOCK_WHY_NOT_WRITE);
			assert_true(strlen(r->paths[i].text) > 10);
		}
		assert_true(found);
	}
}

#endif
