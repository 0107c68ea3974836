/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes safetensors files for the tests. Byte i of a tensor depends only on the tensor's name
 * and on i, so the tests can compute it. This code is independent of src/weights.
 */
#ifndef PST_TEST_MAKE_H
#define PST_TEST_MAKE_H

#include "test.h"

#include <fcntl.h>
#include <sys/stat.h>

struct made {
	const char *name, *dtype;
	unsigned bits, rank;
	uint64_t shape[4];
};

static inline unsigned char made_byte(const char *name, uint64_t i)
{
	uint64_t h = 1469598103934665603u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 1099511628211u;
	h += i * 0x9e3779b97f4a7c15u;
	return (unsigned char)((h ^ h >> 29) * 0xbf58476d1ce4e5b9u >> 56);
}

static inline uint64_t made_bytes(const struct made *m)
{
	uint64_t n = m->bits;

	for (unsigned i = 0; i < m->rank; i++)
		n *= m->shape[i];
	return n / 8;
}

static inline const char *made_path(const char *name)
{
	static char paths[16][1024];
	static unsigned at;
	const char *tmp = getenv("TMPDIR");
	char *path = paths[at++ % 16];

	snprintf(path, sizeof(paths[0]), "%s/%s", tmp ? tmp : "/tmp", name);
	return path;
}

static inline void made_write(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

static inline void made_text(const char *path, const char *text)
{
	made_write(path, text, strlen(text));
}

static inline void made_dir(const char *path)
{
	char part[1024];

	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
		mkdir(part, 0700);
	}
	mkdir(path, 0700);
}

/* Writes a file with the tensors of `list` in that order. `pad` spaces lengthen the header. */
static inline void made_file(const char *path, const struct made *list, unsigned count,
			     unsigned pad)
{
	size_t room = 4096 + count * 512u + pad, at = 8, data = 0, len;
	char *buf;

	for (unsigned i = 0; i < count; i++)
		data += made_bytes(&list[i]);
	buf = malloc(room + data);
	data = 0;
	at += (size_t)snprintf(buf + at, room - at, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (unsigned i = 0; i < count; i++) {
		const struct made *m = &list[i];

		at += (size_t)snprintf(buf + at, room - at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
				       m->name, m->dtype);
		for (unsigned d = 0; d < m->rank; d++)
			at += (size_t)snprintf(buf + at, room - at, "%s%llu", d ? "," : "",
					       (unsigned long long)m->shape[d]);
		at += (size_t)snprintf(buf + at, room - at, "],\"data_offsets\":[%zu,%zu]}", data,
				       data + made_bytes(m));
		data += made_bytes(m);
	}
	at += (size_t)snprintf(buf + at, room - at, "}%*s", (int)pad, "");
	len = at - 8;
	for (unsigned i = 0; i < 8; i++)
		buf[i] = (char)(len >> 8 * i);
	for (unsigned i = 0; i < count; i++)
		for (uint64_t b = 0; b < made_bytes(&list[i]); b++)
			buf[at++] = (char)made_byte(list[i].name, b);
	made_write(path, buf, at);
	free(buf);
}

/* The number of files in a model that has more files than the library keeps open. Each file has one
 * tensor of five bytes: t0, t1 and so on. */
#define MADE_MANY 65u
static inline void made_many(const char *dir)
{
	char name[24], file[1200];

	made_dir(dir);
	for (unsigned i = 0; i < MADE_MANY; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		snprintf(file, sizeof(file), "%s/%u.safetensors", dir, i);
		made_file(file, &(struct made){name, "U8", 8, 1, {5}}, 1, 0);
	}
}

#endif
