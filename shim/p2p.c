/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls for peer-to-peer that cuFile 1.16 to 1.19 added. They set flags for each kind of
 * storage, export the topology as a file, and return the size of a GPU's BAR. The flags are stored
 * and returned, but must never decide which path a transfer uses. All of these calls are slow.
 */
#include "p2p.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "state.h"

static int target_flags[CUF_TARGETS]; /* under shim.lock */

void shim_p2p_closed(void)
{
	shim.params_fixed = false;
	memset(target_flags, 0, sizeof(target_flags));
}

static bool is_target(int target)
{
	return target >= 0 && target < CUF_TARGETS && target != 10 && target != CUF_NVME_P2P;
}

/* In NVIDIA's library, the first call that sets or reads these flags also reads the
 * configuration. The program cannot set parameters after such a call. This library sets
 * params_fixed for the same effect. */
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
	shim.params_fixed = true;
	if (flags)
		target_flags[target] = flags;
	pthread_mutex_unlock(&shim.lock);
	return shim_ok();
}

struct cuf_error cuFileDriverGetP2PFlags(int target, int *flags)
{
	if (!is_target(target) || !flags)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	shim.params_fixed = true;
	*flags = target_flags[target];
	pthread_mutex_unlock(&shim.lock);
	return shim_ok();
}

/* Writes a file that starts with the same line as the file of NVIDIA's library. The following
 * lines are the topology as JSON, as this library sees it. */
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
		shim.params_fixed = false;
	memset(target_flags, 0, sizeof(target_flags));
	pthread_mutex_unlock(&shim.lock);
	return shim_err(ret < 0 ? CUF_INTERNAL_ERROR : CUF_SUCCESS);
}

/* Returns the size in bytes of the device's largest BAR, read from its `resource` file in sysfs. */
static size_t largest_bar(const char *bdf)
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
	pthread_mutex_lock(&shim.lock); /* held so that no other thread closes the device */
	code = shim_gpu_locked(gpu, &dev);
	if (!code && penstock_device_get_info(dev, &info) < 0)
		code = CUF_DEVICE_NOT_FOUND;
	pthread_mutex_unlock(&shim.lock);
	if (code)
		return shim_err(code);
	bytes = largest_bar(info.bdf);
	if (!bytes)
		return shim_err(CUF_INTERNAL_ERROR);
	*kb = bytes >> 10;
	return shim_ok();
}
