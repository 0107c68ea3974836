/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests device peermem and path "p2p" without the hardware. A simulated /sys shows a PCI device
 * whose memory drives may access. A file in /dev/shm takes the place of that memory. The test
 * covers every byte that the library itself moves. Whether a kernel lets a drive write to such
 * memory is tested only in the lab. The storage on TMPDIR is marked as being on the library's
 * allow-list for O_DIRECT.
 */
#include "test.h"
#include "request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "core/request/request.h"
#include "core/request/residency_probe.h"

#define BDF "0000:04:00.0"
#define LEN (4u << 20)
#define MEM_LEN (LEN + 65536u)

static char root[200], memory[200], name[200];
static struct penstock_device *host, *peer;
static struct penstock_storage *st;
static unsigned char *bytes, *back, *mem;

static void sys_file_write(const char *path, const char *text)
{
	char whole[300];
	int fd;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = whole + strlen(root); (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		mkdir(whole, 0700);
		*slash = '/';
	}
	if (!text)
		return;
	fd = open(whole, O_WRONLY | O_CREAT, 0600);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		abort();
	close(fd);
}

static void sys_remove(void)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	if (system(command))
		printf("# %s is left behind\n", root);
}

/* A copy of the device's function table, in which the test replaces order_writes. */
static struct pst_device_ops ops;
static _Atomic unsigned ordered, refusals;

static int count_order_writes(struct penstock_device *dev, struct pst_err *err)
{
	ordered++;
	if (!refusals)
		return 0;
	refusals--;
	return pst_fail(err, PENSTOCK_WHY_DEVICE_ERROR, "%s orders nothing", dev->name);
}

static int setup(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	uint64_t seed = 23;
	char link[300];
	int fd;

	(void)state;
	test_file_name(root, sizeof(root), "penstock-peer");
	snprintf(memory, sizeof(memory), "/dev/shm/penstock-peer-%d", (int)getpid());
	snprintf(name, sizeof(name), "%.190s.data", root);
	fd = open(memory, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || ftruncate(fd, MEM_LEN))
		return -1;
	close(fd);
	sys_file_write("/sys/bus/pci/devices/0000:05:00.0/", NULL);
	sys_file_write("/sys/bus/pci/devices/" BDF "/p2pmem/size", "4259840\n");
	snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/" BDF "/p2pmem/allocate", root);
	if (symlink(memory, link))
		return -1;
	bytes = malloc(MEM_LEN);
	back = aligned_alloc(4096, MEM_LEN);
	for (unsigned i = 0; i < MEM_LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	opts.sys_root = root;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open("peermem:" BDF, &opts, &peer) < 0)
		return -1;
	ops = *peer->ops; /* The test replaces the table before any worker thread reads it. */
	ops.order_writes = count_order_writes;
	peer->ops = &ops;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(peer);
	penstock_device_close(host);
	sys_remove();
	unlink(memory);
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

static int close_and_free(void **state)
{
	(void)state;
	penstock_close(st);
	st = NULL;
	if (mem)
		penstock_free(peer, mem);
	mem = NULL;
	return 0;
}

/* Opens a file of known bytes and runs the canary (a test read) before the test allocates
 * memory. Thus the canary and the test use the same place in device memory. */
static void open_file_and_alloc(enum penstock_op op)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, LEN), LEN);
	assert_int_equal(fsync(fd), 0);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	if (st->facts.fd_direct < 0)
		test_skip("no direct path to TMPDIR: %s", st->facts.why_direct.text);
	st->facts.listed = true;
	assert_int_equal(penstock_prepare(st, peer, op), 0);
	assert_int_equal(penstock_alloc(peer, MEM_LEN, (void **)&mem), 0);
}

static int64_t transfer(enum penstock_op op, uint64_t off, uint64_t at, uint64_t len,
			struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem + at, .dev = peer, .off = off, .row_len = len};
	struct penstock_req req;

	req = test_request(st, &seg, 1, op);
	return penstock_transfer(&req, report);
}

static struct penstock_explain_path explain_p2p(enum penstock_op op)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = peer, .row_len = LEN};
	struct penstock_req req;

	req = test_request(st, &seg, 1, op);
	assert_int_equal(penstock_explain(&req, &e), 0);
	assert_string_equal(e.paths[0].name, "p2p");
	return e.paths[0];
}

static void read_by_p2p(void **state)
{
	static const uint64_t lens[] = {1, 4096, 5000, 65536, 1000001, LEN};
	static const uint64_t offs[] = {0, 1, 4096, 12345};
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	open_file_and_alloc(PENSTOCK_READ);
	if (explain_p2p(PENSTOCK_READ).why == PENSTOCK_WHY_UNPROVEN)
		test_skip("no direct path to TMPDIR: it does not report which extents are written");
	/* If the kernel does not report whether the file's bytes are cached, the library uses the
	 * result of its residency probe. This result is "not cached", so path "p2p" must carry the
	 * reads. */
	atomic_store(&st->residency_probe, PST_PROBE_COLD);
	assert_int_equal(explain_p2p(PENSTOCK_READ).proven, 1);
	assert_int_equal(explain_p2p(PENSTOCK_READ).meets, PENSTOCK_DIRECT);
	for (unsigned i = 0; i < 24; i++) {
		uint64_t len = lens[i / 4], off = offs[i % 4], there = LEN - off;

		memset(mem, 0xee, MEM_LEN);
		there = len < there ? len : there;
		assert_int_equal(transfer(PENSTOCK_READ, off, 4096, len, &report), there);
		assert_memory_equal(mem + 4096, bytes + off, there);
		for (uint64_t b = 0; b < MEM_LEN; b++)
			if ((b < 4096 || b >= 4096 + len) && mem[b] != 0xee)
				fail_msg("byte %llu is another's", (unsigned long long)b);
		if (!(off % 4096) && len >= 4096)
			assert_string_equal(report.path, "p2p");
	}
	/* The last read is not aligned, so another path than p2p carries it, and that path copies
	 * by the CPU. */
	assert_int_equal(report.cpu_copied > 0, 1);
}

/* On some devices, a read by the device may overtake bytes that a drive is still writing to the
 * device's memory. The library calls order_writes of such a device before it completes a chunk.
 * If order_writes fails, the chunk is retried on another path. */
static void chunk_waits_for_order_writes(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;

	(void)state;
	open_file_and_alloc(PENSTOCK_READ);
	if (explain_p2p(PENSTOCK_READ).why == PENSTOCK_WHY_UNPROVEN)
		test_skip("no direct path to TMPDIR: it does not report which extents are written");
	for (unsigned i = 0; i < 2; i++) {
		ordered = 0;
		refusals = i;
		memset(mem, 0xee, MEM_LEN);
		assert_int_equal(transfer(PENSTOCK_READ, 0, 0, LEN, &report), LEN);
		assert_memory_equal(mem, bytes, LEN);
		assert_string_equal(report.path, "p2p");
		assert_int_equal(report.retries, i);
		assert_int_equal(ordered, report.chunks);
	}
}

static void write_by_p2p(void **state)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_explain_path path;
	int fd;

	(void)state;
	open_file_and_alloc(PENSTOCK_WRITE);
	path = explain_p2p(PENSTOCK_WRITE);
	assert_int_equal(path.proven, -1);
	assert_string_equal(path.text, penstock_why_text(PENSTOCK_WHY_FIRST_WRITE));
	memcpy(mem, bytes + 65536, LEN);
	assert_int_equal(transfer(PENSTOCK_WRITE, 0, 0, LEN, &report), LEN);
	assert_string_equal(report.path, "p2p");
	assert_int_equal(report.cpu_copied, 0);
	fd = open(name, O_RDONLY);
	assert_int_equal(pread(fd, back, LEN, 0), LEN);
	close(fd);
	assert_memory_equal(back, bytes + 65536, LEN);
}

static void allocations_of_peer_memory(void **state)
{
	struct penstock_device_info info = {.size = sizeof(info)};
	struct penstock_device *found;
	void *more;
	struct penstock_sum_args sum = {.size = sizeof(sum), .len = 100};

	(void)state;
	assert_int_equal(penstock_device_get_info(peer, &info), 0);
	assert_string_equal(info.bdf, BDF);
	assert_non_null(strstr(info.text, "4 MiB"));
	assert_int_equal(penstock_alloc(peer, 100, (void **)&mem), 0);
	assert_int_equal((uintptr_t)mem % 4096, 0);
	assert_int_equal(penstock_device_of(mem + 99, &found), 0);
	assert_ptr_equal(found, peer);
	sum.dev = peer;
	sum.ptr = mem;
	assert_int_equal(penstock_sum(&sum, 1), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_UNSUPPORTED);
	/* This address is inside the allocation, but not at its start, so it cannot be freed. */
	assert_int_equal(penstock_free(peer, mem + 4), -EINVAL);
	assert_int_equal(penstock_device_of(mem, &found), 0);
	assert_ptr_equal(found, peer); /* The failed call has freed nothing. */
	assert_int_equal(penstock_alloc(peer, 4096, &more), 0);
	assert_int_equal(penstock_free(peer, more), 0);
	assert_int_equal(penstock_free(peer, more), -EINVAL);
	assert_int_equal(penstock_free(peer, back), -EINVAL);
}

static void devices_that_do_not_exist(void **state)
{
	static const struct {
		const char *name;
		int code;
		enum penstock_why why;
	} none[] = {
		{"peermem:0000:06:00.0", -ENODEV, PENSTOCK_WHY_NO_DEVICE},
		{"peermem:0000:05:00.0", -EOPNOTSUPP, PENSTOCK_WHY_NO_P2PDMA},
		{"peermem:../../..", -EINVAL, PENSTOCK_WHY_BAD_ARGUMENT},
		{"peermem:0000:0A:00.0", -EINVAL, PENSTOCK_WHY_BAD_ARGUMENT},
	};
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_device *dev;

	(void)state;
	opts.sys_root = root;
	for (unsigned i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		int ret = penstock_device_open(none[i].name, &opts, &dev);

		if (penstock_errwhy() != none[i].why || ret != none[i].code)
			fail_msg("%s: %d, %s", none[i].name, ret, penstock_errmsg());
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(read_by_p2p, close_and_free),
		cmocka_unit_test_teardown(chunk_waits_for_order_writes, close_and_free),
		cmocka_unit_test_teardown(write_by_p2p, close_and_free),
		cmocka_unit_test_teardown(allocations_of_peer_memory, close_and_free),
		cmocka_unit_test_teardown(devices_that_do_not_exist, close_and_free),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
