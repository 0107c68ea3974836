/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the XML of replies. Called by request.c and the operations. Bytes that XML cannot hold
 * must never get into a text: they are written as U+FFFD. A client that needs the exact bytes of a
 * key requests encoding-type=url.
 */
#ifndef GW_XML_WRITE_H
#define GW_XML_WRITE_H

#include <stdint.h>

#include "common/text.h"

#define GW_XML_HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define GW_XML_SPACE " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

/* Appends a text, and escapes the characters that are special in XML. */
void gw_xml_text(struct pst_text *out, const char *text, size_t len);
/* Appends <NAME>TEXT</NAME>. */
void gw_xml_element(struct pst_text *out, const char *name, const char *text);
void gw_xml_number(struct pst_text *out, const char *name, uint64_t number);

#endif
