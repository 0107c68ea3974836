/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an upload, which object_upload.c, object_commit.c and object_abort.c share. No other
 * file may include this header.
 */
#ifndef PST_STORAGE_OBJECT_UPLOAD_STATE_H
#define PST_STORAGE_OBJECT_UPLOAD_STATE_H

#include <pthread.h>

#include "storage/object_upload.h"
#include "storage/object_window.h"

#define PARTS_MAX 10000u /* S3's limit */
/* Shortest length of a part in bytes. S3 demands at least 5 MiB, except for the last part. */
#define PST_OBJECT_PART_BYTES (8ull << 20)
#define UPLOAD_ID_MAX 1024
#define UPLOAD_QUERY_MAX (UPLOAD_ID_MAX * 3 + 64)

enum part_state { PART_FILLING, PART_SUMMING, PART_READY, PART_SENDING };

/* A range of a part that has been written, as offsets from the part's start. */
struct span {
	uint64_t first, end;
};

struct part {
	/* must be the first member; used while the part is sent */
	struct pst_object_call call;
	struct pst_object_upload *upload;
	unsigned number; /* number of the part, counted from 1 */
	enum part_state state;
	uint64_t off, len;
	char *mem;
	uint64_t mem_len;
	unsigned writers;   /* number of worker threads that are copying into `mem` */
	struct span *spans; /* written ranges, sorted; adjacent ranges are joined */
	unsigned span_count;
	uint64_t crc;
	char sum[17]; /* checksum of the part in base64 */
	char query[UPLOAD_QUERY_MAX];
	/* the server's access to the part's window while it fetches the part */
	struct pst_object_grant grant;
	/* whether the window was already offered, so that the next attempt has a body */
	bool offered;
};

/* A buffer that is also a window, memory that the server may read. */
struct upload_window {
	struct upload_window *next;
	struct pst_window *window;
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
	/* number of bytes in all buffers, including those of `spare` */
	uint64_t buffer_bytes;
	/* list of free buffers of part_bytes bytes each; each buffer begins with a pointer to the
	 * next */
	char *spare;
	struct pst_io *waiting, **waiting_end; /* writes that found no buffer */
	enum id_state id_state;
	char id[UPLOAD_ID_MAX]; /* ID of the multipart upload, as the server has sent it */
	bool no_sums;		/* whether the server refused checksums, so that none are sent */
	bool unsure;		/* an earlier request of the commit may have succeeded */
	char sum[17];		/* checksum of the object in base64, once a commit has begun */
	struct pst_object_call create;
	struct pst_err err; /* the first failure; its code is 0 if there is none */
	/* Windows through which the server can fetch the parts; NULL if there are none. */
	struct pst_object_windows *windows;
	struct upload_window *window_list; /* list of the buffers that are windows */
	/* whether the caller forbids HTTP bodies (rdma=require) */
	bool windows_only;
	/* whether a write was accepted whose bytes are reported as moving through windows */
	bool far;
	/* Numbers of parts that the server has fetched through windows (far), and of parts that
	 * were sent in an HTTP body although the upload has windows (near). A single PUT counts as
	 * one part. */
	unsigned parts_far, parts_near;
	struct pst_err why_near; /* why the first part counted in parts_near was sent in a body */
};

#endif
