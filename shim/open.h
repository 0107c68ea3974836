/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the driver, for cuFileDriverOpen or for another call that needs an open driver. */
#ifndef SHIM_OPEN_H
#define SHIM_OPEN_H

/* Opens the driver, which must be closed. Returns 0 or a cuFile code. The caller holds
 * shim.lock. */
int shim_open_locked(void);
/* Opens the driver if it is closed. Returns 0 or a cuFile code. */
int shim_need(void);
/* Does the same as shim_need, but the caller already holds shim.lock. */
int shim_need_locked(void);

#endif
