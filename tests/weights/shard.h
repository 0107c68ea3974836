/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by test_shard.c and test_quantized.c: functions that call penstock_weights_shard for a
 * tensor of the open model.
 */
#ifndef PENSTOCK_TEST_SHARD_H
#define PENSTOCK_TEST_SHARD_H

#include "load.h"

static struct penstock_shard_opts
	shard_opts; /* The rank whose part the test checks, and the number of ranks. */

static inline unsigned piece_count_of(const char *name)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);

	assert_true(t >= 0);
	if (penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard))
		fail_msg("%s", penstock_errmsg());
	return shard.piece_count;
}

/* Checks that the library refuses to split the tensor and that the message contains `words`. If
 * the model has no tensor `name`, the check passes an index that is too large. */
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
