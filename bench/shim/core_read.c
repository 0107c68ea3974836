/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file with Penstock's own API (the core) for a Python program. It makes the same request
 * as the drop-in (Penstock's libcufile), and uses the libpenstock that the drop-in uses in this
 * process.
 * torch_gds.py and kvikio_modes.py load this shared object and pass it the addresses of
 * tensors. It handles one file, and one caller at a time.
 */
#include "penstock.h"

static struct penstock_storage *st;
static struct penstock_device *dev;

int core_open(const char *path, const char *device);
int64_t core_read(void *buf, uint64_t len, uint64_t off);
void core_close(void);

int core_open(const char *path, const char *device)
{
	int ret = penstock_device_open(device, NULL, &dev);

	return ret < 0 ? ret : penstock_open(path, NULL, &st);
}

int64_t core_read(void *buf, uint64_t len, uint64_t off)
{
	struct penstock_seg seg = {.buf = buf, .dev = dev, .off = off, .row_len = len, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.effort = PENSTOCK_FAST;
	return penstock_transfer(&req, 0);
}

void core_close(void)
{
	penstock_close(st);
	penstock_device_close(dev);
}
