/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock load --ranks`: forks a process for each rank. The processes join a group,
 * load together, and leave their results in shared memory, where the parent adds the results up.
 * Called by load.c. Each rank closes what it has opened, and no rank's process outlives the
 * command.
 */
#include "load_ranks.h"

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

#include "load_one.h"

#define NAME "load" /* Name of the group. */

/* Creates a folder for the group's socket. Only this command uses the folder, so the command
 * can also remove a socket that a killed rank left. If the folder cannot be created, the group
 * uses its default folder. Rank 0 removes the folder when all ranks have joined, so nothing is
 * left if the command is killed later. */
static void make_folder(struct args *a, char *dir, size_t len)
{
	const char *tmp = getenv("TMPDIR");

	/* The address of a Unix socket has at most 107 bytes, so the folder's path must be short. A
	 * longer TMPDIR is not used. */
	snprintf(dir, len, "%s/penstock-load-XXXXXX",
		 tmp && *tmp == '/' && strlen(tmp) < 60 ? tmp : "/tmp");
	a->group.dir = mkdtemp(dir);
}

static void remove_folder(const char *dir)
{
	static const char *const names[] = {"penstock-" NAME, "penstock-" NAME ".lock"};
	int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	for (unsigned i = 0; fd >= 0 && i < sizeof(names) / sizeof(names[0]); i++)
		/* Ignores a failure, because the ranks have usually removed these files already. */
		unlinkat(fd, names[i], 0);
	if (fd < 0)
		return;
	close(fd);
	rmdir(dir);
}

static void run_rank(struct loading *l, struct args *a, unsigned rank, pid_t parent)
{
	struct penstock_shard_opts *s = &a->shard;
	char name[32];

	/* Kills this rank if the parent exits. SIGKILL is safe because a rank writes nothing
	 * that must be removed, and necessary because the rank may be blocked in a read. */
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
	/* While penstock_group_open() waits for other ranks to join, a signal ends this process. */
	load_catch_signals(false, false);
	if (load_stopped)
		raise((int)load_stopped);
	if (penstock_group_open(name, rank, (unsigned)a->ranks, &a->group, &l->group))
		load_note_lib(l);
	else if (!rank)
		remove_folder(a->group.dir);
	/* From this call on, no signal ends this rank at once. A terminal sends SIGINT to the
	 * ranks as well as to the command, so a rank can get SIGINT twice. */
	load_catch_signals(true, true);
	if (l->group)
		load_run(l);
	load_close(l);
	_exit(0);
}

/* Adds the results of one rank to the results of the command. */
static void merge_rank(struct loading *l, const struct loading *r, unsigned rank)
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
	l->report.bytes += r->report.bytes;
	l->report.device_bytes += r->report.device_bytes;
	tally_merge(&l->tally, &r->tally);
}

/* ---- the processes of the ranks ---- */

struct ranks {
	struct loading *all;
	pid_t pids[RANKS_MAX]; /* Process id of each rank; 0 if its process has ended. */
	unsigned count;
	/* First rank whose process ended abnormally; -1 if no process did. */
	int dead;
	/* Times at which the remaining ranks get SIGTERM and SIGKILL; 0 if no such signal is
	 * planned. */
	double term_at, kill_at;
	bool killed;
};

static void signal_ranks(const struct ranks *r, int signal, bool joined)
{
	for (unsigned i = 0; i < r->count; i++)
		if (r->pids[i] > 0 && (joined || !r->all[i].group))
			kill(r->pids[i], signal);
}

/* Records that a rank's process ended abnormally. Ranks that have joined the group learn of this
 * through the group. Ranks that still wait for others to join get SIGTERM. */
static void note_death(struct ranks *r, unsigned rank, int status)
{
	char text[96];

	if (r->killed)
		/* This command has killed the process after another rank had failed, and that
		 * failure is already recorded. */
		return;
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
	signal_ranks(r, SIGTERM, false);
}

/* If a rank could not join the group and has exited, the ranks that still wait to join get SIGTERM
 * after this number of seconds. Without SIGTERM, they could wait for the missing rank forever.
 * Until then, a rank that knows the cause can report it. */
#define GRACE_S 5
/* Number of seconds after which a rank that still runs is killed, once another rank has failed.
 * Ranks learn of a failure through the group and exit. So a rank that still runs is stopped or
 * hangs, and without the kill the command would never return. */
#define END_S 8

static volatile sig_atomic_t ticked;

static void on_tick(int signal)
{
	(void)signal;
	ticked = 1;
}

/* Starts a timer that sends SIGALRM every second. A single signal would not be enough: it could
 * arrive just before waitpid and so not interrupt it. */
static void begin_ticks(void)
{
	const struct itimerval after = {.it_value.tv_sec = 1, .it_interval.tv_sec = 1};

	sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_tick}, NULL);
	setitimer(ITIMER_REAL, &after, NULL);
}

static void end_ticks(void)
{
	setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_sec = 0}, NULL);
}

static void check_deadlines(struct ranks *r)
{
	double now = seconds();

	ticked = 0;
	if (r->term_at > 0 && now >= r->term_at)
		signal_ranks(r, SIGTERM, false);
	if (r->kill_at > 0 && now >= r->kill_at) {
		r->killed = true;
		signal_ranks(r, SIGKILL, true);
	}
}

/* Decides what happens to the other ranks after a rank's process has ended. */
static void handle_exit(struct ranks *r, unsigned rank, int status)
{
	const struct loading *l = &r->all[rank];

	if (status)
		note_death(r, rank, status);
	else if (l->code && !l->group)
		r->term_at = seconds() + GRACE_S;
	if (!l->code || r->kill_at > 0)
		return;
	r->kill_at = seconds() + END_S;
	begin_ticks();
}

static void wait_for_ranks(struct ranks *r)
{
	unsigned left = r->count;
	bool told = false;

	while (left) {
		int status = 0;
		pid_t pid = waitpid(-1, &status, 0);

		if (pid < 0 && errno != EINTR)
			/* No child is left to wait for, because some processes could not be
			 * forked. */
			return;
		if (pid < 0 && load_stopped && !told) {
			signal_ranks(r, (int)load_stopped, true);
			told = true;
		}
		if (ticked)
			check_deadlines(r);
		for (unsigned i = 0; pid > 0 && i < r->count; i++) {
			if (r->pids[i] != pid)
				continue;
			r->pids[i] = 0;
			left--;
			handle_exit(r, i, status);
		}
	}
}

/* Returns the rank whose failure is reported, or -1 if no rank failed. Prefers a rank whose process
 * died, then a rank that failed itself, then a rank that only learned through the group that
 * another rank failed. */
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

/* Copies to `l` the failure of the rank that first_failure() chooses. Adds the rank's number,
 * unless all ranks failed in the same way. */
static void choose_failure(struct loading *l, const struct ranks *r)
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
			run_rank(&r.all[i], a, i, parent);
		if (r.pids[i] < 0) {
			load_note(&r.all[i], EXIT_FAILED, "no process: %s", strerror(errno));
			signal_ranks(&r, SIGTERM, true);
			break;
		}
	}
	wait_for_ranks(&r);
	end_ticks();
	remove_folder(a->group.dir);
	choose_failure(l, &r);
	for (unsigned i = 0; i < r.count; i++)
		merge_rank(l, &r.all[i], i);
	/* The signal is reported instead of the errors that it caused in the ranks. */
	if (load_stopped) {
		l->code = 0;
		load_note(l, 128 + (int)load_stopped, "stopped by %s",
			  strsignal((int)load_stopped));
	}
	munmap(r.all, len);
}
