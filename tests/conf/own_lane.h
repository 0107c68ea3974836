/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the tests of inline lanes. An inline lane has no thread: it works inside the calls
 * that the queue's owner makes on the queue. The fixture has such a queue, a file on the drive, and
 * the remote object of remote_object.h. The remote store completes transfers on its own threads, so
 * it must wake an owner that sleeps. Each device has one lane with a thread. Only test_own_lane.c
 * and test_own_lane_close.c include this file.
 */
#ifndef OWN_LANE_H
#define OWN_LANE_H

/* Length of the object in bytes. The chunks that a lane (a worker of a device) may have in flight
 * together hold fewer bytes, so a lane is full before it has read the whole object. */
#define LEN (20u << 20)
#include "remote_object.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"

#define MAX (1u << 20)

static struct penstock_queue *q;
static char file[256];

static int make_file(void **state)
{
	int fd;

	if (setup(state))
		return -1;
	test_file_name(file, sizeof(file), "penstock-own");
	fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, LEN) != LEN || fsync(fd))
		return -1;
	return close(fd);
}

static int remove_file(void **state)
{
	unlink(file);
	return teardown(state);
}

static void open_queue(struct penstock_device *dev)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	opts.own_lane = dev;
	if (penstock_queue_open(&opts, &q))
		fail_msg("%s", penstock_errmsg());
}

static int close_queue_and_remote(void **state)
{
	if (remote)
		async_release(remote);
	penstock_queue_close(q);
	q = NULL;
	return remote_destroy(state);
}

static struct penstock_req read_req(struct penstock_storage *st, struct penstock_seg *seg,
				    struct penstock_device *dev, void *mem, uint64_t off,
				    uint64_t len)
{
	*seg = (struct penstock_seg){.buf = mem, .dev = dev, .off = off, .row_len = len};
	return test_request(st, seg, 1, PENSTOCK_READ);
}

static void submit(const struct penstock_req *req)
{
	if (penstock_submit(q, req, 1, NULL) != 1)
		fail_msg("%s", penstock_errmsg());
}

static void *release_later(void *arg)
{
	/* After this pause the owner's thread is probably asleep. If it is not, the test still
	 * passes. */
	usleep(20000);
	async_release(remote);
	return arg;
}

static void set_device_options(void)
{
	static struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.lanes = 1;
	opts.slot_bytes = 65536; /* this option also sets the length of a chunk */
	host_opts = &opts;
	setenv("PENSTOCK_STANDIN_DEVICES", "2", 1);
	test_use_standin();
}

#endif
