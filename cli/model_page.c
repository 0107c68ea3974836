/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes or serves the page of `penstock model`. The page is part of the command: tools/make-page
 * puts it together, and the build includes its bytes. The server answers only on the loopback
 * address, one connection at a time, and gives the same page for every path.
 */
#include "model_page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "args.h"
#include "stop.h"

/* Seconds after which the server closes a connection whose browser does not read (SEND_S) or
 * sends nothing (RECEIVE_S). Browsers open connections that they do not use, and the server
 * serves only one connection at a time. */
#define SEND_S 5
#define RECEIVE_S 1
#define REQUEST_MAX 8192

extern const char model_page_start[], model_page_end[];

static size_t page_length(void)
{
	return (size_t)(model_page_end - model_page_start);
}

int model_page_write(const char *path)
{
	FILE *f = fopen(path, "we");
	bool lost;

	if (!f)
		return fail(EXIT_FAILED, "%s: %s%s", path, strerror(errno), advice_errno(errno));
	lost = fwrite(model_page_start, 1, page_length(), f) != page_length();
	if (fclose(f) || lost)
		return fail(EXIT_FAILED, "%s cannot be written: %s%s", path, strerror(errno),
			    advice_errno(errno));
	return EXIT_DONE;
}

static bool bytes_send(int fd, const char *bytes, size_t len)
{
	while (len) {
		ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR && !stop_signal)
			continue;
		if (n <= 0)
			return false;
		bytes += n;
		len -= (size_t)n;
	}
	return true;
}

/* Reads a request up to its empty line. Returns whether it is complete. */
static bool request_read(int fd, char *request)
{
	size_t len = 0;

	while (len < REQUEST_MAX - 1) {
		ssize_t n = recv(fd, request + len, REQUEST_MAX - 1 - len, 0);

		if (n <= 0)
			return false;
		len += (size_t)n;
		request[len] = '\0';
		if (strstr(request, "\r\n\r\n"))
			return true;
	}
	return false;
}

static void request_answer(int fd)
{
	const struct timeval sending = {.tv_sec = SEND_S}, receiving = {.tv_sec = RECEIVE_S};
	char request[REQUEST_MAX], head[256];
	bool is_get, is_head;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receiving, sizeof(receiving));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &sending, sizeof(sending));
	if (!request_read(fd, request))
		return;
	is_get = !strncmp(request, "GET ", 4);
	is_head = !strncmp(request, "HEAD ", 5);
	snprintf(head, sizeof(head),
		 "HTTP/1.1 %s\r\nContent-Type: text/html; charset=utf-8\r\n"
		 "Content-Length: %zu\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
		 is_get || is_head ? "200 OK" : "405 Method Not Allowed",
		 is_get || is_head ? page_length() : 0);
	if (bytes_send(fd, head, strlen(head)) && is_get)
		bytes_send(fd, model_page_start, page_length());
}

int model_page_serve(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	const struct timeval second = {.tv_sec = 1};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, peer;
	char text[64];

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0)
		return fail(EXIT_FAILED, "cannot open a socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* With a time limit of a second, accept4 returns often enough to notice a signal that
	 * arrives just before the call. */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	if (bind(fd, (struct sockaddr *)&address, len) || listen(fd, 8) ||
	    getsockname(fd, (struct sockaddr *)&address, &len)) {
		fail(EXIT_FAILED, "cannot listen on port %u: %s: give another port", port,
		     strerror(errno));
		close(fd);
		return EXIT_FAILED;
	}
	catch_signals();
	printf("http://127.0.0.1:%u/\n", ntohs(address.sin_port));
	fflush(stdout);
	while (!stop_signal) {
		peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (peer < 0)
			/* the second is over, a signal has arrived, or the browser has
			 * disconnected */
			continue;
		request_answer(peer);
		close(peer);
	}
	close(fd);
	return stop_text(text, sizeof(text));
}
