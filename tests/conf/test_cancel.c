/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancels over a storage that can end its transfers early, as penstock.h has them: what
 * is held ends while the far side still holds, once, with -ECANCELED or as if nothing
 * had been asked, and from then on nobody touches its memory. Of storages that cannot, only
 * what has not begun; the rest is test_queue.c's.
 */
#include "queued.h"

#include <sys/syscall.h>

#include "core/queue/queue.h"

#define LONG (30 * 1000000000ll) /* only a bug waits so long */
#define ROUNDS 12
#define EACH 48	   /* requests of a round */
#define IN_HAND 64 /* transfers, at least */

static void begin_cancels(unsigned refuse_one_in)
{
	far_cancels = true;
	far_refuses_one_in = refuse_one_in;
	begin_case(0, EACH);
	async_hold(far);
}

/* Nobody writes there any more: what the caller lays down stays. */
static void assert_ours(unsigned char *mem, size_t len)
{
	memset(mem, 0x11, len);
	async_release(far);
	assert_int_equal(wait_queue(1, 8, LONG), 0);
	for (size_t i = 0; i < len; i++)
		if (mem[i] != 0x11)
			fail_msg("byte %zu came after the end", i);
}

static void ended_cancelled(uint64_t id, uint64_t moved)
{
	assert_int_equal(wait_queue(1, 1, LONG), 1);
	assert_int_equal(done[0].id, id);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_CANCELLED);
	assert_string_equal(done[0].report->text, "cancelled by the caller");
	assert_int_equal(done[0].report->bytes, moved);
	assert_int_equal(done[0].report->retries, 0);
}

/* All that the lane takes is in hand, and more is behind it. */
static void held(void **state)
{
	struct async_seen seen;
	uint64_t id;

	(void)state;
	begin_cancels(0);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	ended_cancelled(id, 0);
	async_seen(far, &seen);
	assert_int_equal(seen.waiting, 0);
	assert_int_equal(seen.fills, PST_LANE_CHUNKS);
	assert_int_equal(seen.cancelled, PST_LANE_CHUNKS);
	assert_int_equal(done[0].report->stop_off, 0);
	assert_int_equal(fired[0], 1);
	assert_ours(back, LEN);
	assert_int_equal(fired[0], 1);
}

/* What had arrived is counted, what is another's goes on. */
static void one_of_several(void **state)
{
	struct async_seen seen;
	uint64_t ids[3];

	(void)state;
	begin_cancels(0);
	for (unsigned i = 0; i < 3; i++)
		ids[i] = submit_read(i, i * 8 * PIECE, 8 * PIECE);
	assert_int_equal(async_await(far, 24), 0);
	async_let(far, 11); /* the lowest: all of the first, three of the second */
	assert_int_equal(wait_queue(1, 1, LONG), 1);
	assert_int_equal(done[0].result, 8 * PIECE);
	do
		async_seen(far, &seen);
	while (seen.waiting > 13);
	while (atomic_load(&q->requests[(uint32_t)ids[1]].bytes) < 3ull * PIECE)
		sched_yield(); /* they have left the far side, and come to the lane */
	assert_int_equal(penstock_cancel(q, ids[1]), 0);
	ended_cancelled(ids[1], 3 * PIECE);
	assert_int_equal(done[0].report->stop_off, 11 * PIECE);
	assert_int_equal(wait_queue(1, 8, 0), 0);
	async_seen(far, &seen);
	assert_int_equal(seen.waiting, 8);
	assert_int_equal(seen.cancelled, 5);
	memset(back + 8 * PIECE, 0x11, 8 * PIECE);
	async_release(far);
	assert_int_equal(wait_queue(1, 8, LONG), 1);
	assert_int_equal(done[0].id, ids[2]);
	assert_int_equal(done[0].result, 8 * PIECE);
	assert_memory_equal(back, bytes, 8 * PIECE);
	assert_memory_equal(back + 16 * PIECE, bytes + 16 * PIECE, 8 * PIECE);
	for (unsigned i = 8 * PIECE; i < 16 * PIECE; i++)
		assert_int_equal(back[i], 0x11);
}

/* It is asked, and does not: as if nothing had been asked. */
static void refused(void **state)
{
	struct async_seen seen;
	uint64_t id;

	(void)state;
	begin_cancels(1);
	id = submit_read(0, 0, 5 * PIECE);
	assert_int_equal(async_await(far, 5), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	do
		async_seen(far, &seen);
	while (seen.refused < 5);
	assert_int_equal(poll_queue(8), 0);
	async_release(far);
	assert_int_equal(wait_queue(1, 8, LONG), 1);
	assert_int_equal(done[0].result, 5 * PIECE);
	assert_memory_equal(back, bytes, 5 * PIECE);
	assert_int_equal(fired[0], 1);
	/* Of what has not begun there is more. */
	async_hold(far);
	id = fill_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	do
		async_seen(far, &seen);
	while (seen.refused < 5 + PST_LANE_CHUNKS);
	async_release(far);
	ended_cancelled(id, PST_LANE_CHUNKS * PIECE);
	assert_memory_equal(back, bytes, PST_LANE_CHUNKS * PIECE);
}

/* Chunks that wait for slots behind those that are held. */
static void through_slots(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = LEN};
	struct async_seen seen;

	(void)state;
	begin_cancels(0);
	assert_int_equal(penstock_alloc(gpu, LEN, &seg.buf), 0);
	memset(back, 0x11, LEN);
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		struct penstock_storage *at = open_it(op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0);
		struct penstock_req req = request(at, &seg, 1, op);
		uint64_t id, len;

		test_copy(gpu, seg.buf, host, back, LEN);
		assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
		assert_int_equal(async_await(far, 2), 0);
		assert_int_equal(penstock_cancel(q, id), 0);
		ended_cancelled(id, 0);
		async_seen(far, &seen);
		assert_int_equal(seen.waiting, 0);
		async_release(far);
		test_copy(host, back, gpu, seg.buf, LEN);
		for (unsigned i = 0; i < LEN; i++)
			assert_int_equal(back[i], 0x11);
		assert_int_equal(penstock_abort(at), 0);
		penstock_close(at);
		assert_memory_equal(async_published(far, &len), bytes, LEN);
		async_hold(far);
	}
	penstock_free(gpu, seg.buf);
}

/* The bytes are written, to make them durable takes too long. */
static void syncing(void **state)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .row_len = PIECE};
	struct async_seen seen;
	struct penstock_storage *at;
	struct penstock_req req;
	uint64_t id;

	(void)state;
	begin_cancels(0);
	at = open_it(PENSTOCK_O_WRITE);
	req = request(at, &seg, 1, PENSTOCK_WRITE);
	req.flags = PENSTOCK_R_DURABLE;
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(async_await(far, 1), 0);
	async_let(far, 1);
	do
		async_seen(far, &seen);
	while (!seen.syncs);
	assert_int_equal(poll_queue(1), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 1, LONG), 1);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_CANCELLED);
	assert_int_equal(done[0].report->bytes, PIECE);
	assert_int_equal(penstock_abort(at), 0);
	penstock_close(at);
}

/* Closing asks for all of them, and need not wait for the far side. */
static void queue_closes(void **state)
{
	struct async_seen seen;

	(void)state;
	begin_cancels(0);
	for (unsigned i = 0; i < 6; i++)
		submit_read(i, i * 3 * PIECE, 3 * PIECE);
	fill_lane();
	penstock_queue_close(q);
	q = NULL;
	async_seen(far, &seen);
	assert_int_equal(seen.waiting, 0);
	assert_int_equal(atomic_load(&st->inflight), 0);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(fired[i], 0);
	memset(back, 0x11, LEN);
	async_release(far);
	penstock_close(st);
	st = NULL;
	for (unsigned i = 0; i < LEN; i++)
		assert_int_equal(back[i], 0x11);
}

static void *cancel_later(void *arg)
{
	usleep(20000); /* so that the owner sleeps; if not, nothing is lost */
	penstock_cancel(q, *(uint64_t *)arg);
	return arg;
}

/* Asked by the owner, or by another while the owner sleeps, or by closing. */
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
		async_hold(far);
		id = submit_read(by_another, 0, 3 * PIECE);
		assert_int_equal(async_await(far, 3), 0);
		if (by_another)
			assert_int_equal(pthread_create(&thread, NULL, cancel_later, &id), 0);
		else
			assert_int_equal(penstock_cancel(q, id), 0);
		ended_cancelled(id, 0);
		if (by_another)
			pthread_join(thread, NULL);
		assert_ours(back, 3 * PIECE);
		assert_int_equal(fired[by_another], 1);
	}
	async_hold(far);
	submit_read(2, 0, 3 * PIECE);
	assert_int_equal(async_await(far, 3), 0);
	penstock_queue_close(q);
	q = NULL;
	assert_int_equal(atomic_load(&st->inflight), 0);
	assert_int_equal(fired[2], 0);
}

/* ---- at random ---- */

static _Atomic uint64_t ids[EACH];
static _Atomic bool stop;
static _Atomic unsigned rarely; /* one look in so many cancels */

/* Cancels what is there and what was there before, again and again. */
static void *canceller(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;

	while (!atomic_load(&stop)) {
		uint64_t id = atomic_load(&ids[test_random(&seed) % EACH]);

		if (id && !(test_random(&seed) % atomic_load(&rarely)))
			penstock_cancel(q, id);
		else
			sched_yield();
	}
	return NULL;
}

/* Where request `i` lies, and how long it is. */
static uint64_t place(unsigned i, uint64_t *len, uint64_t *seed)
{
	*len = 1 + test_random(seed) % (LEN / EACH);
	return (uint64_t)i * (LEN / EACH);
}

/* Transfers that the far side was to end. */
static unsigned asked(void)
{
	struct async_seen seen;

	async_seen(far, &seen);
	return seen.cancelled + seen.refused;
}

/* Each ends once; with all its bytes or cancelled; from then on its memory is ours. */
static void random_round(uint64_t *seed, bool hold, unsigned *cancelled)
{
	uint64_t lens[EACH], new[EACH];
	unsigned have = 0, before;

	memset(fired, 0, sizeof(fired));
	before = asked();
	if (hold)
		async_hold(far);
	for (unsigned i = 0; i < EACH; i++) {
		uint64_t off = place(i, &lens[i], seed);

		new[i] = submit_read(i, off, lens[i]);
		if (!hold)
			atomic_store(&ids[i], new[i]);
	}
	if (hold) { /* nothing is cancelled before some of it is in hand */
		assert_int_equal(async_await(far, IN_HAND), 0);
		for (unsigned i = 0; i < EACH; i++)
			atomic_store(&ids[i], new[i]);
		while (asked() < before + IN_HAND)
			sched_yield();
		async_release(far);
	}
	while (have < EACH) {
		int n = wait_queue(1, 4, LONG);

		assert_true(n > 0);
		for (int k = 0; k < n; k++) {
			uintptr_t i = (uintptr_t)done[k].user;
			unsigned char *mem = back + i * (LEN / EACH);

			assert_int_equal(done[k].id, new[i]);
			*cancelled += done[k].result == -ECANCELED;
			if (done[k].result != -ECANCELED) {
				assert_int_equal(done[k].result, lens[i]);
				assert_memory_equal(mem, bytes + i * (LEN / EACH), lens[i]);
			}
			memset(mem, 0x11, lens[i]);
		}
		have += (unsigned)n;
	}
	for (unsigned i = 0; i < EACH; i++) {
		assert_int_equal(fired[i], 1);
		for (uint64_t b = 0; b < lens[i]; b++)
			if (back[i * (LEN / EACH) + b] != 0x11)
				fail_msg("request %u: byte %llu came after its end", i,
					 (unsigned long long)b);
	}
}

static void at_random(void **state)
{
	uint64_t seed = test_seed(29), other = seed + 1;
	unsigned cancelled = 0;
	struct async_seen seen;
	pthread_t thread;

	(void)state;
	begin_cancels(3);
	async_release(far);
	atomic_store(&stop, false);
	atomic_store(&rarely, 1);
	for (unsigned i = 0; i < EACH; i++)
		atomic_store(&ids[i], 0);
	assert_int_equal(pthread_create(&thread, NULL, canceller, &other), 0);
	for (unsigned round = 0; round < ROUNDS; round++) {
		atomic_store(&rarely, 1u << round % 8);
		random_round(&seed, round % 3 != 0, &cancelled);
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	async_seen(far, &seen);
	printf("# %u of %u requests were cancelled; of transfers %u, %u were not\n", cancelled,
	       ROUNDS * EACH, seen.cancelled, seen.refused);
	assert_int_equal(poll_queue(8), 0);
}

/* ---- a storage that ends nothing early ---- */

static void until(unsigned i, uint64_t ns)
{
	struct penstock_seg seg;
	struct penstock_req req = read_at(&seg, i, 0, PIECE);

	req.deadline_ns = now_ns() + ns;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
}

/* What is behind a storage that holds all that the lane can have ends all the same, if
 * nothing of it has begun. */
static void over_behind_held(void **state)
{
	struct async_seen seen;
	uint64_t id;

	(void)state;
	begin_case(0, 8);
	async_hold(far);
	fill_lane();
	id = submit_read(1, LEN - 10 * PIECE, 9 * PIECE);
	seen_by_lane();
	assert_int_equal(penstock_cancel(q, id), 0);
	assert_int_equal(wait_queue(1, 8, 60000000000), 1);
	assert_int_equal(done[0].result, -ECANCELED);
	assert_int_equal(done[0].id, id);
	until(2, 3600000000000u);
	until(3, 30000000u);
	until(4, 10000000u);
	for (unsigned i = 3; i < 5; i++) { /* in any order: both may be over at the first look */
		assert_int_equal(wait_queue(1, 1, 60000000000), 1);
		assert_int_equal(done[0].result, -ETIME);
		assert_in_range((uintptr_t)done[0].user, 3, 4);
	}
	assert_int_equal(fired[3] + fired[4], 2);
	assert_int_equal(fired[2], 0);
	async_seen(far, &seen);
	assert_int_equal(seen.fills, PST_LANE_CHUNKS);
	async_release(far);
	assert_int_equal(wait_queue(2, 8, -1), 2);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(fired[i], 1);
}

/* The same where chunks wait for slots that the others have: too late before they began. */
static void over_behind_slots(void **state)
{
	struct penstock_seg seg = {.dev = gpu, .row_len = LEN};
	struct penstock_req req;
	unsigned lanes;
	void *mem;

	(void)state;
	begin_case(0, 16);
	async_hold(far);
	assert_int_equal(penstock_prepare(st, gpu, PENSTOCK_READ), 0);
	lanes = atomic_load(&gpu->pump)->lane_count;
	assert_int_equal(penstock_alloc(gpu, (lanes + 1) * LEN, &mem), 0);
	seg.buf = mem;
	req = request(st, &seg, 1, PENSTOCK_READ);
	for (unsigned i = 0; i < lanes; i++, seg.buf_off += LEN) /* more than its slots hold */
		assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(far, 16 * lanes), 0);
	seg.row_len = 5 * PIECE;
	req.deadline_ns = now_ns() + 20000000u;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(wait_queue(1, 8, LONG), 1);
	assert_int_equal(done[0].result, -ETIME);
	assert_int_equal(done[0].report->why, PENSTOCK_WHY_DEADLINE);
	assert_int_equal(done[0].report->bytes, 0);
	assert_int_equal(done[0].report->retries, 0);
	async_release(far);
	assert_int_equal(wait_queue(lanes, 8, -1), lanes);
	for (unsigned i = 0; i < lanes; i++)
		assert_int_equal(done[i].result, LEN);
	penstock_free(gpu, mem);
}

/* Has thread `tid` gone to sleep in penstock_wait? */
static bool sleeps(int tid)
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

static void *release_who_sleeps(void *tid)
{
	uint64_t last = now_ns() + LONG;
	bool slept = false;

	while (!slept && now_ns() < last) {
		sched_yield();
		slept = sleeps(*(int *)tid);
	}
	async_release(far);
	return slept ? NULL : tid;
}

/* Where a deadline is never, who waits sleeps as if there were none. */
static void deadline_never(void **state)
{
	int tid = (int)syscall(SYS_gettid);
	struct penstock_seg seg;
	struct penstock_req req;
	pthread_t thread;
	void *failed;

	(void)state;
	begin_case(0, 8);
	async_hold(far);
	req = read_at(&seg, 0, 0, PIECE);
	req.deadline_ns = UINT64_MAX;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(async_await(far, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, release_who_sleeps, &tid), 0);
	assert_int_equal(wait_queue(1, 8, -1), 1);
	assert_int_equal(done[0].result, PIECE);
	assert_int_equal(pthread_join(thread, &failed), 0);
	assert_null(failed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(held, end_queue),
		cmocka_unit_test_teardown(one_of_several, end_queue),
		cmocka_unit_test_teardown(refused, end_queue),
		cmocka_unit_test_teardown(through_slots, end_queue),
		cmocka_unit_test_teardown(syncing, end_queue),
		cmocka_unit_test_teardown(queue_closes, end_queue),
		cmocka_unit_test_teardown(own_lane, end_queue),
		cmocka_unit_test_teardown(at_random, end_queue),
		cmocka_unit_test_teardown(over_behind_held, end_queue),
		cmocka_unit_test_teardown(over_behind_slots, end_queue),
		cmocka_unit_test_teardown(deadline_never, end_queue),
	};

	return run_queues(tests);
}
