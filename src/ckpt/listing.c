/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements listing.h. It parses the elements of ListObjectsV2 that it needs and skips all others.
 * It refuses a document with "<!", so a document cannot declare entities. It decodes texts in
 * place, because a decoded text is never longer than the encoded one.
 */
#include "ckpt/listing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/digits.h"

#define DEPTH_MAX 8

/* The page (one response to ListObjectsV2) that is being parsed. `at` is the next byte to parse. */
struct page {
	char *at, *end;
	struct pst_listed *objects;
	size_t count, capacity;
	const char *token;
	bool encoded, truncated;
};

/* A range of the page's text. */
struct span {
	char *at;
	size_t len;
};

static bool span_is(const struct span *s, const char *word)
{
	return s->len == strlen(word) && !memcmp(s->at, word, s->len);
}

/* ---- texts ---- */

/* Writes a character as UTF-8. Returns its length, or 0 if there is no such character. */
static size_t put_utf8(unsigned long c, char *to)
{
	size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};

	if (!c || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	for (size_t i = len; i-- > 1; c >>= 6)
		to[i] = (char)(0x80 | (c & 0x3f));
	to[0] = (char)(first[len] | c);
	return len;
}

/* Decodes an XML reference such as &amp;. `name` is the text between `&` and `;`. Writes the
 * character as UTF-8. Returns its length, or 0 if the reference is unknown. */
static size_t put_reference(const char *name, size_t len, char *to)
{
	static const struct {
		const char *name, *text;
	} known[] = {{"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}};
	bool hex = len > 1 && name[1] == 'x';
	char *end;
	unsigned long c;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (len == strlen(known[i].name) && !memcmp(name, known[i].name, len)) {
			*to = *known[i].text;
			return 1;
		}
	if (len < 2 || name[0] != '#' || pst_hex_value(name[hex ? 2 : 1]) < 0)
		return 0;
	c = strtoul(name + (hex ? 2 : 1), &end, hex ? 16 : 10);
	return end == name + len ? put_utf8(c, to) : 0;
}

/* Decodes all XML references of a text, such as &amp;, and writes a NUL after the text. Returns
 * false if a reference is malformed. */
static bool decode_references(struct span *s)
{
	char *to = s->at, *end = s->at + s->len, *from = s->at;

	while (from < end) {
		char *stop = *from == '&' ? memchr(from, ';', (size_t)(end - from)) : NULL;
		char c[4];
		size_t n;

		if (*from != '&') {
			*to++ = *from++;
			continue;
		}
		n = stop ? put_reference(from + 1, (size_t)(stop - from - 1), c) : 0;
		if (!n || (ptrdiff_t)n > stop + 1 - from)
			return false;
		memcpy(to, c, n);
		to += n;
		from = stop + 1;
	}
	*to = '\0';
	s->len = (size_t)(to - s->at);
	return true;
}

/* Decodes a percent-encoded key. A plus sign means a space. Returns false if an escape is malformed
 * or encodes a NUL. */
static bool decode_key(char *key)
{
	char *to = key;

	for (const char *from = key; *from; from++) {
		int high, low;

		if (*from != '%') {
			*to++ = *from == '+' ? ' ' : *from;
			continue;
		}
		high = pst_hex_value(from[1]);
		low = high < 0 ? -1 : pst_hex_value(from[2]);
		if (low < 0 || !(high | low))
			return false;
		*to++ = (char)(high << 4 | low);
		from += 2;
	}
	*to = '\0';
	return true;
}

/* Parses a number of at most 19 digits. */
static bool parse_size(const char *text, uint64_t *out)
{
	size_t len = strspn(text, "0123456789");

	if (!len || len > 19 || text[len])
		return false;
	*out = strtoull(text, NULL, 10);
	return true;
}

/* Parses a time such as 2026-01-31T12:00:00.000Z. */
static bool parse_time(const char *text, int64_t *out)
{
	struct tm tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	int64_t ns = 0, unit = 100000000;

	if (!rest)
		return false;
	if (*rest == '.')
		for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit /= 10)
			ns += (*rest - '0') * unit;
	*out = (int64_t)timegm(&tm) * 1000000000 + ns;
	return *rest == 'Z' && !rest[1];
}

/* FNV-1a. */
static uint64_t hash(const char *text)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3ull;
	return h;
}

/* ---- elements ---- */

static int add_object(struct page *p, bool folder)
{
	if (p->count == p->capacity) {
		size_t capacity = p->capacity ? 2 * p->capacity : 64;
		struct pst_listed *more = reallocarray(p->objects, capacity, sizeof(*more));

		if (!more)
			return -ENOMEM;
		p->objects = more;
		p->capacity = capacity;
	}
	p->objects[p->count++] = (struct pst_listed){.folder = folder};
	return 0;
}

/* Stores the text of an element at depth 2 or 3. `outer` is the name of the element at depth 2. */
static bool take_text(struct page *p, const struct span *outer, const struct span *inner,
		      struct span *text)
{
	struct pst_listed *o = p->count ? &p->objects[p->count - 1] : NULL;
	bool listed = inner && span_is(outer, "Contents");

	if (!decode_references(text))
		return false;
	if (!inner && span_is(outer, "IsTruncated"))
		p->truncated = !strcmp(text->at, "true");
	else if (!inner && span_is(outer, "NextContinuationToken"))
		p->token = text->at;
	else if (!inner && span_is(outer, "EncodingType"))
		p->encoded = !strcmp(text->at, "url");
	else if ((listed && span_is(inner, "Key")) ||
		 (inner && span_is(outer, "CommonPrefixes") && span_is(inner, "Prefix")))
		o->key = text->at;
	else if (listed && span_is(inner, "Size"))
		return parse_size(text->at, &o->bytes);
	else if (listed && span_is(inner, "LastModified"))
		return parse_time(text->at, &o->time_ns);
	else if (listed && span_is(inner, "ETag"))
		o->tag = hash(text->at);
	return true;
}

/* Parses a tag from the byte after its "<". Stores its name without the namespace prefix. Returns
 * false if the tag has no end. */
static bool take_tag(struct page *p, struct span *name, bool *closes, bool *empty)
{
	char quote = 0, *colon, *at;

	*closes = p->at < p->end && *p->at == '/';
	p->at += *closes;
	name->at = at = p->at;
	while (at < p->end && !strchr(" \t\r\n/>", *at))
		at++;
	name->len = (size_t)(at - name->at);
	colon = memchr(name->at, ':', name->len);
	if (colon) {
		name->len -= (size_t)(colon + 1 - name->at);
		name->at = colon + 1;
	}
	while (at < p->end && (quote || *at != '>')) {
		if (quote ? *at == quote : *at == '"' || *at == '\'')
			quote = quote ? 0 : *at;
		at++;
	}
	if (at == p->end || !name->len)
		return false;
	*empty = !*closes && at[-1] == '/';
	p->at = at + 1;
	return true;
}

/* Skips the declaration "<?xml ...?>" from the byte after its "<". */
static bool skip_declaration(struct page *p)
{
	char *end = memmem(p->at, (size_t)(p->end - p->at), "?>", 2);

	p->at = end ? end + 2 : p->end;
	return end;
}

/* Handles the start of an element at depth `depth`. */
static int begin_element(struct page *p, unsigned depth, const struct span *name)
{
	bool folder = span_is(name, "CommonPrefixes");

	return depth == 2 && (folder || span_is(name, "Contents")) ? add_object(p, folder) : 0;
}

static int read_page(struct page *p)
{
	struct span names[DEPTH_MAX + 1], text;
	bool closes, empty, leaf = false, any = false;
	unsigned depth = 0;
	int ret;

	for (;;) {
		char *open = memchr(p->at, '<', (size_t)(p->end - p->at));
		struct span name;

		text = (struct span){p->at, open ? (size_t)(open - p->at) : 0};
		if (!open)
			return depth || !any ? -EBADMSG : 0;
		p->at = open + 1;
		if (p->at < p->end && *p->at == '?' && !depth) {
			if (!skip_declaration(p))
				return -EBADMSG;
			continue;
		}
		if (p->at == p->end || *p->at == '!' || !take_tag(p, &name, &closes, &empty))
			return -EBADMSG;
		if (!closes) {
			if (depth == DEPTH_MAX)
				return -EBADMSG;
			names[++depth] = name;
			any = true;
			ret = begin_element(p, depth, &name);
			if (ret)
				return ret;
			leaf = !empty;
			depth -= empty;
			continue;
		}
		if (!depth || names[depth].len != name.len ||
		    memcmp(names[depth].at, name.at, name.len))
			return -EBADMSG;
		if (leaf && (depth == 2 || depth == 3) &&
		    !take_text(p, &names[2], depth == 3 ? &names[3] : NULL, &text))
			return -EBADMSG;
		leaf = false;
		depth--;
	}
}

int pst_listing_parse(char *text, size_t len,
		      int (*each)(void *user, const struct pst_listed *object), void *user,
		      const char **next)
{
	struct page p = {.at = text, .end = text + len};
	int ret = memchr(text, '\0', len) ? -EBADMSG : read_page(&p);

	if (!ret && p.truncated && (!p.token || !*p.token))
		/* the list continues, but the response has no token for the next page */
		ret = -EBADMSG;
	for (size_t i = 0; i < p.count && !ret; i++) {
		char *key = (char *)(uintptr_t)p.objects[i].key;

		if (!key || !*key || (p.encoded && !decode_key(key)))
			ret = -EBADMSG;
		else
			ret = each(user, &p.objects[i]);
	}
	*next = !ret && p.truncated ? p.token : NULL;
	free(p.objects);
	return ret;
}
