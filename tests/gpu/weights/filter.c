/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded before a cmocka program: only the cases that $CASES matches run, * and ? as
 * in a shell. For tests of which some want more GPUs than there are.
 */
#include <stdlib.h>

void cmocka_set_test_filter(const char *pattern);

__attribute__((constructor)) static void take_filter(void)
{
	if (getenv("CASES"))
		cmocka_set_test_filter(getenv("CASES"));
}
