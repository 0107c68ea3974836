/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock load --ranks: a process for each rank, which join a group and load together,
 * and their results added up in memory that they share. Called by load.c. What a rank
 * has opened it closes, and no rank outlives the command.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"

#define NAME "load" /* of the group */

/* Where the ranks meet: a folder of this command's own, so that what a rank leaves there
 * that was killed goes, too. Without one it is where all groups meet. Rank 0 removes it once
 * all have met: nothing stays then of a command that is killed itself. */
static void make_folder(struct args *a, char *dir, size_t len)
{
	const char *tmp = getenv("TMPDIR");

	/* A socket's name has 107 bytes. */
	snprintf(dir, len, "%s/penstock-load-XXXXXX",
		 tmp && *tmp == '/' && strlen(tmp) < 60 ? tmp : "/tmp");
	a->group.dir = mkdtemp(dir);
}

static void remove_folder(const char *dir)
{
	static const char *const names[] = {"penstock-" NAME, "penstock-" NAME ".lock"};
	int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	for (unsigned i = 0; fd >= 0 && i < sizeof(names) / sizeof(names[0]); i++)
		unlinkat(fd, names[i], 0); /* mostly gone already */
	if (fd < 0)
		return;
	close(fd);
	rmdir(dir);
}

static void be_rank(struct loading *l, struct args *a, unsigned rank, pid_t parent)
{
	struct penstock_shard_opts *s = &a->shard;
	char name[32];

	/* It writes nothing that would have to be taken back, and may hang in a read. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	if (a->group.dir)
		snprintf(name, sizeof(name), NAME);
	else
		snprintf(name, sizeof(name), NAME "-%ld", (long)parent);
	a->devices.list[0] = a->devices.list[rank % a->devices.count];
	a->devices.count = 1;
	a->quiet = true;
	if (a->load.shard) {
		s->rank = (s->rank + rank) % s->ranks;
		s->expert_rank = (s->expert_rank + rank) % s->expert_ranks;
	}
	load_catch_signals(false, false); /* while it only waits for the others */
	if (load_stopped)
		raise((int)load_stopped);
	if (penstock_group_open(name, rank, (unsigned)a->ranks, &a->group, &l->group))
		load_note_lib(l);
	else if (!rank)
		remove_folder(a->group.dir);
	/* A terminal tells it as well as the command, whose end is that of one that hangs. */
	load_catch_signals(true, true);
	if (l->group)
		load_do(l);
	load_close(l);
	_exit(0);
}

/* What a rank did, with that of the others. */
static void merge(struct loading *l, const struct loading *r, unsigned rank)
{
	struct part *p = &l->parts[rank];

	*p = r->parts[0];
	snprintf(p->name, sizeof(p->name), "rank %u: %.40s", rank, r->parts[0].name);
	p->took = p->took > 0 ? p->took : 1e-9;
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

/* ---- the ranks' processes ---- */

struct ranks {
	struct loading *all;
	pid_t pids[RANKS_MAX]; /* 0: it has ended */
	unsigned count;
	int dead; /* the first whose process ended otherwise than it should, -1: none */
	double tell_at, kill_at; /* those that are left, 0: not */
	bool killed;
};

static void tell(const struct ranks *r, int signal, bool joined)
{
	for (unsigned i = 0; i < r->count; i++)
		if (r->pids[i] > 0 && (joined || !r->all[i].group))
			kill(r->pids[i], signal);
}

/* A rank that did not end by itself. The others hear of it in their group; those that
 * wait for it to join would do so for long. */
static void mourn(struct ranks *r, unsigned rank, int status)
{
	char text[96];

	if (r->killed)
		return; /* who waited for it has said so */
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM && !r->all[rank].group) {
		snprintf(text, sizeof(text), "rank %u waited for the others", rank);
	} else {
		if (r->dead < 0)
			r->dead = (int)rank;
		snprintf(text, sizeof(text), "the process of rank %u ended: %s %d", rank,
			 WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
	load_note(&r->all[rank], EXIT_FAILED, "%s", text);
	tell(r, SIGTERM, false);
}

/* A rank that could not join has ended, and the others may wait for it. Who is to blame may
 * be about to say so: they have this long. */
#define GRACE_S 5
/* A rank has ended by a failure, of which the others hear in their group. Who is still there
 * so much later has stopped, or hangs, and would keep the command for as long. */
#define END_S 8

static volatile sig_atomic_t ticked;

static void tick(int signal)
{
	(void)signal;
	ticked = 1;
}

/* Each second: one that comes just before waitpid would be lost. */
static void begin_ticks(void)
{
	const struct itimerval after = {.it_value.tv_sec = 1, .it_interval.tv_sec = 1};

	sigaction(SIGALRM, &(struct sigaction){.sa_handler = tick}, NULL);
	setitimer(ITIMER_REAL, &after, NULL);
}

static void end_ticks(void)
{
	setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_sec = 0}, NULL);
}

static void look_at_clock(struct ranks *r)
{
	double now = seconds();

	ticked = 0;
	if (r->tell_at > 0 && now >= r->tell_at)
		tell(r, SIGTERM, false);
	if (r->kill_at > 0 && now >= r->kill_at) {
		r->killed = true;
		tell(r, SIGKILL, true);
	}
}

/* What follows from the end of a rank for the others. */
static void take_end(struct ranks *r, unsigned rank, int status)
{
	const struct loading *l = &r->all[rank];

	if (status)
		mourn(r, rank, status);
	else if (l->code && !l->group)
		r->tell_at = seconds() + GRACE_S;
	if (!l->code || r->kill_at > 0)
		return;
	r->kill_at = seconds() + END_S;
	begin_ticks();
}

static void wait_for_all(struct ranks *r)
{
	unsigned left = r->count;
	bool told = false;

	while (left) {
		int status = 0;
		pid_t pid = waitpid(-1, &status, 0);

		if (pid < 0 && errno != EINTR)
			return; /* no more children: none could be made */
		if (pid < 0 && load_stopped && !told) {
			tell(r, (int)load_stopped, true);
			told = true;
		}
		if (ticked)
			look_at_clock(r);
		for (unsigned i = 0; pid > 0 && i < r->count; i++) {
			if (r->pids[i] != pid)
				continue;
			r->pids[i] = 0;
			left--;
			take_end(r, i, status);
		}
	}
}

/* The rank whose failure is told, -1: none. One that died, whatever came of it for the
 * others, else one that failed itself before those that only heard of it in the group. */
static int first_failure(const struct ranks *r)
{
	int heard = -1;

	for (unsigned i = 0; i < r->count && r->dead < 0; i++) {
		if (!r->all[i].code)
			continue;
		if (strncmp(r->all[i].text, "rank ", 5))
			return (int)i;
		heard = heard < 0 ? (int)i : heard;
	}
	return r->dead >= 0 ? r->dead : heard;
}

/* With the rank's number, unless all say the same. */
static void take_failure(struct loading *l, const struct ranks *r)
{
	int which = first_failure(r);
	const struct loading *told = &r->all[which < 0 ? 0 : which];
	bool all = true, known = which == r->dead || !strncmp(told->text, "rank ", 5);

	for (unsigned i = 0; i < r->count; i++)
		all = all && !strcmp(r->all[i].text, told->text);
	if (which < 0 || l->code)
		return;
	l->code = told->code;
	if (all || known)
		memcpy(l->text, told->text, sizeof(l->text));
	else
		snprintf(l->text, sizeof(l->text), "rank %d: %.480s", which, told->text);
}

void load_by_ranks(struct loading *l, struct args *a)
{
	struct ranks r = {.count = (unsigned)a->ranks, .dead = -1};
	size_t len = a->ranks * sizeof(*l);
	pid_t parent = getpid();
	char dir[96];

	r.all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (r.all == MAP_FAILED) {
		load_note(l, EXIT_FAILED, "%s", strerror(errno));
		return;
	}
	make_folder(a, dir, sizeof(dir));
	l->part_count = r.count;
	for (unsigned i = 0; i < r.count; i++) {
		r.all[i].a = a;
		r.pids[i] = fork();
		if (!r.pids[i])
			be_rank(&r.all[i], a, i, parent);
		if (r.pids[i] < 0) {
			load_note(&r.all[i], EXIT_FAILED, "no process: %s", strerror(errno));
			tell(&r, SIGTERM, true);
			break;
		}
	}
	wait_for_all(&r);
	end_ticks();
	remove_folder(a->group.dir);
	take_failure(l, &r);
	for (unsigned i = 0; i < r.count; i++)
		merge(l, &r.all[i], i);
	if (load_stopped) { /* whatever the ranks made of it */
		l->code = 0;
		load_note(l, 128 + (int)load_stopped, "stopped by %s",
			  strsignal((int)load_stopped));
	}
	munmap(r.all, len);
}
