/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of test requests to an object store, which gates_endpoint.c reports. The requests
 * read at most READ_MAX bytes (see store.c) and change nothing. A text must never contain a secret
 * or the query of a presigned URL.
 */
#ifndef PST_CHECK_STORE_H
#define PST_CHECK_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "penstock.h"

#define PST_STORE_ANSWER_S 5 /* maximum time in s to wait for the first response */

/* The steps of the test. Each step is possible only if all earlier steps succeeded. */
enum pst_store_step {
	PST_STORE_URL,	  /* the URL is valid */
	PST_STORE_KEYS,	  /* there are keys, or none are needed */
	PST_STORE_NAME,	  /* the server's name resolves to an address */
	PST_STORE_ANSWER, /* the server answers HTTP */
	PST_STORE_FOUND,  /* the server grants the request, and the object exists */
	PST_STORE_READ,	  /* a range of the object was read */
	PST_STORE_DONE,
};

struct pst_check_store {
	/* Step that failed, with its -errno and a sentence. PST_STORE_DONE if no step failed. */
	enum pst_store_step failed;
	int code;
	char text[PENSTOCK_TEXT_MAX];
	char server[280]; /* "https://host:port" */
	unsigned port;
	bool tls, insecure;
	char keys[160];	 /* source of the access keys */
	unsigned status; /* status of the first response */
	double answer_ms;
	bool names_object;
	/* Results of the read: length, duration, and name of the engine. */
	uint64_t bytes;
	double read_ms;
	char engine[32];
	/* by_rdma: the server wrote the bytes into this process's memory (a window); by_cpu: with a
	 * CPU copy instead of RDMA hardware */
	bool by_rdma, by_cpu;
	/* Reason why the server did not write the bytes into a window, and whether the reason is
	 * that it got no token, which it needs for this. */
	char why_rdma[PENSTOCK_TEXT_MAX];
	bool rdma_not_asked;
};

/* Makes the test requests. `target` is a URL of an object, a bucket or a server. */
void pst_check_store_try(const char *target, struct pst_check_store *out);

#endif
