/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that opens the drop-in by dlopen(3) and lets it go again with dlclose(3), as
 * some do between two uses, with everything closed or nothing: the library's threads and
 * what the driver was given to call stay in its code, so the code has to stay. Linked to
 * neither library; PENSTOCK_SHIM names the one to open.
 */
#include "shim_test.h"

enum { LEN = 8 << 20, TIMES = 3 };

static void *lib;

static void take(const char *name, void *into)
{
	void *sym = dlsym(lib, name);

	assert_non_null(sym);
	memcpy(into, &sym, sizeof(sym));
}

/* Opens it, reads a file into memory of the device, lets go of it. */
static void use(int fd, void *dev, bool tidy)
{
	struct cuf_error (*add)(void **, struct cuf_descr *), (*finish)(void);
	ssize_t (*bytes_of)(void *, void *, size_t, off_t, off_t);
	void (*drop)(void *);
	struct cuf_descr descr = {.type = CUF_FD, .handle = {.fd = fd}};
	void *fh = NULL;

	lib = dlopen(getenv("PENSTOCK_SHIM"), RTLD_NOW | RTLD_LOCAL);
	assert_non_null(lib);
	take("cuFileHandleRegister", &add);
	take("cuFileHandleDeregister", &drop);
	take("cuFileRead", &bytes_of);
	take("cuFileDriverClose", &finish);
	assert_ok(add(&fh, &descr));
	assert_int_equal(bytes_of(fh, dev, LEN, 0, 0), LEN);
	st_check(dev, 0, LEN);
	if (tidy) {
		drop(fh);
		assert_ok(finish());
	}
	assert_int_equal(dlclose(lib), 0);
}

static void stays(const char *name)
{
	void *again = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

	assert_non_null(again);
	assert_int_equal(dlclose(again), 0);
}

static void let_go(void **state)
{
	void *dev = cu_alloc(LEN);

	(void)state;
	for (int i = 0; i < 2 * TIMES; i++) {
		int fd = st_make("unload", LEN, O_RDONLY);

		unlink(st_path);
		use(fd, dev, i < TIMES);
		stays("libcufile.so.0");
		stays("libpenstock.so.0"); /* its lanes are still there */
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
		cmocka_unit_test(let_go),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
