/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the metadata of objects, see meta.h. */
#include "meta.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "s3/hash.h"
#include "s3/uri.h"

#define ATTRIBUTE "user.penstock.object"
#define FIRST_LINE "penstock-object 1\n"

void gw_meta_add(struct gw_meta *meta, const char *name, const char *value)
{
	pst_text_put(&meta->items, name, strlen(name) + 1);
	pst_text_put(&meta->items, value, strlen(value) + 1);
}

bool gw_meta_next(const struct gw_meta *meta, size_t *at, const char **name, const char **value)
{
	const char *item = meta->items.at + *at;

	if (!meta->items.at || *at >= meta->items.len)
		return false;
	*name = item;
	*value = item + strlen(item) + 1;
	*at += strlen(*name) + strlen(*value) + 2;
	return true;
}

const char *gw_meta_get(const struct gw_meta *meta, const char *name)
{
	const char *other, *value;
	size_t at = 0;

	while (gw_meta_next(meta, &at, &other, &value))
		if (!strcmp(other, name))
			return value;
	return NULL;
}

void gw_meta_close(struct gw_meta *meta)
{
	free(meta->items.at);
	memset(meta, 0, sizeof(*meta));
}

/* Writes the length and the modification time of a file, "LENGTH SECONDS.NANOSECONDS". A metadata
 * record has this text, so that a later change of the file makes the record invalid. */
static void stat_text(const struct stat *st, char out[80])
{
	snprintf(out, 80, "%lld %lld.%09ld", (long long)st->st_size, (long long)st->st_mtim.tv_sec,
		 st->st_mtim.tv_nsec);
}

/* Writes the name of the separate file for an object's metadata record. This file is used if the
 * object's file cannot have the record in an extended attribute. */
static void record_name(const struct stat *st, char out[96])
{
	snprintf(out, 96, "%llx-%llx-%lx", (unsigned long long)st->st_ino,
		 (unsigned long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
}

static void record_write(const struct gw_meta *meta, const struct stat *st, struct pst_text *out)
{
	const char *name, *value;
	char identity[80];
	size_t at = 0;

	stat_text(st, identity);
	pst_text_put_str(out, FIRST_LINE);
	pst_text_put_str(out, identity);
	pst_text_put_str(out, "\n");
	while (gw_meta_next(meta, &at, &name, &value)) {
		pst_uri_put(out, name, strlen(name), false);
		pst_text_put_str(out, " ");
		pst_uri_put(out, value, strlen(value), true);
		pst_text_put_str(out, "\n");
	}
}

/* Writes all bytes. Returns 0 or a negative errno. */
static int write_all(int fd, const char *bytes, size_t len)
{
	while (len) {
		ssize_t n = write(fd, bytes, len);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

/* Stores a metadata record in a separate file. This file gets its name when it is complete and
 * synced. */
static int record_store(const struct pst_text *record, const struct stat *st, int meta_dir)
{
	char name[96], temp[104];
	int fd, ret;

	record_name(st, name);
	snprintf(temp, sizeof(temp), "%s.tmp", name);
	fd = openat(meta_dir, temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ret = write_all(fd, record->at, record->len);
	if (!ret && fsync(fd))
		ret = -errno;
	close(fd);
	if (!ret && renameat(meta_dir, temp, meta_dir, name))
		ret = -errno;
	if (!ret && fsync(meta_dir))
		ret = -errno;
	if (ret)
		unlinkat(meta_dir, temp, 0);
	return ret;
}

int gw_meta_store(const struct gw_meta *meta, int fd, int meta_dir)
{
	struct pst_text record = {0};
	struct stat st;
	int ret = 0;

	if (meta->items.failed)
		return -ENOMEM;
	if (fstat(fd, &st))
		return -errno;
	record_write(meta, &st, &record);
	if (record.failed)
		ret = -ENOMEM;
	else if (record.len > GW_META_MAX)
		ret = -E2BIG;
	else if (fsetxattr(fd, ATTRIBUTE, record.at, record.len, 0)) {
		ret = -errno;
		if (ret == -EOPNOTSUPP || ret == -ENOSPC || ret == -E2BIG || ret == -ERANGE ||
		    ret == -EPERM)
			ret = record_store(&record, &st, meta_dir);
	}
	free(record.at);
	return ret;
}

/* Reads the metadata record of an object's file into `buf`, from the extended attribute or the
 * separate file. Returns its length, or 0 if there is none. */
static size_t record_read(int fd, int meta_dir, const struct stat *st, char *buf, size_t max)
{
	ssize_t len = fgetxattr(fd, ATTRIBUTE, buf, max);
	char name[96];
	int file;

	if (len > 0)
		return (size_t)len;
	record_name(st, name);
	file = openat(meta_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (file < 0)
		return 0;
	len = read(file, buf, max);
	close(file);
	return len > 0 ? (size_t)len : 0;
}

/* Finds the next line, ends it with a NUL and returns it, or NULL. */
static char *next_line(char **text, char *end)
{
	char *line = *text, *newline = memchr(line, '\n', (size_t)(end - line));

	if (!newline)
		return NULL;
	*newline = '\0';
	*text = newline + 1;
	return line;
}

/* Parses a metadata record in place. Returns whether it is well-formed and states the length and
 * time that the object's file has. */
static bool record_parse(struct gw_meta *meta, char *text, size_t len, const struct stat *st)
{
	char identity[80], *end = text + len, *line = next_line(&text, end), *value;

	if (!line || strncmp(line, FIRST_LINE, strlen(FIRST_LINE) - 1) != 0)
		return false;
	line = next_line(&text, end);
	stat_text(st, identity);
	if (!line || strcmp(line, identity) != 0)
		return false;
	while ((line = next_line(&text, end))) {
		long name_len, value_len;

		value = strchr(line, ' ');
		if (!value)
			return false;
		*value++ = '\0';
		/* A decoded text is never longer than the encoded text, so it can overwrite that
		 * text. */
		name_len = pst_uri_parse(line, strlen(line), false, line);
		value_len = pst_uri_parse(value, strlen(value), false, value);
		if (name_len < 0 || value_len < 0)
			return false;
		gw_meta_add(meta, line, value);
	}
	return gw_meta_get(meta, "etag") != NULL;
}

int gw_meta_load(struct gw_meta *meta, int fd, int meta_dir, const struct stat *st)
{
	char *buf = malloc(GW_META_MAX + 1), identity[80], hex[PST_SHA256_HEX], etag[GW_ETAG_MAX];
	size_t len;

	if (!buf)
		return -ENOMEM;
	len = record_read(fd, meta_dir, st, buf, GW_META_MAX);
	if (!len || !record_parse(meta, buf, len, st)) {
		gw_meta_close(meta);
		stat_text(st, identity);
		len = strlen(identity);
		snprintf(identity + len, sizeof(identity) - len, " %llx",
			 (unsigned long long)st->st_ino);
		pst_sha256_hex(identity, strlen(identity), hex);
		/* The suffix "-0" shows clients that the ETag is no MD5 digest. */
		snprintf(etag, sizeof(etag), "%.32s-0", hex);
		gw_meta_add(meta, "etag", etag);
	}
	free(buf);
	return meta->items.failed ? -ENOMEM : 0;
}

void gw_meta_remove(int meta_dir, const struct stat *st)
{
	char name[96];

	record_name(st, name);
	unlinkat(meta_dir, name, 0);
}
