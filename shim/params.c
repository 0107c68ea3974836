/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that set and read parameters. A parameter that the program sets before it opens the
 * driver is stored here, and overrides cufile.json and the environment. Opening the driver copies
 * the stored parameters; they are read-only until the driver is closed. A parameter applies only to
 * the next open, as NVIDIA documents. Only the arrays of slabs (pools of buffers) apply to later
 * opens, too, as measured with NVIDIA's library. All of these calls are slow.
 */
#include "params.h"

#include <stdlib.h>
#include <string.h>

#include "abi/cufile_calls.h"
#include "fail.h"
#include "log.h"
#include "state.h"

#define VERSION_WITHOUT_NVTX 1160

/* shim.lock guards all variables of this file. */
static struct shim_config staged;
/* Whether `staged` already contains the values of cufile.json and the environment. */
static bool staged_loaded;
static bool size_set[CUF_SIZE_PARAMS], flag_set[CUF_BOOL_PARAMS], text_set[CUF_STRING_PARAMS];
static bool posix_set, gpu_set;

/* Returns the current configuration if the driver is open, else the configuration that the next
 * open would use. */
static struct shim_config *config_current(void)
{
	if (atomic_load(&shim.open))
		return &shim.config;
	if (!staged_loaded) {
		struct shim_config *fresh = malloc(sizeof(*fresh));

		if (!fresh)
			return &staged;
		shim_config_load(fresh);
		shim_params_apply(fresh);
		staged = *fresh;
		free(fresh);
		staged_loaded = true;
	}
	return &staged;
}

void shim_params_apply(struct shim_config *config)
{
	for (int i = 0; i < CUF_SIZE_PARAMS; i++)
		if (size_set[i])
			config->size[i] = staged.size[i];
	for (int i = 0; i < CUF_BOOL_PARAMS; i++)
		if (flag_set[i])
			config->flag[i] = staged.flag[i];
	for (int i = 0; i < CUF_STRING_PARAMS; i++)
		if (text_set[i])
			memcpy(config->text[i], staged.text[i], sizeof(staged.text[i]));
	if (posix_set)
		config->posix = staged.posix;
	if (gpu_set)
		config->gpu = staged.gpu;
}

void shim_params_opened(void)
{
	/* Makes the next open read cufile.json and the environment again. */
	staged_loaded = false;
	memset(size_set, 0, sizeof(size_set));
	memset(flag_set, 0, sizeof(flag_set));
	memset(text_set, 0, sizeof(text_set));
}

/* Takes shim.lock. Returns an error if the driver is open or another call has fixed the parameters.
 * The caller must call params_unlock after success and after an error. */
static struct cuf_error set_begin(void)
{
	pthread_mutex_lock(&shim.lock);
	if (atomic_load(&shim.open) || shim.params_fixed)
		return shim_err(CUF_DRIVER_ALREADY_OPEN);
	config_current();
	return shim_ok();
}

static struct cuf_error params_unlock(struct cuf_error err)
{
	pthread_mutex_unlock(&shim.lock);
	return err;
}

/* ---- single parameters ---- */

static bool is_size(int param, size_t value)
{
	size_t min, max;

	if (param < 0 || param >= CUF_SIZE_PARAMS)
		return false;
	shim_config_limits((enum cuf_size_param)param, &min, &max);
	return value >= min && value <= max;
}

struct cuf_error cuFileGetParameterSizeT(int param, size_t *value)
{
	if (param < 0 || param >= CUF_SIZE_PARAMS || !value)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	*value = config_current()->size[param];
	return params_unlock(shim_ok());
}

struct cuf_error cuFileSetParameterSizeT(int param, size_t value)
{
	struct cuf_error err;

	if (!is_size(param, value))
		return shim_err(CUF_INVALID_VALUE);
	err = set_begin();
	if (!err.err) {
		staged.size[param] = value;
		size_set[param] = true;
	}
	return params_unlock(err);
}

struct cuf_error cuFileGetParameterMinMaxValue(int param, size_t *min, size_t *max)
{
	if (param < 0 || param >= CUF_SIZE_PARAMS || !min || !max)
		return shim_err(CUF_INVALID_VALUE);
	shim_config_limits((enum cuf_size_param)param, min, max);
	return shim_ok();
}

/* Returns whether the flag exists. The flag for NVTX ranges exists only before version 1.16. */
static bool is_flag(int param)
{
	return param >= 0 && param < CUF_BOOL_PARAMS &&
	       (param != CUF_PARAM_NVTX || shim_version() < VERSION_WITHOUT_NVTX);
}

struct cuf_error cuFileGetParameterBool(int param, bool *value)
{
	if (!is_flag(param) || !value)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	*value = config_current()->flag[param];
	return params_unlock(shim_ok());
}

struct cuf_error cuFileSetParameterBool(int param, bool value)
{
	struct cuf_error err;

	if (!is_flag(param))
		return shim_err(CUF_INVALID_VALUE);
	err = set_begin();
	if (!err.err) {
		staged.flag[param] = value;
		flag_set[param] = true;
	}
	return params_unlock(err);
}

struct cuf_error cuFileGetParameterString(int param, char *text, int len)
{
	size_t need;
	struct cuf_error err = shim_ok();

	if (param < 0 || param >= CUF_STRING_PARAMS || !text || len <= 0)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	need = strlen(config_current()->text[param]) + 1;
	if (need <= (size_t)len)
		memcpy(text, config_current()->text[param], need);
	else
		err = shim_err(CUF_INVALID_VALUE);
	return params_unlock(err);
}

struct cuf_error cuFileSetParameterString(int param, const char *text)
{
	struct cuf_error err;

	if (param < 0 || param >= CUF_STRING_PARAMS || !text ||
	    strnlen(text, SHIM_TEXT) == SHIM_TEXT ||
	    (param == CUF_LOGGING_LEVEL && shim_log_level(text) < 0))
		return shim_err(CUF_INVALID_VALUE);
	err = set_begin();
	if (!err.err) {
		memcpy(staged.text[param], text, strlen(text) + 1);
		text_set[param] = true;
	}
	return params_unlock(err);
}

/* ---- slabs: stored and returned, but without effect, as the library sizes its own ring ---- */

static struct cuf_error slabs_set(struct shim_slabs *into, bool *set, const size_t *sizes,
				  const size_t *counts, int len)
{
	struct cuf_error err;

	if (!sizes || !counts || len <= 0 || len > SHIM_SLABS)
		return shim_err(CUF_INVALID_VALUE);
	err = set_begin();
	if (!err.err) {
		into->count = len;
		memcpy(into->kb, sizes, (size_t)len * sizeof(*sizes));
		memcpy(into->number, counts, (size_t)len * sizeof(*counts));
		*set = true;
	}
	return params_unlock(err);
}

static struct cuf_error slabs_get(bool gpu, size_t *sizes, size_t *counts, int len)
{
	const struct shim_slabs *from;

	if (!sizes || !counts || len <= 0)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	from = gpu ? &config_current()->gpu : &config_current()->posix;
	if (from->count != len)
		return params_unlock(shim_err(CUF_INVALID_VALUE));
	memcpy(sizes, from->kb, (size_t)len * sizeof(*sizes));
	memcpy(counts, from->number, (size_t)len * sizeof(*counts));
	return params_unlock(shim_ok());
}

struct cuf_error cuFileSetParameterPosixPoolSlabArray(const size_t *sizes, const size_t *counts,
						      int len)
{
	return slabs_set(&staged.posix, &posix_set, sizes, counts, len);
}

struct cuf_error cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts, int len)
{
	return slabs_get(false, sizes, counts, len);
}

struct cuf_error cuFileSetParameterGpuBounceBufferSlabArray(const size_t *sizes,
							    const size_t *counts, int len)
{
	return slabs_set(&staged.gpu, &gpu_set, sizes, counts, len);
}

struct cuf_error cuFileGetParameterGpuBounceBufferSlabArray(size_t *sizes, size_t *counts, int len)
{
	return slabs_get(true, sizes, counts, len);
}

/* ---- the older setters, which are allowed while the driver is open ---- */

static struct cuf_error size_set_any_time(enum cuf_size_param param, size_t value)
{
	if (!is_size((int)param, value))
		return shim_err(CUF_DRIVER_UNSUPPORTED_LIMIT);
	pthread_mutex_lock(&shim.lock);
	config_current()->size[param] = value;
	if (!atomic_load(&shim.open))
		size_set[param] = true;
	return params_unlock(shim_ok());
}

struct cuf_error cuFileDriverSetPollMode(bool poll, size_t threshold_kb)
{
	struct cuf_error err;

	if (poll && (!threshold_kb || threshold_kb % 4))
		return shim_err(CUF_INVALID_VALUE);
	err = size_set_any_time(CUF_POLL_THRESHOLD_KB, threshold_kb);
	if (err.err)
		return err;
	pthread_mutex_lock(&shim.lock);
	config_current()->flag[CUF_PARAM_USE_POLL_MODE] = poll;
	if (!atomic_load(&shim.open))
		flag_set[CUF_PARAM_USE_POLL_MODE] = true;
	return params_unlock(shim_ok());
}

struct cuf_error cuFileDriverSetMaxDirectIOSize(size_t kb)
{
	if (!kb || kb % 4)
		return shim_err(CUF_INVALID_VALUE);
	return size_set_any_time(CUF_MAX_DIRECT_IO_KB, kb);
}

struct cuf_error cuFileDriverSetMaxCacheSize(size_t kb)
{
	if (!kb)
		return shim_err(CUF_INVALID_VALUE);
	return size_set_any_time(CUF_MAX_DEVICE_CACHE_KB, kb);
}

struct cuf_error cuFileDriverSetMaxPinnedMemSize(size_t kb)
{
	if (!kb)
		return shim_err(CUF_INVALID_VALUE);
	return size_set_any_time(CUF_MAX_PINNED_KB, kb);
}

static unsigned size_to_unsigned(size_t kb)
{
	return kb > UINT32_MAX ? UINT32_MAX : (unsigned)kb;
}

/* Sets the version of the kernel module to 0, because this library uses no kernel module. Also sets
 * all bits of dstatusflags to 0. These bits report for which kinds of storage peer-to-peer is
 * available. In this library, that does not depend on the kind of storage. */
struct cuf_error cuFileDriverGetProperties(struct cuf_props *props)
{
	const struct shim_config *c;

	if (!props)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	c = config_current();
	*props = (struct cuf_props){
		.nvfs =
			{
				.poll_thresh_size = c->size[CUF_POLL_THRESHOLD_KB],
				.max_direct_io_size = c->size[CUF_MAX_DIRECT_IO_KB],
				.dcontrolflags = (unsigned)c->flag[CUF_PARAM_USE_POLL_MODE]
							 << CUF_USE_POLL_MODE |
						 (unsigned)c->flag[CUF_PARAM_ALLOW_COMPAT_MODE]
							 << CUF_ALLOW_COMPAT_MODE,
			},
		.fflags = 1u << CUF_BATCH_IO | 1u << CUF_STREAMS | 1u << CUF_PARALLEL_IO,
		.max_device_cache_size = size_to_unsigned(c->size[CUF_MAX_DEVICE_CACHE_KB]),
		.per_buffer_cache_size = size_to_unsigned(c->size[CUF_PER_BUFFER_CACHE_KB]),
		.max_device_pinned_mem_size = size_to_unsigned(c->size[CUF_MAX_PINNED_KB]),
		.max_batch_io_size = size_to_unsigned(c->size[CUF_IO_BATCHSIZE]),
		.max_batch_io_timeout_msecs = size_to_unsigned(c->size[CUF_BATCH_TIMEOUT_MS]),
	};
	return params_unlock(shim_ok());
}
