/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers between files of a server and memory of devices. files.c keeps the files open between
 * the transfers. */
#ifndef PST_OBJECT_FILES_H
#define PST_OBJECT_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct penstock_device;

/* Moves bytes between a file and memory of a device, on the library's data paths. Returns 0, or
 * -errno with a message. Any thread may call it. It blocks until the bytes have moved. */
int pst_object_file_io(int fd, uint64_t off, struct penstock_device *dev, void *mem, uint64_t len,
		       bool read_file);
/* Closes files that were idle for 10 s, and files whose name was removed. Returns the time in ms
 * after which the caller must call this function again, or -1 if no file is open. */
int pst_object_files_tidy(void);
/* Closes all files. The caller guarantees that no other function of this header runs meanwhile. */
void pst_object_files_close(void);
/* Closes the descriptors of all files in a forked child, without freeing what the parent has
 * opened. */
void pst_object_files_forked(void);

#endif
