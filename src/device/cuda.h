/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of device cuda share: cuda.c (opening, memory), cuda_copy.c
 * (copiers), cuda_peer.c (between devices), cuda_stream.c (stream order), cuda_ipc.c
 * (memory between processes).
 */
#ifndef PST_DEVICE_CUDA_H
#define PST_DEVICE_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/ops.h"
#include "device/cuda_api.h"

#define PST_CUDA_IMPORTS_MAX 256
/* CU_DEVICE_ATTRIBUTE_MAX_PITCH: the driver refuses rows that lie further apart. */
#define PST_CUDA_PITCH_MAX 2147483647u

struct pst_cuda_device {
	const struct pst_cuda *api;
	int ordinal;
	unsigned char uuid[16];
	pthread_mutex_t lock;	   /* of what is made once and of the table of imports */
	pthread_mutex_t peer_lock; /* one copy between devices at a time; never inside lock */
	_Atomic(struct pst_cu_ctx *) ctx; /* the primary one, once retained */
	pst_cu_ptr scratch;		  /* cuda_stream.c's, 0 until needed */
	_Atomic unsigned scratch_turn;
	/* For copies between devices, under peer_lock; NULL until needed. */
	struct pst_cu_stream *peer;
	struct pst_cu_event *peer_done;
	unsigned long long peers_open; /* bit i: access to ordinal i was asked for */
	struct {
		pst_cu_ptr base, ptr; /* as opened, as given out; ptr 0: free */
	} imports[PST_CUDA_IMPORTS_MAX];
};

int pst_cuda_fail(struct pst_err *err, enum pst_cu_result rc, const char *what);
/* What leave puts back on this thread. */
struct pst_cuda_scope {
	bool pushed;
	enum pst_cu_capture_mode mode;
};
/* Makes `ctx` current, cheap when it is already. After an error another context is
 * current, and nothing may be asked of the driver; leave is called all the same.
 *
 * Between the two a capture of the application goes on whatever we call: the mode in
 * which every thread begins has the driver refuse an event query, a registration, an
 * allocation while any thread captures a graph, and spoils that capture. Ours touch no
 * stream that captures, so the thread is in relaxed mode meanwhile (13 ns). */
enum pst_cu_result pst_cuda_enter(const struct pst_cuda *api, struct pst_cu_ctx *ctx,
				  struct pst_cuda_scope *scope);
void pst_cuda_leave(const struct pst_cuda *api, struct pst_cuda_scope *scope);
/* The primary context, retained at the first call until the device closes. */
int pst_cuda_retain(struct pst_cuda_device *c, struct pst_cu_ctx **out, struct pst_err *err);
/* Retains and enters it; after an error there is nothing to leave. */
int pst_cuda_begin(struct pst_cuda_device *c, struct pst_cuda_scope *scope, struct pst_err *err);

/* cuda_copy.c */
int pst_cuda_copier_open(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			 struct pst_err *err);
void pst_cuda_copier_close(struct pst_copier *copier);
int pst_cuda_copy_in(struct pst_copier *copier, const struct pst_rect *rect);
int pst_cuda_copy_out(struct pst_copier *copier, const struct pst_rect *rect);
int pst_cuda_record(struct pst_copier *copier, uint64_t *ticket);
int pst_cuda_query(struct pst_copier *copier, uint64_t ticket);
int pst_cuda_wait(struct pst_copier *copier, uint64_t ticket);
int pst_cuda_alive(struct pst_copier *copier);
int pst_cuda_copy_peer(struct penstock_device *dst, struct penstock_device *src,
		       const struct pst_rect *rect, struct pst_err *err);

/* cuda_stream.c */
int pst_cuda_semaphores_alloc(struct penstock_device *dev, size_t count, uint64_t **out,
			      struct pst_err *err);
void pst_cuda_semaphores_free(struct penstock_device *dev, uint64_t *words);
int pst_cuda_stream_write(struct penstock_device *dev, void *stream, uint64_t *word, uint64_t value,
			  struct pst_err *err);
int pst_cuda_stream_wait(struct penstock_device *dev, void *stream, uint64_t *word, uint64_t value,
			 struct pst_err *err);

/* cuda_ipc.c */
int pst_cuda_export(struct penstock_device *dev, void *ptr, size_t len, struct penstock_export *out,
		    struct pst_err *err);
int pst_cuda_import(struct penstock_device *dev, const struct penstock_export *exported, void **out,
		    struct pst_err *err);
/* Whether this device has an import open that begins at `base`, which may lie on another. */
bool pst_cuda_imported(struct pst_cuda_device *c, pst_cu_ptr base);
/* 1: ptr was imported and is closed, 0: it was not, or -errno. The context is current. */
int pst_cuda_unimport(struct pst_cuda_device *c, void *ptr, struct pst_err *err);
/* Closes what is still imported; the context is current. */
void pst_cuda_unimport_all(struct pst_cuda_device *c);

#endif
