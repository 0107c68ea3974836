/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the XML of requests: calls begin() and end() for each element. xml_read.c is the only file
 * that calls expat. Called by the operations. The input comes from the network: documents with a
 * DTD are refused, so that no entity is ever expanded or loaded.
 */
#ifndef GW_XML_READ_H
#define GW_XML_READ_H

#include <stddef.h>

#define GW_XML_DEPTH_MAX 8
#define GW_XML_TEXT_MAX 4096 /* maximum length in bytes of an element's text */

struct gw_xml_calls {
	/* Called when an element begins. `path` has the names of the element and of those around
	 * it, such as "Delete/Object/Key", without name spaces. Results other than 0 end the
	 * reading. */
	int (*begin)(void *user, const char *path);
	/* Called when an element ends. `text` has the text after the element's last child element,
	 * or all its text if it has no child elements, and ends with a NUL. */
	int (*end)(void *user, const char *path, const char *text, size_t len);
};

/* Reads a document. Returns 0, the result other than 0 of begin() or end(), or -EBADMSG if the
 * document is malformed. */
int gw_xml_read(const char *bytes, size_t len, const struct gw_xml_calls *calls, void *user);

#endif
