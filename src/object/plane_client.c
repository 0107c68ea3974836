/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements plane_client.h. After the release of a window, no server may change its memory. This
 * also holds for a client whose windows a plane (another process) serves. If the plane has ended,
 * or could not end a server's access, this file replaces the window's pages by private copies.
 */
#include "object/plane_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pst_plane_buffer_open(struct pst_plane_link *link, struct penstock_device *dev, size_t len,
			  struct pst_plane_buffer **out, struct pst_err *err)
{
	struct pst_plane_buffer *b = calloc(1, sizeof(*b));
	int ret;

	if (!b)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a buffer");
	b->link = link;
	b->len = len;
	ret = pst_shared_create(dev, len, &b->shared, err);
	if (!ret) {
		ret = pst_plane_pass(link, &b->shared, &b->id, err);
		if (ret)
			pst_shared_abandon(&b->shared, pst_plane_link_until(link));
	}
	if (ret)
		free(b);
	else
		*out = b;
	return ret;
}

void pst_plane_buffer_free(struct pst_plane_buffer *buffer, uint64_t until_ns)
{
	/* `stuck`: a server may still access the buffer's GPU memory, so this memory stays
	 * allocated. */
	if (!atomic_load(&buffer->stuck))
		pst_shared_abandon(&buffer->shared, until_ns);
	free(buffer);
}

int pst_plane_buffer_close(struct pst_plane_buffer *buffer, struct pst_err *err)
{
	struct pst_plane_message answer;
	unsigned windows = atomic_load(&buffer->windows);

	if (windows)
		return pst_fail_errno(err, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u windows of the buffer are open: release them first",
				      windows);
	if (pst_plane_ask_id(buffer->link, PST_PLANE_MEMORY_CLOSE, buffer->id, &answer,
			     &(struct pst_err){0})) {
		/* The plane is gone, or does not answer. */
		pst_plane_buffer_free(buffer, pst_plane_link_until(buffer->link));
		return 0;
	}
	if (!atomic_load(&buffer->stuck))
		pst_shared_close(&buffer->shared);
	free(buffer);
	return 0;
}

static int cut_fail(struct pst_err *err)
{
	return pst_fail_errno(err, EIO, PENSTOCK_WHY_DEADLINE,
			      "a release has cut off a server from the buffer: its other windows "
			      "are lost, and it has no new ones; use a new buffer");
}

int pst_plane_window_open(struct pst_plane_buffer *buffer, enum penstock_op op, uint64_t off,
			  uint64_t len, struct pst_plane_grant **out, struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_WINDOW};
	struct pst_plane_grant *grant;
	int ret;

	if (op != PENSTOCK_READ && op != PENSTOCK_WRITE)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "operation %d is unknown", op);
	if (off > buffer->len || len > buffer->len - off)
		return pst_fail_errno(err, ERANGE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the window ends beyond the buffer of %zu bytes",
				      buffer->len);
	/* If `cut` is set, this process and the plane map different pages. Bytes for a new window
	 * would go to the plane's pages, and never reach this process. */
	if (atomic_load(&buffer->cut))
		return cut_fail(err);
	grant = calloc(1, sizeof(*grant));
	if (!grant)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	m.window.memory = buffer->id;
	m.window.off = off;
	m.window.len = len;
	m.window.op = op;
	ret = pst_plane_ask(buffer->link, &m, NULL, 0, err);
	if (ret) {
		free(grant);
		return ret;
	}
	grant->buffer = buffer;
	grant->id = m.answer.id;
	grant->off = off;
	grant->len = len;
	grant->encrypted = m.answer.encrypted != 0;
	grant->on_host = m.answer.on_host != 0;
	snprintf(grant->transport, sizeof(grant->transport), "%s", m.answer.transport);
	atomic_fetch_add(&buffer->windows, 1);
	*out = grant;
	return 0;
}

/* Copies a text into an array. Fails if the text is too long. */
static int text_put(char *out, size_t size, const char *text, const char *what, struct pst_err *err)
{
	size_t len = text ? strlen(text) : 0;

	if (len >= size)
		return pst_fail_errno(err, ENAMETOOLONG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s has %zu bytes; the maximum is %zu", what, len, size - 1);
	memcpy(out, text ? text : "", len + 1);
	return 0;
}

int pst_plane_start(const struct pst_plane_grant *grant,
		    const struct penstock_object_request *request, struct pst_end *end,
		    struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_START};
	struct pst_plane_start *s = &m.start;
	int ret = text_put(s->bucket, sizeof(s->bucket), request->bucket, "the bucket", err);

	if (!ret)
		ret = text_put(s->key, sizeof(s->key), request->key, "the key", err);
	if (!ret)
		ret = text_put(s->if_match, sizeof(s->if_match), request->if_match, "if_match",
			       err);
	if (ret)
		return ret;
	s->window = grant->id;
	s->user = request->user;
	s->off = request->off;
	s->flags = request->flags;
	s->key_len = (uint32_t)strlen(s->key);
	return pst_plane_fly(grant->buffer->link, &m, NULL, 0, end, err);
}

int pst_plane_release(struct pst_plane_grant *grant, struct pst_err *err)
{
	struct pst_plane_buffer *buffer = grant->buffer;
	struct pst_plane_message answer;
	const bool lost = atomic_load(&buffer->cut);
	int ret = pst_plane_ask_id(buffer->link, PST_PLANE_RELEASE, grant->id, &answer, err);
	bool cut = ret == -ECONNRESET;

	if (ret == -EBUSY)
		return ret;
	/* The release of another window replaced pages of the buffer, perhaps the first or the last
	 * page of this window, while the plane moved bytes. Some of the bytes may be lost. */
	if (!ret && lost)
		ret = cut_fail(err);
	/* Unless the connection has ended, the plane's answer to RELEASE is in `answer`. */
	if (!cut && answer.answer.cut)
		cut = true;
	if (cut)
		atomic_store(&buffer->cut, true);
	/* Once the pages are replaced, the release has succeeded even if the plane has ended, or if
	 * a server may still access the old pages. Any other error stays, because bytes of the
	 * window may be missing. */
	if (ret == -ECONNRESET || (cut && ret == -ETIMEDOUT))
		ret = 0;
	if (cut && grant->len) {
		struct pst_err why;
		int code = pst_shared_cut(&buffer->shared, grant->off, grant->len, &why);

		if (code) {
			atomic_store(&buffer->stuck, true);
			*err = why;
			ret = code;
		}
	}
	atomic_fetch_sub(&buffer->windows, 1);
	free(grant);
	return ret;
}

int pst_plane_client_info(struct pst_plane_link *link, struct penstock_object_client_info *out,
			  struct pst_err *err)
{
	struct pst_plane_message m = {.kind = PST_PLANE_INFO};
	int ret = pst_plane_ask(link, &m, NULL, 0, err);

	if (!ret && m.kind != PST_PLANE_COUNTS)
		ret = pst_fail(err, PENSTOCK_WHY_MALFORMED, "the plane sent another answer");
	if (!ret)
		*out = m.counts.client;
	return ret;
}
