# SPDX-License-Identifier: Apache-2.0
# link.sh: sourced by bench/build and bench/weights/build, which set $root and $build. Builds
# $build/src/libpenstock.a, and sets the array `libs` to the arguments that link it. All libraries
# except libc are linked statically. libpenstock.a is a thin archive: it only refers to object files
# in the build folder. So a program must be linked while this folder exists.
# shellcheck shell=bash disable=SC2154
[ -f "$build/build.ninja" ] || meson setup "$build" "$root" >&2
ninja -C "$build" src/libpenstock.a >&2
libs=("$build/src/libpenstock.a")
has() { ar t "$build/src/libpenstock.a" | grep "$1" >/dev/null; }
! has 'io_uring\.c' || libs+=(-l:liburing.a)
! has 'io_tls\.c' || libs+=(-l:libssl.a -l:libcrypto.a)
libs+=(-lpthread -ldl)
