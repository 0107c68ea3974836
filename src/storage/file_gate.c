/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate keeps two kinds of writes apart: O_DIRECT writes, and writes through the page cache. It
 * divides a file into places, aligned ranges of PLACE_PAGES pages (2 MiB on x86). At any time, all
 * writes of this process to one place are of one kind. Writes of the other kind wait, whichever
 * request, queue, handle or device they come from.
 *
 * The reason is a rule of the kernel. When a direct write completes, the kernel drops from the page
 * cache what readers have cached there during the write. It drops whole folios (runs of pages), and
 * a folio may be as long as a place. The kernel cannot drop a folio if another part of it is dirty.
 * It then keeps old bytes in the cache and marks the file: the next fsync of every descriptor
 * returns EIO although the drive is healthy (mm/filemap.c, kiocb_invalidate_post_direct_write).
 *
 * file.c calls pst_gate_enter before each write. The gate takes a lock only while a write waits. It
 * must never make a write wait for a write of an inline lane, which makes progress only when a
 * thread of the application calls the library. Nothing forces that thread to call again. So the
 * gate does not count writes of inline lanes, and they never wait.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/base/fork.h"
#include "core/lane/inbox.h"
#include "core/lane/lane.h"
#include "storage/file_gate.h"

/* Number of pages of a place. The longest folio has as many: it is of order 9 with pages of 4 KiB.
 * That is the largest folio of the page cache on x86, and larger than the folios of ext4 on other
 * machines. A folio starts at a multiple of its length, so it never extends over two places. */
#define PLACE_PAGES 512u
/* Number of counters of writes in flight. A hash assigns a counter to each place. If two places
 * share a counter by chance, direct and cached writes to these places wait for each other
 * briefly. */
#define COUNTS 1024u

#define DIRECT 0u
#define CACHED 1u

/* Numbers of writes in flight: direct writes in the lower half of each word, cached writes in
 * the upper half. */
static _Atomic uint64_t counts[COUNTS];

/* Protects the variables below. No other lock is taken under it. */
static pthread_mutex_t waiters_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pst_io *waiters, **waiters_end = &waiters; /* Waiting writes, oldest first. */
/* A call of waiters_admit checks all waiting writes once, and admit_round is the number of the
 * call. waits_in_round has, for each kind of write and each counter, the number of the last call in
 * which such a write had to wait. */
static uint32_t admit_round, waits_in_round[2][COUNTS];
static _Atomic unsigned waiting;

/* Resets the gate in a forked child, because the writes in flight belong to the parent. */
static void gate_forked(void)
{
	for (unsigned i = 0; i < COUNTS; i++)
		atomic_store(&counts[i], 0);
	pthread_mutex_init(&waiters_lock, NULL);
	waiters = NULL;
	waiters_end = &waiters;
	atomic_store(&waiting, 0);
}

__attribute__((constructor)) static void gate_hook_fork(void)
{
	pst_fork_hook(gate_forked);
}

void pst_gate_open(struct pst_file *file, const struct stat *stat)
{
	file->place_bytes = PLACE_PAGES * (uint64_t)sysconf(_SC_PAGESIZE);
	file->place_key = S_ISBLK(stat->st_mode) ? ~(uint64_t)stat->st_rdev
						 : (uint64_t)stat->st_dev << 32 ^ stat->st_ino;
}

/* ---- the places of a write ---- */

struct write_places {
	uint64_t key, at, end;
	unsigned kind;
};

static struct write_places places_of(const struct pst_io *io)
{
	const struct pst_file *file = io->st->priv;
	uint64_t last_byte = io->off + (io->len ? io->len : 1) - 1;

	return (struct write_places){.key = file->place_key,
				     .at = io->off / file->place_bytes,
				     .end = last_byte / file->place_bytes + 1,
				     .kind = io->flags & PST_IO_DIRECT ? DIRECT : CACHED};
}

static unsigned count_index(const struct write_places *p, uint64_t at)
{
	uint64_t x = (p->key ^ at * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

	return (unsigned)(x >> 40) % COUNTS;
}

static uint64_t count_unit(unsigned kind)
{
	return kind == DIRECT ? 1 : (uint64_t)1 << 32;
}

static uint64_t count_of_kind(uint64_t word, unsigned kind)
{
	return kind == DIRECT ? word & UINT32_MAX : word >> 32;
}

static void places_leave(const struct write_places *p, uint64_t end)
{
	for (uint64_t at = p->at; at < end; at++)
		atomic_fetch_sub_explicit(&counts[count_index(p, at)], count_unit(p->kind),
					  memory_order_seq_cst);
}

/* Adds the write to the counters of all places that it touches, and returns true. If one of the
 * counters has a write of the other kind (direct or cached) in flight, leaves all counters as they
 * were, and returns false. */
static bool places_enter(const struct write_places *p)
{
	for (uint64_t at = p->at; at < p->end; at++) {
		uint64_t was = atomic_fetch_add_explicit(&counts[count_index(p, at)],
							 count_unit(p->kind), memory_order_seq_cst);

		if (count_of_kind(was, !p->kind)) {
			places_leave(p, at + 1);
			return false;
		}
	}
	return true;
}

/* ---- writes that wait ---- */

/* Returns true if an older write of the other kind (direct or cached) waits for one of these
 * places. Then a newer write must not overtake it. */
static bool places_are_queued_for(const struct write_places *p)
{
	for (uint64_t at = p->at; at < p->end; at++)
		if (waits_in_round[!p->kind][count_index(p, at)] == admit_round)
			return true;
	return false;
}

/* Continues each waiting write that may start, on the write's own lane (worker thread). `self` is
 * NULL or the calling thread's write. That write is not continued here. Instead the function
 * returns true if it may start. The caller holds waiters_lock. */
static bool waiters_admit(const struct pst_io *self)
{
	struct pst_io **link = &waiters, *io;
	bool may = false;

	/* If the number wraps around to 0, the numbers of all earlier calls are cleared. */
	if (!++admit_round) {
		memset(waits_in_round, 0, sizeof(waits_in_round));
		admit_round = 1;
	}
	while ((io = *link)) {
		struct write_places p = places_of(io);

		if (places_are_queued_for(&p) || !places_enter(&p)) {
			for (uint64_t at = p.at; at < p.end; at++)
				waits_in_round[p.kind][count_index(&p, at)] = admit_round;
			link = &io->next;
			continue;
		}
		*link = io->next;
		if (!*link)
			waiters_end = link;
		atomic_fetch_sub_explicit(&waiting, 1, memory_order_seq_cst);
		if (io == self)
			may = true;
		else
			pst_io_done(io, 0);
	}
	return may;
}

bool pst_gate_enter(struct pst_io *io, void (*go_on)(struct pst_io *io))
{
	struct pst_file_io *own = pst_file_io(io);
	struct write_places p = places_of(io);
	bool may;

	/* The gate does not count the writes of an inline lane, which has no thread of its own. If
	 * other writes waited for such a write, they might wait forever: it continues only when the
	 * application calls the library again. */
	if (io->lane->kind == PST_LANE_INLINE)
		return true;
	own->held = true;
	if (!atomic_load_explicit(&waiting, memory_order_seq_cst) && places_enter(&p))
		return true;
	own->then = io->done;
	io->done = go_on;
	io->next = NULL;
	pthread_mutex_lock(&waiters_lock);
	*waiters_end = io;
	waiters_end = &io->next;
	/* `waiting` must be raised before waiters_admit checks the places. Then a write that leaves
	 * one of the places after that check reads the raised value, and starts this write. */
	atomic_fetch_add_explicit(&waiting, 1, memory_order_seq_cst);
	may = waiters_admit(io);
	pthread_mutex_unlock(&waiters_lock);
	if (may)
		io->done = own->then;
	return may;
}

void pst_gate_leave(struct pst_io *io)
{
	struct pst_file_io *own = pst_file_io(io);
	struct write_places p;

	if (!own->held)
		return;
	own->held = false;
	p = places_of(io);
	places_leave(&p, p.end);
	if (!atomic_load_explicit(&waiting, memory_order_seq_cst))
		return;
	pthread_mutex_lock(&waiters_lock);
	waiters_admit(NULL);
	pthread_mutex_unlock(&waiters_lock);
}
