/* SPDX-License-Identifier: Apache-2.0 */
/* Implements mlx5.h. The library stays loaded until the process ends. */
#include "wire/mlx5.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define MLX5_NAME "libmlx5.so.1"

static struct pst_mlx5 mlx5;
static struct pst_err load_err; /* why the library could not be loaded; code 0 if it is loaded */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Looks up one symbol and stores its address in `member`. */
static void symbol_load(void *lib, const char *name, void *member)
{
	void *symbol = dlsym(lib, name);

	memcpy(member, &symbol, sizeof(symbol));
	if (!symbol && !load_err.code)
		pst_fail(&load_err, PENSTOCK_WHY_UNSUPPORTED,
			 MLX5_NAME " has no %s: install rdma-core 30 or later", name);
}

static void mlx5_load(void)
{
	void *lib = dlopen(MLX5_NAME, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		pst_fail(&load_err, PENSTOCK_WHY_NO_DRIVER,
			 MLX5_NAME " is missing: install ibverbs-providers");
		return;
	}
#define LOAD(member, symbol) symbol_load(lib, #symbol, &mlx5.member);
	PST_MLX5_FUNCTIONS(LOAD)
#undef LOAD
}

const struct pst_mlx5 *pst_mlx5_get(struct pst_err *err)
{
	pthread_once(&once, mlx5_load);
	if (!load_err.code)
		return &mlx5;
	*err = load_err;
	return NULL;
}
