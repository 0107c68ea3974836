/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order.
 */
#include "shim.h"

void shim_async_harvest(void)
{
}

int shim_async_close(void)
{
	return 0;
}

void shim_async_forked(void)
{
}
