/* SPDX-License-Identifier: Apache-2.0 */
/* Implements object_exchange.h. Reactors (the threads of io/http.h) call all functions of the table
 * steps_ops. */
#include "storage/object_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "s3/uri.h"
#include "wire/exchange.h"

unsigned pst_object_rdma_headers(const struct pst_http_head *head,
				 struct penstock_object_header *out)
{
	const struct penstock_object_header all[PST_OBJECT_RDMA_HEADERS] = {
		{"x-amz-rdma-reply", head->rdma_reply},
		{"x-amz-rdma-bytes-transferred", head->rdma_bytes},
		{"x-amz-rdma-checksum", head->rdma_checksum},
		{"x-amz-rdma-protocol", head->rdma_protocol},
		{"x-amz-rdma-session", head->rdma_session},
		{"x-amz-rdma-psn", head->rdma_psn},
		{"x-amz-rdma-qpn", head->rdma_qpn},
		{"x-amz-rdma-cookie", head->rdma_cookie},
		{"x-amz-rdma-mr-addr", head->rdma_address},
		{"x-amz-rdma-mr-rkey", head->rdma_key},
	};
	unsigned count = 0;

	for (unsigned i = 0; i < PST_OBJECT_RDMA_HEADERS; i++)
		if (all[i].value[0])
			out[count++] = all[i];
	return count;
}

/* Returns the value of the header x-amz-rdma-target: the path of the object, with the bucket and
 * the query. Returns NULL if there is no memory. */
static const char *target_make(struct pst_object_steps *steps, const struct pst_object_call *call)
{
	const struct pst_object_url *url = &call->place->url;
	struct pst_text text = {NULL, 0, 0, false};

	if (steps->target)
		return steps->target;
	pst_text_put_str(&text, "/");
	pst_text_put_str(&text, url->bucket);
	pst_text_put_str(&text, "/");
	pst_uri_put(&text, url->key, url->key_len, true);
	if (call->query[0]) {
		pst_text_put_str(&text, "?");
		pst_text_put_str(&text, call->query);
	}
	if (text.failed) {
		free(text.at);
		return NULL;
	}
	steps->target = text.at;
	return steps->target;
}

static unsigned steps_compose(struct pst_object_call *call, const char **path,
			      struct pst_header *out)
{
	struct pst_object_steps *steps = (struct pst_object_steps *)call->exchange;
	struct penstock_object_header headers[PENSTOCK_OBJECT_EXCHANGE_MAX];
	struct pst_wire_step step = {.offset = call->ranged ? call->first : 0};
	struct pst_err err;
	int n;

	switch (steps->exchange.phase) {
	case PST_OBJECT_PREPARES:
		step.step = PENSTOCK_OBJECT_PREPARE;
		step.target = target_make(steps, call);
		break;
	case PST_OBJECT_MOVES:
		step.step = PENSTOCK_OBJECT_READY;
		break;
	default:
		step.step = PENSTOCK_OBJECT_CANCEL;
		break;
	}
	/* If the headers cannot be composed, for example because the target is too long, the
	 * request is sent without them, and the server refuses it. */
	n = pst_wire_compose(steps->inner, &step, path, headers, &err);
	steps->prepared |= n > 0;
	for (int i = 0; i < n; i++)
		out[i] = (struct pst_header){headers[i].name, headers[i].value};
	return n < 0 ? 0 : (unsigned)n;
}

/* Returns whether the server has opened a session for the window, which a CANCEL request must
 * end. */
static bool is_open(const struct pst_object_steps *steps)
{
	const struct pst_wire_step cancel = {.step = PENSTOCK_OBJECT_CANCEL};
	struct penstock_object_header headers[PENSTOCK_OBJECT_EXCHANGE_MAX];
	struct pst_err err;
	const char *path;

	return pst_wire_compose(steps->inner, &cancel, &path, headers, &err) > 0;
}

static enum pst_object_phase steps_paired(struct pst_object_call *call)
{
	struct pst_object_steps *steps = (struct pst_object_steps *)call->exchange;
	struct penstock_object_header headers[PST_OBJECT_RDMA_HEADERS];
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct pst_err err;
	char code[64];

	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	reply.status = (int)call->http.head.status;
	reply.headers = headers;
	reply.header_count = pst_object_rdma_headers(&call->http.head, headers);
	reply.error = code;
	if (pst_wire_paired(steps->inner, &reply, &steps->verdict, &err)) {
		steps->verdict.next = PENSTOCK_OBJECT_RESEND;
		memcpy(steps->verdict.text, err.text, sizeof(steps->verdict.text));
	}
	steps->verdict.remember &= steps->prepared;
	if (steps->verdict.next == PENSTOCK_OBJECT_DONE)
		return PST_OBJECT_MOVES;
	return is_open(steps) ? PST_OBJECT_CANCELS : PST_OBJECT_REFUSED;
}

static const struct pst_object_exchange_ops steps_ops = {steps_compose, steps_paired};

void pst_object_steps_open(struct pst_object_steps *steps, struct pst_wire_grant *inner,
			   struct pst_object_call *call)
{
	*steps = (struct pst_object_steps){
		.exchange = {.ops = &steps_ops,
			     .phase = PST_OBJECT_PREPARES,
			     .beside = call->http.beside},
		.inner = inner,
		.verdict = PENSTOCK_OBJECT_VERDICT_INIT,
	};
	call->exchange = &steps->exchange;
	call->http.beside = 0;
}

void pst_object_steps_close(struct pst_object_steps *steps)
{
	free(steps->target);
	steps->target = NULL;
}
