/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The type of a gate. A gate is one condition that a path between storage and device needs. Its
 * state is open, shut or unknown. Each gates_*.c ends with a table of gates, in the order in
 * which their lines are printed. The code of a gate must never change the machine, print, or
 * prevent other gates from being checked.
 */
#ifndef PST_CHECK_GATE_H
#define PST_CHECK_GATE_H

#include "facts.h"

struct pst_check_gate {
	const char *name; /* NULL ends a table */
	enum pst_check_layer layer;
	enum pst_check_need need;
	/* Sets the state and the texts of `line`. Leaves `line` unchanged if the gate does not
	 * apply to this storage and device. */
	void (*inspect)(const struct pst_check_facts *f, struct pst_check_line *line);
	const char *why;  /* the reason why the gate matters */
	const char *todo; /* action to recommend if the gate is not open */
};

#endif
