/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parsers of the messages of hipobj-rc-v2 (a protocol of S3 over RDMA), whose headers
 * come from the network. Also fuzzes the function that judges the response to READY (READY is the
 * message that starts the transfer). The input has lines of the form "name: value". The fuzzer
 * fails if a parser accepts a value outside its bounds, or if a parsed message changes when it is
 * composed and parsed again.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "s3/hipobj.h"
#include "s3/judge.h"

#define LINES_MAX 24
#define WINDOW 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

struct lines {
	struct penstock_object_header headers[LINES_MAX];
	unsigned count;
};

static const char *line_find(const void *user, const char *name)
{
	const struct lines *lines = user;

	for (unsigned i = 0; i < lines->count; i++)
		if (!strcasecmp(lines->headers[i].name, name))
			return lines->headers[i].value;
	return NULL;
}

static void check_prepare(const struct pst_hipobj_source *in)
{
	struct pst_hipobj_prepare p, q;
	struct pst_hipobj_texts texts;
	struct lines again;
	const struct pst_hipobj_source source = {line_find, &again};

	if (pst_hipobj_prepare_parse(in, &p))
		return;
	if (!p.len || p.len > PST_HIPOBJ_LEN_MAX || !p.psn || p.psn > PST_HIPOBJ_PSN_MAX ||
	    p.target[0] != '/' || strlen(p.target) > PST_HIPOBJ_TARGET)
		abort();
	again.count = pst_hipobj_put_prepare(&p, &texts, again.headers);
	if (again.count > PST_HIPOBJ_HEADERS_MAX || pst_hipobj_prepare_parse(&source, &q) ||
	    q.op != p.op || q.len != p.len || q.offset != p.offset || q.psn != p.psn ||
	    q.cookie != p.cookie || strcmp(q.target, p.target))
		abort();
}

static void check_ready(const struct pst_hipobj_source *in)
{
	struct pst_hipobj_ready r, s;
	struct pst_hipobj_texts texts;
	struct lines again;
	const struct pst_hipobj_source source = {line_find, &again};

	if (!pst_hipobj_cancel_parse(in, &r) && strlen(r.session) != PST_HIPOBJ_SESSION)
		abort();
	if (pst_hipobj_ready_parse(in, &r))
		return;
	if (strlen(r.session) != PST_HIPOBJ_SESSION || r.qpn > 0xffffff)
		abort();
	again.count = pst_hipobj_put_ready(&r, &texts, again.headers);
	if (pst_hipobj_ready_parse(&source, &s) || strcmp(s.session, r.session) ||
	    s.cookie != r.cookie || s.qpn != r.qpn ||
	    (r.qpn && (s.address != r.address || s.key != r.key)))
		abort();
}

static void check_responses(const struct pst_hipobj_source *in, const struct lines *lines)
{
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict v = PENSTOCK_OBJECT_VERDICT_INIT;
	struct pst_hipobj_offer o;

	if (!pst_hipobj_offer_parse(in, &o) &&
	    (strlen(o.session) != PST_HIPOBJ_SESSION || !o.psn || o.psn > PST_HIPOBJ_PSN_MAX ||
	     o.token.hipobj.qpn > 0xffffff))
		abort();
	(void)pst_hipobj_final_parse(in, 0xdeadbeef);
	reply.status = 200;
	reply.headers = lines->headers;
	reply.header_count = lines->count;
	pst_judge_final(WINDOW, &reply, &v);
	if (!v.text[0] || (v.next == PENSTOCK_OBJECT_DONE && v.bytes != WINDOW))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *copy = malloc(len_bytes + 1), *text = copy;
	struct lines lines = {.count = 0};
	const struct pst_hipobj_source source = {line_find, &lines};

	if (!copy)
		return 0;
	memcpy(copy, data, len_bytes);
	copy[len_bytes] = '\0';
	while (text && *text && lines.count < LINES_MAX) {
		char *end = strchr(text, '\n'), *colon;

		if (end)
			*end = '\0';
		colon = strchr(text, ':');
		if (colon) {
			*colon = '\0';
			lines.headers[lines.count].name = text;
			lines.headers[lines.count++].value = colon + 1 + (colon[1] == ' ');
		}
		text = end ? end + 1 : NULL;
	}
	check_prepare(&source);
	check_ready(&source);
	check_responses(&source, &lines);
	free(copy);
	return 0;
}
