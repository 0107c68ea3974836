/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device peermem: memory of a PCI device whose driver publishes it for peer-to-peer DMA, for
 * example the controller memory buffer of an NVMe drive. The memory is mapped from
 * /sys/bus/pci/devices/BDF/p2pmem/allocate. A drive under the same PCIe switch can write it
 * without host memory in between. The CPU can access it too, but slowly. Each allocation is one
 * mapping, because the kernel hands out whole pages and gets them back at munmap.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cpu_copy.h"
#include "device/peermem.h"

#define ALLOCS_MAX 256

struct peermem_device {
	int fd;
	pthread_mutex_t lock; /* guards `allocs`; held during mmap and munmap */
	struct {
		char *base;
		size_t len;
	} allocs[ALLOCS_MAX];
};

static bool peermem_match(const char *name)
{
	return !strncmp(name, "peermem:", 8);
}

static uint64_t sysfs_read_number(const char *dir, const char *name)
{
	char path[192], text[32] = "";
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 ? strtoull(text, NULL, 0) : 0;
}

/* Checks that a name has the form dddd:bb:dd.f, so that no name (such as "../x") leads out of
 * /sys/bus/pci/devices. */
static bool text_is_bdf(const char *text)
{
	static const char shape[] = "xxxx:xx:xx.x";

	for (unsigned i = 0; i < sizeof(shape); i++) {
		bool hex = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');

		if (shape[i] == 'x' ? !hex : text[i] != shape[i])
			return false;
	}
	return true;
}

static int peermem_open(struct penstock_device *dev, struct pst_err *err)
{
	const char *bdf = dev->name + 8;
	const char *root = dev->opts.sys_root ? dev->opts.sys_root : "";
	struct peermem_device *mem;
	char dir[160], path[192];

	if (!text_is_bdf(bdf))
		return pst_fail_errno(err, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT,
				      "'%s': want peermem:DDDD:BB:DD.F, lower case", dev->name);
	snprintf(dir, sizeof(dir), "%s/sys/bus/pci/devices/%s", root, bdf);
	if (access(dir, F_OK))
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "there is no PCI device %s", bdf);
	snprintf(dir, sizeof(dir), "%s/sys/bus/pci/devices/%s/p2pmem", root, bdf);
	snprintf(path, sizeof(path), "%s/allocate", dir);
	if (access(dir, F_OK))
		return pst_fail(err, PENSTOCK_WHY_NO_P2PDMA,
				"%s publishes no peer-to-peer memory (a kernel without "
				"CONFIG_PCI_P2PDMA, or a device without such memory)",
				bdf);
	mem = calloc(1, sizeof(*mem));
	if (!mem)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	mem->fd = open(path, O_RDWR | O_CLOEXEC);
	if (mem->fd < 0) {
		free(mem);
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "%s: %m (its group and mode decide who may)", path);
	}
	pthread_mutex_init(&mem->lock, NULL);
	dev->priv = mem;
	dev->facts.cpu_addressable = true;
	dev->facts.peer_pages = true;
	dev->facts.mem_align = 512;
	dev->facts.lanes_best = 2;
	snprintf(dev->facts.bdf, sizeof(dev->facts.bdf), "%s", bdf);
	pst_fail(&dev->facts.why_mapped, PENSTOCK_WHY_UNSUPPORTED,
		 "%s has no copy engine of its own", dev->name);
	snprintf(dev->facts.text, sizeof(dev->facts.text), "peer memory of %s, %llu MiB", bdf,
		 (unsigned long long)(sysfs_read_number(dir, "size") >> 20));
	return 0;
}

static void peermem_close(struct penstock_device *dev)
{
	struct peermem_device *mem = dev->priv;

	for (unsigned i = 0; i < ALLOCS_MAX; i++)
		if (mem->allocs[i].base)
			munmap(mem->allocs[i].base, mem->allocs[i].len);
	close(mem->fd);
	pthread_mutex_destroy(&mem->lock);
	free(mem);
}

static int peermem_alloc(struct penstock_device *dev, size_t len, void **out, struct pst_err *err)
{
	struct peermem_device *mem = dev->priv;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (len + page - 1) / page * page;
	unsigned i = 0;
	char *base = MAP_FAILED;
	int code = ENOMEM;

	pthread_mutex_lock(&mem->lock);
	while (i < ALLOCS_MAX && mem->allocs[i].base)
		i++;
	if (i < ALLOCS_MAX) {
		base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd, 0);
		code = errno;
	}
	if (base != MAP_FAILED) {
		mem->allocs[i].base = base;
		mem->allocs[i].len = room;
	}
	pthread_mutex_unlock(&mem->lock);
	if (base == MAP_FAILED)
		return pst_fail_errno(err, code, PENSTOCK_WHY_NO_MEMORY,
				      "%s has no %zu KiB left: %m", dev->name, room >> 10);
	*out = base;
	return 0;
}

static int alloc_find(struct peermem_device *mem, const void *ptr)
{
	for (unsigned i = 0; i < ALLOCS_MAX; i++)
		if (mem->allocs[i].base && (const char *)ptr >= mem->allocs[i].base &&
		    (const char *)ptr < mem->allocs[i].base + mem->allocs[i].len)
			return (int)i;
	return -1;
}

static int peermem_free(struct penstock_device *dev, void *ptr, struct pst_err *err)
{
	struct peermem_device *mem = dev->priv;
	int i;

	pthread_mutex_lock(&mem->lock);
	i = alloc_find(mem, ptr);
	if (i >= 0 && mem->allocs[i].base != ptr)
		i = -1; /* `ptr` is inside an allocation, so it cannot be freed */
	if (i >= 0) {
		munmap(ptr, mem->allocs[i].len);
		mem->allocs[i].base = NULL;
	}
	pthread_mutex_unlock(&mem->lock);
	return i >= 0 ? 0
		      : pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%p is not memory of %s", ptr,
				 dev->name);
}

static int peermem_classify(struct penstock_device *dev, const void *ptr, struct pst_memory *out)
{
	struct peermem_device *mem = dev->priv;
	int i;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&mem->lock);
	i = alloc_find(mem, ptr);
	if (i >= 0) {
		out->base = (uintptr_t)mem->allocs[i].base;
		out->len = mem->allocs[i].len;
	}
	pthread_mutex_unlock(&mem->lock);
	return i >= 0;
}

const struct pst_device_ops pst_device_peermem = {
	.name = "peermem",
	.match = peermem_match,
	.open = peermem_open,
	.close = peermem_close,
	.alloc = peermem_alloc,
	.free = peermem_free,
	.classify = peermem_classify,
	.copier_open = pst_cpu_copier_open,
	.copier_close = pst_cpu_copier_close,
	.copy_in = pst_cpu_copy,
	.copy_out = pst_cpu_copy,
	.record = pst_cpu_record,
	.query = pst_cpu_query,
	.wait = pst_cpu_wait,
};
