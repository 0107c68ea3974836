/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers of a request or response of hipobj-rc-v2, without HTTP. A test may change their
 * values. Included by test_hipobj.c and test_hipobj_messages.c.
 */
#ifndef TESTS_HIPOBJ_MESSAGE_H
#define TESTS_HIPOBJ_MESSAGE_H

#include "test.h"

#include <strings.h>

#include "s3/hipobj.h"

#define HIPOBJ "hipobj-rc-v2"
#define SESSION "00112233445566778899AABBccddeeff"

struct message {
	struct penstock_object_header headers[16];
	char texts[16][128];
	unsigned count;
};

static inline void put(struct message *m, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static inline void put(struct message *m, const char *name, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(m->texts[m->count], sizeof(m->texts[0]), fmt, args);
	va_end(args);
	m->headers[m->count] = (struct penstock_object_header){name, m->texts[m->count]};
	m->count++;
}

static inline const char *message_find(const void *user, const char *name)
{
	const struct message *m = user;

	for (unsigned i = 0; i < m->count; i++)
		if (!strcasecmp(m->headers[i].name, name))
			return m->headers[i].value;
	return NULL;
}

#endif
