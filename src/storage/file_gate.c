/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: writes of this process to one place of a file go either all by O_DIRECT or all
 * through the page cache. A place is an aligned stretch of PLACE_PAGES pages (2 MiB on x86).
 * Writes of the other kind wait for their turn, whichever request, queue, handle or device they
 * come from.
 *
 * The reason: when a direct write completes, the kernel drops from the page cache, folio by
 * folio, what readers have cached there meanwhile. A reader's folio may be as long as a place.
 * The kernel cannot drop a folio whose other end is dirty. It then keeps old bytes in the cache
 * and marks the file: the next fsync of every descriptor returns EIO although the drive is
 * healthy (mm/filemap.c, kiocb_invalidate_post_direct_write).
 *
 * file.c calls the gate for each write. It takes a lock only while a write waits. It must never
 * make a write wait for an inline lane, because nothing forces that lane's owner to drive it:
 * writes of inline lanes pass freely.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/base/fork.h"
#include "core/lane/inbox.h"
#include "core/lane/lane.h"
#include "storage/file_gate.h"

/* Pages of the longest folio: order 9 with pages of 4 KiB. That is the largest folio of the
 * page cache on x86, and larger than ext4 uses on other machines. A folio starts at a multiple
 * of its length. */
#define PLACE_PAGES 512u
/* The places of all files share this many counters by hash. Writes that share one by chance
 * wait for each other briefly. */
#define COUNTS 1024u

#define DIRECT 0u
#define CACHED 1u

/* Writes in flight: direct ones in the lower half of each word, cached ones in the upper half. */
static _Atomic uint64_t counts[COUNTS];

/* Taken alone; protects the variables below. */
static pthread_mutex_t waiters_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pst_io *waiters, **waiters_end = &waiters; /* Waiting writes, oldest first. */
/* The last round in which a write of each kind had to wait, for each counter. */
static uint32_t admit_round, waits_in_round[2][COUNTS];
static _Atomic unsigned waiting;

/* In the child of a fork: the writes in flight belong to the parent. */
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

/* Counts the write at all of its places, or at none. Returns true if it may start. */
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

/* Returns true if an older write of the other kind waits for one of these places. */
static bool places_are_queued_for(const struct write_places *p)
{
	for (uint64_t at = p->at; at < p->end; at++)
		if (waits_in_round[!p->kind][count_index(p, at)] == admit_round)
			return true;
	return false;
}

/* Starts every waiting write whose turn has come, each on its own lane. Returns true if `self`,
 * the calling thread's write, may start. Called with the lock held. */
static bool waiters_admit(const struct pst_io *self)
{
	struct pst_io **link = &waiters, *io;
	bool may = false;

	if (!++admit_round) { /* The counter wrapped around. */
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

	/* Nothing tells when the owner of an inline lane will drive it. */
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
	/* Raise `waiting` before checking the places. A write that leaves a place after that
	 * check then sees the count and takes the lock. */
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
