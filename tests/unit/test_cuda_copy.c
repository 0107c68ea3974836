/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the copies of device cuda through its table of operations. All bytes must arrive, and
 * waiting streams must not block copies. A ticket is a number with which a caller asks whether the
 * copies before it are done. A ticket must not be done before these copies, even while a hardware
 * queue is blocked. After a failure no copy may still run. No call may change the current context.
 * test_cuda.c tests how the device opens and allocates memory.
 */
#include "cuda_copier.h"

#include <fcntl.h>

/* ---- bytes ---- */

static void copies_of_all_lengths(void **state)
{
	static const size_t lens[] = {1,     2,	    3,	   4,	  5,	 511, 4096,    24575,
				      24576, 24577, 49152, 49153, 65536, MIB, MIB - 1, MIB + 1};
	uint64_t random = test_seed(7);

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		const size_t len = lens[i], at = test_random(&random) % 7;

		random_fill(host, len + 16, &random);
		memset(host + 2 * MIB, 0x11, len + 16);
		/* Fills the bytes around the destination with a known value. */
		assert_int_equal(queue_in(mem, host + 2 * MIB, len + 16), 0);
		copies_wait();
		assert_int_equal(queue_in(mem + at, host, len), 0);
		copies_wait();
		assert_int_equal(queue_out(host + 2 * MIB, mem, len + 16), 0);
		copies_wait();
		assert_memory_equal(host + 2 * MIB + at, host, len);
		for (size_t edge = 0; edge < 16; edge++)
			assert_int_equal(host[2 * MIB + (edge < at ? edge : len + edge)], 0x11);
	}
}

/* Compares copies of random rectangles with a model in host memory. */
static void copies_of_rectangles(void **state)
{
	uint64_t random = test_seed(11);
	char *model = malloc(MIB), *back = host + 2 * MIB;

	(void)state;
	memset(host + MIB, 0x22, MIB);
	memset(model, 0x22, MIB);
	assert_int_equal(queue_in(mem, host + MIB, MIB), 0);
	copies_wait();
	for (int i = 0; i < 60; i++) {
		struct pst_rect r = {.rows = 1 + test_random(&random) % 20};
		size_t at = test_random(&random) % 100;

		r.row_len = 1 + test_random(&random) % (i % 2 ? 30000 : 60);
		r.src_pitch = r.row_len + (i % 3 ? test_random(&random) % 50 : 0);
		r.dst_pitch = r.row_len + (i % 3 ? test_random(&random) % 50 : 0);
		r.src = host;
		r.dst = mem + at;
		random_fill(host, r.src_pitch * r.rows, &random);
		assert_int_equal(ops->copy_in(cp, &r), 0);
		copies_wait();
		for (uint64_t row = 0; row < r.rows; row++)
			memcpy(model + at + row * r.dst_pitch, host + row * r.src_pitch, r.row_len);
		assert_int_equal(queue_out(back, mem, MIB), 0);
		copies_wait();
		assert_memory_equal(back, model, MIB);
		/* Copies the same rectangle from the device to the host. */
		memset(back, 0x33, r.src_pitch * r.rows);
		r.src = mem + at;
		r.dst = back;
		at = r.src_pitch;
		r.src_pitch = r.dst_pitch;
		r.dst_pitch = at;
		assert_int_equal(ops->copy_out(cp, &r), 0);
		copies_wait();
		for (uint64_t row = 0; row < r.rows; row++) {
			assert_memory_equal(back + row * r.dst_pitch, host + row * r.dst_pitch,
					    r.row_len);
			if (row + 1 < r.rows && r.dst_pitch > r.row_len)
				assert_int_equal(back[row * r.dst_pitch + r.row_len], 0x33);
		}
	}
	free(model);
}

/* Copies two rows that are further apart than CUDA's largest pitch. The bytes of each row must
 * arrive. The rows are in two mapped blocks of a reserved address range of 3 GiB. */
static void copies_of_rows_far_apart(void **state)
{
	struct pst_cu_alloc_prop prop = {.type = PST_CU_ALLOC_PINNED,
					 .location = {PST_CU_LOCATION_DEVICE, 0}};
	struct pst_cu_access_desc both = {{PST_CU_LOCATION_DEVICE, 0}, PST_CU_ACCESS_READWRITE};
	const size_t far = 3072 * MIB, g = 2 * MIB;
	unsigned long long handle[2];
	uint64_t random = test_seed(13);
	pst_cu_ptr at;
	struct pst_rect r = {
		.src = host, .src_pitch = 70000, .dst_pitch = far, .row_len = 70000, .rows = 2};
	struct pst_rect peer = {
		.dst = mem, .dst_pitch = 70001, .src_pitch = far, .row_len = 70000, .rows = 2};

	(void)state;
	ctx_enter();
	assert_int_equal(cu->cuMemAddressReserve(&at, far + g, 0, 0, 0), PST_CU_OK);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cu->cuMemCreate(&handle[i], g, &prop, 0), PST_CU_OK);
		assert_int_equal(cu->cuMemMap(at + i * far, g, 0, handle[i], 0), PST_CU_OK);
		assert_int_equal(cu->cuMemSetAccess(at + i * far, g, &both, 1), PST_CU_OK);
	}
	ctx_leave();
	random_fill(host, 140000, &random);
	r.dst = (void *)(uintptr_t)at;
	assert_int_equal(ops->copy_in(cp, &r), 0);
	copies_wait();
	r = (struct pst_rect){host + MIB, r.dst, 70001, far, 70000, 2};
	assert_int_equal(ops->copy_out(cp, &r), 0);
	copies_wait();
	assert_memory_equal(host + MIB, host, 70000);
	assert_memory_equal(host + MIB + 70001, host + 70000, 70000);
	peer.src = r.src;
	assert_int_equal(ops->copy_peer(dev, dev, &peer, &err), 0);
	memset(host + MIB, 0, 140001);
	assert_int_equal(queue_out(host + MIB, mem, 140001), 0);
	copies_wait();
	assert_memory_equal(host + MIB, host, 70000);
	assert_memory_equal(host + MIB + 70001, host + 70000, 70000);
	ctx_enter();
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cu->cuMemUnmap(at + i * far, g), PST_CU_OK);
		assert_int_equal(cu->cuMemRelease(handle[i]), PST_CU_OK);
	}
	assert_int_equal(cu->cuMemAddressFree(at, far + g), PST_CU_OK);
	ctx_leave();
}

/* Copies between the device and host memory that the library has not allocated: memory that is not
 * registered (the library's own buffers are such memory if their registration has failed), and a
 * read-only file mapping. */
static void copies_of_foreign_host_memory(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t random = test_seed(17);
	char *plain = malloc(MIB), path[256], *map;
	int fd;

	(void)state;
	random_fill(plain, MIB, &random);
	assert_int_equal(queue_in(mem, plain, MIB), 0);
	copies_wait();
	assert_int_equal(queue_out(host, mem, MIB), 0);
	copies_wait();
	assert_memory_equal(host, plain, MIB);
	snprintf(path, sizeof(path), "%s/cuda-copy-XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	unlink(path);
	assert_int_equal(write(fd, plain, MIB), MIB);
	map = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
	if (dev->facts.reads_page_cache) {
		assert_int_equal(ops->host_register(dev, map, MIB, true, &err), 0);
		assert_int_equal(queue_in(mem + MIB, map, MIB), 0);
		copies_wait();
		assert_int_equal(ops->host_unregister(dev, map, &err), 0);
		assert_int_equal(queue_out(host, mem + MIB, MIB), 0);
		copies_wait();
		assert_memory_equal(host, plain, MIB);
	}
	munmap(map, MIB);
	close(fd);
	free(plain);
}

/* ---- tickets ---- */

static void later_ticket_includes_earlier_copies(void **state)
{
	struct pst_cu_stream *s = stream_hold(TO_DEVICE);
	uint64_t into, from;

	(void)state;
	memset(host, 0x5a, BIG);
	assert_int_equal(queue_in(mem, host, BIG), 0);
	into = ticket_record();
	assert_int_equal(queue_out(host + MIB, mem + MIB, BIG), 0); /* Not blocked. */
	from = ticket_record();
	assert_true(from > into);
	assert_false(ticket_done_within(from, HELD_MS));
	assert_int_equal(ops->query(cp, into), 0);
	stream_release(s);
	assert_int_equal(ops->wait(cp, from), 0);
	assert_int_equal(ops->query(cp, into), 1);
	assert_int_equal(queue_out(host + MIB, mem, BIG), 0);
	copies_wait();
	assert_memory_equal(host, host + MIB, BIG);
}

static void ticket_covers_both_directions(void **state)
{
	(void)state;
	for (enum held_queue first = TO_DEVICE; first <= TO_HOST; first++) {
		struct pst_cu_stream *s;
		uint64_t ticket;

		__atomic_store_n(&words[63], 0, __ATOMIC_RELEASE);
		s = stream_hold(first);
		assert_int_equal(queue_in(mem, host, BIG), 0);
		assert_int_equal(queue_out(host + MIB, mem + MIB, BIG), 0);
		ticket = ticket_record();
		assert_false(ticket_done_within(ticket, HELD_MS));
		stream_release(s);
		assert_true(ticket_done_within(ticket, SOON_MS));
	}
}

static void known_ticket_makes_no_driver_call(void **state)
{
	unsigned long before;
	uint64_t ticket;

	(void)state;
	assert_int_equal(ticket_record(), 0); /* no copy has been queued, so the ticket is done */
	assert_int_equal(ops->query(cp, 0), 1);
	assert_int_equal(queue_in(mem, host, BIG), 0);
	ticket = ticket_record();
	assert_true(ticket_done_within(ticket, SOON_MS));
	if (!is_standin())
		return;
	before = standin_calls("*");
	assert_int_equal(ticket_record(), ticket);
	assert_int_equal(ops->query(cp, ticket), 1);
	assert_int_equal(ops->wait(cp, ticket), 0);
	assert_int_equal(standin_calls("*"), before);
}

/* For a single copy the copier records no event and queries the stream instead. It records an
 * event if a second copy is queued before a query has found the first copy done. Events are
 * reused. */
static void single_copies_record_no_event(void **state)
{
	unsigned long records, made;
	uint64_t ticket, next;

	(void)state;
	standin_only();
	copies_wait();
	records = standin_calls("cuEventRecord");
	made = standin_calls("cuEventCreate");
	for (unsigned i = 0; i < 600; i++) {
		assert_int_equal(i % 2 ? queue_in(mem, host, BIG) : queue_out(host, mem, BIG), 0);
		assert_int_equal(ops->wait(cp, ticket_record()), 0);
	}
	assert_int_equal(standin_calls("cuEventRecord"), records);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(queue_in(mem, host, BIG), 0);
		ticket = ticket_record();
		assert_int_equal(queue_in(mem + MIB, host + MIB, BIG), 0);
		next = ticket_record();
		assert_int_equal(ops->wait(cp, next), 0);
		assert_int_equal(ops->query(cp, ticket), 1);
	}
	assert_int_equal(standin_calls("cuEventRecord"), records + 100);
	assert_int_equal(standin_calls("cuEventCreate"), made);
}

static void *word_set_later(void *arg)
{
	usleep(HELD_MS * 1000);
	__atomic_store_n(&words[63], 1, __ATOMIC_RELEASE);
	return arg;
}

/* While a hardware queue is blocked, the copier has returned more tickets (numbers of unfinished
 * copies) than it has events. To record the 513th ticket, it waits for the first one. */
static void more_tickets_than_events(void **state)
{
	struct pst_cu_stream *s;
	uint64_t first = 0, last = 0;
	pthread_t thread;

	(void)state;
	copies_wait(); /* waits, because a queued copy may still read `host` */
	for (int i = 0; i < 26000; i++)
		host[i] = (char)(i % 251);
	s = stream_hold(TO_DEVICE);
	assert_int_equal(pthread_create(&thread, NULL, word_set_later, NULL), 0);
	for (int i = 0; i < 700; i++) {
		assert_int_equal(queue_in(mem + i, host + i, 25000), 0);
		last = ticket_record();
		first = first ? first : last;
		assert_int_equal(last - first, i);
		if (i == 512)
			assert_int_equal(ops->query(cp, first), 1);
	}
	pthread_join(thread, NULL);
	assert_int_equal(ops->wait(cp, last), 0);
	stream_release(s);
	assert_int_equal(queue_out(host + 2 * MIB, mem, 700), 0);
	copies_wait();
	assert_memory_equal(host + 2 * MIB, host, 700);
}

/* A waiting stream blocks the compute queue, so no copy of the copier may use that queue. */
static void waiting_stream_blocks_no_copy(void **state)
{
	struct pst_cu_stream *s = stream_hold(COMPUTE);
	static const size_t lens[] = {2, 3, 512, 4095, 4096, 24575, 24576, 24577, BIG};

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct pst_rect r = {mem, host, lens[i] + 8, lens[i], lens[i], 2};

		assert_int_equal(queue_in(mem, host, lens[i]), 0);
		assert_int_equal(ops->copy_in(cp, &r), 0);
		assert_int_equal(queue_out(host + 2 * MIB, mem + 2 * MIB, lens[i]), 0);
		if (!ticket_done_within(ticket_record(), SOON_MS))
			fail_msg("a copy of %zu bytes was blocked", lens[i]);
	}
	stream_release(s);
}

/* ---- failures ---- */

static int copy_and_record(void)
{
	uint64_t ticket;
	int ret = queue_in(mem, host, BIG) || queue_out(host + MIB, mem + MIB, BIG);

	return ret ? -1 : ops->record(cp, &ticket);
}

static void failed_copies_report_errors(void **state)
{
	struct pst_rect r = {mem, host, 100, 90, 80, 4}, peer = {mem, mem + MIB, 100, 90, 80, 4};
	struct pst_rect one = flat_rect(mem, mem + MIB, 80);
	struct pst_copier *none;
	uint64_t ticket;

	(void)state;
	standin_only();
	FAILS_WITH("cuStreamCreateWithPriority:1:2", -ENOMEM, "CUDA_ERROR_OUT_OF_MEMORY",
		   ops->copier_open(dev, 9, &none, &err));
	FAILS_WITH("cuStreamCreateWithPriority:2:2", -ENOMEM, "CUDA_ERROR",
		   ops->copier_open(dev, 9, &none, &err));
	FAILS_WITH("cuEventCreate:1:2", -ENOMEM, "CUDA_ERROR",
		   ops->copier_open(dev, 9, &none, &err));
	FAILS_WITH("cuEventCreate:8:999", -EIO, "CUDA_ERROR",
		   ops->copier_open(dev, 9, &none, &err));
	FAILS_WITH("cuCtxPushCurrent_v2:1:201", -ENXIO, "CUDA_ERROR",
		   ops->copier_open(dev, 9, &none, &err));
	FAILS("cuMemcpyHtoDAsync_v2:1:700", -EFAULT, queue_in(mem, host, BIG));
	FAILS("cuMemcpy2DAsync_v2:1:700", -EFAULT, queue_in(mem, host, 101));
	FAILS("cuMemcpy2DAsync_v2:2:700", -EFAULT, queue_in(mem, host, 101));
	FAILS("cuMemcpy2DAsync_v2:1:1", -EINVAL, ops->copy_in(cp, &r));
	FAILS("cuMemcpyDtoHAsync_v2:1:999", -EIO, queue_out(host, mem, BIG));
	FAILS("cuCtxPushCurrent_v2:1:709", -ESTALE, queue_in(mem, host, BIG));
	/* These copies need more events than the copier created when it was opened. */
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(copy_and_record(), 0);
	FAILS("cuEventCreate:1:2", -ENOMEM, copy_and_record());
	/* After these copies, the copier has created as many events as it may create. */
	for (unsigned i = 0; i < 600; i++)
		assert_int_equal(copy_and_record(), 0);
	FAILS("cuEventRecord:1:999", -EIO, copy_and_record());
	FAILS("cuEventRecord:2:999", -EIO, copy_and_record());
	FAILS("cuStreamWaitEvent:1:999", -EIO, copy_and_record());
	FAILS("cuCtxPushCurrent_v2:3:709", -ESTALE, copy_and_record());
	assert_int_equal(queue_in(mem, host, BIG), 0);
	ticket = ticket_record();
	FAILS("cuEventQuery:1:719", -EIO, ops->query(cp, ticket));
	FAILS("cuEventSynchronize:1:719", -EIO, ops->wait(cp, ticket));
	FAILS("cuCtxPushCurrent_v2:1:709", -ESTALE, ops->wait(cp, ticket));
	assert_int_equal(ops->wait(cp, ticket), 0);
	FAILS_WITH("cuStreamCreateWithPriority:1:2", -ENOMEM, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &one, &err));
	assert_int_equal(ops->copy_peer(dev, dev, &one, &err), 0);
	FAILS_WITH("cuMemcpyPeerAsync:1:999", -EIO, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &one, &err));
	FAILS_WITH("cuMemcpy2DAsync_v2:1:999", -EIO, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &peer, &err));
	FAILS_WITH("cuEventRecord:1:999", -EIO, "CUDA_ERROR", ops->copy_peer(dev, dev, &one, &err));
	FAILS_WITH("cuEventQuery:1:719", -EIO, "CUDA_ERROR", ops->copy_peer(dev, dev, &one, &err));
	FAILS_WITH("cuEventQuery:1+:600,cuEventSynchronize:1:999", -EIO, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &one, &err));
	/* If many queries find the copy not done, copy_peer sleeps until the copy is done. */
	standin_fail("cuEventQuery:1+:600");
	assert_int_equal(ops->copy_peer(dev, dev, &one, &err), 0);
	standin_fail(NULL);
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &one, &err));
}

/* The copier records no event for the last ticket until it queues another copy. If it then cannot
 * record the event, it waits until all open tickets are done, not only the first one. */
static void ticket_without_event_is_waited_for(void **state)
{
	static const char *const fails[] = {"cuEventRecord:1:999", "cuEventCreate:1:2"};
	void (*delay)(unsigned, unsigned long);
	uint64_t first, last;

	(void)state;
	standin_only();
	*(void **)&delay = lib_symbol("pst_standin_delay");
	memset(host, 0x5a, BIG);
	assert_int_equal(queue_in(mem, host, BIG), 0);
	copies_wait();
	for (unsigned i = 0; i < 2; i++) {
		struct pst_cu_stream *s = stream_hold(TO_HOST);

		/* In the second round (i == 1), the next ticket needs a new event: the copier has
		 * no unused one left, and cuEventCreate fails. */
		for (unsigned k = 0; i && k < 8; k++) {
			assert_int_equal(queue_out(host, mem, BIG), 0);
			ticket_record();
		}
		assert_int_equal(queue_out(host, mem, BIG), 0);
		first = ticket_record();
		memset(host + MIB, 0x11, BIG);
		assert_int_equal(queue_out(host + MIB, mem, BIG), 0);
		last = ticket_record();
		assert_int_equal(ops->query(cp, first), 0);
		delay(20000, 3); /* delays the second copy, so that it ends after the first one */
		stream_release(s);
		standin_fail(fails[i]);
		assert_int_equal(queue_out(host + 2 * MIB, mem, BIG), 0);
		standin_fail(NULL);
		assert_int_equal(ops->query(cp, last), 1);
		assert_memory_equal(host + MIB, host, BIG);
		delay(0, 1);
		copies_wait();
		__atomic_store_n(&words[63], 0, __ATOMIC_RELEASE);
	}
}

/* The caller reuses the buffer of a copy as soon as the copy has failed. So no copy may still run
 * when the copier reports the failure. */
static void no_copy_runs_after_a_failure(void **state)
{
	void (*delay)(unsigned, unsigned long);
	uint64_t ticket;

	(void)state;
	standin_only();
	*(void **)&delay = lib_symbol("pst_standin_delay");
	delay(20000, 3);
	memset(host, 0x66, BIG);
	memset(host + MIB, 0x77, BIG);
	assert_int_equal(queue_in(mem, host, BIG), 0);
	ticket = ticket_record();
	/* The first copy gets no event, so the copier waits for it before it queues the second
	 * copy. */
	standin_fail("cuEventRecord:1:999,cuMemcpy2DAsync_v2:2:700");
	assert_int_equal(queue_in(mem + MIB, host + MIB, 101), -EFAULT);
	assert_int_equal(ops->query(cp, ticket), 1);
	memset(host, 0x01, BIG);
	memset(host + MIB, 0x02, BIG);
	standin_fail(NULL);
	delay(0, 1);
	assert_int_equal(queue_out(host, mem, BIG), 0);
	assert_int_equal(queue_out(host + MIB, mem + MIB, 50), 0);
	copies_wait();
	assert_int_equal(host[0], 0x66);
	assert_int_equal(host[BIG - 1], 0x66);
	assert_int_equal(host[MIB + 49], 0x77);
}

/* ---- the current context ---- */

#define KEEPS_CONTEXT(call)                                                    \
	do {                                                                   \
		struct pst_cu_ctx *was_ = current_ctx();                       \
		int ret_ = (call);                                             \
		if (ret_ < 0)                                                  \
			fail_msg("%s returned %d: %s", #call, ret_, err.text); \
		if (current_ctx() != was_)                                     \
			fail_msg("%s changed the current context", #call);     \
	} while (0)

static void call_all_operations(void)
{
	struct penstock_device *d = device_open("cuda:0");
	struct pst_rect r = flat_rect(mem, mem + MIB, 100);
	char *more = pages_map(MIB, PROT_READ | PROT_WRITE);
	struct penstock_export exported;
	struct pst_memory got;
	struct pst_copier *c;
	uint64_t ticket, *w;
	void *m;

	KEEPS_CONTEXT(ops->count());
	KEEPS_CONTEXT(ops->alloc(d, 8192, &m, &err));
	KEEPS_CONTEXT(ops->classify(d, m, &got));
	KEEPS_CONTEXT(ops->host_register(d, more, MIB, false, &err));
	KEEPS_CONTEXT(ops->copier_open(d, 9, &c, &err));
	r = flat_rect(m, more, 4096);
	KEEPS_CONTEXT(ops->copy_in(c, &r));
	r = flat_rect(more + 4096, (char *)m + 4096, 4096);
	KEEPS_CONTEXT(ops->copy_out(c, &r));
	KEEPS_CONTEXT(ops->record(c, &ticket));
	KEEPS_CONTEXT(ops->query(c, ticket));
	KEEPS_CONTEXT(ops->wait(c, ticket));
	r = flat_rect(mem, m, 4096);
	KEEPS_CONTEXT(ops->copy_peer(d, d, &r, &err));
	KEEPS_CONTEXT(ops->export_memory(d, m, 4096, &exported, &err));
	KEEPS_CONTEXT(ops->order_writes(d, &err));
	KEEPS_CONTEXT(!(w = words_alloc(d, 8)));
	KEEPS_CONTEXT(stream_store(d, PST_CU_STREAM_LEGACY, &w[0], 1));
	KEEPS_CONTEXT(stream_await(d, PST_CU_STREAM_LEGACY, &w[1], 0));
	/* words_free makes a driver call that waits for the stream */
	KEEPS_CONTEXT((words_free(d, w, 8), 0));
	KEEPS_CONTEXT((ops->copier_close(c), 0));
	KEEPS_CONTEXT(ops->host_unregister(d, more, &err));
	KEEPS_CONTEXT(ops->free(d, m, &err));
	KEEPS_CONTEXT((device_close(d), 0));
	munmap(more, MIB);
}

static void current_context_is_kept(void **state)
{
	enum pst_cu_result (*make)(struct pst_cu_ctx **, unsigned, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	struct pst_cu_ctx *other_ctx;
	pst_cu_ptr theirs;

	(void)state;
	*(void **)&make = lib_symbol("cuCtxCreate_v2");
	*(void **)&destroy = lib_symbol("cuCtxDestroy_v2");
	call_all_operations();
	ctx_enter();
	call_all_operations();
	ctx_leave();
	assert_int_equal(make(&other_ctx, 0, 0), PST_CU_OK);
	call_all_operations();
	/* Copies to memory that was allocated in another context. */
	assert_int_equal(cu->cuMemAlloc(&theirs, MIB), PST_CU_OK);
	memset(host, 0x3c, MIB);
	assert_int_equal(queue_in((void *)(uintptr_t)theirs, host, MIB), 0);
	copies_wait();
	memset(host, 0, MIB);
	assert_int_equal(queue_out(host, (void *)(uintptr_t)theirs, MIB), 0);
	copies_wait();
	assert_int_equal(host[MIB - 1], 0x3c);
	assert_int_equal(cu->cuMemFree(theirs), PST_CU_OK);
	assert_int_equal(destroy(other_ctx), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, copier_setup, copier_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(copies_of_all_lengths),
		CASE(copies_of_rectangles),
		CASE(copies_of_rows_far_apart),
		CASE(copies_of_foreign_host_memory),
		CASE(later_ticket_includes_earlier_copies),
		CASE(ticket_covers_both_directions),
		CASE(known_ticket_makes_no_driver_call),
		CASE(single_copies_record_no_event),
		CASE(more_tickets_than_events),
		CASE(waiting_stream_blocks_no_copy),
		CASE(failed_copies_report_errors),
		CASE(ticket_without_event_is_waited_for),
		CASE(no_copy_runs_after_a_failure),
		CASE(current_context_is_kept),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_copy", tests, driver_open, NULL);
}
