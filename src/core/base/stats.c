/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates the shared memory for the process's counters at their first use: see stats.h. Other
 * processes (`penstock stats`) map this memory, so it must never contain a pointer.
 */
#include "core/base/stats.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/backends.h"
#include "core/base/fork.h"

static struct pst_stats fallback;
static struct pst_stats *stats = &fallback;

_Atomic(struct pst_stats *) pst_stats_ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int memfd = -1;
static ino_t memfd_ino; /* inode of the memfd; shows whether `memfd` still refers to it */
/* Serialises threads that write notes (messages in the counters). A thread that holds it takes no
 * other lock. */
static pthread_mutex_t note_lock = PTHREAD_MUTEX_INITIALIZER;

static void stats_reset_in_child(void)
{
	static const pthread_once_t unused = PTHREAD_ONCE_INIT;
	struct stat stat;

	/* The child inherits the memfd with the parent's counters. `penstock stats` would print
	 * them as the child's, so close the memfd. The child creates its own counters when it first
	 * uses the library. */
	atomic_store(&pst_stats_ready, NULL);
	stats = &fallback;
	memset(&fallback, 0, sizeof(fallback));
	memcpy(&once, &unused, sizeof(once));
	pthread_mutex_init(&note_lock, NULL);
	if (memfd >= 0 && !fstat(memfd, &stat) && stat.st_ino == memfd_ino)
		close(memfd);
	memfd = -1;
}

__attribute__((constructor)) static void stats_hook_fork(void)
{
	pst_fork_hook(stats_reset_in_child);
}

static void stats_create(void)
{
	int fd = memfd_create(PST_STATS_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct stat stat = {.st_ino = 0};
	void *map = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof(*stats)) == 0 && fstat(fd, &stat) == 0)
		map = mmap(NULL, sizeof(*stats), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED) {
		stats = map;
		memfd = fd;
		memfd_ino = stat.st_ino;
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		madvise(map, sizeof(*stats), MADV_DONTFORK);
	} else if (fd >= 0) {
		close(fd);
	}
	stats->version = PST_STATS_VERSION;
	stats->size = sizeof(*stats);
	stats->pid = (uint32_t)getpid();
	stats->path_count = pst_path_count;
	for (unsigned i = 0; i < pst_path_count; i++)
		snprintf(stats->paths[i].name, sizeof(stats->paths[i].name), "%s",
			 pst_paths[i]->name);
	/* `magic` is stored last, because readers accept the counters as soon as it is set */
	stats->magic = PST_STATS_MAGIC;
}

struct pst_stats *pst_stats_create(void)
{
	pthread_once(&once, stats_create);
	atomic_store_explicit(&pst_stats_ready, stats, memory_order_release);
	return stats;
}

uint64_t pst_stats_bucket_ns(unsigned bucket)
{
	uint64_t low = 1ull << (bucket / 2);

	return bucket & 1 ? low + low / 2 : low;
}

/* ---- notes; the caller holds note_lock ---- */

static struct pst_stats_note *note_find(const char *text)
{
	for (unsigned i = 0; i < PST_STATS_NOTES; i++)
		if (stats->notes[i].done && !strcmp(stats->notes[i].text, text))
			return &stats->notes[i];
	return NULL;
}

static struct pst_stats_note *note_oldest(void)
{
	struct pst_stats_note *oldest = &stats->notes[0];

	for (unsigned i = 1; i < PST_STATS_NOTES; i++)
		if (stats->notes[i].done < oldest->done)
			oldest = &stats->notes[i];
	return oldest;
}

static void note_write(struct pst_stats_note *note, const char *text)
{
	static uint64_t count;

	atomic_store_explicit(&note->begun, ++count, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	snprintf(note->text, sizeof(note->text), "%s", text);
	atomic_store_explicit(&note->times, 0, memory_order_relaxed);
	atomic_store_explicit(&note->done, count, memory_order_release);
}

void penstock_stats_note(const char *text)
{
	char cut[PST_STATS_NOTE_MAX];
	struct pst_stats_note *note;

	if (!text)
		return;
	snprintf(cut, sizeof(cut), "%s", text);
	pst_stats_get();
	pthread_mutex_lock(&note_lock);
	note = note_find(cut);
	if (!note) {
		note = note_oldest();
		note_write(note, cut);
	}
	atomic_fetch_add_explicit(&note->times, 1, memory_order_relaxed);
	pthread_mutex_unlock(&note_lock);
}
