/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and composes the messages of protocol hipobj-rc-v2: see hipobj.h. */
#include "s3/hipobj.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/digits.h"

/* ---- parsing ---- */

static const char *find(const struct pst_hipobj_source *in, const char *name)
{
	return in->find(in->user, name);
}

/* Parses a number in hex digits. Returns false if it is greater than `max`. Up to 16 digits are
 * allowed, because some senders pad a number with zeros. */
static bool hex_parse(const char *text, uint64_t max, uint64_t *out)
{
	uint64_t n = 0;
	size_t len = text ? strnlen(text, 17) : 0;

	if (!len || len > 16)
		return false;
	for (; *text; text++) {
		if (pst_hex_value(*text) < 0)
			return false;
		n = n << 4 | (unsigned)pst_hex_value(*text);
	}
	*out = n;
	return n <= max;
}

static bool hex32_parse(const char *text, uint32_t max, uint32_t *out)
{
	uint64_t n;

	if (!hex_parse(text, max, &n))
		return false;
	*out = (uint32_t)n;
	return true;
}

/* Parses a header that may be missing: a missing header counts as 0, and an empty one is
 * malformed. */
static bool optional_hex_parse(const char *text, uint64_t max, uint64_t *out)
{
	*out = 0;
	return !text || hex_parse(text, max, out);
}

static bool decimal_parse(const char *text, uint64_t *out)
{
	uint64_t n = 0;
	size_t len = text ? strnlen(text, 20) : 0;

	if (!len || len > 19)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		n = n * 10 + (uint64_t)(*text - '0');
	}
	*out = n;
	return true;
}

static bool session_parse(const char *text, char out[PST_HIPOBJ_SESSION + 1])
{
	unsigned char raw[PST_HIPOBJ_SESSION / 2];

	if (!text || strnlen(text, PST_HIPOBJ_SESSION + 1) != PST_HIPOBJ_SESSION ||
	    !pst_hex_parse(text, sizeof(raw), raw))
		return false;
	/* Prints the name in lower case, so that names can be compared as texts. */
	pst_hex(raw, sizeof(raw), out);
	return true;
}

static bool is_protocol(const struct pst_hipobj_source *in)
{
	const char *name = find(in, PST_HIPOBJ_H_PROTOCOL);

	return name && !strcmp(name, PST_HIPOBJ);
}

int pst_hipobj_prepare_parse(const struct pst_hipobj_source *in, struct pst_hipobj_prepare *out)
{
	const char *op = find(in, PST_HIPOBJ_H_OP), *offset = find(in, PST_HIPOBJ_H_OFFSET);
	struct pst_hipobj_prepare p = {.target = find(in, PST_HIPOBJ_H_TARGET),
				       .token = find(in, PST_HIPOBJ_H_TOKEN)};

	if (!is_protocol(in))
		return -EPROTO;
	if (!op || (strcmp(op, "GET") && strcmp(op, "PUT")) || !p.target || p.target[0] != '/' ||
	    strnlen(p.target, PST_HIPOBJ_TARGET + 1) > PST_HIPOBJ_TARGET || !p.token ||
	    !decimal_parse(find(in, PST_HIPOBJ_H_SIZE), &p.len) || !p.len ||
	    (offset && !decimal_parse(offset, &p.offset)) ||
	    !hex32_parse(find(in, PST_HIPOBJ_H_PSN), PST_HIPOBJ_PSN_MAX, &p.psn) || !p.psn ||
	    !hex32_parse(find(in, PST_HIPOBJ_H_COOKIE), UINT32_MAX, &p.cookie))
		return -EBADMSG;
	p.op = op[0] == 'G' ? PENSTOCK_READ : PENSTOCK_WRITE;
	if (p.op == PENSTOCK_WRITE && p.offset)
		return -EBADMSG;
	if (p.len > PST_HIPOBJ_LEN_MAX)
		return -EFBIG;
	*out = p;
	return 0;
}

int pst_hipobj_ready_parse(const struct pst_hipobj_source *in, struct pst_hipobj_ready *out)
{
	struct pst_hipobj_ready r = {.cookie = 0};
	uint64_t qpn, key;

	if (!is_protocol(in))
		return -EPROTO;
	if (!session_parse(find(in, PST_HIPOBJ_H_SESSION), r.session) ||
	    !hex32_parse(find(in, PST_HIPOBJ_H_COOKIE), UINT32_MAX, &r.cookie) ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_QPN), 0xffffff, &qpn) ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_ADDR), UINT64_MAX, &r.address) ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_KEY), UINT32_MAX, &key))
		return -EBADMSG;
	r.qpn = (uint32_t)qpn;
	r.key = (uint32_t)key;
	*out = r;
	return 0;
}

int pst_hipobj_cancel_parse(const struct pst_hipobj_source *in, struct pst_hipobj_ready *out)
{
	struct pst_hipobj_ready r = {.cookie = 0};
	const char *cookie = find(in, PST_HIPOBJ_H_COOKIE);

	if (!is_protocol(in))
		return -EPROTO;
	if (!session_parse(find(in, PST_HIPOBJ_H_SESSION), r.session) ||
	    (cookie && !hex32_parse(cookie, UINT32_MAX, &r.cookie)))
		return -EBADMSG;
	*out = r;
	return 0;
}

int pst_hipobj_offer_parse(const struct pst_hipobj_source *in, struct pst_hipobj_offer *out)
{
	const char *reply = find(in, PST_HIPOBJ_H_REPLY);
	struct pst_hipobj_offer o = {.psn = 0};
	uint64_t qpn, key;

	if (!is_protocol(in))
		return -EPROTO;
	if (!reply || strncmp(reply, "200:", 4) ||
	    strnlen(reply + 4, PST_HIPOBJ_TOKEN + 1) != PST_HIPOBJ_TOKEN ||
	    pst_token_parse(reply + 4, PST_HIPOBJ_TOKEN, &o.token) ||
	    o.token.kind != PST_TOKEN_HIPOBJ_RC_V2 || o.token.hipobj.transport != 1 ||
	    !session_parse(find(in, PST_HIPOBJ_H_SESSION), o.session) ||
	    !hex32_parse(find(in, PST_HIPOBJ_H_PSN), PST_HIPOBJ_PSN_MAX, &o.psn) || !o.psn ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_QPN), 0xffffff, &qpn) ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_ADDR), UINT64_MAX, &o.address) ||
	    !optional_hex_parse(find(in, PST_HIPOBJ_H_KEY), UINT32_MAX, &key))
		return -EBADMSG;
	/* The token contains the number of the queue pair, too. If the header x-amz-rdma-qpn is
	 * present, both numbers must be equal. */
	if (o.token.hipobj.qpn > 0xffffff || (qpn && qpn != o.token.hipobj.qpn))
		return -EBADMSG;
	o.key = (uint32_t)key;
	*out = o;
	return 0;
}

int pst_hipobj_final_parse(const struct pst_hipobj_source *in, uint32_t cookie)
{
	uint32_t echo;

	if (!is_protocol(in))
		return -EPROTO;
	return hex32_parse(find(in, PST_HIPOBJ_H_COOKIE), UINT32_MAX, &echo) && echo == cookie
		       ? 0
		       : -EBADMSG;
}

/* ---- composing ---- */

unsigned pst_hipobj_put_prepare(const struct pst_hipobj_prepare *prepare,
				struct pst_hipobj_texts *texts, struct penstock_object_header *out)
{
	unsigned n = 0;

	snprintf(texts->psn, sizeof(texts->psn), "%06x", prepare->psn & PST_HIPOBJ_PSN_MAX);
	snprintf(texts->cookie, sizeof(texts->cookie), "%08x", prepare->cookie);
	snprintf(texts->size, sizeof(texts->size), "%llu", (unsigned long long)prepare->len);
	snprintf(texts->offset, sizeof(texts->offset), "%llu", (unsigned long long)prepare->offset);
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_PROTOCOL, PST_HIPOBJ};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_TOKEN, prepare->token};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_PSN, texts->psn};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_COOKIE, texts->cookie};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_OP,
						   prepare->op == PENSTOCK_READ ? "GET" : "PUT"};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_TARGET, prepare->target};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_SIZE, texts->size};
	if (prepare->offset)
		out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_OFFSET, texts->offset};
	return n;
}

unsigned pst_hipobj_put_ready(const struct pst_hipobj_ready *ready, struct pst_hipobj_texts *texts,
			      struct penstock_object_header *out)
{
	unsigned n = 0;

	snprintf(texts->cookie, sizeof(texts->cookie), "%08x", ready->cookie);
	snprintf(texts->qpn, sizeof(texts->qpn), "%x", ready->qpn);
	snprintf(texts->address, sizeof(texts->address), "%llx",
		 (unsigned long long)ready->address);
	snprintf(texts->key, sizeof(texts->key), "%x", ready->key);
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_PROTOCOL, PST_HIPOBJ};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_SESSION, ready->session};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_COOKIE, texts->cookie};
	if (!ready->qpn)
		return n;
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_QPN, texts->qpn};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_ADDR, texts->address};
	out[n++] = (struct penstock_object_header){PST_HIPOBJ_H_KEY, texts->key};
	return n;
}
