/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads NVIDIA's libcufile by an absolute path, with RTLD_DEEPBIND, so that it uses its own symbols
 * first. libcufile's functions call each other by name. If Penstock's drop-in is preloaded, these
 * names would otherwise lead to the drop-in, which would call libcufile again, in an endless loop.
 * For the same reason a library is refused if it has the symbol DROPIN_MARK, which marks the
 * drop-in.
 */
#include "path/vendor_lib.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DROPIN_MARK "penstock_cufile_marker"
#define NVIDIA_FS_PROC "/proc/driver/nvidia-fs"
/* Size of the buffer for libcufile's statistics. The buffer is larger than the statistics of
 * any version, because the call that fills it has no parameter for its size. */
#define STATS_BYTES 65536

static struct pst_vendor vendor;
static struct pst_err vendor_err;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const places[] = {
	"/usr/local/cuda/lib64/libcufile.so.0",
	"/usr/lib/x86_64-linux-gnu/libcufile.so.0",
	"/usr/lib/aarch64-linux-gnu/libcufile.so.0",
	"/usr/lib64/libcufile.so.0",
};

const char *pst_vendor_name(int code)
{
	switch (code) {
#define NAME(name, number) \
	case number:       \
		return #name;
		CUF_ERROR_LIST_OLD(NAME)
#undef NAME
	default:
		return "a code that is not listed";
	}
}

static const char *library_find(struct pst_err *err)
{
	const char *named = getenv("PENSTOCK_LIBCUFILE");

	if (named && named[0] == '/')
		return named;
	if (named && *named) {
		pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			 "PENSTOCK_LIBCUFILE is '%.100s': it takes an absolute path", named);
		return NULL;
	}
	if (named || access(NVIDIA_FS_PROC, F_OK)) {
		pst_fail(err, PENSTOCK_WHY_NO_DRIVER,
			 "NVIDIA's libcufile is tried where the module nvidia-fs is loaded, or "
			 "where PENSTOCK_LIBCUFILE names it");
		return NULL;
	}
	for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if (!access(places[i], R_OK))
			return places[i];
	pst_fail(err, PENSTOCK_WHY_NO_DRIVER,
		 "nvidia-fs is loaded but there is no libcufile.so.0 in the usual places: name it "
		 "by PENSTOCK_LIBCUFILE");
	return NULL;
}

/* Looks up one symbol and stores its address in `member`. POSIX guarantees that a function
 * pointer has the size of an object pointer. */
static int symbol_load(void *lib, const char *file, const char *name, void *member, bool needed)
{
	void *symbol = dlsym(lib, name);

	memcpy(member, &symbol, sizeof(symbol));
	if (!symbol && needed)
		return pst_fail(&vendor_err, PENSTOCK_WHY_UNSUPPORTED, "%.120s has no %s", file,
				name);
	return 0;
}

static int symbols_load(void *lib, const char *file)
{
	int ret = 0;

#define NEEDED(type, name, params) \
	if (!ret)                  \
		ret = symbol_load(lib, file, #name, &vendor.name, true);
#define WANTED(type, name, params) \
	if (!ret)                  \
		ret = symbol_load(lib, file, #name, &vendor.name, false);
	PST_VENDOR_FUNCS(NEEDED)
	PST_VENDOR_OPTIONAL(WANTED)
#undef NEEDED
#undef WANTED
	return ret;
}

/* Calls cuFileDriverOpen. Compat mode can be turned off only before this call. After it,
 * cuFile's driver properties show whether compat mode is off. */
static int library_open(const char *file)
{
	struct cuf_props props = {.fflags = 0};
	struct cuf_error e;

	if (vendor.cuFileGetVersion)
		vendor.cuFileGetVersion(&vendor.version);
	if (vendor.cuFileSetParameterBool)
		vendor.cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, false);
	if (vendor.cuFileSetStatsLevel)
		vendor.cuFileSetStatsLevel(3);
	e = vendor.cuFileDriverOpen();
	if (e.err)
		return pst_fail(&vendor_err, PENSTOCK_WHY_NO_DRIVER,
				"%.100s: cuFileDriverOpen: %s (%d)", file, pst_vendor_name(e.err),
				e.err);
	if (vendor.cuFileStatsStart)
		vendor.cuFileStatsStart();
	e = vendor.cuFileDriverGetProperties(&props);
	vendor.compat = e.err || (props.nvfs.dcontrolflags & 1u << CUF_ALLOW_COMPAT_MODE);
	return 0;
}

static void library_load(void)
{
	const char *file = library_find(&vendor_err), *text;
	void *lib;

	if (!file)
		return;
	lib = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	if (!lib) {
		text = dlerror();
		pst_fail(&vendor_err, PENSTOCK_WHY_NO_DRIVER, "%.200s", text ? text : file);
		return;
	}
	if (dlsym(lib, DROPIN_MARK))
		pst_fail(&vendor_err, PENSTOCK_WHY_BAD_KIND,
			 "%.120s is Penstock's own drop-in, not NVIDIA's library", file);
	else if (!symbols_load(lib, file) && !library_open(file))
		return;
	dlclose(lib);
}

const struct pst_vendor *pst_vendor_get(struct pst_err *err)
{
	pthread_once(&once, library_load);
	if (!vendor_err.code)
		return &vendor;
	*err = vendor_err;
	return NULL;
}

int pst_vendor_count(const struct pst_vendor *lib, struct pst_vendor_counts *out)
{
	size_t at = sizeof(struct cuf_stats_l1) + sizeof(struct cuf_stats_hist);
	struct pst_vendor_counts sum = {0};
	struct cuf_stats_gpus gpus;
	char *stats;
	struct cuf_error e;

	if (!lib->cuFileGetStatsL3)
		return -EOPNOTSUPP;
	if (lib->version >= 1190)
		at += sizeof(struct cuf_stats_v);
	stats = calloc(1, STATS_BYTES);
	if (!stats)
		return -ENOMEM;
	e = lib->cuFileGetStatsL3(stats);
	memcpy(&gpus, stats + at, sizeof(gpus));
	free(stats);
	if (e.err || gpus.num_gpus > CUF_GPUS)
		return -EOPNOTSUPP;
	for (unsigned i = 0; i < gpus.num_gpus; i++) {
		sum.direct += gpus.gpu[i].n_p2p_reads + gpus.gpu[i].n_nvfs_reads;
		sum.posix += gpus.gpu[i].n_posix_reads;
		sum.bytes += gpus.gpu[i].read_bytes;
	}
	*out = sum;
	return 0;
}
