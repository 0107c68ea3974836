/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes of this process to one place of a file either all go by O_DIRECT or all through
 * the page cache, whichever request, queue, handle or device they come from; the others
 * wait their turn. For when a direct write ends, the kernel drops what the cache has read
 * there meanwhile, folio by folio. A folio that somebody's reading brought may be as long as
 * a place, and one whose other end is dirty it cannot drop: then it keeps old bytes in the
 * cache and marks the file, so that everybody's next fsync says EIO on a healthy drive
 * (mm/filemap.c, kiocb_invalidate_post_direct_write).
 *
 * Called by file.c for each write. Takes a lock only while somebody waits. Must never keep
 * waiting for a lane that nobody need turn: queues' own lanes are let through.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/lane/pump.h"
#include "storage/file.h"

/* The longest folio: order 9 where pages have 4 KiB, the largest that the page cache takes
 * on x86 and more than ext4 does elsewhere. It begins at a multiple of its length. */
#define PLACE_PAGES 512u
/* The places of all files share so many counts; who shares one by chance waits a little. */
#define COUNTS 1024u

#define DIRECT 0u
#define CACHED 1u

/* Writes on their way, by kind: one half of a word each. */
static _Atomic uint64_t counts[COUNTS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* alone; for what follows */
static struct pst_io *first, **last = &first;		 /* wait, in the order in which they came */
static uint32_t turn, passed_over[2][COUNTS];		 /* the turn in which one of the kind was */
static _Atomic unsigned waiting;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* What was on its way is the parent's. */
static void forked(void)
{
	for (unsigned i = 0; i < COUNTS; i++)
		atomic_store(&counts[i], 0);
	pthread_mutex_init(&lock, NULL);
	first = NULL;
	last = &first;
	atomic_store(&waiting, 0);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

void pst_gate_open(struct pst_file *file, const struct stat *stat)
{
	pthread_once(&fork_once, watch_forks);
	file->place_bytes = PLACE_PAGES * (uint64_t)sysconf(_SC_PAGESIZE);
	file->place_key = S_ISBLK(stat->st_mode) ? ~(uint64_t)stat->st_rdev
						 : (uint64_t)stat->st_dev << 32 ^ stat->st_ino;
}

/* ---- the places of a write ---- */

struct places {
	uint64_t key, at, end;
	unsigned kind;
};

static struct places places_of(const struct pst_io *io)
{
	const struct pst_file *file = io->st->priv;
	uint64_t behind = io->off + (io->len ? io->len : 1) - 1;

	return (struct places){.key = file->place_key,
			       .at = io->off / file->place_bytes,
			       .end = behind / file->place_bytes + 1,
			       .kind = io->flags & PST_IO_DIRECT ? DIRECT : CACHED};
}

static unsigned count_of(const struct places *p, uint64_t at)
{
	uint64_t x = (p->key ^ at * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

	return (unsigned)(x >> 40) % COUNTS;
}

static uint64_t one(unsigned kind)
{
	return kind == DIRECT ? 1 : (uint64_t)1 << 32;
}

static uint64_t of_kind(uint64_t word, unsigned kind)
{
	return kind == DIRECT ? word & UINT32_MAX : word >> 32;
}

static void put_back(const struct places *p, uint64_t end)
{
	for (uint64_t at = p->at; at < end; at++)
		atomic_fetch_sub_explicit(&counts[count_of(p, at)], one(p->kind),
					  memory_order_seq_cst);
}

/* All of its places, or none. */
static bool take(const struct places *p)
{
	for (uint64_t at = p->at; at < p->end; at++) {
		uint64_t was = atomic_fetch_add_explicit(&counts[count_of(p, at)], one(p->kind),
							 memory_order_seq_cst);

		if (of_kind(was, !p->kind)) {
			put_back(p, at + 1);
			return false;
		}
	}
	return true;
}

/* ---- those that wait ---- */

/* One of the other kind came before and waits for one of its places. */
static bool is_behind(const struct places *p)
{
	for (uint64_t at = p->at; at < p->end; at++)
		if (passed_over[!p->kind][count_of(p, at)] == turn)
			return true;
	return false;
}

/* Everybody whose turn it is goes on, on his own lane; true: `self`, who is here, may.
 * Under the lock. */
static bool let_go_on(const struct pst_io *self)
{
	struct pst_io **link = &first, *io;
	bool may = false;

	if (!++turn) { /* it went round */
		memset(passed_over, 0, sizeof(passed_over));
		turn = 1;
	}
	while ((io = *link)) {
		struct places p = places_of(io);

		if (is_behind(&p) || !take(&p)) {
			for (uint64_t at = p.at; at < p.end; at++)
				passed_over[p.kind][count_of(&p, at)] = turn;
			link = &io->next;
			continue;
		}
		*link = io->next;
		if (!*link)
			last = link;
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
	struct places p = places_of(io);
	bool may;

	if (pst_lane_is_own(io->lane)) /* nobody can tell when its owner comes */
		return true;
	own->held = true;
	if (!atomic_load_explicit(&waiting, memory_order_seq_cst) && take(&p))
		return true;
	own->then = io->done;
	io->done = go_on;
	io->next = NULL;
	pthread_mutex_lock(&lock);
	*last = io;
	last = &io->next;
	/* Before its places are looked at: who leaves one of them behind that look sees it. */
	atomic_fetch_add_explicit(&waiting, 1, memory_order_seq_cst);
	may = let_go_on(io);
	pthread_mutex_unlock(&lock);
	if (may)
		io->done = own->then;
	return may;
}

void pst_gate_leave(struct pst_io *io)
{
	struct pst_file_io *own = pst_file_io(io);
	struct places p;

	if (!own->held)
		return;
	own->held = false;
	p = places_of(io);
	put_back(&p, p.end);
	if (!atomic_load_explicit(&waiting, memory_order_seq_cst))
		return;
	pthread_mutex_lock(&lock);
	let_go_on(NULL);
	pthread_mutex_unlock(&lock);
}
