/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters by API. Before the driver is open they are staged here, on top of what
 * cufile.json and the environment say; open takes them over and from then on they
 * are read only. It is the next open alone that they are for, as documented; slab arrays
 * stay set over a close, as observed. Slow calls all.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define VERSION_WITHOUT_NVTX 1160

static struct shim_config staged; /* under shim.lock, as all here */
static bool staged_loaded;
static bool size_set[CUF_SIZE_PARAMS], flag_set[CUF_BOOL_PARAMS], text_set[CUF_STRING_PARAMS];
static bool posix_set, gpu_set;

/* Smallest and largest that is taken, in the parameter's unit. */
static const struct {
	size_t min, max;
} limits[CUF_SIZE_PARAMS] = {
	[CUF_PROFILE_STATS] = {0, 3},
	[CUF_MAX_IO_QUEUE_DEPTH] = {1, 1 << 20},
	[CUF_MAX_IO_THREADS] = {0, 1024},
	[CUF_MIN_IO_THRESHOLD_KB] = {0, 1 << 30},
	[CUF_MAX_REQUEST_PARALLELISM] = {0, 1024},
	[CUF_MAX_DIRECT_IO_KB] = {1, 1 << 30},
	[CUF_MAX_DEVICE_CACHE_KB] = {0, UINT32_MAX},
	[CUF_PER_BUFFER_CACHE_KB] = {0, UINT32_MAX},
	[CUF_MAX_PINNED_KB] = {0, SIZE_MAX}, /* which is none */
	[CUF_IO_BATCHSIZE] = {1, 16384},
	[CUF_POLL_THRESHOLD_KB] = {0, 1 << 30},
	[CUF_BATCH_TIMEOUT_MS] = {0, UINT32_MAX},
};

/* What counts now: the live configuration, or what the next open would take. */
static struct shim_config *current(void)
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
	staged_loaded = false; /* file and environment are read again after a close */
	memset(size_set, 0, sizeof(size_set));
	memset(flag_set, 0, sizeof(flag_set));
	memset(text_set, 0, sizeof(text_set));
	shim_p2p_opened();
}

void shim_params_closed(void)
{
	shim_p2p_closed();
}

/* Runs under the lock and unless what may change only before open is refused. */
static struct cuf_error begin_set(void)
{
	pthread_mutex_lock(&shim.lock);
	if (atomic_load(&shim.open) || shim_p2p_loaded())
		return shim_err(CUF_DRIVER_ALREADY_OPEN);
	current();
	return shim_ok();
}

static struct cuf_error end(struct cuf_error err)
{
	pthread_mutex_unlock(&shim.lock);
	return err;
}

/* ---- one by one ---- */

struct cuf_error cuFileGetParameterSizeT(int param, size_t *value)
{
	if (param < 0 || param >= CUF_SIZE_PARAMS || !value)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	*value = current()->size[param];
	return end(shim_ok());
}

struct cuf_error cuFileSetParameterSizeT(int param, size_t value)
{
	struct cuf_error err;

	if (param < 0 || param >= CUF_SIZE_PARAMS || value < limits[param].min ||
	    value > limits[param].max)
		return shim_err(CUF_INVALID_VALUE);
	err = begin_set();
	if (!err.err) {
		staged.size[param] = value;
		size_set[param] = true;
	}
	return end(err);
}

struct cuf_error cuFileGetParameterMinMaxValue(int param, size_t *min, size_t *max)
{
	if (param < 0 || param >= CUF_SIZE_PARAMS || !min || !max)
		return shim_err(CUF_INVALID_VALUE);
	*min = limits[param].min;
	*max = limits[param].max;
	return shim_ok();
}

/* That of NVTX is refused since it is deprecated; before, it is a flag like the others. */
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
	*value = current()->flag[param];
	return end(shim_ok());
}

struct cuf_error cuFileSetParameterBool(int param, bool value)
{
	struct cuf_error err;

	if (!is_flag(param))
		return shim_err(CUF_INVALID_VALUE);
	err = begin_set();
	if (!err.err) {
		staged.flag[param] = value;
		flag_set[param] = true;
	}
	return end(err);
}

struct cuf_error cuFileGetParameterString(int param, char *text, int len)
{
	size_t need;
	struct cuf_error err = shim_ok();

	if (param < 0 || param >= CUF_STRING_PARAMS || !text || len <= 0)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	need = strlen(current()->text[param]) + 1;
	if (need <= (size_t)len)
		memcpy(text, current()->text[param], need);
	else
		err = shim_err(CUF_INVALID_VALUE);
	return end(err);
}

struct cuf_error cuFileSetParameterString(int param, const char *text)
{
	struct cuf_error err;

	if (param < 0 || param >= CUF_STRING_PARAMS || !text ||
	    strnlen(text, SHIM_TEXT) == SHIM_TEXT ||
	    (param == CUF_LOGGING_LEVEL && shim_log_level(text) < 0))
		return shim_err(CUF_INVALID_VALUE);
	err = begin_set();
	if (!err.err) {
		memcpy(staged.text[param], text, strlen(text) + 1);
		text_set[param] = true;
	}
	return end(err);
}

/* ---- slabs: kept and given back as they were set; our ring is sized by itself ---- */

static struct cuf_error set_slabs(struct shim_slabs *into, bool *set, const size_t *sizes,
				  const size_t *counts, int len)
{
	struct cuf_error err;

	if (!sizes || !counts || len <= 0 || len > SHIM_SLABS)
		return shim_err(CUF_INVALID_VALUE);
	err = begin_set();
	if (!err.err) {
		into->count = len;
		memcpy(into->kb, sizes, (size_t)len * sizeof(*sizes));
		memcpy(into->number, counts, (size_t)len * sizeof(*counts));
		*set = true;
	}
	return end(err);
}

static struct cuf_error get_slabs(bool gpu, size_t *sizes, size_t *counts, int len)
{
	const struct shim_slabs *from;

	if (!sizes || !counts || len <= 0)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	from = gpu ? &current()->gpu : &current()->posix;
	if (from->count != len)
		return end(shim_err(CUF_INVALID_VALUE));
	memcpy(sizes, from->kb, (size_t)len * sizeof(*sizes));
	memcpy(counts, from->number, (size_t)len * sizeof(*counts));
	return end(shim_ok());
}

struct cuf_error cuFileSetParameterPosixPoolSlabArray(const size_t *sizes, const size_t *counts,
						      int len)
{
	return set_slabs(&staged.posix, &posix_set, sizes, counts, len);
}

struct cuf_error cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts, int len)
{
	return get_slabs(false, sizes, counts, len);
}

struct cuf_error cuFileSetParameterGpuBounceBufferSlabArray(const size_t *sizes,
							    const size_t *counts, int len)
{
	return set_slabs(&staged.gpu, &gpu_set, sizes, counts, len);
}

struct cuf_error cuFileGetParameterGpuBounceBufferSlabArray(size_t *sizes, size_t *counts, int len)
{
	return get_slabs(true, sizes, counts, len);
}

/* ---- the older setters, which are allowed at any time ---- */

static struct cuf_error set_any_time(enum cuf_size_param param, size_t value)
{
	if (value < limits[param].min || value > limits[param].max)
		return shim_err(CUF_DRIVER_UNSUPPORTED_LIMIT);
	pthread_mutex_lock(&shim.lock);
	current()->size[param] = value;
	if (!atomic_load(&shim.open))
		size_set[param] = true;
	return end(shim_ok());
}

struct cuf_error cuFileDriverSetPollMode(bool poll, size_t threshold_kb)
{
	struct cuf_error err;

	if (poll && (!threshold_kb || threshold_kb % 4))
		return shim_err(CUF_INVALID_VALUE);
	err = set_any_time(CUF_POLL_THRESHOLD_KB, threshold_kb);
	if (err.err)
		return err;
	pthread_mutex_lock(&shim.lock);
	current()->flag[CUF_PARAM_USE_POLL_MODE] = poll;
	if (!atomic_load(&shim.open))
		flag_set[CUF_PARAM_USE_POLL_MODE] = true;
	return end(shim_ok());
}

struct cuf_error cuFileDriverSetMaxDirectIOSize(size_t kb)
{
	if (!kb || kb % 4)
		return shim_err(CUF_INVALID_VALUE);
	return set_any_time(CUF_MAX_DIRECT_IO_KB, kb);
}

struct cuf_error cuFileDriverSetMaxCacheSize(size_t kb)
{
	if (!kb)
		return shim_err(CUF_INVALID_VALUE);
	return set_any_time(CUF_MAX_DEVICE_CACHE_KB, kb);
}

struct cuf_error cuFileDriverSetMaxPinnedMemSize(size_t kb)
{
	if (!kb)
		return shim_err(CUF_INVALID_VALUE);
	return set_any_time(CUF_MAX_PINNED_KB, kb);
}

static unsigned narrow(size_t kb)
{
	return kb > UINT32_MAX ? UINT32_MAX : (unsigned)kb;
}

/* No version of a kernel module: there is none in it. The status bits name storage
 * that the library itself would move peer to peer; no path of ours is by kind. */
struct cuf_error cuFileDriverGetProperties(struct cuf_props *props)
{
	const struct shim_config *c;

	if (!props)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	c = current();
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
		.max_device_cache_size = narrow(c->size[CUF_MAX_DEVICE_CACHE_KB]),
		.per_buffer_cache_size = narrow(c->size[CUF_PER_BUFFER_CACHE_KB]),
		.max_device_pinned_mem_size = narrow(c->size[CUF_MAX_PINNED_KB]),
		.max_batch_io_size = narrow(c->size[CUF_IO_BATCHSIZE]),
		.max_batch_io_timeout_msecs = narrow(c->size[CUF_BATCH_TIMEOUT_MS]),
	};
	return end(shim_ok());
}
