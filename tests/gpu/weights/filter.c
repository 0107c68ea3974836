/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to preload into a cmocka program. The program then runs only the cases whose names
 * match one of the patterns in $CASES, with * and ? as in a shell. tests/gpu/weights/run uses it
 * for programs in which some cases need more GPUs than the machine has.
 */
#include <stdlib.h>

void cmocka_set_test_filter(const char *pattern);

__attribute__((constructor)) static void take_filter(void)
{
	if (getenv("CASES"))
		cmocka_set_test_filter(getenv("CASES"));
}
