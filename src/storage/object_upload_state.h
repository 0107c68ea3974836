/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an upload. object_upload.c and the other files that carry out uploads share it. No
 * other file may include this header.
 */
#ifndef PST_STORAGE_OBJECT_UPLOAD_STATE_H
#define PST_STORAGE_OBJECT_UPLOAD_STATE_H

#include <pthread.h>

#include "storage/object_upload.h"
#include "storage/object_window.h"
#include "storage/object_worker.h"

#define PARTS_MAX 10000u /* S3's limit */
/* Shortest length of a part in bytes. S3 demands at least 5 MiB, except for the last part. */
#define PST_OBJECT_PART_BYTES (8ull << 20)
#define SPANS_MAX 256 /* maximum number of separate written ranges of a part */
#define UPLOAD_ID_MAX 1024
#define UPLOAD_QUERY_MAX (UPLOAD_ID_MAX * 3 + 64)

enum part_state { PART_FILLING, PART_SUMMING, PART_READY, PART_SENDING };

#define UPLOAD_DEVICES_MAX 16

/* A range of a part that has been written, as offsets from the part's start. */
struct span {
	uint64_t first, end;
};

/* Bytes in host memory that belong into the window of a part, which is memory of a device. */
struct patches {
	char *bytes;	     /* as long as the part; NULL if there are no such bytes */
	struct span *ranges; /* where they are: sorted; adjacent ranges are joined */
	size_t count, room;  /* number of ranges, and for how many there is memory */
};

struct part {
	/* must be the first member; used while the part is sent */
	struct pst_object_call call;
	struct pst_object_upload *upload;
	unsigned number; /* number of the part, counted from 1 */
	enum part_state state;
	uint64_t off, len;
	/* The memory of the part: `mem` of mem_len bytes in host memory, or `window` in the memory
	 * of a device. The other one is NULL. */
	char *mem;
	uint64_t mem_len;
	struct pst_window *window;
	struct patches patches;
	unsigned writers;   /* number of worker threads that are copying into the memory */
	struct span *spans; /* written ranges, sorted; adjacent ranges are joined */
	unsigned span_count;
	bool has_crc;
	uint64_t crc;
	char sum[17]; /* checksum of the part in base64 */
	/* Work of the device's thread, while the state is PART_SUMMING. If `fetches` is true, it
	 * moves the part to host memory for the reason why_host. */
	struct pst_object_job job;
	bool fetches;
	struct pst_err why_host;
	char query[UPLOAD_QUERY_MAX];
	/* The server's access to the part's window while it fetches the part. For a window in the
	 * memory of a device, it is opened without the upload's lock, because that may call the
	 * device's driver. `granted`: it is open, and no request has offered it yet. */
	struct pst_object_grant grant;
	bool granted;
	/* whether the window was already offered, so that the next attempt has a body */
	bool offered;
};

/* A buffer that is also a window, memory that the server may read. */
struct upload_window {
	struct upload_window *next;
	struct pst_window *window;
	/* only for windows in the memory of devices: true if a part uses the window, or if the
	 * server may still read it for an earlier part */
	bool busy;
};

/* A device whose memory has windows of the upload. */
struct upload_device {
	struct penstock_device *dev;
	struct pst_copier *copier;
	bool copies; /* whether a thread uses the copier, which only one thread at a time may do */
};

/* The result of a part that the server has stored. Its struct part has been freed. */
struct sent {
	char *etag;
	uint64_t len, crc;
};

enum id_state { ID_NONE, ID_ASKED, ID_KNOWN };

struct pst_object_upload {
	const struct pst_object_place *place;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* length of the object that the caller has announced; 0 if unknown */
	uint64_t length;
	uint64_t part_bytes;
	bool must_be_new, ended;
	bool stopping; /* set by an abort: no further part is sent */
	uint64_t end;  /* offset after the last byte that was written */
	struct part *parts[PARTS_MAX];
	struct sent sent[PARTS_MAX];
	/* summing: number of parts whose checksum is being computed; ready_count: number of parts
	 * that are ready to be sent; sending: number of parts that are being sent */
	unsigned summing, ready_count, sending;
	/* number of threads that run the job of a part because the device has no thread */
	unsigned working;
	/* number of bytes in all buffers, including those of `spare` */
	uint64_t buffer_bytes;
	/* list of free buffers of part_bytes bytes each; each buffer begins with a pointer to the
	 * next */
	char *spare;
	struct pst_io *waiting, **waiting_end; /* writes that found no buffer */
	enum id_state id_state;
	char id[UPLOAD_ID_MAX]; /* ID of the multipart upload, as the server has sent it */
	bool unanswered;	/* whether the request of a part has ended without a response */
	bool no_sums;		/* whether the server refused checksums, so that none are sent */
	bool unsure;		/* an earlier request of the commit may have succeeded */
	char sum[17];		/* checksum of the object in base64, once a commit has begun */
	struct pst_object_call create;
	struct pst_err err; /* the first failure; its code is 0 if there is none */
	/* Sends parts that are ready, and continues drains that wait for memory. Called under the
	 * lock. */
	void (*pump)(struct pst_object_upload *up);
	/* Windows through which the server can fetch the parts; NULL if there are none. */
	struct pst_object_windows *windows;
	struct upload_window *window_list; /* list of the buffers that are windows */
	/* Windows in the memory of devices (object_part_window.c): the devices, the list of the
	 * windows, and the number of their bytes. device_moving is the number of parts that have
	 * such a window and are not filled any more. */
	struct upload_device devices[UPLOAD_DEVICES_MAX];
	unsigned device_count;
	struct upload_window *device_list;
	uint64_t device_bytes;
	bool device_full; /* no more windows can be opened */
	unsigned device_moving;
	struct pst_io *placing, **placing_end; /* drains that wait for a window */
	/* whether the caller forbids HTTP bodies (rdma=require) */
	bool windows_only;
	/* whether a write was accepted whose bytes are reported as moving through windows */
	bool far;
	/* Numbers of parts that the server has fetched through windows (far), and of parts that
	 * were sent in an HTTP body although the upload has windows (near). A single PUT counts as
	 * one part. */
	unsigned parts_far, parts_near;
	unsigned parts_device;	 /* those of parts_far whose window was memory of a device */
	struct pst_err why_near; /* why the first part counted in parts_near was sent in a body */
};

#endif
