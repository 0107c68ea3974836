/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shell script of `penstock check --fix-script`: for each gate that is not open, a
 * comment and, where a command can open it, the command. It is printed and never run.
 * What a path needs is in force; what only other software needs is commented out.
 */
#include <string.h>

#include "check_print.h"

static bool uses(const struct pst_check *check, const char *word)
{
	for (unsigned i = 0; i < check->line_count; i++)
		if (strstr(check->lines[i].script, word))
			return true;
	return false;
}

static void print_head(FILE *f, const struct pst_check *check)
{
	fprintf(f, "#!/usr/bin/env bash\n# What penstock %s check would have you do: ",
		penstock_version());
	print_name(f, check->target ? check->target : "the storage of this machine");
	fprintf(f,
		" to %s.\n"
		"# %s\n"
		"# Nothing of it has been run. Read it, take out what you do not want, and run it\n"
		"# as root; then run penstock check again.\n"
		"set -euo pipefail\n",
		check->device, check->machine);
	if (uses(check, "kernel_parameter"))
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
	if (uses(check, "update_initramfs"))
		fputs("\nupdate_initramfs() {\n"
		      "\tif command -v update-initramfs >/dev/null; then\n"
		      "\t\tupdate-initramfs -u\n"
		      "\telif command -v dracut >/dev/null; then\n"
		      "\t\tdracut --force\n"
		      "\telse\n"
		      "\t\techo \"build the initramfs anew by hand\" >&2\n"
		      "\tfi\n"
		      "}\n",
		      f);
}

static void print_commands(FILE *f, const char *text, bool in_force)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(f, "%s%.*s\n", in_force || *text == '#' ? "" : "# ", (int)n, text);
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
		fputs("#   no command does this\n", f);
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
