/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the driver, explicitly or for a call that needs it. */
#ifndef SHIM_OPEN_H
#define SHIM_OPEN_H

/* Opens the driver, which must be closed. Returns 0 or a code. The caller holds shim.lock. */
int shim_open_locked(void);
/* Opens the driver if it is closed, for a call that needs it. Returns 0 or a code. */
int shim_need(void);
/* Does the same as shim_need; the caller holds shim.lock. */
int shim_need_locked(void);

#endif
