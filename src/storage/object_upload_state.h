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
/* Length of a part. S3 wants at least 5 MiB, except for the last part. */
#define PST_OBJECT_PART_BYTES (8ull << 20)
#define UPLOAD_ID_MAX 1024
#define UPLOAD_QUERY_MAX (UPLOAD_ID_MAX * 3 + 64)

enum part_state { PART_FILLING, PART_SUMMING, PART_READY, PART_SENDING };

/* A written range of a part. */
struct span {
	uint64_t first, end;
};

struct part {
	struct pst_object_call call; /* the first member; used while the part is sent */
	struct pst_object_upload *upload;
	unsigned number; /* from 1 on */
	enum part_state state;
	uint64_t off, len;
	char *mem;
	uint64_t mem_len;
	unsigned writers;   /* lanes that copy into `mem` */
	struct span *spans; /* sorted, and not adjacent */
	unsigned span_count;
	uint64_t crc;
	char sum[17]; /* the checksum in base64 */
	char query[UPLOAD_QUERY_MAX];
	struct pst_object_grant grant; /* used while the part is sent through its window */
	bool offered;		       /* the server has been offered the window, if there is one */
};

/* A buffer that is a window. */
struct upload_window {
	struct upload_window *next;
	struct pst_window *window;
};

/* The result of a part that has been sent. The part itself is freed. */
struct sent {
	char *etag;
	uint64_t len, crc;
};

enum id_state { ID_NONE, ID_ASKED, ID_KNOWN };

struct pst_object_upload {
	const struct pst_object_place *place;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t length; /* as announced, or 0 */
	uint64_t part_bytes;
	bool must_be_new, ended;
	bool stopping; /* no part is sent any more */
	uint64_t end;  /* end of the written bytes */
	struct part *parts[PARTS_MAX];
	struct sent sent[PARTS_MAX];
	unsigned summing, ready_count, sending; /* parts in these states */
	uint64_t buffer_bytes;			/* length of all buffers, including `spare` */
	char *spare; /* list of free buffers of part_bytes; each begins with a pointer */
	struct pst_io *waiting, **waiting_end; /* writes that found no buffer */
	enum id_state id_state;
	char id[UPLOAD_ID_MAX]; /* as the server has sent it */
	bool no_sums;		/* the server refuses checksums */
	bool unsure;		/* an earlier request of the commit may have succeeded */
	char sum[17];		/* checksum of the object in base64, once a commit has begun */
	struct pst_object_call create;
	struct pst_err err; /* the first failure; its code is 0 if there is none */
	/* Windows for the parts (S3 over RDMA); NULL if there are none. */
	struct pst_object_windows *windows;
	struct upload_window *window_list; /* the buffers that are windows */
	bool windows_only;		   /* the caller allows no other way */
	bool far;			   /* writes were taken that shall go through windows */
	/* Numbers of parts that went through windows, and of those that went by HTTP although
	 * there are windows. An object in a single PUT counts as one part. */
	unsigned parts_far, parts_near;
	struct pst_err why_near; /* reason of the first part that went by HTTP */
};

/* Returns the index of the part that has the byte at `off`. */
unsigned pst_object_upload_part_at(const struct pst_object_upload *up, uint64_t off);
/* Returns the offset of part `index`, and stores its length when it is full. */
uint64_t pst_object_upload_part_range(const struct pst_object_upload *up, unsigned index,
				      uint64_t *len_out);
/* Writes the query of a request of the multipart upload, about part `number`, or about the upload
 * if it is 0. */
void pst_object_upload_query(const struct pst_object_upload *up, unsigned number,
			     char out[UPLOAD_QUERY_MAX]);

/* Counts a part that goes by HTTP although there are windows. Returns 0, or -errno if the caller
 * allows this not, with the error in `err`. */
int pst_object_upload_near(struct pst_object_upload *up, const struct pst_err *why,
			   struct pst_err *err);
/* Sends the last part, and waits until the server has all `count` parts, or the limits end. */
int pst_object_upload_finish(struct pst_object_upload *up, unsigned count,
			     const struct penstock_end_opts *limits, struct pst_err *err);

/* Cancels all requests, and waits for their ends. */
void pst_object_upload_stop(struct pst_object_upload *up);
/* Frees a stopped upload. */
void pst_object_upload_free(struct pst_object_upload *up);

enum pst_object_identity { PST_OBJECT_OURS, PST_OBJECT_NOT_OURS, PST_OBJECT_UNKNOWN };

/* Compares the object on the server with the one that was sent. If it is the same, stores its ETag.
 */
enum pst_object_identity pst_object_upload_identify(struct pst_object_upload *up,
						    const struct penstock_end_opts *limits,
						    char *etag, size_t etag_len);

#endif
