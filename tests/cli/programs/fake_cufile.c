/* SPDX-License-Identifier: Apache-2.0 */
/* A libcufile that is not Penstock's: tests/cli/run shows with it which one a program
 * gets. It has one function and no marker, and is never installed. */
long cuFileUseCount(void);

long cuFileUseCount(void)
{
	return 4711;
}
