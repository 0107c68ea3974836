/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the reader of XML on expat, see xml_read.h. */
#include "xml_read.h"

#include <errno.h>
#include <expat.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

struct reader {
	XML_Parser parser;
	const struct gw_xml_calls *calls;
	void *user;
	int ret;
	unsigned depth;
	char path[512];
	size_t path_len;
	char text[GW_XML_TEXT_MAX + 1];
	size_t text_len;
};

static void stop(struct reader *r, int ret)
{
	if (!r->ret)
		r->ret = ret;
	XML_StopParser(r->parser, XML_FALSE);
}

static void element_begin(void *user, const char *name, const char **attributes)
{
	struct reader *r = user;
	const char *colon = strrchr(name, ':');
	size_t len;
	int ret;

	(void)attributes;
	name = colon ? colon + 1 : name;
	len = strlen(name);
	if (r->ret)
		return;
	if (!len || r->depth >= GW_XML_DEPTH_MAX || r->path_len + len + 2 > sizeof(r->path)) {
		stop(r, -EBADMSG);
		return;
	}
	if (r->depth++)
		r->path[r->path_len++] = '/';
	memcpy(r->path + r->path_len, name, len + 1);
	r->path_len += len;
	r->text_len = 0;
	ret = r->calls->begin ? r->calls->begin(r->user, r->path) : 0;
	if (ret)
		stop(r, ret);
}

static void element_end(void *user, const char *name)
{
	struct reader *r = user;
	char *slash;
	int ret;

	(void)name;
	if (r->ret)
		return;
	r->text[r->text_len] = '\0';
	ret = r->calls->end(r->user, r->path, r->text, r->text_len);
	if (ret) {
		stop(r, ret);
		return;
	}
	slash = strrchr(r->path, '/');
	r->path_len = slash ? (size_t)(slash - r->path) : 0;
	r->path[r->path_len] = '\0';
	r->depth--;
	r->text_len = 0;
}

static void text_put(void *user, const char *text, int len)
{
	struct reader *r = user;

	if (r->ret)
		return;
	if ((size_t)len > GW_XML_TEXT_MAX - r->text_len) {
		stop(r, -EBADMSG);
		return;
	}
	memcpy(r->text + r->text_len, text, (size_t)len);
	r->text_len += (size_t)len;
}

static void doctype_begin(void *user, const char *name, const char *system, const char *public,
			  int internal)
{
	(void)name;
	(void)system;
	(void)public;
	(void)internal;
	stop(user, -EBADMSG);
}

int gw_xml_read(const char *bytes, size_t len, const struct gw_xml_calls *calls, void *user)
{
	struct reader r = {.calls = calls, .user = user};
	enum XML_Status status;

	if (len > INT_MAX)
		return -EBADMSG;
	r.parser = XML_ParserCreate(NULL);
	if (!r.parser)
		return -ENOMEM;
	XML_SetUserData(r.parser, &r);
	XML_SetElementHandler(r.parser, element_begin, element_end);
	XML_SetCharacterDataHandler(r.parser, text_put);
	XML_SetStartDoctypeDeclHandler(r.parser, doctype_begin);
	status = XML_Parse(r.parser, bytes, (int)len, true);
	XML_ParserFree(r.parser);
	if (r.ret)
		return r.ret;
	return status == XML_STATUS_OK ? 0 : -EBADMSG;
}
