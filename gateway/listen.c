/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the listening sockets of the gateway, see listen.h. */
#include "listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Splits "ADDRESS:PORT" in place into *host and the port, which it returns. Returns NULL if the
 * text is malformed. */
static char *address_split(char *text, char **host)
{
	char *colon = strrchr(text, ':');

	if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
		return NULL;
	*colon = '\0';
	if (text[0] == '[' && colon > text + 1 && colon[-1] == ']') {
		colon[-1] = '\0';
		text++;
	}
	*host = *text ? text : NULL;
	return colon + 1;
}

int gw_listen(const char *address, char *why, size_t why_len)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
	char copy[300], *host = NULL, *port;
	int fd = -1, ret, one = 1, error = 0;

	snprintf(copy, sizeof(copy), "%s", address);
	port = address_split(copy, &host);
	if (!port) {
		snprintf(why, why_len, "'%s' is no ADDRESS:PORT, such as 127.0.0.1:9000", address);
		return -EINVAL;
	}
	ret = getaddrinfo(host, port, &hints, &found);
	if (ret) {
		snprintf(why, why_len, "cannot find the address %s: %s", address,
			 gai_strerror(ret));
		return -EADDRNOTAVAIL;
	}
	for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd >= 0)
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, 4096)) {
			error = errno;
			if (fd >= 0)
				close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	if (fd < 0)
		snprintf(why, why_len, "cannot listen at %s: %s", address, strerror(error));
	return fd < 0 ? -error : fd;
}
