/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the same calls as DeepSpeed's GDS operation, in the same order. It was written from
 * DeepSpeed's source, but is not DeepSpeed. It sets CUFILE_ENV_PATH_JSON to a path that only a
 * shell would expand. It sets the maximum size of a direct transfer after it has opened the driver.
 * All threads use parts of one registered buffer: each call passes the buffer's start and an
 * offset. Each operation opens the file with O_DIRECT and registers a handle. Then each thread
 * moves an equal part. The driver and the buffer can stay open until the process exits, as they do
 * in DeepSpeed, which keeps them in a static object. The script deepspeed-replay loads this file as
 * a shared library, calls it and compares the bytes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/cufile_calls.h"

#define THREADS_MAX 32

struct part {
	pthread_t thread;
	void *fh, *base;
	size_t len;
	off_t file_off, base_off;
	bool read;
	ssize_t moved;
};

int replay_open(unsigned block_kib);
int replay_pin(void *base, size_t len);
int replay_move(const char *path, int read, void *base, size_t base_off, size_t len,
		unsigned threads, off_t file_off);
int replay_close(void *base);
int replay_close_at_exit(void *base);

static void *held; /* buffer that stays registered until the process exits */

int replay_open(unsigned block_kib)
{
	static char setting[] = "CUFILE_ENV_PATH_JSON=$PWD/local_cufile.json";

	putenv(setting);
	if (cuFileDriverOpen().err)
		return -1;
	return cuFileDriverSetMaxDirectIOSize(block_kib).err;
}

int replay_pin(void *base, size_t len)
{
	return cuFileBufRegister(base, len, 0).err;
}

static void *part_run(void *arg)
{
	struct part *p = arg;

	p->moved = p->read ? cuFileRead(p->fh, p->base, p->len, p->file_off, p->base_off)
			   : cuFileWrite(p->fh, p->base, p->len, p->file_off, p->base_off);
	return NULL;
}

/* Reads or writes one file, as one operation of DeepSpeed. Returns 0, a cuFile code or a -errno. */
int replay_move(const char *path, int read, void *base, size_t base_off, size_t len,
		unsigned threads, off_t file_off)
{
	int flags = read ? O_RDONLY : O_WRONLY | O_CREAT, ret;
	int fd = open(path, flags | O_DIRECT, 0644);
	struct cuf_descr descr = {.type = CUF_FD};
	struct part parts[THREADS_MAX];
	unsigned made = 0;
	void *fh;

	/* Some file systems, such as an old tmpfs, do not support O_DIRECT. The file is then
	 * opened without it. */
	if (fd < 0 && errno == EINVAL)
		fd = open(path, flags, 0644);
	if (fd < 0 || threads > THREADS_MAX || len % threads)
		return fd < 0 ? -errno : -EINVAL;
	descr.handle.fd = fd;
	ret = (int)cuFileHandleRegister(&fh, &descr).err;
	for (; !ret && made < threads; made++) {
		struct part *p = &parts[made];
		off_t at = (off_t)(len / threads * made);

		*p = (struct part){.fh = fh,
				   .base = base,
				   .len = len / threads,
				   .file_off = file_off + at,
				   .base_off = (off_t)base_off + at,
				   .read = read != 0};
		if (pthread_create(&p->thread, NULL, part_run, p))
			break;
	}
	for (unsigned i = 0; i < made; i++) {
		pthread_join(parts[i].thread, NULL);
		if (parts[i].moved != (ssize_t)parts[i].len)
			ret = parts[i].moved < -1 ? (int)-parts[i].moved : -EIO;
	}
	if (made)
		cuFileHandleDeregister(fh);
	close(fd);
	return made < threads && !ret ? -EAGAIN : ret;
}

int replay_close(void *base)
{
	cuFileBufDeregister(base);
	return cuFileDriverClose().err;
}

static void close_held(void)
{
	int code = replay_close(held);

	dprintf(STDOUT_FILENO, "%sok - closed at exit: %d\n", code ? "not " : "", code);
	if (code)
		_exit(1);
}

int replay_close_at_exit(void *base)
{
	held = base;
	return atexit(close_held);
}
