/* SPDX-License-Identifier: Apache-2.0 */
/* The files whose bytes a server moves to memory of devices: see files.c. */
#ifndef PST_OBJECT_FILES_H
#define PST_OBJECT_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct penstock_device;

/* Moves bytes between a file and memory of a device, by the paths of the library. Returns 0, or
 * -errno with a message. Any thread; blocks. */
int pst_object_file_io(int fd, uint64_t off, struct penstock_device *dev, void *mem, uint64_t len,
		       bool read_file);
/* Closes files that were not used lately, or that no longer have a name. Returns after how many ms
 * it shall be called again, or -1 if no file is open. */
int pst_object_files_tidy(void);
/* Closes all files. No other function runs. */
void pst_object_files_close(void);
/* Forgets all files in a forked child. */
void pst_object_files_forked(void);

#endif
