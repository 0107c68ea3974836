/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file into device memory with one call and prints which path carried its bytes.
 *
 *	read FILE [DEVICE]
 *
 * DEVICE is "auto" by default: the first GPU, or host memory if there is none. Calls
 * whose result this program does not check cannot fail.
 */
#include <inttypes.h>
#include <stdio.h>

#include <penstock.h>

/* Prints the library's message, which names what failed and what to do. */
static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, penstock_errmsg());
	return 1;
}

/* Reads the whole file and prints its report. */
static int read_all(struct penstock_storage *st, struct penstock_device *dev, void *buf,
		    uint64_t len)
{
	struct penstock_seg seg = {.buf = buf, .dev = dev, .row_len = len};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;

	/* penstock_read would read the same bytes, but it returns no report. */
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	n = penstock_transfer(&req, &report);
	if (n < 0)
		return fail("reading");
	printf("%" PRId64 " bytes into %s by %s in %.3f ms\n", n, penstock_device_name(dev),
	       report.path, (double)(report.end_ns - report.start_ns) / 1e6);
	for (unsigned i = 0; i < report.path_count; i++)
		if (report.paths[i].bytes)
			printf("  %-8s %" PRIu64 " bytes\n", report.paths[i].name,
			       report.paths[i].bytes);
		else if (report.paths[i].why != PENSTOCK_WHY_NONE)
			printf("  %-8s not taken: %s\n", report.paths[i].name,
			       report.paths[i].text);
	return 0;
}

int main(int argc, char **argv)
{
	struct penstock_storage *st = NULL;
	struct penstock_device *dev = NULL;
	void *buf = NULL;
	int64_t len;
	int ret;

	if (argc < 2) {
		fprintf(stderr, "usage: read FILE [DEVICE]\n");
		return 2;
	}
	/* penstock_device_open returns 1 if the device is open already. Errors are below 0. */
	if (penstock_device_open(argc > 2 ? argv[2] : "auto", NULL, &dev) < 0)
		return fail("device");
	if (penstock_open(argv[1], NULL, &st) < 0)
		ret = fail("storage");
	else if ((len = penstock_storage_length(st)) < 0)
		ret = fail("length");
	else if (penstock_alloc(dev, (size_t)len, &buf) < 0)
		ret = fail("memory");
	else
		ret = read_all(st, dev, buf, (uint64_t)len);
	if (buf)
		penstock_free(dev, buf);
	penstock_close(st);
	penstock_device_close(dev);
	return ret;
}
