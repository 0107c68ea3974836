/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: defaults, then cufile.json, then the environment.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

void shim_config_defaults(struct shim_config *config)
{
	static const struct shim_config defaults = {
		.size =
			{
				[CUF_PROFILE_STATS] = 0,
				[CUF_MAX_IO_QUEUE_DEPTH] = 128,
				[CUF_MAX_IO_THREADS] = 4,
				[CUF_MIN_IO_THRESHOLD_KB] = 8192,
				[CUF_MAX_REQUEST_PARALLELISM] = 4,
				[CUF_MAX_DIRECT_IO_KB] = 16384,
				[CUF_MAX_DEVICE_CACHE_KB] = 131072,
				[CUF_PER_BUFFER_CACHE_KB] = 1024,
				[CUF_MAX_PINNED_KB] = 33554432,
				[CUF_IO_BATCHSIZE] = 128,
				[CUF_POLL_THRESHOLD_KB] = 4,
				[CUF_BATCH_TIMEOUT_MS] = 5000,
			},
		.flag =
			{
				[CUF_PARAM_ALLOW_COMPAT_MODE] = true,
				[CUF_PARAM_PARALLEL_IO] = true,
				[CUF_PARAM_ALLOW_SYSTEM_MEMORY] = true,
			},
		.text = {[CUF_LOGGING_LEVEL] = "ERROR"},
		.posix = {3, {4, 1024, 16384}, {128, 64, 64}},
		.gpu = {4, {1024, 8192, 16384, 65536}, {128, 8, 4, 2}},
	};

	*config = defaults;
}

void shim_config_load(struct shim_config *config)
{
	shim_config_defaults(config);
}

void shim_config_say(void)
{
}
