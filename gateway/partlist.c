/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the list of parts, see partlist.h. */
#include "partlist.h"

#include <stdlib.h>

bool gw_partlist_next(struct gw_partlist *list, uint64_t *len)
{
	if (!list->repeat) {
		char *end;

		if (!*list->at)
			return false;
		list->len = strtoull(list->at, &end, 10);
		list->repeat = 1;
		if (*end == 'x')
			list->repeat = strtoul(end + 1, &end, 10);
		if (end == list->at || (*end && *end != ','))
			return false;
		list->at = *end ? end + 1 : end;
		if (!list->repeat)
			return false;
	}
	list->repeat--;
	*len = list->len;
	return true;
}

static void writer_put(struct gw_partlist_writer *w)
{
	if (!w->repeat)
		return;
	if (w->text.len)
		pst_text_put_str(&w->text, ",");
	pst_text_put_number(&w->text, w->len);
	if (w->repeat > 1) {
		pst_text_put_str(&w->text, "x");
		pst_text_put_number(&w->text, w->repeat);
	}
	w->repeat = 0;
}

void gw_partlist_add(struct gw_partlist_writer *w, uint64_t len)
{
	if (len != w->len)
		writer_put(w);
	w->len = len;
	w->repeat++;
}

void gw_partlist_end(struct gw_partlist_writer *w)
{
	writer_put(w);
}
