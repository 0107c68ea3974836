/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test requests to an object store have shown. The gates in gates_endpoint.c report it. The
 * requests read at most STORE_READ_MAX bytes and change nothing. A text must never contain a secret
 * or the query of a presigned URL.
 */
#ifndef PST_CHECK_STORE_H
#define PST_CHECK_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "penstock.h"

#define PST_STORE_ANSWER_S 5 /* longest wait for the answer to the first request */

/* The steps of the test, each of which needs those before it. */
enum pst_store_step {
	PST_STORE_URL,	  /* the URL is valid */
	PST_STORE_KEYS,	  /* there are keys, or none are needed */
	PST_STORE_NAME,	  /* the server has an address */
	PST_STORE_ANSWER, /* the server answers HTTP */
	PST_STORE_FOUND,  /* the server grants the request, and the object exists */
	PST_STORE_READ,	  /* a range of the object was read */
	PST_STORE_DONE,
};

struct pst_check_store {
	/* Step that failed, with the code -errno and a sentence; PST_STORE_DONE: none. */
	enum pst_store_step failed;
	int code;
	char text[PENSTOCK_TEXT_MAX];
	char server[280]; /* "https://host:port" */
	unsigned port;
	bool tls, insecure;
	char keys[160];	 /* where the keys are from */
	unsigned status; /* of the first response */
	double answer_ms;
	bool names_object;
	/* The read: its length, duration, and what carried it. */
	uint64_t bytes;
	double read_ms;
	char engine[32];
	bool by_rdma, by_cpu; /* through a window; a CPU copied the bytes into it */
	/* Why not through a window, and whether the server was not asked. */
	char why_rdma[PENSTOCK_TEXT_MAX];
	bool rdma_not_asked;
};

/* Makes the test requests. `target` is a URL of an object, a bucket or a server. */
void pst_check_store_try(const char *target, struct pst_check_store *out);

#endif
