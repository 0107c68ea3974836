/* SPDX-License-Identifier: Apache-2.0 */
/* The peer-to-peer flags of cuFile 1.16 and later. */
#ifndef SHIM_P2P_H
#define SHIM_P2P_H

/* Clears all peer-to-peer flags, and permits the program to set parameters again. Called at the
 * last close of the driver. The caller holds shim.lock. */
void shim_p2p_closed(void);

#endif
