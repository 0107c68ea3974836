/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads manifests; manifest_write.c describes their format. The bytes may be damaged or hostile, so
 * the parser accepts nothing but what manifest_write.c writes: every line, its members and their
 * order. The checksum in the last line is compared before anything is parsed. Called by the code
 * for folders, and by bindings and programs.
 */
#include "ckpt/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "common/crc32c.h"
#include "common/json.h"
#include "common/utf8.h"
#include "weights/err.h"

/* A manifest that is being parsed. */
struct parse {
	struct penstock_manifest *m;
	const char *path;
	const char *text; /* the first byte of the whole text */
};

static int malformed(const struct parse *p, const char *at, const char *what)
{
	return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, p->path, NULL,
				(uint64_t)(at - p->text), "%s", what);
}

/* Fails with the message `in->what` if the JSON is malformed. Fails with the message `fallback` if
 * the JSON is valid, but is not a line of a manifest. */
static int json_fail(const struct parse *p, const struct pst_json *in, const char *fallback)
{
	return malformed(p, in->text + in->at, in->what ? in->what : fallback);
}

/* ---- lines ---- */

bool pst_manifest_names_part(const char *name)
{
	return *name && strcmp(name, ".") && strcmp(name, "..") && !strchr(name, '/') &&
	       pst_utf8_valid(name);
}

/* Reads the key of the next member. Returns false if the key is not `want`. */
static bool take_key(struct pst_json *in, bool *first, const char *want)
{
	size_t len;
	char *key;

	return pst_json_more(in, '}', first) && pst_json_string(in, &key, &len) &&
	       !strcmp(key, want) && pst_json_take(in, ':');
}

/* Reads the next member: the key `want` and a number. */
static bool take_number(struct pst_json *in, bool *first, const char *want, uint64_t *out)
{
	return take_key(in, first, want) && pst_json_number(in, out);
}

/* Reads the end of a line's object. */
static bool take_end(struct pst_json *in, bool *first)
{
	return !pst_json_more(in, '}', first) && !in->what && pst_json_end(in);
}

static bool take_null(struct pst_json *in)
{
	if (pst_json_peek(in) != 'n' || in->len - in->at < 4 ||
	    memcmp(in->text + in->at, "null", 4) != 0)
		return false;
	in->at += 4;
	return true;
}

/* Reads one item: [name, off, len, crc32c]. */
static bool take_item(struct pst_json *in, struct penstock_item *item)
{
	bool first = true;
	uint64_t crc = 0;
	char *name = NULL;
	size_t len;

	*item = (struct penstock_item){.size = sizeof(*item)};
	if (!pst_json_take(in, '[') || !pst_json_more(in, ']', &first) ||
	    !(take_null(in) || pst_json_string(in, &name, &len)) ||
	    !pst_json_more(in, ']', &first) || !pst_json_number(in, &item->off) ||
	    !pst_json_more(in, ']', &first) || !pst_json_number(in, &item->len) ||
	    !pst_json_more(in, ']', &first))
		return false;
	if (!take_null(in)) {
		if (!pst_json_number(in, &crc) || crc > UINT32_MAX)
			return false;
		item->flags = PENSTOCK_ITEM_SUMMED;
		item->crc32c = (uint32_t)crc;
	}
	item->name = name;
	return !pst_json_more(in, ']', &first) && !in->what;
}

/* Makes room for one more element in a list. Returns NULL if there is no memory. */
static void *make_room(void *list, uint64_t count, uint64_t *capacity, size_t size)
{
	uint64_t more = *capacity ? *capacity * 2 : 64;

	if (count < *capacity)
		return list;
	list = reallocarray(list, more, size);
	if (list)
		*capacity = more;
	return list;
}

static int add_item(struct parse *p, const struct penstock_item *item)
{
	struct penstock_manifest *m = p->m;
	void *list = make_room(m->items, m->item_count, &m->item_capacity, sizeof(m->items[0]));

	if (!list)
		return pst_weights_no_memory("a manifest");
	m->items = list;
	m->items[m->item_count++] = *item;
	return 0;
}

static int add_part(struct parse *p, const struct pst_manifest_part *part)
{
	struct penstock_manifest *m = p->m;
	void *list = make_room(m->parts, m->part_count, &m->part_capacity, sizeof(m->parts[0]));

	if (!list)
		return pst_weights_no_memory("a manifest");
	m->parts = list;
	m->parts[m->part_count++] = *part;
	return 0;
}

static int parse_items(struct parse *p, struct pst_json *in, struct pst_manifest_part *part)
{
	struct penstock_item item;
	bool first = true;
	uint64_t end = 0;
	int ret = 0;

	if (!pst_json_take(in, '['))
		return json_fail(p, in, "");
	while (!ret && pst_json_more(in, ']', &first)) {
		if (!take_item(in, &item))
			return json_fail(p, in, "an item is malformed");
		if (item.off < end || item.len > part->bytes || item.off > part->bytes - item.len)
			return json_fail(p, in,
					 "an item overlaps another, or ends beyond its part");
		end = item.off + item.len;
		ret = add_item(p, &item);
		part->count++;
	}
	return ret || !in->what ? ret : json_fail(p, in, "");
}

static int parse_part(struct parse *p, char *line, size_t len)
{
	struct pst_manifest_part part = {.first = p->m->item_count};
	struct pst_json in = {.text = line, .len = len};
	bool first = true;
	size_t name_len;
	char *name;
	int ret;

	if (!pst_json_take(&in, '{') || !take_key(&in, &first, "part") ||
	    !pst_json_string(&in, &name, &name_len) ||
	    !take_number(&in, &first, "bytes", &part.bytes) || !take_key(&in, &first, "items"))
		return json_fail(p, &in, "this line does not describe a part");
	if (!pst_manifest_names_part(name))
		return malformed(p, line, "a part's name has a slash, or is empty or dots only");
	if (part.bytes > INT64_MAX)
		return malformed(p, line, "a part is too long");
	part.name = name;
	ret = parse_items(p, &in, &part);
	if (!ret && !take_end(&in, &first))
		ret = json_fail(p, &in, "a part has more members than this library knows");
	return ret ? ret : add_part(p, &part);
}

static int parse_head(struct parse *p, char *line, size_t len)
{
	struct pst_json in = {.text = line, .len = len};
	uint64_t version, ranks;
	bool first = true;

	if (!pst_json_take(&in, '{') || !take_number(&in, &first, "penstock_manifest", &version))
		return json_fail(p, &in, "this is no manifest");
	if (version != 1)
		return json_fail(p, &in, "a later version of the library wrote this manifest");
	if (!take_number(&in, &first, "ranks", &ranks) || ranks > UINT_MAX ||
	    !take_end(&in, &first))
		return json_fail(p, &in, "the first line is malformed");
	/* While a save replaces a checkpoint, the folder has the manifests of the old and of the
	 * new checkpoint, and their numbers of ranks may differ. */
	if (ranks > p->m->ranks)
		p->m->ranks = (unsigned)ranks;
	return 0;
}

/* Checks the tail (the last line of a manifest), which begins at `line`. *parts becomes the number
 * of parts that the tail states. */
static int check_tail(struct parse *p, char *line, size_t len, uint64_t *parts)
{
	size_t before = (size_t)(line - p->text);
	uint32_t crc = pst_crc32c_finish(pst_crc32c_raw(0, p->text, before), before);
	struct pst_json in = {.text = line, .len = len};
	bool first = true;
	uint64_t sum;

	if (!pst_json_take(&in, '{') || !take_number(&in, &first, "parts", parts) ||
	    !take_number(&in, &first, "crc32c", &sum) || !take_end(&in, &first))
		return json_fail(p, &in, "the last line of the manifest is missing");
	return sum == crc ? 0 : malformed(p, line, "the manifest was changed or damaged");
}

/* Adds `text` to the list of texts that the manifest owns. */
static int own_text(struct penstock_manifest *m, char *text)
{
	char **more = reallocarray(m->texts, m->text_count + 1u, sizeof(*more));

	if (!more) {
		free(text);
		return pst_weights_no_memory("a manifest");
	}
	m->texts = more;
	m->texts[m->text_count++] = text;
	return 0;
}

int pst_manifest_add(struct penstock_manifest *m, const char *path, char *text, size_t len)
{
	struct parse p = {.m = m, .path = path, .text = text};
	uint64_t parts, had = m->part_count;
	char *at = text, *tail, *end;
	int ret = own_text(m, text);

	if (ret)
		return ret;
	if (!len || text[len - 1] != '\n')
		return malformed(&p, text + len, "the manifest ends in the middle of a line");
	tail = memrchr(text, '\n', len - 1);
	tail = tail ? tail + 1 : text;
	ret = check_tail(&p, tail, (size_t)(text + len - tail), &parts);
	if (!ret && tail == text)
		ret = malformed(&p, text, "the first line of the manifest is missing");
	for (; !ret && at < tail; at = end + 1) {
		end = memchr(at, '\n', (size_t)(tail - at));
		ret = at == text ? parse_head(&p, at, (size_t)(end - at))
				 : parse_part(&p, at, (size_t)(end - at));
	}
	if (!ret && m->part_count - had != parts)
		ret = malformed(&p, tail, "the number of parts differs from that in the last line");
	return ret;
}

static int by_name(const void *a, const void *b)
{
	const struct pst_manifest_part *x = a, *y = b;

	return strcmp(x->name, y->name);
}

int pst_manifest_sort(struct penstock_manifest *m, const char *dir)
{
	if (m->part_count)
		qsort(m->parts, m->part_count, sizeof(m->parts[0]), by_name);
	for (uint64_t i = 1; i < m->part_count; i++)
		if (!strcmp(m->parts[i - 1].name, m->parts[i].name))
			return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, dir,
						m->parts[i].name, PST_NO_OFF,
						"the manifest lists this part twice");
	return 0;
}

/* ---- files ---- */

/* Reads up to `len` bytes. Returns their number, or a negative errno. */
static int64_t read_all(int fd, char *to, size_t len)
{
	size_t at = 0;

	while (at < len) {
		ssize_t n = read(fd, to + at, len - at);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (!n)
			break;
		at += n > 0 ? (size_t)n : 0;
	}
	return (int64_t)at;
}

static int read_open_file(int fd, const char *path, uint64_t max, char **out, size_t *len)
{
	struct stat stat;
	int64_t n;

	if (fstat(fd, &stat))
		return pst_weights_fail_errno(errno, path, NULL, PST_NO_OFF, "cannot stat: %m");
	if (!S_ISREG(stat.st_mode))
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, path, NULL, PST_NO_OFF,
					"it is no regular file");
	if ((uint64_t)stat.st_size > max)
		return pst_weights_fail(EFBIG, PENSTOCK_WHY_MALFORMED, path, NULL, PST_NO_OFF,
					"the file has %llu bytes, and the manifests and indices of "
					"a folder may have 1 GiB; load without comparing checksums",
					(unsigned long long)stat.st_size);
	*out = malloc((size_t)stat.st_size + 1);
	if (!*out)
		return pst_weights_no_memory("a manifest");
	n = read_all(fd, *out, (size_t)stat.st_size);
	if (n < 0) {
		free(*out);
		return pst_weights_fail_errno((int)n, path, NULL, PST_NO_OFF, "cannot read: %m");
	}
	*len = (size_t)n;
	return 0;
}

int pst_manifest_read_file(const struct pst_ckpt_dir *dir, const char *name, uint64_t max,
			   char **out, size_t *len)
{
	char path[PATH_MAX];
	int fd, ret;

	if (dir->remote)
		return pst_objects_read(&dir->objects, name, max, out, len);
	fd = openat(dir->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	snprintf(path, sizeof(path), "%s/%s", dir->path, name);
	if (fd < 0 && errno == ELOOP)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, path, NULL, PST_NO_OFF,
					"it is a symbolic link");
	if (fd < 0)
		return pst_weights_fail_errno(errno, path, NULL, PST_NO_OFF, "cannot open: %m");
	ret = read_open_file(fd, path, max, out, len);
	close(fd);
	return ret;
}

/* A folder whose manifests are to be read. */
struct source {
	struct penstock_manifest *m;
	const struct pst_ckpt_dir *dir;
	uint64_t bytes_left; /* number of bytes that may still be read */
	unsigned found;	     /* number of manifests */
	unsigned replaced;   /* how many of them list a marker that is not the folder's */
};

static bool names_marker(const char *name)
{
	static const char end[] = ".metadata";
	size_t len = strlen(name), n = sizeof(end) - 1;

	return len >= n && !strcmp(name + len - n, end);
}

/* Returns 1 if the folder's marker differs from the one that the manifest lists as the part `part`.
 * Then another program has since saved a checkpoint there, or the marker is damaged. Returns 0 if
 * the marker is the same, is missing or cannot be read. Returns a negative errno if there is no
 * memory. */
static int other_marker(const struct source *dir, const struct pst_manifest_part *part)
{
	const struct penstock_item *item = &dir->m->items[part->first];
	size_t len;
	char *text;
	int ret;

	if (part->count != 1 || item->off || item->len != part->bytes ||
	    !(item->flags & PENSTOCK_ITEM_SUMMED))
		return 0;
	ret = pst_manifest_read_file(dir->dir, part->name, PST_MANIFEST_READ_MAX, &text, &len);
	if (ret)
		return ret == -ENOMEM ? ret : 0;
	ret = len != part->bytes ||
	      pst_crc32c_finish(pst_crc32c_raw(0, text, len), len) != item->crc32c;
	free(text);
	return ret;
}

/* Adds the manifest in `text`, which m owns afterwards, unless the manifest lists a marker that is
 * not the folder's marker. */
static int add_valid(struct source *dir, const char *path, char *text, size_t len)
{
	struct penstock_manifest *m = dir->m, before = *m;
	int ret = pst_manifest_add(m, path, text, len);

	for (uint64_t i = before.part_count; !ret && i < m->part_count; i++)
		if (names_marker(m->parts[i].name))
			ret = other_marker(dir, &m->parts[i]);
	if (ret <= 0)
		return ret;
	m->part_count = before.part_count;
	m->item_count = before.item_count;
	m->ranks = before.ranks;
	dir->replaced++;
	return 0;
}

/* Adds a file of the folder if its name is that of a manifest. */
static int add_file(void *user, const char *name)
{
	size_t name_len = strlen(name), end = strlen(PST_MANIFEST_END), len;
	struct source *dir = user;
	char path[PATH_MAX], *text;
	int ret;

	if (name_len < end || strcmp(name + name_len - end, PST_MANIFEST_END) != 0)
		return 0;
	ret = pst_manifest_read_file(dir->dir, name, dir->bytes_left, &text, &len);
	if (ret)
		return ret;
	dir->bytes_left -= len;
	snprintf(path, sizeof(path), "%s/%s", dir->dir->path, name);
	dir->found++;
	return add_valid(dir, path, text, len);
}

static int add_folder(struct penstock_manifest *m, const struct pst_ckpt_dir *dir)
{
	struct source source = {.m = m, .dir = dir, .bytes_left = PST_MANIFEST_READ_MAX};
	int ret = pst_ckpt_dir_names(dir, add_file, &source);

	if (!ret && source.replaced && source.replaced == source.found)
		ret = pst_weights_fail(ENOENT, PENSTOCK_WHY_UNSUPPORTED, dir->path, NULL,
				       PST_NO_OFF,
				       "the manifest belongs to another marker: another program "
				       "has saved here, or the marker is damaged; the bytes cannot "
				       "be compared");
	if (!ret && !source.found)
		ret = pst_weights_fail(ENOENT, PENSTOCK_WHY_UNSUPPORTED, dir->path, NULL,
				       PST_NO_OFF,
				       "the folder has no manifest, so its bytes cannot be "
				       "compared");
	return ret ? ret : pst_manifest_sort(m, dir->path);
}

int pst_manifest_open_at(const struct pst_ckpt_dir *dir, struct penstock_manifest **out)
{
	struct penstock_manifest *m = calloc(1, sizeof(*m));
	int ret = m ? add_folder(m, dir) : pst_weights_no_memory("a manifest");

	if (ret)
		penstock_manifest_close(m);
	else
		*out = m;
	return ret;
}

int penstock_manifest_open(const char *dir, struct penstock_manifest **out)
{
	struct pst_ckpt_dir folder;
	int ret;

	if (!dir || !out)
		return pst_weights_fail_null(dir ? "out" : "the folder's name");
	ret = pst_ckpt_dir_open(NULL, dir, dir, &folder);
	if (!ret) {
		ret = pst_manifest_open_at(&folder, out);
		pst_ckpt_dir_close(&folder);
	}
	return ret;
}

void penstock_manifest_close(struct penstock_manifest *m)
{
	if (!m)
		return;
	for (unsigned i = 0; i < m->text_count; i++)
		free(m->texts[i]);
	free(m->texts);
	free(m->parts);
	free(m->items);
	free(m);
}

/* ---- queries ---- */

uint64_t penstock_manifest_parts(const struct penstock_manifest *m)
{
	if (m)
		return m->part_count;
	pst_weights_fail_null("the manifest");
	return 0;
}

int penstock_manifest_get(const struct penstock_manifest *m, uint64_t index,
			  struct penstock_part *out)
{
	const struct pst_manifest_part *p;
	struct penstock_part part = {.size = sizeof(part)};

	if (!m || !out)
		return pst_weights_fail_null(m ? "out" : "the manifest");
	if (index >= m->part_count)
		return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, NULL, NULL, PST_NO_OFF,
					"the manifest has %llu parts, so none with index %llu",
					(unsigned long long)m->part_count,
					(unsigned long long)index);
	p = &m->parts[index];
	part.name = p->name;
	part.bytes = p->bytes;
	part.items = m->items + p->first;
	part.item_count = p->count;
	pst_weights_struct_out(out, &part, sizeof(part));
	return 0;
}

const struct pst_manifest_part *pst_manifest_part(const struct penstock_manifest *m,
						  const char *name)
{
	struct pst_manifest_part key = {.name = name};

	return m->part_count ? bsearch(&key, m->parts, m->part_count, sizeof(m->parts[0]), by_name)
			     : NULL;
}

/* Returns the last of the part's items (ranges with a checksum) that begin at offset `off`, or NULL
 * if none begins there. If several items begin there, only the last of them can have bytes, because
 * items do not overlap. */
static const struct penstock_item *item_at(const struct penstock_manifest *m,
					   const struct pst_manifest_part *part, uint64_t off)
{
	uint64_t low = part->first, high = part->first + part->count;

	/* A binary search. All items before index `low` begin at `off` or earlier. All items from
	 * index `high` on begin after `off`. */
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (m->items[middle].off <= off)
			low = middle + 1;
		else
			high = middle;
	}
	return low > part->first && m->items[low - 1].off == off ? &m->items[low - 1] : NULL;
}

int penstock_manifest_find(const struct penstock_manifest *m, const char *part, uint64_t off,
			   struct penstock_item *out)
{
	const struct pst_manifest_part *p;
	const struct penstock_item *item;

	if (!m || !part || !out)
		return pst_weights_fail_null(!m	    ? "the manifest"
					     : part ? "out"
						    : "the part's name");
	p = pst_manifest_part(m, part);
	item = p ? item_at(m, p, off) : NULL;
	if (!item)
		return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, part, NULL, off,
					"the manifest lists no item here");
	pst_weights_struct_out(out, item, sizeof(*item));
	return 0;
}
