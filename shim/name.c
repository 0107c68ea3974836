/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An empty library with the soname libcufile.so, which `penstock run` preloads after the drop-in.
 * Some programs open libcufile.so by name, such as the Python package cufile. They get this
 * library, and find the drop-in's functions in it because it depends on the drop-in. It must
 * define no function, and its file name must not look like a libcufile.
 */
extern const char penstock_cufile_marker[];

/* A reference to the drop-in, without which the linker would remove the dependency. */
__attribute__((used)) static const char *const dropin = penstock_cufile_marker;
