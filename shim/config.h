/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of the drop-in (Penstock's replacement of NVIDIA's libcufile): its parameters,
 * with their defaults and limits, and the functions that read it. The caller holds shim.lock for
 * every function except shim_config_limits. */
#ifndef SHIM_CONFIG_H
#define SHIM_CONFIG_H

#include "abi/cufile_abi.h"

#define SHIM_TEXT 512 /* size of a string parameter in bytes, with the final NUL */
#define SHIM_SLABS 64

struct shim_slabs {
	int count;
	size_t kb[SHIM_SLABS], number[SHIM_SLABS];
};
struct shim_config {
	size_t size[CUF_SIZE_PARAMS];
	bool flag[CUF_BOOL_PARAMS];
	char text[CUF_STRING_PARAMS][SHIM_TEXT];
	struct shim_slabs posix, gpu;
	char file[SHIM_TEXT]; /* path of the cufile.json that was read, "" if there was none */
};

/* Sets every parameter to its default. */
void shim_config_defaults(struct shim_config *config);
/* Reads the defaults, then cufile.json, then the environment. Stores a message for each error,
 * because the log is set up only afterwards, from `config`. shim_config_log_notes then logs these
 * messages. */
void shim_config_load(struct shim_config *config);
/* Reads the parameters from `text`, the content of a cufile.json. Overwrites parts of `text`
 * meanwhile. The fuzz target calls this function, too. */
void shim_config_text(struct shim_config *config, char *text, size_t len);
/* Logs the messages that shim_config_load has stored. Logs each message only once for each
 * process. */
void shim_config_log_notes(void);
/* Returns the smallest and the largest value of a size parameter. `param` must be valid. */
void shim_config_limits(enum cuf_size_param param, size_t *min, size_t *max);

#endif
