/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares device memory between two processes. The parent exports memory. Its child imports the
 * memory and reads a file into it. The parent then prints the sum of the bytes. The parent
 * forks before it opens anything, because a child cannot use handles that its parent opened.
 *
 *	share FILE [DEVICE]
 *
 * DEVICE must be a GPU. Host memory cannot be exported; processes share host memory with
 * mmap(2).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <penstock.h>

#define LEN 65536u

/* Prints the library's message for the last error. */
static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, penstock_errmsg());
	return 1;
}

/* The child process: imports the parent's memory and reads the file into it. */
static int child(int from_parent, const char *file, const char *device)
{
	struct penstock_export memory;
	struct penstock_storage *st;
	struct penstock_device *dev;
	void *mem;
	int64_t n;

	/* struct penstock_export can be sent as plain bytes. If memory.fd were not -1, the parent
	 * would also have to send that descriptor over a Unix socket (SCM_RIGHTS). */
	if (read(from_parent, &memory, sizeof(memory)) != (ssize_t)sizeof(memory))
		/* The parent has failed and printed the reason, so this process says nothing. */
		return 1;
	if (penstock_device_open(device, NULL, &dev) < 0 ||
	    penstock_import_memory(dev, &memory, &mem) < 0 || penstock_open(file, NULL, &st) < 0)
		return fail("child");
	n = penstock_read(st, dev, mem, LEN, 0);
	if (n < 0)
		fail("child: read");
	penstock_free(dev, mem); /* Ends the import; the parent still owns the memory. */
	penstock_close(st);
	penstock_device_close(dev);
	return n < 0;
}

/* The parent process: exports memory, waits for the child, copies the bytes to host memory. */
static int share(int to_child, const char *device, char *bytes)
{
	struct penstock_copy_args back = {.size = sizeof(back), .dst = bytes, .row_len = LEN};
	struct penstock_export memory = PENSTOCK_EXPORT_INIT;
	void *mem;
	int status;

	if (penstock_device_open(device, NULL, &back.src_dev) < 0 ||
	    penstock_device_open("host", NULL, &back.dst_dev) < 0 ||
	    penstock_alloc(back.src_dev, LEN, &mem) < 0 ||
	    penstock_export_memory(back.src_dev, mem, LEN, &memory) < 0)
		return fail("parent");
	if (write(to_child, &memory, sizeof(memory)) != (ssize_t)sizeof(memory))
		return 1;
	/* When the child has exited, it no longer uses the memory. */
	if (wait(&status) < 0 || status)
		return 1;
	back.src = mem;
	if (penstock_copy(&back, 1) < 0)
		return fail("copy");
	penstock_free(back.src_dev, mem);
	penstock_device_close(back.src_dev);
	penstock_device_close(back.dst_dev);
	return 0;
}

int main(int argc, char **argv)
{
	const char *device = argc > 2 ? argv[2] : "auto";
	static char bytes[LEN];
	uint64_t sum = 0;
	int ends[2], ret;
	pid_t pid;

	if (argc < 2) {
		fprintf(stderr, "usage: share FILE [DEVICE]\n");
		return 2;
	}
	if (pipe(ends) || (pid = fork()) < 0) {
		perror("share");
		return 1;
	}
	if (!pid) {
		close(ends[1]);
		_exit(child(ends[0], argv[1], device));
	}
	close(ends[0]);
	ret = share(ends[1], device, bytes);
	for (unsigned i = 0; i < LEN; i++)
		sum += (unsigned char)bytes[i];
	if (!ret)
		printf("%u bytes that another process read, sum %" PRIu64 "\n", LEN, sum);
	return ret;
}
