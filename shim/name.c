/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An empty library with the soname libcufile.so, which `penstock run` preloads after the drop-in. A
 * program that opens libcufile.so by name, as the Python package cufile does, gets this library,
 * and with it the drop-in as its dependency. It must define no function, and its file name must
 * not look like a libcufile.
 */
extern const char penstock_cufile_marker[];

/* Without this reference the linker would drop the dependency. */
__attribute__((used)) static const char *const dropin = penstock_cufile_marker;
