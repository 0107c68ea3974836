/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the shell script of `penstock check --fix-script`. A gate is a requirement of a path. For
 * each gate that is not open, the script has a comment and, if a command can open the gate, that
 * command. If only other software needs the gate, the command is commented out. Called by check.c.
 * This code only prints the script; it must never run it.
 */
#include "check_script.h"

#include <string.h>

#include "args.h"

/* Returns whether the shell commands that open any gate (a condition of a path) contain `word`. */
static bool script_uses(const struct pst_check *check, const char *word)
{
	for (unsigned i = 0; i < check->line_count; i++)
		if (strstr(check->lines[i].script, word))
			return true;
	return false;
}

static void print_head(FILE *f, const struct pst_check *check)
{
	fprintf(f, "#!/usr/bin/env bash\n# Steps suggested by penstock %s check for ",
		penstock_version());
	print_name(f, check->target ? check->target : "all drives of the machine");
	fprintf(f,
		" to %s.\n"
		"# %s\n"
		"# No step has been run. Read the script, remove the steps that you do not want,\n"
		"# and run it as root. Then run penstock check again.\n"
		"set -euo pipefail\n",
		check->device, check->machine);
	if (script_uses(check, "kernel_parameter"))
		fputs("\nkernel_parameter() {\n"
		      "\tif command -v grubby >/dev/null; then\n"
		      "\t\tgrubby --update-kernel=ALL --args=\"$1\"\n"
		      "\telif [[ -f /etc/default/grub ]]; then\n"
		      "\t\tgrep -qw -- \"$1\" /etc/default/grub ||\n"
		      "\t\t\tsed -i \"s|^GRUB_CMDLINE_LINUX=\\\"|&$1 |\" /etc/default/grub\n"
		      "\t\tupdate-grub\n"
		      "\telse\n"
		      "\t\techo \"add $1 to the kernel's command line by hand\" >&2\n"
		      "\tfi\n"
		      "}\n",
		      f);
	if (script_uses(check, "update_initramfs"))
		fputs("\nupdate_initramfs() {\n"
		      "\tif command -v update-initramfs >/dev/null; then\n"
		      "\t\tupdate-initramfs -u\n"
		      "\telif command -v dracut >/dev/null; then\n"
		      "\t\tdracut --force\n"
		      "\telse\n"
		      "\t\techo \"rebuild the initramfs by hand\" >&2\n"
		      "\tfi\n"
		      "}\n",
		      f);
}

static void print_commands(FILE *f, const char *text, bool active)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(f, "%s%.*s\n", active || *text == '#' ? "" : "# ", (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static void print_step(FILE *f, const struct pst_check_line *line)
{
	fprintf(f, "\n# %s: %s\n#   why: %s\n#   do:  %s\n", line->name, line->seen, line->why,
		line->todo[0] ? line->todo : "nothing");
	if (line->script[0])
		print_commands(f, line->script, line->need != PST_NEED_NOTHING);
	else
		fputs("#   no command can do this\n", f);
}

void check_print_script(FILE *f, const struct pst_check *check)
{
	unsigned steps = 0;

	print_head(f, check);
	for (unsigned i = 0; i < check->line_count; i++) {
		if (check->lines[i].state == PST_CHECK_OK)
			continue;
		print_step(f, &check->lines[i]);
		steps++;
	}
	if (!steps)
		fputs("\n# Every gate is open: there is nothing to do.\n", f);
	flush_output();
}
