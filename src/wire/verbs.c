/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements verbs.h: loads libibverbs and librdmacm. A library stays loaded until the process
 * ends. This file must not open a device: the transports do that.
 */
#include "wire/verbs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define IBV_NAME "libibverbs.so.1"
#define CM_NAME "librdmacm.so.1"
#define CM_DEVICE "/dev/infiniband/rdma_cm"

static struct pst_verbs verbs;
/* why the libraries could not be loaded; code 0 if they are loaded */
static struct pst_err load_err;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Stores the address of one symbol of the library in `member`. memcpy is possible, because POSIX
 * guarantees that a function pointer has the size of an object pointer. */
static int symbol_load(void *lib, const char *file, const char *name, void *member, bool needed)
{
	void *symbol = dlsym(lib, name);

	memcpy(member, &symbol, sizeof(symbol));
	if (!symbol && needed)
		return pst_fail(&load_err, PENSTOCK_WHY_UNSUPPORTED,
				"%s has no %s: install rdma-core 25 or later", file, name);
	return 0;
}

static void *library_load(const char *file)
{
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		pst_fail(&load_err, PENSTOCK_WHY_NO_DRIVER,
			 "%s is missing: install librdmacm1 and ibverbs-providers", file);
	return lib;
}

static void verbs_load(void)
{
	void *ibv = library_load(IBV_NAME), *cm = ibv ? library_load(CM_NAME) : NULL;
	int ret = 0;

	if (!cm)
		return;
#define NEEDED_IBV(member, symbol) \
	if (!ret)                  \
		ret = symbol_load(ibv, IBV_NAME, #symbol, &verbs.member, true);
#define WANTED_IBV(member, symbol) \
	if (!ret)                  \
		ret = symbol_load(ibv, IBV_NAME, #symbol, &verbs.member, false);
#define NEEDED_CM(member, symbol) \
	if (!ret)                 \
		ret = symbol_load(cm, CM_NAME, #symbol, &verbs.member, true);
	PST_VERBS_IBV(NEEDED_IBV)
	PST_VERBS_OPTIONAL(WANTED_IBV)
	PST_VERBS_CM(NEEDED_CM)
#undef NEEDED_IBV
#undef WANTED_IBV
#undef NEEDED_CM
}

const struct pst_verbs *pst_verbs_get(struct pst_err *err)
{
	pthread_once(&once, verbs_load);
	if (load_err.code) {
		*err = load_err;
		return NULL;
	}
	/* librdmacm writes to stderr if it cannot open the device, so this code checks that first.
	 * A failure is not stored, because the kernel module may be loaded later. */
	if (access(CM_DEVICE, R_OK | W_OK)) {
		pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
			 CM_DEVICE ": %m: rc1 needs an RDMA network card, the module rdma_ucm, and "
				   "access to this file");
		return NULL;
	}
	return &verbs;
}

int pst_verbs_channel(const struct pst_verbs *v, struct rdma_event_channel **out,
		      struct pst_err *err)
{
	struct rdma_event_channel *channel = v->create_event_channel();

	if (!channel)
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "rdma_create_event_channel: %m");
	if (fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK)) {
		v->destroy_event_channel(channel);
		return pst_fail_errno(err, errno, PENSTOCK_WHY_IO_ERROR, "fcntl: %m");
	}
	*out = channel;
	return 0;
}
