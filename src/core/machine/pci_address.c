/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses and writes PCI addresses as text: see pci_address.h. Called when a device or a file is
 * opened, when a device's worker threads start, and by the `penstock` command, but never per
 * request.
 */
#include "core/machine/pci_address.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/machine/sysfs.h"

/* Parses a hexadecimal number, which the character `end` must follow. Moves *text behind that
 * character. */
static int hex_field_parse(const char **text, unsigned digits_max, uint32_t max, char end,
			   uint32_t *out)
{
	static const char hex[] = "0123456789abcdef";
	uint32_t value = 0;
	unsigned digits = 0;

	for (; **text && **text != end; (*text)++) {
		char c = **text;
		const char *at = strchr(hex, c >= 'A' && c <= 'F' ? c + 32 : c);

		if (!at || ++digits > digits_max)
			return -EINVAL;
		value = value << 4 | (uint32_t)(at - hex);
	}
	if (!digits || **text != end || value > max)
		return -EINVAL;
	if (end)
		(*text)++;
	*out = value;
	return 0;
}

int pst_bdf_parse(const char *text, uint32_t *domain, uint8_t *bus, uint8_t *dev, uint8_t *fn)
{
	const char *colon = text ? strchr(text, ':') : NULL;
	uint32_t d = 0, b, s, f;

	if (!colon)
		return -EINVAL;
	if (strchr(colon + 1, ':') && hex_field_parse(&text, 8, UINT32_MAX, ':', &d) < 0)
		return -EINVAL;
	if (hex_field_parse(&text, 2, 0xff, ':', &b) < 0 ||
	    hex_field_parse(&text, 2, 0x1f, '.', &s) < 0 ||
	    hex_field_parse(&text, 1, 7, '\0', &f) < 0)
		return -EINVAL;
	*domain = d;
	*bus = (uint8_t)b;
	*dev = (uint8_t)s;
	*fn = (uint8_t)f;
	return 0;
}

int pst_bdf_normal(const char *text, char out[PST_BDF_LEN])
{
	uint32_t domain;
	uint8_t bus, dev, fn;

	if (pst_bdf_parse(text, &domain, &bus, &dev, &fn) < 0)
		return -EINVAL;
	snprintf(out, PST_BDF_LEN, "%04x:%02x:%02x.%x", domain, bus, dev, fn);
	return 0;
}

bool pst_part_bdf(const char *part, size_t len, char out[PST_BDF_LEN])
{
	char text[PST_BDF_LEN];

	/* A device name in /sys always contains the domain, so "04:00.0" is not a device name. */
	if (len < 12 || len >= sizeof(text))
		return false;
	memcpy(text, part, len);
	text[len] = '\0';
	return pst_bdf_normal(text, out) == 0;
}

bool pst_path_bdf(const char *path, char out[PST_BDF_LEN])
{
	const char *part;
	size_t len;

	out[0] = '\0';
	while (pst_path_next(&path, &part, &len))
		pst_part_bdf(part, len, out);
	return out[0] != '\0';
}
