/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock load --ranks: a process for each rank, which join a group and load together,
 * and their results added up in memory that they share. Called by load.c. What a rank
 * has opened it closes, and no rank outlives the command.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"

static void be_rank(struct loading *l, struct args *a, unsigned rank)
{
	struct penstock_shard_opts *s = &a->shard;
	char name[32];

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	snprintf(name, sizeof(name), "load-%ld", (long)getppid());
	a->devices.list[0] = a->devices.list[rank % a->devices.count];
	a->devices.count = 1;
	a->quiet = true;
	if (a->load.shard) {
		s->rank = (s->rank + rank) % s->ranks;
		s->expert_rank = (s->expert_rank + rank) % s->expert_ranks;
	}
	if (penstock_group_open(name, rank, (unsigned)a->ranks, &a->group, &l->group))
		load_note_lib(l);
	else
		load_do(l);
	load_close(l);
	_exit(0);
}

/* What a rank did, with that of the others; its own failure before what it heard. */
static void merge(struct loading *l, const struct loading *r, unsigned rank)
{
	struct part *p = &l->parts[rank];

	*p = r->parts[0];
	snprintf(p->name, sizeof(p->name), "rank %u: %.40s", rank, r->parts[0].name);
	p->took = p->took > 0 ? p->took : 1e-9;
	if (r->code && (!l->code || !strncmp(l->text, "rank ", 5))) {
		l->code = r->code;
		memcpy(l->text, r->text, sizeof(l->text));
	}
	l->files = r->files;
	l->tensors = r->tensors;
	l->total += r->total;
	l->took = r->took > l->took ? r->took : l->took;
	l->verified = (l->verified || !rank) && r->verified;
	l->report.read += r->report.read;
	l->report.bytes += r->report.bytes;
	l->report.device_bytes += r->report.device_bytes;
	tally_merge(&l->tally, &r->tally);
}

static void await(struct loading *l, pid_t *pids, unsigned rank, unsigned ranks)
{
	bool told = false;
	int status = 0;

	while (pids[rank] > 0 && waitpid(pids[rank], &status, 0) < 0 && errno == EINTR) {
		for (unsigned k = rank; !told && k < ranks; k++)
			if (pids[k] > 0)
				kill(pids[k], (int)load_stopped);
		told = true;
	}
	if (pids[rank] < 0 || status)
		load_note(l, EXIT_FAILED, "%s", "a process ended before its time");
}

void load_by_ranks(struct loading *l, struct args *a)
{
	size_t len = a->ranks * sizeof(*l);
	struct loading *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				   -1, 0);
	pid_t pids[DEVICES_MAX];

	if (all == MAP_FAILED) {
		load_note(l, EXIT_FAILED, "%s", strerror(errno));
		return;
	}
	l->part_count = (unsigned)a->ranks;
	for (unsigned i = 0; i < a->ranks; i++) {
		all[i].a = a;
		pids[i] = fork();
		if (!pids[i])
			be_rank(&all[i], a, i);
	}
	for (unsigned i = 0; i < a->ranks; i++) {
		await(&all[i], pids, i, (unsigned)a->ranks);
		merge(l, &all[i], i);
	}
	munmap(all, len);
}
