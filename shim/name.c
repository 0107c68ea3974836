/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object whose soname is libcufile.so, for `penstock run` to preload behind the
 * drop-in: a program that opens that name, as the Python package cufile does, finds this
 * one loaded, and through it the drop-in that it depends on. It must have no function of
 * its own, and a file name that nobody takes for a libcufile.
 */
extern const char penstock_cufile_marker[];

/* Or the linker would leave the dependency out. */
__attribute__((used)) static const char *const behind = penstock_cufile_marker;
