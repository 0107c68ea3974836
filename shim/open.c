/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the cuFile driver: reads the configuration, sets up the log and opens host memory as a
 * device. driver.c calls it for cuFileDriverOpen; other files call it when a cuFile call needs
 * an open driver. It must never call CUDA, so that cuFileDriverOpen takes well under a
 * millisecond. The drop-in opens a GPU when the program first uses it. prepare.c or the first
 * transfer lets the library create contexts and threads.
 */
#include "open.h"

#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "log.h"
#include "params.h"
#include "state.h"
#include "stats.h"

/* Returns the class of paths that all transfers require. If compat mode is off, this is
 * PENSTOCK_DIRECT: the drive's DMA accesses the program's memory. If the configuration both forbids
 * and forces compat mode, forcing wins, as in NVIDIA's library. */
static int class_required(const struct shim_config *config)
{
	return config->flag[CUF_PARAM_ALLOW_COMPAT_MODE] ||
			       config->flag[CUF_PARAM_FORCE_COMPAT_MODE]
		       ? PENSTOCK_ANY
		       : PENSTOCK_DIRECT;
}

/* Returns the effort (preference for low CPU time or for speed) that the environment variable
 * PENSTOCK_CUFILE_EFFORT names. The default is "fast". */
static enum penstock_effort effort_read(void)
{
	static const char *const names[] = {"thrifty", "fast", "balanced"};
	const char *text = getenv("PENSTOCK_CUFILE_EFFORT");

	for (unsigned i = 0; text && i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(text, names[i]))
			return (enum penstock_effort)i;
	if (text && text[0])
		shim_log(SHIM_ERROR,
			 "PENSTOCK_CUFILE_EFFORT is '%s': it must be thrifty, balanced or fast, "
			 "so fast is used",
			 text);
	return PENSTOCK_FAST;
}

int shim_open_locked(void)
{
	struct shim_config *config = &shim.config;
	struct penstock_device *host;

	shim.was_open = true;
	shim_config_load(config);
	shim_params_apply(config);
	shim_log_setup(config->text[CUF_LOGGING_LEVEL], config->text[CUF_LOGFILE_PATH],
		       config->text[CUF_LOG_DIR]);
	shim_config_log_notes();
	if (penstock_device_open("host", NULL, &host) < 0) {
		shim_log(SHIM_ERROR, "cannot open the driver: %s", penstock_errmsg());
		return CUF_DRIVER_NOT_INITIALIZED;
	}
	atomic_store(&shim.host, host);
	atomic_store(&shim.require, class_required(config));
	atomic_store(&shim.effort, effort_read());
	shim_params_opened();
	shim_stats_opened(config);
	atomic_store(&shim.open, true);
	return 0;
}

int shim_need_locked(void)
{
	int code;

	if (atomic_load(&shim.open))
		return 0;
	code = shim_open_locked();
	if (!code)
		shim.uses = 1;
	return code;
}

int shim_need(void)
{
	int code;

	if (atomic_load_explicit(&shim.open, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&shim.lock);
	code = shim_need_locked();
	pthread_mutex_unlock(&shim.lock);
	return code;
}
