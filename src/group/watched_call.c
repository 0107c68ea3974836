/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that a store may keep for long, opening a file or asking what it is, on a thread of
 * their own, so that a rank of a group learns meanwhile that another has failed or gone. It
 * leaves the call behind then, which holds the model until it ends. Called by group_load.c.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "common/thread.h"
#include "group/group.h"

#define LOOK_NS 250000000l

struct apart {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done, left; /* whoever is last of the two frees it */
	int (*work)(struct penstock_weights *w, unsigned which);
	struct penstock_weights *w;
	unsigned which;
	int ret;
	struct pst_told told;
};

static void drop(struct apart *a)
{
	pthread_cond_destroy(&a->ended);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

static void *apart_main(void *arg)
{
	struct apart *a = arg;
	struct penstock_weights *w = a->w;
	bool left;

	a->ret = a->work(w, a->which);
	if (a->ret)
		pst_weights_note(&a->told);
	pthread_mutex_lock(&a->lock);
	a->done = true;
	left = a->left;
	pthread_cond_signal(&a->ended);
	pthread_mutex_unlock(&a->lock);
	if (left)
		drop(a);
	penstock_weights_close(w);
	return NULL;
}

static bool start(struct apart *a)
{
	pthread_t thread;

	return !pst_thread_start(&thread, apart_main, a) && !pthread_detach(thread);
}

/* Until it is done, or the group has ended. */
static int await(struct penstock_group *g, struct apart *a)
{
	int ret = 0;

	pthread_mutex_lock(&a->lock);
	while (!a->done && !ret) {
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += LOOK_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&a->ended, &a->lock, &until);
		if (a->done)
			break;
		pthread_mutex_unlock(&a->lock);
		ret = pst_group_look(g);
		pthread_mutex_lock(&a->lock);
	}
	a->left = !a->done;
	pthread_mutex_unlock(&a->lock);
	return ret;
}

static struct apart *new_apart(struct penstock_weights *w,
			       int (*work)(struct penstock_weights *w, unsigned which),
			       unsigned which)
{
	struct apart *a = calloc(1, sizeof(*a));
	pthread_condattr_t attr;

	if (!a)
		return NULL;
	*a = (struct apart){.work = work, .w = w, .which = which};
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->ended, &attr);
	pthread_condattr_destroy(&attr);
	return a;
}

int pst_group_apart(struct penstock_group *g, struct penstock_weights *w,
		    int (*work)(struct penstock_weights *w, unsigned which), unsigned which)
{
	struct apart *a = pst_group_size(g) > 1 ? new_apart(w, work, which) : NULL;
	bool left;
	int ret;

	if (!a)
		return work(w, which);
	pst_weights_keep(w);
	if (!start(a)) {
		drop(a);
		penstock_weights_close(w);
		return work(w, which);
	}
	ret = await(g, a);
	left = a->left;
	if (!ret && a->ret)
		ret = pst_weights_repeat(a->ret, &a->told);
	if (!left)
		drop(a);
	return ret;
}
