/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the tests that use async_storage.h: two devices, an object of known bytes, and the
 * checks that every report of a transfer to or from this object must pass. Only tests in
 * tests/conf include this file. A case must leave no open storage and no waiting transfer on
 * the remote store.
 */
#ifndef REMOTE_OBJECT_H
#define REMOTE_OBJECT_H

#include "copy.h"
#include "request.h"

#include <errno.h>
#include <stdbool.h>

#include "async_storage.h"

#ifndef LEN
#define LEN (6u << 20)
#endif
#define GUARD 4096u
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The paths that need a descriptor, and the reasons why the library refuses each path for an
 * object without a descriptor: one for host memory, one for GPU memory. */
static const struct {
	const char *name;
	enum penstock_why host, other;
} closed_paths[] = {
	{"p2p", PENSTOCK_WHY_DEVICE_ONLY, PENSTOCK_WHY_NO_PEER_PAGES},
	{"odirect", PENSTOCK_WHY_NO_FD, PENSTOCK_WHY_HOST_ONLY},
	{"mapped", PENSTOCK_WHY_DEVICE_ONLY, PENSTOCK_WHY_NO_FD},
	{"staged", PENSTOCK_WHY_NO_FD, PENSTOCK_WHY_NO_FD},
};

static struct penstock_device *host, *gpu;
static unsigned char *bytes,
	*back; /* bytes: what the object contains; back: the bytes that a test read */
static struct async_remote *remote;
static const struct penstock_device_opts *host_opts;
static bool remote_cancels; /* true if the store that remote_create makes can cancel transfers */
/* N means that the store of remote_create refuses about one cancel in N; 0 means that it refuses
 * none. */
static unsigned remote_refuses_one_in;

static inline int setup(void **state)
{
	struct penstock_device_opts gpu_opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 3;

	(void)state;
	bytes = malloc(LEN);
	back = malloc(LEN + 3 * GUARD);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	/* By default a GPU has 8 lanes (worker threads). The test uses 8 even if this machine has
	 * few cores. */
	gpu_opts.lanes = 8;
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

/* Creates the remote store that a case uses, and publishes an object of known bytes. */
static inline void remote_create(unsigned fail_one_in)
{
	struct async_opts opts = {.seed = test_seed(11),
				  .fail_one_in = fail_one_in,
				  .cancels = remote_cancels,
				  .refuse_one_in = remote_refuses_one_in};

	remote = async_remote_new(&opts);
	async_publish(remote, bytes, LEN);
}

static inline int remote_destroy(void **state)
{
	struct async_counts counts = {0};

	(void)state;
	if (remote) {
		async_release(remote);
		async_get_counts(remote, &counts);
		async_remote_free(remote);
	}
	remote = NULL;
	remote_cancels = false;
	remote_refuses_one_in = 0;
	return counts.open || counts.waiting;
}

static inline struct penstock_storage *open_object(unsigned flags)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = flags;
	assert_int_equal(async_open(remote, &opts, &st), 0);
	return st;
}

/* Checks a report of `moved` bytes that were all copied by the CPU on path "bounce". */
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
	for (unsigned p = 0; p < COUNT(closed_paths) && result > 0; p++) {
		enum penstock_why why = dev == host ? closed_paths[p].host : closed_paths[p].other;
		bool found = false;

		for (unsigned i = 0; i < r->path_count; i++) {
			if (strcmp(r->paths[i].name, closed_paths[p].name))
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
