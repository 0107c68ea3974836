/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements ofi.h, and is the only file that calls libfabric. dlopen loads libfabric, so a program
 * that does not use transport ofi1 runs without it. Only the functions of the table `lib` below are
 * symbols of the library. All others are called through tables in libfabric's objects.
 *
 * The comments about providers describe libfabric 1.17. tests/unit/test_wire_ofi1.c proves them.
 */
#include "wire/ofi.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define LIBRARY "libfabric.so.1"
#define VERSION FI_VERSION(1, 17)
#define BATCH 16

_Static_assert(sizeof(((struct pst_ofi_op *)0)->space) >= sizeof(struct fi_context2),
	       "libfabric needs more space");

/* The functions that libfabric exports as symbols. library_load writes the table once; afterwards
 * it is read-only. */
static struct {
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		       const struct fi_info *hints, struct fi_info **out);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context);
	const char *(*strerror)(int code);
} lib;
static struct pst_err lib_err;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct pst_ofi {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep; /* endpoint; NULL while it is closed */
	/* registration of the server's memory; NULL if there is none */
	struct fid_mr *local;
	int fd;
};

struct pst_ofi_memory {
	struct fid_mr *mr;
};

/* The providers of libfabric that this file can use. The provider `shm` is excluded, because its
 * reads do not check the key. The provider `udp;ofi_rxd` is excluded, because a transfer with a
 * wrong key stops all later transfers. */
static const struct pst_ofi_provider known[] = {
	{"tcp", true, false},	  {"net", true, false},		  {"tcp;ofi_rxm", true, false},
	{"sockets", true, false}, {"verbs;ofi_rxm", false, true},
};

const struct pst_ofi_provider *pst_ofi_known(const char *provider)
{
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(provider, known[i].name))
			return &known[i];
	return NULL;
}

/* ---- the library ---- */

/* Looks up a function. POSIX guarantees that a function pointer has the size of an object
 * pointer. */
static bool symbol_load(void *handle, const char *name, void *member)
{
	void *symbol = dlsym(handle, name);

	memcpy(member, &symbol, sizeof(symbol));
	if (!symbol)
		pst_fail(&lib_err, PENSTOCK_WHY_UNSUPPORTED, LIBRARY " has no %s", name);
	return symbol;
}

static void library_load(void)
{
	void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	if (!handle)
		pst_fail(&lib_err, PENSTOCK_WHY_NO_DRIVER,
			 "ofi1 needs libfabric (on Debian and Ubuntu: apt-get install libfabric1): "
			 "%.120s",
			 dlerror());
	else if (symbol_load(handle, "fi_getinfo", &lib.getinfo) &&
		 symbol_load(handle, "fi_freeinfo", &lib.freeinfo) &&
		 symbol_load(handle, "fi_dupinfo", &lib.dupinfo) &&
		 symbol_load(handle, "fi_fabric", &lib.fabric))
		symbol_load(handle, "fi_strerror", &lib.strerror);
}

int pst_ofi_load(struct pst_err *err)
{
	pthread_once(&once, library_load);
	if (lib_err.code)
		*err = lib_err;
	return lib_err.code;
}

/* Converts an error code of libfabric to an errno. If the other side has closed a connection, or
 * the provider has closed it after a wrong key, the code depends on the provider. */
static int code_errno(int code)
{
	switch (code) {
	case FI_ECANCELED:
	case FI_ENOTCONN:
	case FI_ECONNRESET:
	case FI_ECONNABORTED:
	case FI_ESHUTDOWN:
		return EPIPE;
	case FI_ENOKEY:
		return EACCES;
	default:
		return code > 0 && code < FI_ERRNO_OFFSET ? code : EIO;
	}
}

static int ofi_fail(ssize_t ret, const char *what, struct pst_err *err)
{
	int code = (int)-ret;

	return pst_fail_errno(err, code_errno(code), pst_why_from_errno(code_errno(code)),
			      "libfabric: %s: %s", what, lib.strerror(code));
}

/* ---- opening ---- */

/* Returns the properties that libfabric must provide for an endpoint, or NULL if memory runs
 * out. */
static struct fi_info *hints_alloc(const struct pst_ofi_place *place)
{
	struct fi_info *h = lib.dupinfo(NULL);

	if (!h)
		return NULL;
	h->fabric_attr->prov_name = strdup(place->provider);
	if (!h->fabric_attr->prov_name) {
		lib.freeinfo(h);
		return NULL;
	}
	h->caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->addr_format = place->v6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	/* Promises that no two threads call libfabric for one object at the same time. */
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	/* Forbids the provider to move bytes on its own threads. A client then stops all transfers
	 * by not calling pst_ofi_progress. */
	h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	/* A write counts as complete only when the bytes are in the other host's memory. */
	h->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
	return h;
}

/* Finds the provider whose name is exactly place->provider. libfabric also offers layered
 * providers, whose names contain this name as a part; these do not match. */
static int info_find(const struct pst_ofi_place *place, struct fi_info **out, struct pst_err *err)
{
	struct fi_info *hints = hints_alloc(place), *list = NULL, *at;
	int ret;

	if (!hints)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for libfabric");
	ret = lib.getinfo(VERSION, place->address, NULL, FI_SOURCE, hints, &list);
	lib.freeinfo(hints);
	if (ret && ret != -FI_ENODATA)
		return ofi_fail(ret, place->provider, err);
	for (at = ret ? NULL : list; at; at = at->next)
		if (!strcasecmp(at->fabric_attr->prov_name, place->provider))
			break;
	*out = at ? lib.dupinfo(at) : NULL;
	if (!ret)
		lib.freeinfo(list);
	if (at && !*out)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for libfabric");
	return at ? 0
		  : pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
			     "libfabric has no provider %s with one-sided transfers at %s",
			     place->provider, place->address);
}

/* Opens the completion queue, if possible one with a descriptor that poll(2) can wait for. */
static int queue_open(struct pst_ofi *o)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
	int ret = fi_cq_open(o->domain, &attr, &o->cq, NULL);

	if (!ret) {
		if (fi_control(&o->cq->fid, FI_GETWAIT, &o->fd))
			o->fd = -1;
		return 0;
	}
	attr.wait_obj = FI_WAIT_NONE;
	ret = fi_cq_open(o->domain, &attr, &o->cq, NULL);
	if (ret)
		o->cq = NULL;
	return ret;
}

int pst_ofi_open(const struct pst_ofi_place *place, struct pst_ofi **out, struct pst_err *err)
{
	struct fi_av_attr attr = {.type = FI_AV_UNSPEC};
	struct pst_ofi *o;
	int ret = pst_ofi_load(err);

	if (ret)
		return ret;
	o = calloc(1, sizeof(*o));
	if (!o)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for libfabric");
	o->fd = -1;
	ret = info_find(place, &o->info, err);
	if (!ret) {
		ret = lib.fabric(o->info->fabric_attr, &o->fabric, NULL);
		if (!ret)
			ret = fi_domain(o->fabric, o->info, &o->domain, NULL);
		if (!ret)
			ret = fi_av_open(o->domain, &attr, &o->av, NULL);
		if (ret)
			ret = ofi_fail(ret, place->provider, err);
	}
	if (ret)
		pst_ofi_close(o);
	else
		*out = o;
	return ret;
}

void pst_ofi_close(struct pst_ofi *o)
{
	if (!o)
		return;
	/* Errors of fi_close are ignored: the object then stays open until the process ends. */
	if (o->ep)
		fi_close(&o->ep->fid);
	if (o->local)
		fi_close(&o->local->fid);
	if (o->cq)
		fi_close(&o->cq->fid);
	if (o->av)
		fi_close(&o->av->fid);
	if (o->domain)
		fi_close(&o->domain->fid);
	if (o->fabric)
		fi_close(&o->fabric->fid);
	if (o->info)
		lib.freeinfo(o->info);
	free(o);
}

/* Each endpoint gets its own queue: the provider tcp;ofi_rxm crashes if a queue is used after one
 * of its endpoints was closed. */
int pst_ofi_endpoint_open(struct pst_ofi *o, struct pst_err *err)
{
	int ret = queue_open(o);

	if (!ret)
		ret = fi_endpoint(o->domain, o->info, &o->ep, NULL);
	if (ret)
		o->ep = NULL;
	if (!ret)
		ret = fi_ep_bind(o->ep, &o->av->fid, 0);
	if (!ret)
		ret = fi_ep_bind(o->ep, &o->cq->fid, FI_TRANSMIT | FI_RECV);
	if (!ret)
		ret = fi_enable(o->ep);
	if (!ret)
		return 0;
	pst_ofi_endpoint_close(o, &(struct pst_err){0});
	return ofi_fail(ret, "endpoint", err);
}

int pst_ofi_endpoint_close(struct pst_ofi *o, struct pst_err *err)
{
	int ret = o->ep ? fi_close(&o->ep->fid) : 0;

	if (ret)
		return ofi_fail(ret, "close", err);
	o->ep = NULL;
	/* An error of this fi_close is ignored: the queue then stays allocated. */
	if (o->cq)
		fi_close(&o->cq->fid);
	o->cq = NULL;
	o->fd = -1;
	return 0;
}

bool pst_ofi_has_endpoint(const struct pst_ofi *o)
{
	return o->ep != NULL;
}

/* ---- progress ---- */

int pst_ofi_fd(const struct pst_ofi *o)
{
	return o->fd;
}

int pst_ofi_progress(struct pst_ofi *o, struct pst_err *err)
{
	struct fi_cq_entry entries[BATCH];
	struct fi_cq_err_entry failed = {.err = 0};
	ssize_t n = fi_cq_read(o->cq, entries, BATCH);

	for (ssize_t i = 0; i < n; i++)
		((struct pst_ofi_op *)entries[i].op_context)->done = true;
	if (n >= 0 || n == -FI_EAGAIN)
		return 0;
	if (n == -FI_EAVAIL && fi_cq_readerr(o->cq, &failed, 0) > 0)
		n = -failed.err;
	return ofi_fail(n, "transfer", err);
}

bool pst_ofi_may_wait(struct pst_ofi *o)
{
	struct fid *fid = &o->cq->fid;

	return o->fd >= 0 && !fi_trywait(o->fabric, &fid, 1);
}

/* ---- clients ---- */

int pst_ofi_name(struct pst_ofi *o, unsigned char out[PST_TOKEN_NAME_MAX], size_t *len,
		 struct pst_err *err)
{
	int ret;

	*len = PST_TOKEN_NAME_MAX;
	ret = fi_getname(&o->ep->fid, out, len);
	return ret ? ofi_fail(ret, "name", err) : 0;
}

int pst_ofi_register(struct pst_ofi *o, void *ptr, size_t len, enum penstock_op op, uint64_t key,
		     struct pst_ofi_memory **out, uint64_t *base, uint64_t *used,
		     struct pst_err *err)
{
	const struct fi_domain_attr *attr = o->info->domain_attr;
	struct pst_ofi_memory *m = calloc(1, sizeof(*m));
	int ret;

	if (!m)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	if (attr->mr_key_size < sizeof(key))
		key &= (UINT64_C(1) << 8 * attr->mr_key_size) - 1;
	ret = fi_mr_reg(o->domain, ptr, len, op == PENSTOCK_READ ? FI_REMOTE_WRITE : FI_REMOTE_READ,
			0, attr->mr_mode & FI_MR_PROV_KEY ? 0 : key, 0, &m->mr, NULL);
	if (!ret && fi_mr_key(m->mr) == FI_KEY_NOTAVAIL) {
		fi_close(&m->mr->fid);
		ret = -FI_ENOKEY;
	}
	if (ret) {
		free(m);
		return ofi_fail(ret, "registration", err);
	}
	*base = attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)ptr : 0;
	*used = fi_mr_key(m->mr);
	*out = m;
	return 0;
}

int pst_ofi_unregister(struct pst_ofi_memory *memory, struct pst_err *err)
{
	int ret = fi_close(&memory->mr->fid);

	free(memory);
	return ret ? ofi_fail(ret, "end of a registration", err) : 0;
}

/* ---- servers ---- */

int pst_ofi_local(struct pst_ofi *o, void *ptr, size_t len, struct pst_err *err)
{
	int ret;

	if (!(o->info->domain_attr->mr_mode & FI_MR_LOCAL))
		return 0;
	ret = fi_mr_reg(o->domain, ptr, len, FI_READ | FI_WRITE, 0, 1, 0, &o->local, NULL);
	return ret ? ofi_fail(ret, "registration", err) : 1;
}

int pst_ofi_insert(struct pst_ofi *o, const unsigned char *name, uint64_t *out, struct pst_err *err)
{
	fi_addr_t addr;
	int ret = fi_av_insert(o->av, name, 1, &addr, 0, NULL);

	if (ret != 1)
		return ofi_fail(ret < 0 ? ret : -FI_EINVAL, "address", err);
	*out = addr;
	return 0;
}

int pst_ofi_start(struct pst_ofi *o, const struct pst_ofi_move *move, struct pst_ofi_op *op,
		  struct pst_err *err)
{
	struct iovec iov = {move->mem, move->len};
	struct fi_rma_iov there = {move->base, move->len, move->key};
	void *desc = o->local ? fi_mr_desc(o->local) : NULL;
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .desc = &desc,
				 .iov_count = 1,
				 .addr = move->to,
				 .rma_iov = &there,
				 .rma_iov_count = 1,
				 .context = op};
	ssize_t ret;

	op->done = false;
	ret = move->op == PENSTOCK_READ
		      ? fi_writemsg(o->ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE)
		      : fi_readmsg(o->ep, &msg, FI_COMPLETION);
	if (ret == -FI_EAGAIN)
		return -EAGAIN;
	return ret ? ofi_fail(ret, "transfer", err) : 0;
}
