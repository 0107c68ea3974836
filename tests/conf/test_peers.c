/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests copies between two GPUs, both contiguous and pitched. The CUDA driver must copy from GPU
 * to GPU, not through host memory. Copies between devices of different kinds use host memory. One
 * case reads into segments on many GPUs. All bytes are compared, and the simulated driver (the
 * stand-in) counts the calls.
 */
#include "test.h"

#include "penstock.h"

#define LEN (1u << 20)

/* Returns the number of calls of a driver function; NULL with a real CUDA driver, which
 * counts no calls. */
static unsigned long (*calls)(const char *name);
static struct penstock_device *devs[3]; /* the host and two GPUs */
static unsigned char *mems[3], *bytes;

static int setup(void **state)
{
	static const char *const names[] = {"host", "cuda:0", "cuda:1"};
	uint64_t seed = 17;

	(void)state;
	setenv("PENSTOCK_STANDIN_DEVICES", "16", 1);
	test_use_standin();
	*(void **)&calls = test_standin_symbol("pst_standin_calls");
	bytes = malloc(LEN);
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	for (unsigned i = 0; i < 3; i++)
		if (penstock_device_open(names[i], NULL, &devs[i]) < 0 ||
		    penstock_alloc(devs[i], LEN, (void **)&mems[i]))
			return -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 3; i-- > 0;) {
		penstock_free(devs[i], mems[i]);
		penstock_device_close(devs[i]);
	}
	free(bytes);
	return 0;
}

/* Copies between two devices. `peers` is the number of GPU-to-GPU copies that the simulated driver
 * must have counted. */
static void copy_and_count(unsigned to, unsigned from, uint64_t row, uint64_t rows,
			   unsigned long peers)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = devs[to],
					  .dst = mems[to],
					  .dst_pitch = row + 24,
					  .src_dev = devs[from],
					  .src = mems[from],
					  .src_pitch = row + 8,
					  .row_len = row,
					  .rows = rows};
	static const char *const names[] = {"cuMemcpyPeerAsync", "cuMemcpy2DAsync_v2"};
	unsigned long before = calls ? calls(names[rows > 1]) : 0;

	if (penstock_copy(&args, 1))
		fail_msg("%s", penstock_errmsg());
	if (calls)
		assert_int_equal(calls(names[rows > 1]) - before, peers);
}

static void fill_device(unsigned i)
{
	memcpy(mems[0], bytes, LEN);
	copy_and_count(i, 0, LEN, 1, 0);
	memset(mems[0], 0xee, LEN);
}

static void driver_copies_between_gpus(void **state)
{
	(void)state;
	fill_device(1);
	copy_and_count(2, 1, LEN, 1, 1);
	copy_and_count(0, 2, LEN, 1,
		       0); /* The host is not a GPU, so no GPU-to-GPU copy is counted. */
	assert_memory_equal(mems[0], bytes, LEN);
}

static void pitched_copy_between_gpus(void **state)
{
	enum { ROW = 1000, ROWS = 500 };

	(void)state;
	fill_device(1);
	fill_device(2);
	copy_and_count(2, 1, ROW, ROWS, 1);
	copy_and_count(0, 2, LEN, 1, 0);
	for (unsigned i = 0; i < ROWS * (ROW + 24); i++) {
		unsigned row = i / (ROW + 24), col = i % (ROW + 24);

		if (col < ROW)
			assert_int_equal(mems[0][i], bytes[row * (ROW + 8) + col]);
		else
			assert_int_equal(mems[0][i], bytes[i]);
	}
}

#define GPUS 16
#define PART 50000

/* Reads one range into segments on the host and on up to 16 GPUs, then on fewer and fewer GPUs.
 * The worker threads of one device copy to all these GPUs, in any order. Every segment must get its
 * bytes.
 */
static void one_request_for_many_gpus(void **state)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_device *gpus[GPUS];
	struct penstock_seg segs[GPUS + 1] = {{.buf = mems[0], .dev = devs[0], .row_len = PART}};
	void *parts[GPUS];
	unsigned count = 0;

	(void)state;
	opts.lanes = 1;
	opts.slot_bytes = 65536;
	opts.ring_bytes = 4 * 65536;
	assert_int_equal(penstock_open("mem:1MiB?seed=5", NULL, &req.storage), 0);
	assert_int_equal(penstock_read(req.storage, devs[0], bytes, PART, 0), PART);
	for (char name[16]; count < GPUS; count++) {
		snprintf(name, sizeof(name), "cuda:%u", count);
		if (penstock_device_open(name, &opts, &gpus[count]) < 0)
			break; /* the machine has no more GPUs */
		assert_int_equal(penstock_alloc(gpus[count], PART, &parts[count]), 0);
		segs[count + 1] = (struct penstock_seg){
			.buf = parts[count], .dev = gpus[count], .row_len = PART};
	}
	req.segs = segs;
	for (req.seg_count = count + 1; req.seg_count > 1; req.seg_count -= 1 + count / 4) {
		for (unsigned i = 0; i < 8;
		     i++) /* repeats until each worker thread has probably carried some reads */
			if (penstock_transfer(&req, NULL) != (int64_t)req.seg_count * PART)
				fail_msg("%u devices: %s", req.seg_count, penstock_errmsg());
		if (req.seg_count <= 1 + count / 4)
			break;
	}
	for (unsigned i = 0; i < count; i++) {
		struct penstock_copy_args out = {.size = sizeof(out),
						 .dst_dev = devs[0],
						 .dst = mems[0],
						 .src_dev = gpus[i],
						 .src = parts[i],
						 .row_len = PART};

		memset(mems[0], 0xee, PART);
		assert_int_equal(penstock_copy(&out, 1), 0);
		assert_memory_equal(mems[0], bytes, PART);
		penstock_free(gpus[i], parts[i]);
		penstock_device_close(gpus[i]);
	}
	penstock_close(req.storage);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(driver_copies_between_gpus),
		cmocka_unit_test(pitched_copy_between_gpus),
		cmocka_unit_test(one_request_for_many_gpus),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
