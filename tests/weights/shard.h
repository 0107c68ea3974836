/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by test_shard.c and test_quantized.c: calls of penstock_weights_shard for tensors of
 * the open model.
 */
#ifndef PENSTOCK_TEST_SHARD_H
#define PENSTOCK_TEST_SHARD_H

#include "load.h"

static struct penstock_shard_opts shard_opts; /* The rank under test and the number of ranks. */

static inline unsigned piece_count_of(const char *name)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);

	assert_true(t >= 0);
	if (penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard))
		fail_msg("%s", penstock_errmsg());
	return shard.piece_count;
}

/* Checks that the shard is refused with these words. A name that the model lacks stands for an
 * index that it lacks. */
static inline void check_refused(const char *name, const char *words)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);
	uint64_t number = t < 0 ? penstock_weights_count(w) : (uint64_t)t;
	int ret = penstock_weights_shard(w, number, &shard_opts, &shard);

	if (ret != -EINVAL || !strstr(penstock_errmsg(), words))
		fail_msg("%s: %d '%s', expected '%s'", name, ret, penstock_errmsg(), words);
}

#endif
