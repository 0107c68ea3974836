/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libs3rdma.so.0 for tests/s3/minio_cpp: the eleven functions of that library which minio-cpp
 * calls, on top of the client half of penstock_object.h. So minio-cpp sends tokens of transport
 * tcp1, and needs no network card. The declarations follow the published ABI.
 * tests/s3/minio_cpp/run builds the file. The library must never access the memory of a window
 * itself.
 *
 * The ABI asks for a token without saying whether a GET or a PUT follows, so the client has the
 * option either_way. The environment variable S3RDMA_DEVICE is the numeric address at which the
 * server reaches the client; the default is 127.0.0.1.
 *
 * PENSTOCK_S3RDMA_FAULT names a deliberate defect of all tokens: `malformed` makes them unreadable,
 * `foreign` names another host, `unreachable` names a port at which nothing listens, and `released`
 * closes the window before the token is returned. With PENSTOCK_S3RDMA_LOG, the library prints a
 * line on stderr for each token.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "penstock_object.h"

#define EXPORT __attribute__((visibility("default")))

/* Results of the function s3rdma_client_memory_type. */
enum { MEMORY_SYSTEM = 0, MEMORY_CUDA_DEVICE = 2, MEMORY_UNKNOWN = 3 };

struct region {
	struct region *next;
	char *ptr;
	size_t len;
	unsigned refs; /* number of registrations that have not ended */
	struct penstock_object_buffer *buffer;
};

struct client {
	struct penstock_object_client *client;
	struct penstock_device *host, *gpu; /* NULL: there is none */
	pthread_mutex_t lock;		    /* protects `regions` and their members */
	struct region *regions;
};

/* A token that minio-cpp has as a pointer to `text`. */
struct minted {
	struct penstock_object_window *window; /* NULL: released */
	char text[PENSTOCK_OBJECT_TOKEN_MAX + 1];
};

EXPORT void *s3rdma_client_init(const char *device, char *err, size_t err_len);
EXPORT void s3rdma_client_free(void *handle);
EXPORT int s3rdma_client_ready(void *handle);
EXPORT int s3rdma_client_nic_count(void *handle);
EXPORT int s3rdma_client_healthy_nic_count(void *handle);
EXPORT int s3rdma_client_report_token_failure(void *handle, const char *token);
EXPORT int s3rdma_client_register(void *handle, void *ptr, size_t len);
EXPORT int s3rdma_client_deregister(void *handle, void *ptr);
EXPORT int s3rdma_client_get_token(void *handle, void *ptr, size_t len, size_t off, char **out);
EXPORT void s3rdma_client_free_token(char *token);
EXPORT int s3rdma_client_memory_type(const void *ptr);

static int token_log(const char *what, const char *token)
{
	if (getenv("PENSTOCK_S3RDMA_LOG"))
		fprintf(stderr, "%s %s\n", what, token);
	return 0;
}

/* Puts the defect of PENSTOCK_S3RDMA_FAULT into a token. */
static void token_damage(struct minted *token)
{
	const char *fault = getenv("PENSTOCK_S3RDMA_FAULT");
	unsigned long long base, size;
	char cap[64];

	if (!fault)
		return;
	if (!strcmp(fault, "malformed"))
		token->text[0] = 'x';
	else if (!strcmp(fault, "released")) {
		penstock_object_release(token->window);
		token->window = NULL;
	} else if (sscanf(token->text, "%llx:%llx:tcp1:127.0.0.1:%*[^:]:%32s", &base, &size, cap) ==
		   3)
		snprintf(token->text, sizeof(token->text), "%llx:%llx:tcp1:%s:1:%s", base, size,
			 strcmp(fault, "foreign") ? "127.0.0.1" : "192.0.2.1", cap);
	else
		abort();
}

/* Returns the link that points to the region which begins at `ptr`, or to NULL. The caller holds
 * client->lock. */
static struct region **region_find(struct client *client, const void *ptr)
{
	struct region **at = &client->regions;

	while (*at && (*at)->ptr != ptr)
		at = &(*at)->next;
	return at;
}

void *s3rdma_client_init(const char *device, char *err, size_t err_len)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct client *client = calloc(1, sizeof(*client));

	opts.address = device && *device ? device : getenv("S3RDMA_DEVICE");
	opts.either_way = 1;
	if (client && !penstock_object_client_open(&opts, &client->client)) {
		pthread_mutex_init(&client->lock, NULL);
		/* penstock_device_of finds only devices that are open. */
		penstock_device_open("host", NULL, &client->host);
		penstock_device_open("cuda:0", NULL, &client->gpu);
		return client;
	}
	if (err && err_len)
		snprintf(err, err_len, "%s", penstock_errmsg());
	free(client);
	return NULL;
}

void s3rdma_client_free(void *handle)
{
	struct client *client = handle;

	if (!client)
		return;
	for (struct region *r = client->regions, *next; r; r = next) {
		next = r->next;
		penstock_object_unregister(r->buffer);
		free(r);
	}
	penstock_object_client_close(client->client);
	penstock_device_close(client->gpu);
	penstock_device_close(client->host);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

int s3rdma_client_ready(void *handle)
{
	return handle != NULL;
}

int s3rdma_client_nic_count(void *handle)
{
	return handle != NULL;
}

int s3rdma_client_healthy_nic_count(void *handle)
{
	return handle != NULL;
}

int s3rdma_client_report_token_failure(void *handle, const char *token)
{
	return handle ? token_log("failed", token) : -1;
}

int s3rdma_client_register(void *handle, void *ptr, size_t len)
{
	struct client *client = handle;
	struct penstock_device *dev = NULL;
	struct region **at, *r;
	int ret = -1;

	pthread_mutex_lock(&client->lock);
	at = region_find(client, ptr);
	if (*at) {
		/* The token's window must lie within the first registration. */
		ret = len <= (*at)->len ? 0 : -1;
		(*at)->refs += !ret;
		goto unlock;
	}
	r = calloc(1, sizeof(*r));
	if (!r)
		goto unlock;
	*r = (struct region){.ptr = ptr, .len = len, .refs = 1};
	if (s3rdma_client_memory_type(ptr) != MEMORY_SYSTEM && penstock_device_of(ptr, &dev))
		goto err_free;
	if (penstock_object_register(client->client, dev, ptr, len, &r->buffer))
		goto err_free;
	*at = r;
	ret = 0;
	goto unlock;
err_free:
	free(r);
unlock:
	pthread_mutex_unlock(&client->lock);
	return ret;
}

int s3rdma_client_deregister(void *handle, void *ptr)
{
	struct client *client = handle;
	struct region **at, *r;
	int ret = -1;

	pthread_mutex_lock(&client->lock);
	at = region_find(client, ptr);
	r = *at;
	if (r && --r->refs)
		ret = 0;
	else if (r) {
		ret = penstock_object_unregister(r->buffer) ? -1 : 0;
		if (!ret) {
			*at = r->next;
			free(r);
		}
	}
	pthread_mutex_unlock(&client->lock);
	return ret;
}

int s3rdma_client_get_token(void *handle, void *ptr, size_t len, size_t off, char **out)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct client *client = handle;
	struct minted *token = calloc(1, sizeof(*token));
	struct region *r;
	int ret = -1;

	*out = NULL;
	if (!token)
		return -1;
	pthread_mutex_lock(&client->lock);
	r = *region_find(client, ptr);
	if (r)
		ret = penstock_object_window_open(r->buffer, PENSTOCK_READ, off, len,
						  &token->window);
	pthread_mutex_unlock(&client->lock);
	if (!ret)
		ret = penstock_object_window_get_info(token->window, &info);
	if (ret) {
		penstock_object_release(token->window);
		free(token);
		return -1;
	}
	snprintf(token->text, sizeof(token->text), "%s", info.token);
	token_damage(token);
	*out = token->text;
	return token_log("token", token->text);
}

void s3rdma_client_free_token(char *text)
{
	struct minted *token;

	if (!text)
		return;
	token = (struct minted *)(text - offsetof(struct minted, text));
	penstock_object_release(token->window);
	free(token);
}

int s3rdma_client_memory_type(const void *ptr)
{
	struct penstock_device *dev;

	if (penstock_device_of(ptr, &dev) < 0)
		return MEMORY_UNKNOWN;
	return strcmp(penstock_device_name(dev), "host") ? MEMORY_CUDA_DEVICE : MEMORY_SYSTEM;
}
