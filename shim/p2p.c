/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What 1.16 to 1.19 added around peer-to-peer: flags for each kind of storage, the
 * topology in a file, and the size of a GPU's window on the bus. The flags are kept
 * and given back; which path is taken follows from what the core proves, never from
 * a flag. Slow calls all.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

static int flags_of[CUF_TARGETS]; /* under shim.lock, as all here */
static bool loaded;

/* Touching the flags reads the configuration, so parameters are fixed from then on:
 * observed of the original, and said here so that callers see one order of things. */
bool shim_p2p_loaded(void)
{
	return loaded;
}

void shim_p2p_opened(void)
{
	loaded = true;
}

void shim_p2p_closed(void)
{
	loaded = false;
	memset(flags_of, 0, sizeof(flags_of));
}

static bool is_target(int target)
{
	return target >= 0 && target < CUF_TARGETS && target != 10 && target != CUF_NVME_P2P;
}

struct cuf_error cuFileDriverSetP2PFlags(int target, int flags)
{
	if (!is_target(target))
		return shim_err(CUF_INVALID_VALUE);
#if defined(__aarch64__)
	if (flags && flags != 1 << CUF_P2P_C2C)
#else
	if (flags && flags != 1 << CUF_P2P_P2PDMA)
#endif
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	loaded = true;
	if (flags)
		flags_of[target] = flags;
	pthread_mutex_unlock(&shim.lock);
	return shim_ok();
}

struct cuf_error cuFileDriverGetP2PFlags(int target, int *flags)
{
	if (!is_target(target) || !flags)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	loaded = true;
	*flags = flags_of[target];
	pthread_mutex_unlock(&shim.lock);
	return shim_ok();
}

/* The header line that the original writes, then our own topology as JSON. */
struct cuf_error cuFileExportPCIeTopology(const char *name)
{
	static const char head[] = "// Topology file for cuFile.\n";
	int fd, ret;

	if (!name || !*name)
		return shim_err(CUF_INVALID_VALUE);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return shim_err(CUF_INVALID_VALUE);
	ret = write(fd, head, sizeof(head) - 1) == (ssize_t)sizeof(head) - 1 ? 0 : -EIO;
	if (!ret)
		ret = penstock_topo(NULL, 1, fd);
	if (close(fd) && !ret)
		ret = -errno;
	pthread_mutex_lock(&shim.lock);
	if (!atomic_load(&shim.open))
		loaded = false;
	memset(flags_of, 0, sizeof(flags_of));
	pthread_mutex_unlock(&shim.lock);
	return shim_err(ret < 0 ? CUF_INTERNAL_ERROR : CUF_SUCCESS);
}

/* The largest memory window of the device, from sysfs' list of its resources. */
static size_t largest_window(const char *bdf)
{
	unsigned long long start, end, flags, best = 0;
	char path[96], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.32s/resource", bdf);
	f = fopen(path, "re");
	if (!f)
		return 0;
	for (int i = 0; i < 6 && fgets(line, sizeof(line), f); i++)
		if (sscanf(line, "%llx %llx %llx", &start, &end, &flags) == 3 && end > start &&
		    end - start + 1 > best)
			best = end - start + 1;
	fclose(f);
	return (size_t)best;
}

struct cuf_error cuFileGetBARSizeInKB(int gpu, size_t *kb)
{
	struct penstock_device_info info = {.size = sizeof(info)};
	struct penstock_device *dev;
	size_t bytes;
	int code;

	if (!kb || gpu < 0 || gpu >= SHIM_GPUS_MAX)
		return shim_err(CUF_INVALID_VALUE);
	if (!atomic_load(&shim.open))
		return shim_err(CUF_DRIVER_NOT_INITIALIZED);
	if (gpu >= shim_cuda_count())
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock); /* keeps it open */
	code = shim_gpu_locked(gpu, &dev);
	if (!code && penstock_device_get_info(dev, &info) < 0)
		code = CUF_DEVICE_NOT_FOUND;
	pthread_mutex_unlock(&shim.lock);
	if (code)
		return shim_err(code);
	bytes = largest_window(info.bdf);
	if (!bytes)
		return shim_err(CUF_INTERNAL_ERROR);
	*kb = bytes >> 10;
	return shim_ok();
}
