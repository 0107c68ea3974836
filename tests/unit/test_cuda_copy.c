/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and stream order of device cuda by its table: bytes arrive, tickets keep
 * their promise while a hardware queue is held up, waiting streams hold up none of
 * our copies, failures leave nothing moving, and no call changes the current context.
 * Opening and memory are test_cuda.c's.
 */
#include "cuda_copier.h"

#include <fcntl.h>

/* ---- bytes -------------------------------------------------------------------- */

static void lengths_arrive(void **state)
{
	static const size_t lens[] = {1,     2,	    3,	   4,	  5,	 511, 4096,    24575,
				      24576, 24577, 49152, 49153, 65536, MIB, MIB - 1, MIB + 1};
	uint64_t random = test_seed(7);

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		const size_t len = lens[i], at = test_random(&random) % 7;

		fill(host, len + 16, &random);
		memset(host + 2 * MIB, 0x11, len + 16);
		assert_int_equal(in(mem, host + 2 * MIB, len + 16), 0); /* a known edge */
		finish();
		assert_int_equal(in(mem + at, host, len), 0);
		finish();
		assert_int_equal(out(host + 2 * MIB, mem, len + 16), 0);
		finish();
		assert_memory_equal(host + 2 * MIB + at, host, len);
		for (size_t edge = 0; edge < 16; edge++)
			assert_int_equal(host[2 * MIB + (edge < at ? edge : len + edge)], 0x11);
	}
}

/* Random rectangles against a model in host memory. */
static void rectangles_arrive(void **state)
{
	uint64_t random = test_seed(11);
	char *model = malloc(MIB), *back = host + 2 * MIB;

	(void)state;
	memset(host + MIB, 0x22, MIB);
	memset(model, 0x22, MIB);
	assert_int_equal(in(mem, host + MIB, MIB), 0);
	finish();
	for (int i = 0; i < 60; i++) {
		struct pst_rect r = {.rows = 1 + test_random(&random) % 20};
		size_t at = test_random(&random) % 100;

		r.row_len = 1 + test_random(&random) % (i % 2 ? 30000 : 60);
		r.src_pitch = r.row_len + (i % 3 ? test_random(&random) % 50 : 0);
		r.dst_pitch = r.row_len + (i % 3 ? test_random(&random) % 50 : 0);
		r.src = host;
		r.dst = mem + at;
		fill(host, r.src_pitch * r.rows, &random);
		assert_int_equal(ops->copy_in(cp, &r), 0);
		finish();
		for (uint64_t row = 0; row < r.rows; row++)
			memcpy(model + at + row * r.dst_pitch, host + row * r.src_pitch, r.row_len);
		assert_int_equal(out(back, mem, MIB), 0);
		finish();
		assert_memory_equal(back, model, MIB);
		/* And out again as the same rectangle. */
		memset(back, 0x33, r.src_pitch * r.rows);
		r.src = mem + at;
		r.dst = back;
		at = r.src_pitch;
		r.src_pitch = r.dst_pitch;
		r.dst_pitch = at;
		assert_int_equal(ops->copy_out(cp, &r), 0);
		finish();
		for (uint64_t row = 0; row < r.rows; row++) {
			assert_memory_equal(back + row * r.dst_pitch, host + row * r.dst_pitch,
					    r.row_len);
			if (row + 1 < r.rows && r.dst_pitch > r.row_len)
				assert_int_equal(back[row * r.dst_pitch + r.row_len], 0x33);
		}
	}
	free(model);
}

/* Rows that lie further apart than a pitch may be: 3 GiB of addresses, two pages of
 * memory in them. */
static void rows_far_apart(void **state)
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
	enter();
	assert_int_equal(cu->cuMemAddressReserve(&at, far + g, 0, 0, 0), PST_CU_OK);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cu->cuMemCreate(&handle[i], g, &prop, 0), PST_CU_OK);
		assert_int_equal(cu->cuMemMap(at + i * far, g, 0, handle[i], 0), PST_CU_OK);
		assert_int_equal(cu->cuMemSetAccess(at + i * far, g, &both, 1), PST_CU_OK);
	}
	leave();
	fill(host, 140000, &random);
	r.dst = (void *)(uintptr_t)at;
	assert_int_equal(ops->copy_in(cp, &r), 0);
	finish();
	r = (struct pst_rect){host + MIB, r.dst, 70001, far, 70000, 2};
	assert_int_equal(ops->copy_out(cp, &r), 0);
	finish();
	assert_memory_equal(host + MIB, host, 70000);
	assert_memory_equal(host + MIB + 70001, host + 70000, 70000);
	peer.src = r.src;
	assert_int_equal(ops->copy_peer(dev, dev, &peer, &err), 0);
	memset(host + MIB, 0, 140001);
	assert_int_equal(out(host + MIB, mem, 140001), 0);
	finish();
	assert_memory_equal(host + MIB, host, 70000);
	assert_memory_equal(host + MIB + 70001, host + 70000, 70000);
	enter();
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(cu->cuMemUnmap(at + i * far, g), PST_CU_OK);
		assert_int_equal(cu->cuMemRelease(handle[i]), PST_CU_OK);
	}
	assert_int_equal(cu->cuMemAddressFree(at, far + g), PST_CU_OK);
	leave();
}

/* The ring may have been refused registration, and a file's mapping is read-only. */
static void other_host_memory(void **state)
{
	const char *tmp = getenv("TMPDIR");
	uint64_t random = test_seed(17);
	char *plain = malloc(MIB), path[256], *map;
	int fd;

	(void)state;
	fill(plain, MIB, &random);
	assert_int_equal(in(mem, plain, MIB), 0);
	finish();
	assert_int_equal(out(host, mem, MIB), 0);
	finish();
	assert_memory_equal(host, plain, MIB);
	snprintf(path, sizeof(path), "%s/cuda-copy-XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	unlink(path);
	assert_int_equal(write(fd, plain, MIB), MIB);
	map = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
	if (dev->facts.reads_page_cache) {
		assert_int_equal(ops->host_register(dev, map, MIB, true, &err), 0);
		assert_int_equal(in(mem + MIB, map, MIB), 0);
		finish();
		assert_int_equal(ops->host_unregister(dev, map, &err), 0);
		assert_int_equal(out(host, mem + MIB, MIB), 0);
		finish();
		assert_memory_equal(host, plain, MIB);
	}
	munmap(map, MIB);
	close(fd);
	free(plain);
}

/* ---- tickets ------------------------------------------------------------------ */

static void a_later_ticket_waits_for_an_older_one(void **state)
{
	struct pst_cu_stream *s = hold(TO_DEVICE);
	uint64_t into, from;

	(void)state;
	memset(host, 0x5a, BIG);
	assert_int_equal(in(mem, host, BIG), 0);
	into = mark();
	assert_int_equal(out(host + MIB, mem + MIB, BIG), 0); /* nothing holds this one */
	from = mark();
	assert_true(from > into);
	assert_false(reached_within(from, HELD_MS));
	assert_int_equal(ops->query(cp, into), 0);
	let_go(s);
	assert_int_equal(ops->wait(cp, from), 0);
	assert_int_equal(ops->query(cp, into), 1);
	assert_int_equal(out(host + MIB, mem, BIG), 0);
	finish();
	assert_memory_equal(host, host + MIB, BIG);
}

static void one_ticket_of_both_directions(void **state)
{
	(void)state;
	for (enum first first = TO_DEVICE; first <= TO_HOST; first++) {
		struct pst_cu_stream *s;
		uint64_t ticket;

		__atomic_store_n(&words[63], 0, __ATOMIC_RELEASE);
		s = hold(first);
		assert_int_equal(in(mem, host, BIG), 0);
		assert_int_equal(out(host + MIB, mem + MIB, BIG), 0);
		ticket = mark();
		assert_false(reached_within(ticket, HELD_MS));
		let_go(s);
		assert_true(reached_within(ticket, SOON_MS));
	}
}

static void known_tickets_cost_no_call(void **state)
{
	unsigned long before;
	uint64_t ticket;

	(void)state;
	assert_int_equal(mark(), 0); /* nothing was ever queued */
	assert_int_equal(ops->query(cp, 0), 1);
	assert_int_equal(in(mem, host, BIG), 0);
	ticket = mark();
	assert_true(reached_within(ticket, SOON_MS));
	if (!is_standin())
		return;
	before = standin_calls("*");
	assert_int_equal(mark(), ticket);
	assert_int_equal(ops->query(cp, ticket), 1);
	assert_int_equal(ops->wait(cp, ticket), 0);
	assert_int_equal(standin_calls("*"), before);
}

/* The stream of a lone copy is asked; an event is recorded once another copy follows
 * before that was heard of, and events are used again. */
static void lone_copies_have_no_event(void **state)
{
	unsigned long records, made;
	uint64_t ticket, next;

	(void)state;
	standin_only();
	finish();
	records = standin_calls("cuEventRecord");
	made = standin_calls("cuEventCreate");
	for (unsigned i = 0; i < 600; i++) {
		assert_int_equal(i % 2 ? in(mem, host, BIG) : out(host, mem, BIG), 0);
		assert_int_equal(ops->wait(cp, mark()), 0);
	}
	assert_int_equal(standin_calls("cuEventRecord"), records);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(in(mem, host, BIG), 0);
		ticket = mark();
		assert_int_equal(in(mem + MIB, host + MIB, BIG), 0);
		next = mark();
		assert_int_equal(ops->wait(cp, next), 0);
		assert_int_equal(ops->query(cp, ticket), 1);
	}
	assert_int_equal(standin_calls("cuEventRecord"), records + 100);
	assert_int_equal(standin_calls("cuEventCreate"), made);
}

static void *release_soon(void *arg)
{
	usleep(HELD_MS * 1000);
	__atomic_store_n(&words[63], 1, __ATOMIC_RELEASE);
	return arg;
}

/* More than there are events, while none is reached: the 513th waits for the first. */
static void many_tickets(void **state)
{
	struct pst_cu_stream *s;
	uint64_t first = 0, last = 0;
	pthread_t thread;

	(void)state;
	finish(); /* nobody reads host any more */
	for (int i = 0; i < 26000; i++)
		host[i] = (char)(i % 251);
	s = hold(TO_DEVICE);
	assert_int_equal(pthread_create(&thread, NULL, release_soon, NULL), 0);
	for (int i = 0; i < 700; i++) {
		assert_int_equal(in(mem + i, host + i, 25000), 0);
		last = mark();
		first = first ? first : last;
		assert_int_equal(last - first, i);
		if (i == 512)
			assert_int_equal(ops->query(cp, first), 1);
	}
	pthread_join(thread, NULL);
	assert_int_equal(ops->wait(cp, last), 0);
	let_go(s);
	assert_int_equal(out(host + 2 * MIB, mem, 700), 0);
	finish();
	assert_memory_equal(host + 2 * MIB, host, 700);
}

/* Whoever waits for our request stands in the compute queue: no copy may. */
static void no_copy_behind_a_waiting_stream(void **state)
{
	struct pst_cu_stream *s = hold(COMPUTE);
	static const size_t lens[] = {2, 3, 512, 4095, 4096, 24575, 24576, 24577, BIG};

	(void)state;
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		struct pst_rect r = {mem, host, lens[i] + 8, lens[i], lens[i], 2};

		assert_int_equal(in(mem, host, lens[i]), 0);
		assert_int_equal(ops->copy_in(cp, &r), 0);
		assert_int_equal(out(host + 2 * MIB, mem + 2 * MIB, lens[i]), 0);
		if (!reached_within(mark(), SOON_MS))
			fail_msg("%zu bytes were held up", lens[i]);
	}
	let_go(s);
}

/* ---- failures ----------------------------------------------------------------- */

static int mark_again(void)
{
	uint64_t ticket;
	int ret = in(mem, host, BIG) || out(host + MIB, mem + MIB, BIG);

	return ret ? -1 : ops->record(cp, &ticket);
}

static void failures_of_copies(void **state)
{
	struct pst_rect r = {mem, host, 100, 90, 80, 4}, peer = {mem, mem + MIB, 100, 90, 80, 4};
	struct pst_rect one = flat(mem, mem + MIB, 80);
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
	FAILS("cuMemcpyHtoDAsync_v2:1:700", -EFAULT, in(mem, host, BIG));
	FAILS("cuMemcpy2DAsync_v2:1:700", -EFAULT, in(mem, host, 101));
	FAILS("cuMemcpy2DAsync_v2:2:700", -EFAULT, in(mem, host, 101));
	FAILS("cuMemcpy2DAsync_v2:1:1", -EINVAL, ops->copy_in(cp, &r));
	FAILS("cuMemcpyDtoHAsync_v2:1:999", -EIO, out(host, mem, BIG));
	FAILS("cuCtxPushCurrent_v2:1:709", -ESTALE, in(mem, host, BIG));
	for (unsigned i = 0; i < 20; i++) /* more than it opened with */
		assert_int_equal(mark_again(), 0);
	FAILS("cuEventCreate:1:2", -ENOMEM, mark_again());
	for (unsigned i = 0; i < 600; i++) /* until no more are made */
		assert_int_equal(mark_again(), 0);
	FAILS("cuEventRecord:1:999", -EIO, mark_again());
	FAILS("cuEventRecord:2:999", -EIO, mark_again());
	FAILS("cuStreamWaitEvent:1:999", -EIO, mark_again());
	FAILS("cuCtxPushCurrent_v2:3:709", -ESTALE, mark_again());
	assert_int_equal(in(mem, host, BIG), 0);
	ticket = mark();
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
	standin_fail("cuEventQuery:1+:600"); /* who looked in vain sleeps until it is there */
	assert_int_equal(ops->copy_peer(dev, dev, &one, &err), 0);
	standin_fail(NULL);
	FAILS_WITH("cuCtxPushCurrent_v2:1:709", -ESTALE, "CUDA_ERROR",
		   ops->copy_peer(dev, dev, &one, &err));
}

/* The last ticket cannot have an event: it is waited for, behind those before it, and not
 * only the first of them. */
static void the_last_ticket_is_waited_for(void **state)
{
	static const char *const fails[] = {"cuEventRecord:1:999", "cuEventCreate:1:2"};
	void (*delay)(unsigned, unsigned long);
	uint64_t first, last;

	(void)state;
	standin_only();
	*(void **)&delay = symbol("pst_standin_delay");
	memset(host, 0x5a, BIG);
	assert_int_equal(in(mem, host, BIG), 0);
	finish();
	for (unsigned i = 0; i < 2; i++) {
		struct pst_cu_stream *s = hold(TO_HOST);

		for (unsigned k = 0; i && k < 8; k++) { /* no event is left */
			assert_int_equal(out(host, mem, BIG), 0);
			mark();
		}
		assert_int_equal(out(host, mem, BIG), 0);
		first = mark();
		memset(host + MIB, 0x11, BIG);
		assert_int_equal(out(host + MIB, mem, BIG), 0);
		last = mark();
		assert_int_equal(ops->query(cp, first), 0);
		delay(20000, 3); /* and so the second is later than the first */
		let_go(s);
		standin_fail(fails[i]);
		assert_int_equal(out(host + 2 * MIB, mem, BIG), 0);
		standin_fail(NULL);
		assert_int_equal(ops->query(cp, last), 1);
		assert_memory_equal(host + MIB, host, BIG);
		delay(0, 1);
		finish();
		__atomic_store_n(&words[63], 0, __ATOMIC_RELEASE);
	}
}

/* The slot of a copy that is reported as failed is used again at once. */
static void nothing_moves_after_a_failure(void **state)
{
	void (*delay)(unsigned, unsigned long);
	uint64_t ticket;

	(void)state;
	standin_only();
	*(void **)&delay = symbol("pst_standin_delay");
	delay(20000, 3);
	memset(host, 0x66, BIG);
	memset(host + MIB, 0x77, BIG);
	assert_int_equal(in(mem, host, BIG), 0);
	ticket = mark();
	/* The first has no event: it is waited for before the second. */
	standin_fail("cuEventRecord:1:999,cuMemcpy2DAsync_v2:2:700");
	assert_int_equal(in(mem + MIB, host + MIB, 101), -EFAULT);
	assert_int_equal(ops->query(cp, ticket), 1);
	memset(host, 0x01, BIG);
	memset(host + MIB, 0x02, BIG);
	standin_fail(NULL);
	delay(0, 1);
	assert_int_equal(out(host, mem, BIG), 0);
	assert_int_equal(out(host + MIB, mem + MIB, 50), 0);
	finish();
	assert_int_equal(host[0], 0x66);
	assert_int_equal(host[BIG - 1], 0x66);
	assert_int_equal(host[MIB + 49], 0x77);
}

/* ---- the current context ------------------------------------------------------ */

#define KEEPS(call)                                                        \
	do {                                                               \
		struct pst_cu_ctx *was_ = current_ctx();                   \
		int ret_ = (call);                                         \
		if (ret_ < 0)                                              \
			fail_msg("%s: %d %s", #call, ret_, err.text);      \
		if (current_ctx() != was_)                                 \
			fail_msg("%s changed the current context", #call); \
	} while (0)

static void call_everything(void)
{
	struct penstock_device *d = device_open("cuda:0");
	struct pst_rect r = flat(mem, mem + MIB, 100);
	char *more = pages(MIB, PROT_READ | PROT_WRITE);
	struct penstock_export exported;
	struct pst_memory got;
	struct pst_copier *c;
	uint64_t ticket, *w;
	void *m;

	KEEPS(ops->count());
	KEEPS(ops->alloc(d, 8192, &m, &err));
	KEEPS(ops->classify(d, m, &got));
	KEEPS(ops->host_register(d, more, MIB, false, &err));
	KEEPS(ops->copier_open(d, 9, &c, &err));
	r = flat(m, more, 4096);
	KEEPS(ops->copy_in(c, &r));
	r = flat(more + 4096, (char *)m + 4096, 4096);
	KEEPS(ops->copy_out(c, &r));
	KEEPS(ops->record(c, &ticket));
	KEEPS(ops->query(c, ticket));
	KEEPS(ops->wait(c, ticket));
	r = flat(mem, m, 4096);
	KEEPS(ops->copy_peer(d, d, &r, &err));
	KEEPS(ops->export_memory(d, m, 4096, &exported, &err));
	KEEPS(ops->order_writes(d, &err));
	KEEPS(ops->semaphores_alloc(d, 8, &w, &err));
	KEEPS(ops->stream_write(d, PST_CU_STREAM_LEGACY, &w[0], 1, &err));
	KEEPS(ops->stream_wait(d, PST_CU_STREAM_LEGACY, &w[1], 0, &err));
	KEEPS((ops->semaphores_free(d, w), 0)); /* waits for the stream */
	KEEPS((ops->copier_close(c), 0));
	KEEPS(ops->host_unregister(d, more, &err));
	KEEPS(ops->free(d, m, &err));
	KEEPS((device_close(d), 0));
	munmap(more, MIB);
}

static void the_current_context_is_kept(void **state)
{
	enum pst_cu_result (*make)(struct pst_cu_ctx **, unsigned, int);
	enum pst_cu_result (*destroy)(struct pst_cu_ctx *);
	struct pst_cu_ctx *own;
	pst_cu_ptr theirs;

	(void)state;
	*(void **)&make = symbol("cuCtxCreate_v2");
	*(void **)&destroy = symbol("cuCtxDestroy_v2");
	call_everything();
	enter();
	call_everything();
	leave();
	assert_int_equal(make(&own, 0, 0), PST_CU_OK);
	call_everything();
	assert_int_equal(cu->cuMemAlloc(&theirs, MIB), PST_CU_OK); /* memory of that context */
	memset(host, 0x3c, MIB);
	assert_int_equal(in((void *)(uintptr_t)theirs, host, MIB), 0);
	finish();
	memset(host, 0, MIB);
	assert_int_equal(out(host, (void *)(uintptr_t)theirs, MIB), 0);
	finish();
	assert_int_equal(host[MIB - 1], 0x3c);
	assert_int_equal(cu->cuMemFree(theirs), PST_CU_OK);
	assert_int_equal(destroy(own), PST_CU_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(lengths_arrive),
		CASE(rectangles_arrive),
		CASE(rows_far_apart),
		CASE(other_host_memory),
		CASE(a_later_ticket_waits_for_an_older_one),
		CASE(one_ticket_of_both_directions),
		CASE(known_tickets_cost_no_call),
		CASE(lone_copies_have_no_event),
		CASE(many_tickets),
		CASE(no_copy_behind_a_waiting_stream),
		CASE(failures_of_copies),
		CASE(the_last_ticket_is_waited_for),
		CASE(nothing_moves_after_a_failure),
		CASE(the_current_context_is_kept),
	};

	check_choose();
	return cmocka_run_group_tests_name("cuda_copy", tests, driver_open, NULL);
}
