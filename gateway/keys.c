/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the access keys, see keys.h. */
#include "keys.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "s3/ini.h"
#include "secret.h"

#define FILE_MAX (1u << 20)
#define KEYS_MAX 4096

struct entry {
	struct gw_key key;
	char *name, *secret, *buckets, *upstream_key, *upstream_secret;
	bool has_access;
};

struct gw_keys {
	atomic_uint holders;
	struct entry *entries;
	unsigned count;
	const char *path;
	char *why;
	size_t why_len;
};

static int refuse(struct gw_keys *keys, const char *key, const char *what)
{
	snprintf(keys->why, keys->why_len, "%s: section [%.128s]: %s", keys->path, key, what);
	return -EINVAL;
}

static int section_begin(void *user, const char *name)
{
	struct gw_keys *keys = user;
	struct entry *more;

	if (!*name || strlen(name) > 128)
		return refuse(keys, name, "an access key has 1 to 128 characters");
	if (gw_keys_find(keys, name))
		return refuse(keys, name, "there are two sections with this name");
	if (keys->count >= KEYS_MAX)
		return refuse(keys, name, "there are too many sections");
	more = realloc(keys->entries, (keys->count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	keys->entries = more;
	memset(&more[keys->count], 0, sizeof(*more));
	more[keys->count].name = strdup(name);
	more[keys->count].key.name = more[keys->count].name;
	more[keys->count].key.day = pst_sigv4_day_open();
	more[keys->count].key.upstream_day = pst_sigv4_day_open();
	return more[keys->count++].name ? 0 : -ENOMEM;
}

/* Returns the address of the member that holds a setting's text, or NULL if there is no such
 * setting. */
static char **setting_text(struct entry *e, const char *name)
{
	if (!strcmp(name, "secret"))
		return &e->secret;
	if (!strcmp(name, "buckets"))
		return &e->buckets;
	if (!strcmp(name, "upstream-access-key"))
		return &e->upstream_key;
	return !strcmp(name, "upstream-secret") ? &e->upstream_secret : NULL;
}

static int setting_put(void *user, const struct pst_ini_setting *s)
{
	struct gw_keys *keys = user;
	struct entry *e = keys->count ? &keys->entries[keys->count - 1] : NULL;
	char **text;

	if (!e || *s->parent)
		return refuse(keys, e ? e->name : "",
			      "a setting is outside of a section, or indented");
	if (!strcmp(s->name, "access")) {
		if (strcmp(s->value, "r") != 0 && strcmp(s->value, "rw") != 0)
			return refuse(keys, e->name, "access must be r or rw");
		e->key.write = s->value[1] == 'w';
		e->has_access = true;
		return 0;
	}
	text = setting_text(e, s->name);
	if (!text)
		return refuse(keys, e->name,
			      "the settings are secret, buckets, access, upstream-access-key and "
			      "upstream-secret");
	if (*text)
		return refuse(keys, e->name, "a setting is given twice");
	*text = strdup(s->value);
	e->key.secret = e->secret;
	e->key.buckets = e->buckets;
	e->key.upstream_key = e->upstream_key;
	e->key.upstream_secret = e->upstream_secret;
	return *text ? 0 : -ENOMEM;
}

static int entries_check(struct gw_keys *keys)
{
	for (unsigned i = 0; i < keys->count; i++) {
		struct entry *e = &keys->entries[i];

		if (!e->secret || strlen(e->secret) < 8)
			return refuse(keys, e->name, "secret must have at least 8 characters");
		if (!e->buckets || !*e->buckets)
			return refuse(keys, e->name, "buckets is missing; '*' allows all buckets");
		if (!e->has_access)
			return refuse(keys, e->name, "access is missing; it is r or rw");
		if (!e->upstream_key != !e->upstream_secret ||
		    (e->upstream_key && (!*e->upstream_key || !*e->upstream_secret)))
			return refuse(keys, e->name,
				      "upstream-access-key and upstream-secret belong together");
	}
	if (keys->count)
		return 0;
	snprintf(keys->why, keys->why_len, "%s has no access key: add a section such as [KEY]",
		 keys->path);
	return -EINVAL;
}

struct gw_keys *gw_keys_read(const char *path, char *why, size_t why_len)
{
	struct gw_keys *keys = calloc(1, sizeof(*keys));
	char *bytes = malloc(FILE_MAX + 1);
	ssize_t len = 0, n = 0;
	int fd, ret = -1;

	snprintf(why, why_len, "out of memory");
	fd = keys && bytes ? gw_secret_open(path, "access keys", why, why_len) : -1;
	if (fd >= 0) {
		atomic_init(&keys->holders, 1);
		keys->path = path;
		keys->why = why;
		keys->why_len = why_len;
		while (len < FILE_MAX && (n = read(fd, bytes + len, (size_t)(FILE_MAX - len))) > 0)
			len += n;
		bytes[len] = '\0';
		close(fd);
		if (len == FILE_MAX)
			snprintf(why, why_len, "%s is no file of access keys: it is too long",
				 path);
		else
			ret = n < 0 ? -EIO
				    : pst_ini_read(bytes, path, section_begin, setting_put, keys,
						   why, why_len);
		if (!ret)
			ret = entries_check(keys);
		else if (ret == -EIO || ret == -ENOMEM)
			snprintf(why, why_len, "cannot read %s: %s", path, strerror(-ret));
		explicit_bzero(bytes, (size_t)len);
	}
	free(bytes);
	if (!ret)
		return keys;
	if (fd >= 0)
		gw_keys_release(keys);
	else
		free(keys);
	return NULL;
}

struct gw_keys *gw_keys_hold(struct gw_keys *keys)
{
	if (keys)
		atomic_fetch_add(&keys->holders, 1);
	return keys;
}

void gw_keys_release(struct gw_keys *keys)
{
	if (!keys || atomic_fetch_sub(&keys->holders, 1) != 1)
		return;
	for (unsigned i = 0; i < keys->count; i++) {
		struct entry *e = &keys->entries[i];

		if (e->secret)
			explicit_bzero(e->secret, strlen(e->secret));
		if (e->upstream_secret)
			explicit_bzero(e->upstream_secret, strlen(e->upstream_secret));
		pst_sigv4_day_close(e->key.day);
		pst_sigv4_day_close(e->key.upstream_day);
		free(e->upstream_secret);
		free(e->upstream_key);
		free(e->secret);
		free(e->buckets);
		free(e->name);
	}
	free(keys->entries);
	free(keys);
}

const struct gw_key *gw_keys_find(const struct gw_keys *keys, const char *name)
{
	for (unsigned i = 0; i < keys->count; i++)
		if (!strcmp(keys->entries[i].name, name))
			return &keys->entries[i].key;
	return NULL;
}

const struct gw_key *gw_keys_without_upstream(const struct gw_keys *keys)
{
	for (unsigned i = 0; i < keys->count; i++)
		if (!keys->entries[i].upstream_key)
			return &keys->entries[i].key;
	return NULL;
}

bool gw_key_allows(const struct gw_key *key, const char *bucket)
{
	const char *at = key->buckets;

	while (*at) {
		size_t len = strcspn(at, ", \t");
		char pattern[128];

		snprintf(pattern, sizeof(pattern), "%.*s", (int)len, at);
		if (len && len < sizeof(pattern) && !fnmatch(pattern, bucket, 0))
			return true;
		at += len;
		at += strspn(at, ", \t");
	}
	return false;
}
