/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests cancels as penstock.h describes them, on a storage that can cancel transfers. A request
 * that is cancelled in flight completes once, even while the store still holds its transfers. It
 * completes with -ECANCELED, or as if it had not been cancelled. After that, no thread touches
 * its memory. test_queue.c tests cancels on a storage that cannot cancel transfers, where a
 * cancel affects only chunks that have not started.
 */
#include "queued.h"

#include <sys/syscall.h>

#include "core/lane/chunk.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"

/* timeout of a wait in ns; only a bug makes a wait last that long */
#define WAIT_NS (30 * 1000000000ll)
#define ROUNDS 12
#define ROUND_REQUESTS 48 /* number of requests in a round */
#define INFLIGHT_MIN 64	  /* minimum number of transfers in flight before the test cancels */

static void begin_cancels(unsigned refuse_one_in)
{
	remote_cancels = true;
	remote_refuses_one_in = refuse_one_in;
	begin_case(0, ROUND_REQUESTS);
	async_hold(remote);
}

/* Checks that no other thread writes to the memory: the test writes bytes there, and they must
 * not change. */
static void assert_memory_untouched(unsigned char *mem, size_t len)
{
	memset(mem, 0x11, len);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 0);
	for (size_t i = 0; i < len; i++)
		if (mem[i] != 0x11)
			fail_msg("byte %zu came after the end", i);
}

static void assert_cancelled(uint64_t id, uint64_t moved)
{
	assert_int_equal(wait_queue(1, 1, WAIT_NS), 1);
	assert_int_equal(done[0].id, id);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_CANCELLED);
	assert_string_equal(done[0].report->text, "cancelled by the caller");
	assert_int_equal(done[0].report->bytes, moved);
	assert_int_equal(done[0].report->retries, 0);
}

/* Cancels a request that has as many chunks in flight as a worker thread (lane) may have, and more
 * chunks that have not started. The request must complete with -ECANCELED while the store still
 * holds all transfers. */
static void cancel_while_store_holds_transfers(void **state)
{
	struct async_counts counts;
	uint64_t id;

	(void)state;
	begin_cancels(0);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_cancelled(id, 0);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 0);
	assert_int_equal(counts.fills, PST_LANE_CHUNKS);
	assert_int_equal(counts.cancelled, PST_LANE_CHUNKS);
	assert_int_equal(done[0].report->stop_off, 0);
	assert_int_equal(fired[0], 1);
	assert_memory_untouched(back, LEN);
	assert_int_equal(fired[0], 1);
}

/* Cancels one of three requests. The report of the cancelled request counts the bytes that
 * arrived before the cancel. The other two requests continue. */
static void cancel_one_of_several(void **state)
{
	struct async_counts counts;
	uint64_t ids[3];

	(void)state;
	begin_cancels(0);
	for (unsigned i = 0; i < 3; i++)
		ids[i] = submit_read(i, i * 8 * PIECE, 8 * PIECE);
	assert_int_equal(async_await(remote, 24), 0);
	/* Releases the transfers with the lowest offsets: all of the first request, and three
	 * chunks of the second. */
	async_release_some(remote, 11);
	assert_int_equal(wait_queue(1, 1, WAIT_NS), 1);
	assert_int_equal(done[0].result, 8 * PIECE);
	do
		async_get_counts(remote, &counts);
	while (counts.waiting > 13);
	while (atomic_load(&q->requests[(uint32_t)ids[1]].bytes) < 3ull * PIECE)
		/* The store has completed the released transfers, but the worker thread may not
		 * have counted their bytes yet. */
		sched_yield();
	assert_int_equal(penstock_cancel(q, ids[1]), 0);
	assert_cancelled(ids[1], 3 * PIECE);
	assert_int_equal(done[0].report->stop_off, 11 * PIECE);
	assert_int_equal(wait_queue(1, 8, 0), 0);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 8);
	assert_int_equal(counts.cancelled, 5);
	memset(back + 8 * PIECE, 0x11, 8 * PIECE);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 1);
	assert_int_equal(done[0].id, ids[2]);
	assert_int_equal(done[0].result, 8 * PIECE);
	assert_memory_equal(back, bytes, 8 * PIECE);
	assert_memory_equal(back + 16 * PIECE, bytes + 16 * PIECE, 8 * PIECE);
	for (unsigned i = 8 * PIECE; i < 16 * PIECE; i++)
		assert_int_equal(back[i], 0x11);
}

/* If the storage refuses to cancel the transfers, the request completes as if it had not been
 * cancelled. */
static void cancel_refused_by_storage(void **state)
{
	struct async_counts counts;
	uint64_t id;

	(void)state;
	begin_cancels(1);
	id = submit_read(0, 0, 5 * PIECE);
	assert_int_equal(async_await(remote, 5), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	do
		async_get_counts(remote, &counts);
	while (counts.refused < 5);
	assert_int_equal(poll_queue(8), 0);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	assert_memory_equal(back, bytes, 5 * PIECE);
	assert_int_equal(fired[0], 1);
	/* The storage refuses to cancel the transfers in flight. Even so, the request's other
	 * chunks must not start. */
	async_hold(remote);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	do
		async_get_counts(remote, &counts);
	while (counts.refused < 5 + PST_LANE_CHUNKS);
	async_release(remote);
	assert_cancelled(id, PST_LANE_CHUNKS * PIECE);
	assert_memory_equal(back, bytes, PST_LANE_CHUNKS * PIECE);
}

/* Cancels a request when some of its chunks wait for slots, which are pieces of pinned staging
 * memory. The slots are occupied by chunks whose transfers the store holds. The request must
 * complete with -ECANCELED, and later no byte of its memory or of the object may change. */
static void cancel_while_chunks_wait_for_slots(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = LEN};
	struct async_counts counts;

	(void)state;
	begin_cancels(0);
	assert_int_equal(penstock_alloc(gpu, LEN, &seg.buf), 0);
	memset(back, 0x11, LEN);
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		struct penstock_storage *at =
			open_object(op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0);
		struct penstock_req req = test_request(at, &seg, 1, op);
		uint64_t id, len;

		test_copy(gpu, seg.buf, host, back, LEN);
		assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
		assert_int_equal(async_await(remote, 2), 0);
		assert_int_equal(penstock_cancel(q, id), 0);
		assert_cancelled(id, 0);
		async_get_counts(remote, &counts);
		assert_int_equal(counts.waiting, 0);
		async_release(remote);
		test_copy(host, back, gpu, seg.buf, LEN);
		for (unsigned i = 0; i < LEN; i++)
			assert_int_equal(back[i], 0x11);
		assert_int_equal(penstock_abort(at), 0);
		penstock_close(at);
		assert_memory_equal(async_published(remote, &len), bytes, LEN);
		async_hold(remote);
	}
	penstock_free(gpu, seg.buf);
}

/* Cancels a durable write after its bytes are written, while the store holds its sync. The request
 * must complete with -ECANCELED, and its report must count the written bytes. */
static void cancel_during_sync(void **state)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = PIECE};
	struct async_counts counts;
	struct penstock_storage *at;
	struct penstock_req req;
	uint64_t id;

	(void)state;
	begin_cancels(0);
	at = open_object(PENSTOCK_O_WRITE);
	req = test_request(at, &seg, 1, PENSTOCK_WRITE);
	req.flags = PENSTOCK_R_DURABLE;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(async_await(remote, 1), 0);
	async_release_some(remote, 1);
	do
		async_get_counts(remote, &counts);
	while (!counts.syncs);
	assert_int_equal(poll_queue(1), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 1, WAIT_NS), 1);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_CANCELLED);
	assert_int_equal(done[0].report->bytes, PIECE);
	assert_int_equal(penstock_abort(at), 0);
	penstock_close(at);
}

static void submit_with_deadline(unsigned i, uint64_t ns)
{
	struct penstock_seg seg;
	struct penstock_req req = read_req(&seg, i, 0, PIECE);

	req.deadline_ns = test_now_ns() + ns;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
}

/* A deadline cancels transfers in flight. The request completes while the store still holds them,
 * and the transfers of other requests go on, also those with a later deadline. */
static void deadline_while_store_holds_transfers(void **state)
{
	struct penstock_seg seg;
	struct penstock_req req;
	struct async_counts counts;

	(void)state;
	begin_cancels(0);
	submit_with_deadline(0, 3600000000000u);
	assert_int_equal(async_await(remote, 1), 0);
	req = read_req(&seg, 1, 8 * PIECE, 8 * PIECE);
	req.deadline_ns = test_now_ns() + 50000000u;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(wait_queue(1, 1, WAIT_NS), 1);
	assert_int_equal((uintptr_t)done[0].user, 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(done[0].report->bytes, 0);
	assert_int_equal(done[0].report->retries, 0);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.cancelled, counts.fills - 1);
	assert_int_equal(counts.waiting, 1);
	memset(back + 8 * PIECE, 0x11, 8 * PIECE);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 1);
	assert_int_equal(done[0].result, PIECE);
	for (unsigned i = 8 * PIECE; i < 16 * PIECE; i++)
		assert_int_equal(back[i], 0x11);
}

/* A deadline cancels transfers of an inline lane (a worker inside the owner's calls) while the
 * owner of the queue sleeps in penstock_wait. The request completes while the store still holds its
 * transfers. */
static void deadline_of_own_lane(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct async_counts counts;

	(void)state;
	begin_cancels(0);
	penstock_queue_close(q);
	opts.own_lane = host;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	async_hold(remote);
	submit_with_deadline(0, 50000000u);
	assert_int_equal(wait_queue(1, 1, WAIT_NS), 1);
	assert_int_equal(done[0].result, -ETIME);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 0);
	assert_int_equal(counts.cancelled, counts.fills);
}

/* If the storage refuses to cancel the transfers, those that are in flight at the deadline
 * complete. */
static void deadline_refused_by_storage(void **state)
{
	struct async_counts counts;

	(void)state;
	begin_cancels(1);
	submit_with_deadline(0, 1000000000u);
	assert_int_equal(async_await(remote, 1), 0);
	do
		async_get_counts(remote, &counts);
	while (!counts.refused);
	assert_int_equal(poll_queue(8), 0);
	async_release(remote);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 1);
	assert_int_equal(done[0].result, PIECE);
	assert_memory_equal(back, bytes, PIECE);
}

/* Closing the queue cancels all its requests and does not wait for the store. */
static void queue_close_cancels_all(void **state)
{
	struct async_counts counts;

	(void)state;
	begin_cancels(0);
	for (unsigned i = 0; i < 6; i++)
		submit_read(i, i * 3 * PIECE, 3 * PIECE);
	fill_lane();
	penstock_queue_close(q);
	q = NULL;
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 0);
	assert_int_equal(atomic_load(&st->inflight), 0);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(fired[i], 0);
	memset(back, 0x11, LEN);
	async_release(remote);
	penstock_close(st);
	st = NULL;
	for (unsigned i = 0; i < LEN; i++)
		assert_int_equal(back[i], 0x11);
}

static void *cancel_later(void *arg)
{
	/* After this pause the owner is probably asleep. If it is not, the test still passes. */
	usleep(20000);
	penstock_cancel(q, *(uint64_t *)arg);
	return arg;
}

/* Cancels a request of an inline lane (a worker inside the owner's calls) in three ways: the
 * queue's owner cancels it, another thread cancels it while the owner sleeps, and closing the queue
 * cancels it. Each time the request must complete while the store holds its transfers. */
static void own_lane(void **state)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	pthread_t thread;
	uint64_t id;

	(void)state;
	begin_cancels(0);
	penstock_queue_close(q);
	opts.own_lane = host;
	assert_int_equal(penstock_queue_open(&opts, &q), 0);
	for (unsigned by_another = 0; by_another < 2; by_another++) {
		async_hold(remote);
		id = submit_read(by_another, 0, 3 * PIECE);
		assert_int_equal(async_await(remote, 3), 0);
		if (by_another)
			assert_int_equal(pthread_create(&thread, NULL, cancel_later, &id), 0);
		else
			assert_int_equal(penstock_cancel(q, id), 0);
		assert_cancelled(id, 0);
		if (by_another)
			pthread_join(thread, NULL);
		assert_memory_untouched(back, 3 * PIECE);
		assert_int_equal(fired[by_another], 1);
	}
	async_hold(remote);
	submit_read(2, 0, 3 * PIECE);
	assert_int_equal(async_await(remote, 3), 0);
	penstock_queue_close(q);
	q = NULL;
	assert_int_equal(atomic_load(&st->inflight), 0);
	assert_int_equal(fired[2], 0);
}

/* ---- random cancels ---- */

static _Atomic uint64_t ids[ROUND_REQUESTS];
static _Atomic bool stop;
/* The thread that runs cancel_random_requests cancels a request in about one of this number of
 * iterations of its loop. */
static _Atomic unsigned cancel_one_in;

/* Cancels random requests of this round and of earlier rounds until `stop` is true. */
static void *cancel_random_requests(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;

	while (!atomic_load(&stop)) {
		uint64_t id = atomic_load(&ids[test_random(&seed) % ROUND_REQUESTS]);

		if (id && !(test_random(&seed) % atomic_load(&cancel_one_in)))
			penstock_cancel(q, id);
		else
			sched_yield();
	}
	return NULL;
}

/* Returns the offset of request `i`, and sets *len to a random length. */
static uint64_t request_place(unsigned i, uint64_t *len, uint64_t *seed)
{
	*len = 1 + test_random(seed) % (LEN / ROUND_REQUESTS);
	return (uint64_t)i * (LEN / ROUND_REQUESTS);
}

/* Returns the number of cancels that the library has requested from the store. */
static unsigned cancels_seen_by_store(void)
{
	struct async_counts counts;

	async_get_counts(remote, &counts);
	return counts.cancelled + counts.refused;
}

/* Submits a round of requests, while another thread cancels some of them. Each request completes
 * once, either with all its bytes or with -ECANCELED. After that, no thread writes to its
 * memory. */
static void random_round(uint64_t *seed, bool hold, unsigned *cancelled)
{
	uint64_t lens[ROUND_REQUESTS], new[ROUND_REQUESTS];
	unsigned have = 0, before;

	memset(fired, 0, sizeof(fired));
	before = cancels_seen_by_store();
	if (hold)
		async_hold(remote);
	for (unsigned i = 0; i < ROUND_REQUESTS; i++) {
		uint64_t off = request_place(i, &lens[i], seed);

		new[i] = submit_read(i, off, lens[i]);
		if (!hold)
			atomic_store(&ids[i], new[i]);
	}
	if (hold) { /* The test cancels no request before INFLIGHT_MIN transfers are in flight. */
		assert_int_equal(async_await(remote, INFLIGHT_MIN), 0);
		for (unsigned i = 0; i < ROUND_REQUESTS; i++)
			atomic_store(&ids[i], new[i]);
		while (cancels_seen_by_store() < before + INFLIGHT_MIN)
			sched_yield();
		async_release(remote);
	}
	while (have < ROUND_REQUESTS) {
		int n = wait_queue(1, 4, WAIT_NS);

		assert_true(n > 0);
		for (int k = 0; k < n; k++) {
			uintptr_t i = (uintptr_t)done[k].user;
			unsigned char *mem = back + i * (LEN / ROUND_REQUESTS);

			assert_int_equal(done[k].id, new[i]);
			*cancelled += done[k].result == -ECANCELED;
			if (done[k].result != -ECANCELED) {
				assert_int_equal(done[k].result, lens[i]);
				assert_memory_equal(mem, bytes + i * (LEN / ROUND_REQUESTS),
						    lens[i]);
			}
			memset(mem, 0x11, lens[i]);
		}
		have += (unsigned)n;
	}
	for (unsigned i = 0; i < ROUND_REQUESTS; i++) {
		assert_int_equal(fired[i], 1);
		for (uint64_t b = 0; b < lens[i]; b++)
			if (back[i * (LEN / ROUND_REQUESTS) + b] != 0x11)
				fail_msg("request %u: byte %llu came after its end", i,
					 (unsigned long long)b);
	}
}

static void random_cancels(void **state)
{
	uint64_t seed = test_seed(29), other = seed + 1;
	unsigned cancelled = 0;
	struct async_counts counts;
	pthread_t thread;

	(void)state;
	begin_cancels(3);
	async_release(remote);
	atomic_store(&stop, false);
	atomic_store(&cancel_one_in, 1);
	for (unsigned i = 0; i < ROUND_REQUESTS; i++)
		atomic_store(&ids[i], 0);
	assert_int_equal(pthread_create(&thread, NULL, cancel_random_requests, &other), 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		atomic_store(&cancel_one_in, 1u << round % 8);
		random_round(&seed, round % 3 != 0, &cancelled);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	async_get_counts(remote, &counts);
	printf("# %u of %u requests were cancelled; of transfers %u, %u were not\n", cancelled,
	       ROUNDS * ROUND_REQUESTS, counts.cancelled, counts.refused);
	assert_int_equal(poll_queue(8), 0);
}

/* ---- a storage that cannot cancel transfers ---- */

/* The store holds as many chunks as the device's worker thread (its lane) may have in flight. Then
 * the test submits another request, of which the lane can start no chunk. It must complete at once
 * when it is cancelled or its deadline passes. */
static void not_started_completes_beside_held_transfers(void **state)
{
	struct async_counts counts;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(remote);
	fill_lane();
	id = submit_read(1, LEN - 10 * PIECE, 9 * PIECE);
	await_empty_inbox();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 8, 60000000000), 1);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].id, id);
	submit_with_deadline(2, 3600000000000u);
	submit_with_deadline(3, 30000000u);
	submit_with_deadline(4, 10000000u);
	/* The two requests may complete in either order, because both deadlines may have passed
	 * before the worker thread checks them. */
	for (unsigned i = 3; i < 5; i++) {
		assert_int_equal(wait_queue(1, 1, 60000000000), 1);
		assert_int_equal(done[0].result, -ETIME);
		assert_in_range((uintptr_t)done[0].user, 3, 4);
	}
	assert_int_equal(fired[3] + fired[4], 2);
	assert_int_equal(fired[2], 0);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills, PST_LANE_CHUNKS);
	async_release(remote);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(fired[i], 1);
}

/* A deadline passes while the request waits for slots (pinned memory) that other requests occupy.
 * The request completes before any of its chunks starts. */
static void deadline_passes_while_waiting_for_slots(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = LEN};
	struct penstock_req req;
	unsigned lanes;
	void *mem;

	(void)state;
	begin_case(0, 16);
	async_hold(remote);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	lanes = atomic_load(&gpu->pump)->lane_count;
	assert_int_equal(penstock_alloc(gpu, (lanes + 1) * LEN, &mem), 0);
	seg.buf = mem;
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	/* Each of these requests needs more slots (pieces of pinned memory) than a worker thread
	 * has, so the later ones must wait. */
	for (unsigned i = 0; i < lanes; i++, seg.buf_off += LEN)
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(remote, 16 * lanes), 0);
	seg.row_len = 5 * PIECE;
	req.deadline_ns = test_now_ns() + 20000000u;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(wait_queue(1, 8, WAIT_NS), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(done[0].report->bytes, 0);
	assert_int_equal(done[0].report->retries, 0);
	async_release(remote);
	assert_int_equal(wait_queue(lanes, 8, -1), lanes);
	for (unsigned i = 0; i < lanes; i++)
		assert_int_equal(done[i].result, LEN);
	penstock_free(gpu, mem);
}

/* Reports whether thread `tid` sleeps in penstock_wait. */
static bool sleeps_in_wait(int tid)
{
	char name[64], line[512] = "", *after;
	FILE *stat;

	snprintf(name, sizeof(name), "/proc/self/task/%d/stat", tid);
	stat = fopen(name, "r");
	if (!stat)
		return false;
	if (!fgets(line, sizeof(line), stat))
		line[0] = '\0';
	fclose(stat);
	after = strrchr(line, ')');
	return atomic_load(&q->asleep) && after && after[1] && after[2] == 'S';
}

static void *release_once_asleep(void *tid)
{
	uint64_t last = test_now_ns() + WAIT_NS;
	bool slept = false;

	while (!slept && test_now_ns() < last) {
		sched_yield();
		slept = sleeps_in_wait(*(int *)tid);
	}
	async_release(remote);
	return slept ? NULL : tid;
}

/* A deadline of UINT64_MAX never passes, so the waiting thread sleeps as it does without a
 * deadline. */
static void deadline_that_never_passes(void **state)
{
	int tid = (int)syscall(SYS_gettid);
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	void *failed;

	(void)state;
	begin_case(0, 8);
	async_hold(remote);
	req = read_req(&seg, 0, 0, PIECE);
	req.deadline_ns = UINT64_MAX;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(remote, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, release_once_asleep, &tid), 0);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, PIECE);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(cancel_while_store_holds_transfers,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_one_of_several, close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_refused_by_storage, close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_while_chunks_wait_for_slots,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(cancel_during_sync, close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_while_store_holds_transfers,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_of_own_lane, close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_refused_by_storage, close_queue_and_remote),
		cmocka_unit_test_teardown(queue_close_cancels_all, close_queue_and_remote),
		cmocka_unit_test_teardown(own_lane, close_queue_and_remote),
		cmocka_unit_test_teardown(random_cancels, close_queue_and_remote),
		cmocka_unit_test_teardown(not_started_completes_beside_held_transfers,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_passes_while_waiting_for_slots,
					  close_queue_and_remote),
		cmocka_unit_test_teardown(deadline_that_never_passes, close_queue_and_remote),
	};

	return run_queues(tests);
}
