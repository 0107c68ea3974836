/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of queues with a lane of their own: a queue, a file on the drive, and
 * requests, over far_side.h's object, which ends transfers on threads of its own, so that
 * a sleeping owner has to be woken. Devices have one lane. Included by test_own_lane.c and
 * test_own_lane_close.c only.
 */
#ifndef OWN_LANE_H
#define OWN_LANE_H

#define LEN (20u << 20) /* more pieces than a lane may have in flight */
#include "far_side.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"

#define MAX (1u << 20)

static struct penstock_queue *q;
static char file[256];

static int open_files(void **state)
{
	const char *tmp = getenv("TMPDIR");
	int fd;

	if (setup(state))
		return -1;
	snprintf(file, sizeof(file), "%s/penstock-own-%d", tmp ? tmp : "/tmp", (int)getpid());
	fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, LEN) != LEN || fsync(fd))
		return -1;
	return close(fd);
}

static int close_files(void **state)
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

static int end_queue(void **state)
{
	if (far)
		async_release(far);
	penstock_queue_close(q);
	q = NULL;
	return end_case(state);
}

static struct penstock_req read_of(struct penstock_storage *st, struct penstock_seg *seg,
				   struct penstock_device *dev, void *mem, uint64_t off,
				   uint64_t len)
{
	*seg = (struct penstock_seg){.buf = mem, .dev = dev, .off = off, .row_len = len};
	return request(st, seg, 1, PENSTOCK_READ);
}

static void submit(const struct penstock_req *req)
{
	if (penstock_submit(q, req, 1, NULL) != 1)
		fail_msg("%s", penstock_errmsg());
}

static void *release_later(void *arg)
{
	usleep(20000); /* so that the owner sleeps; if not, nothing is lost */
	async_release(far);
	return arg;
}

static void own_lane_devices(void)
{
	static struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.lanes = 1;
	opts.slot_bytes = 65536; /* a chunk's length */
	host_opts = &opts;
	setenv("PENSTOCK_STANDIN_DEVICES", "2", 1);
	test_use_standin();
}

#endif
