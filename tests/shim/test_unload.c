/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a program that loads the drop-in (Penstock's libcufile) with dlopen(3) and unloads it with
 * dlclose(3), several times, with all files closed or still open. dlclose must not unload the code,
 * because the library's threads and callbacks of the CUDA driver run it. This program is linked
 * neither with the drop-in nor with libpenstock; PENSTOCK_SHIM is the path of the drop-in.
 */
#include "shim_test.h"

enum { LEN = 8 << 20, TIMES = 3 };

static void *lib;

static void symbol_find(const char *name, void *fn)
{
	void *sym = dlsym(lib, name);

	assert_non_null(sym);
	memcpy(fn, &sym, sizeof(sym));
}

/* Loads the drop-in libcufile, reads a file into device memory, and calls dlclose. */
static void load_and_read(int fd, void *dev, bool close_all)
{
	struct cuf_error (*file_register)(void **, struct cuf_descr *), (*driver_close)(void);
	ssize_t (*file_read)(void *, void *, size_t, off_t, off_t);
	void (*file_deregister)(void *);
	struct cuf_descr descr = {.type = CUF_FD, .handle = {.fd = fd}};
	void *fh = NULL;

	lib = dlopen(getenv("PENSTOCK_SHIM"), RTLD_NOW | RTLD_LOCAL);
	assert_non_null(lib);
	symbol_find("cuFileHandleRegister", &file_register);
	symbol_find("cuFileHandleDeregister", &file_deregister);
	symbol_find("cuFileRead", &file_read);
	symbol_find("cuFileDriverClose", &driver_close);
	assert_ok(file_register(&fh, &descr));
	assert_int_equal(file_read(fh, dev, LEN, 0, 0), LEN);
	st_check(dev, 0, LEN);
	if (close_all) {
		file_deregister(fh);
		assert_ok(driver_close());
	}
	assert_int_equal(dlclose(lib), 0);
}

static void check_loaded(const char *name)
{
	void *again = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

	assert_non_null(again);
	assert_int_equal(dlclose(again), 0);
}

static void stays_loaded(void **state)
{
	void *dev = cu_alloc(LEN);

	(void)state;
	for (int i = 0; i < 2 * TIMES; i++) {
		int fd = st_make("unload", LEN, O_RDONLY);

		unlink(st_path);
		load_and_read(fd, dev, i < TIMES);
		check_loaded("libcufile.so.0");
		check_loaded("libpenstock.so.0"); /* its threads still run its code */
		if (i < TIMES)
			close(fd);
	}
	cu_free(dev);
}

static int setup(void **state)
{
	(void)state;
	return cu_load() ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stays_loaded),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
