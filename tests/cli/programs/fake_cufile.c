/* SPDX-License-Identifier: Apache-2.0 */
/* A fake libcufile with one function and without Penstock's marker. tests/cli/run uses it to find
 * out which library a program gets. The fake library is never installed. */
long cuFileUseCount(void);

long cuFileUseCount(void)
{
	return 4711;
}
