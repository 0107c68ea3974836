/* SPDX-License-Identifier: Apache-2.0 */
/* Implements objects.h. Called if a checkpoint may be in an object store. */
#include "ckpt/objects.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digits.h"
#include "common/text.h"
#include "penstock_ckpt.h"
#include "weights/err.h"

#define SCHEME "s3://"
/* Maximum number of bytes of one page of a list: 1,000 keys of 1,024 bytes, where each byte may be
 * encoded as three characters. */
#define PAGE_MAX (4u << 20)
/* Number of pages after which a list counts as endless, and fails. */
#define PAGES_MAX 100000u

bool pst_objects_named(const char *dir)
{
	return dir && !strncmp(dir, SCHEME, strlen(SCHEME));
}

/* ---- names ---- */

static void put_encoded(struct pst_text *t, const char *text)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-._~";
	char escape[4];

	for (; *text; text++) {
		if (strchr(plain, *text)) {
			pst_text_put(t, text, 1);
			continue;
		}
		snprintf(escape, sizeof(escape), "%%%02X", (unsigned char)*text);
		pst_text_put_str(t, escape);
	}
}

/* Decodes percent-encoded text in place. Returns false if an escape is malformed. */
static bool decode(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		int high = *from == '%' ? pst_hex_value(from[1]) : 0;
		int low = *from == '%' && high >= 0 ? pst_hex_value(from[2]) : 0;

		if (high < 0 || low < 0 || (*from == '%' && !(high | low)))
			return false;
		*to++ = *from == '%' ? (char)(high << 4 | low) : *from;
		from += *from == '%' ? 2 : 0;
	}
	*to = '\0';
	return true;
}

/* Computes `bucket` and `start` from `base` and `options`. */
static int split(struct pst_objects *o)
{
	const char *host = o->base + strlen(SCHEME);
	const char *slash = strchr(host, '/'), *key = slash ? slash + 1 : "";
	int len = (int)(slash ? slash - host : (ptrdiff_t)strlen(host));

	if (asprintf(&o->bucket, SCHEME "%.*s/%s", len, host, o->options) < 0)
		o->bucket = NULL;
	if (asprintf(&o->start, "%s%s", key, *key ? "/" : "") < 0)
		o->start = NULL;
	if (!o->bucket || !o->start)
		return pst_weights_no_memory("the name of a prefix");
	if (!len || !decode(o->start))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, o->base, NULL,
					PST_NO_OFF,
					"the name is not of the form s3://bucket/prefix, or a "
					"percent sign is not followed by two hex digits");
	return 0;
}

/* Opens the objects whose keys begin with the first `len` bytes of `base`. */
static int open_at(const char *base, size_t len, const char *options, struct pst_objects *out)
{
	int ret;

	memset(out, 0, sizeof(*out));
	while (len > strlen(SCHEME) && base[len - 1] == '/')
		len--;
	out->base = strndup(base, len);
	out->options = strdup(options);
	ret = out->base && out->options ? split(out)
					: pst_weights_no_memory("the name of a prefix");
	if (ret)
		pst_objects_close(out);
	return ret;
}

int pst_objects_open(const char *dir, struct pst_objects *out)
{
	size_t len = strcspn(dir, "?");

	return open_at(dir, len, dir + len, out);
}

/* Returns the URL base + "/" + the percent-encoded name + `end`. */
static char *join(const struct pst_objects *o, const char *name, const char *end)
{
	struct pst_text t = {.at = NULL};

	pst_text_put_str(&t, o->base);
	pst_text_put_str(&t, "/");
	put_encoded(&t, name);
	pst_text_put_str(&t, end);
	if (!t.failed)
		return t.at;
	free(t.at);
	pst_weights_no_memory("the name of an object");
	return NULL;
}

int pst_objects_open_sub(const struct pst_objects *o, const char *name, struct pst_objects *out)
{
	char *base = join(o, name, "");
	int ret = base ? open_at(base, strlen(base), o->options, out) : -ENOMEM;

	free(base);
	return ret;
}

void pst_objects_close(struct pst_objects *o)
{
	free(o->base);
	free(o->options);
	free(o->bucket);
	free(o->start);
	memset(o, 0, sizeof(*o));
}

char *pst_objects_url(const struct pst_objects *o, const char *name)
{
	return join(o, name, o->options);
}

/* ---- lists ---- */

struct walk {
	size_t skip; /* length of the prefix that all keys of the list have */
	const char *start;
	int (*each)(void *user, const struct pst_listed *object);
	void *user;
};

/* Passes an object to the caller, without the prefix of its key. Skips the object whose key is only
 * the prefix: some programs make such an object to represent a folder. */
static int walk_object(void *user, const struct pst_listed *object)
{
	struct walk *w = user;
	struct pst_listed mine = *object;
	char *name;
	int ret;

	if (strncmp(object->key, w->start, w->skip) != 0 || !object->key[w->skip])
		return 0;
	name = strdup(object->key + w->skip);
	if (!name)
		return pst_weights_no_memory("a list of objects");
	name[strcspn(name, "/")] = '\0';
	mine.key = name;
	ret = *name ? w->each(w->user, &mine) : 0;
	free(name);
	return ret;
}

/* Requests a page of the list. Returns the length of its XML in `body`. */
static int64_t ask_page(const struct pst_objects *o, const char *token, char *body)
{
	struct penstock_s3_answer answer = {.size = sizeof(answer)};
	struct penstock_s3_question ask = {.size = sizeof(ask), .url = o->bucket, .method = "GET"};
	struct pst_text query = {.at = NULL};
	int64_t got;

	pst_text_put_str(&query, "delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000");
	if (token) {
		pst_text_put_str(&query, "&continuation-token=");
		put_encoded(&query, token);
	}
	if (*o->start) {
		pst_text_put_str(&query, "&prefix=");
		put_encoded(&query, o->start);
	}
	ask.query = query.at;
	got = query.failed ? pst_weights_no_memory("a list of objects")
			   : penstock_s3_ask(&ask, &answer, body, PAGE_MAX);
	free(query.at);
	return got < 0 && !query.failed ? pst_weights_fail_lib((int)got, o->base, NULL, PST_NO_OFF)
					: got;
}

static int walk_pages(const struct pst_objects *o, struct walk *w, char *body)
{
	char *token = NULL;
	int ret = 0;

	for (unsigned pages = 0; !ret && (token || !pages); pages++) {
		int64_t len = ask_page(o, token, body);
		const char *next = NULL;

		free(token);
		token = NULL;
		if (len < 0)
			return (int)len;
		body[len] = '\0';
		ret = pst_listing_parse(body, (size_t)len, walk_object, w, &next);
		if (ret == -EBADMSG || pages == PAGES_MAX)
			ret = pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, o->base, NULL,
					       PST_NO_OFF, "the server's list is malformed");
		if (!ret && next) {
			token = strdup(next);
			ret = token ? 0 : pst_weights_no_memory("a list of objects");
		}
	}
	free(token);
	return ret;
}

int pst_objects_each(const struct pst_objects *o,
		     int (*each)(void *user, const struct pst_listed *object), void *user)
{
	struct walk w = {.skip = strlen(o->start), .start = o->start, .each = each, .user = user};
	char *body = malloc(PAGE_MAX + 1);
	int ret = body ? walk_pages(o, &w, body) : pst_weights_no_memory("a list of objects");

	free(body);
	return ret;
}

/* ---- single objects ---- */

/* Sends a request for one object. */
static int ask_object(const struct pst_objects *o, const char *name, const char *method,
		      struct penstock_s3_answer *answer)
{
	struct penstock_s3_question ask = {.size = sizeof(ask), .method = method};
	char *url = pst_objects_url(o, name);
	int64_t ret;

	ask.url = url;
	answer->size = sizeof(*answer);
	ret = url ? penstock_s3_ask(&ask, answer, NULL, 0) : -ENOMEM;
	if (url && ret < 0) {
		url[strcspn(url, "?")] = '\0';
		pst_weights_fail_lib((int)ret, url, NULL, PST_NO_OFF);
	}
	free(url);
	return ret < 0 ? (int)ret : 0;
}

int pst_objects_length(const struct pst_objects *o, const char *name, uint64_t *bytes)
{
	struct penstock_s3_answer answer;
	int ret = ask_object(o, name, "HEAD", &answer);

	if (!ret)
		*bytes = answer.length;
	return ret;
}

int pst_objects_read(const struct pst_objects *o, const char *name, uint64_t max, char **out,
		     size_t *len)
{
	struct penstock_seg seg = {.off = 0};
	struct penstock_item item = {.size = sizeof(item), .segs = &seg, .seg_count = 1};
	uint64_t bytes = 0;
	int ret = pst_objects_length(o, name, &bytes);
	char *url;

	if (ret)
		return ret;
	if (bytes > max)
		return pst_weights_fail(EFBIG, PENSTOCK_WHY_MALFORMED, name, NULL, PST_NO_OFF,
					"the object has %llu bytes, and the manifests and indices "
					"of a checkpoint may have 1 GiB; load without comparing "
					"checksums",
					(unsigned long long)bytes);
	url = pst_objects_url(o, name);
	*out = malloc((size_t)bytes + 1);
	if (!url || !*out) {
		ret = pst_weights_no_memory("a manifest");
	} else if (bytes) {
		seg.buf = *out;
		seg.row_len = item.len = bytes;
		ret = penstock_part_read(url, &item, 1, NULL, NULL);
	}
	free(url);
	if (ret)
		free(*out);
	else
		*len = (size_t)bytes;
	return ret;
}

int pst_objects_remove(const struct pst_objects *o, const char *name)
{
	struct penstock_s3_answer answer;
	int ret = ask_object(o, name, "DELETE", &answer);

	return ret == -ENOENT ? 0 : ret;
}
