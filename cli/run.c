/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock run`: preloads the drop-in (Penstock's replacement of NVIDIA's
 * libcufile.so.0) for a program, then replaces itself by that program with exec. So the caller sees
 * the program's own exit status and signals. Children of the program inherit the drop-in. The
 * command fails before exec if the dynamic loader would silently ignore the drop-in (because a
 * library cannot be loaded, or the program is setuid). It must never change a file.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cli.h"

/* The exit codes with which shells report a program that cannot be run. */
enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

#define LIBRARY "libcufile.so.0"
#define NAME "penstock-cufile-name.so" /* a library with the soname libcufile.so */
#define AUDITOR "penstock-audit.so"

struct run_args {
	bool audit, quiet;
	char **program; /* NULL-terminated */
};

/* Paths of the files that belong to the drop-in (Penstock's libcufile). */
struct dropin {
	char dir[PATH_MAX], library[PATH_MAX + 32], name[PATH_MAX + 32], auditor[PATH_MAX + 32];
};

/* ---- finding the drop-in ---- */

/* Removes "/" and `tail` from the end of `path`. Returns whether `path` ended in them. */
static bool path_cut_tail(char *path, const char *tail)
{
	size_t len = strlen(path), more = strlen(tail);

	if (len <= more + 1 || path[len - more - 1] != '/' || strcmp(path + len - more, tail))
		return false;
	path[len - more - 1] = '\0';
	return true;
}

/* Sets the paths of the drop-in's files in the folder p->dir. Returns whether the library is
 * readable. */
static bool dropin_set_paths(struct dropin *p)
{
	snprintf(p->library, sizeof(p->library), "%s/%s", p->dir, LIBRARY);
	snprintf(p->name, sizeof(p->name), "%s/%s", p->dir, NAME);
	snprintf(p->auditor, sizeof(p->auditor), "%s/%s", p->dir, AUDITOR);
	return !access(p->library, R_OK);
}

/* Finds the drop-in: in the build tree if this command is in a build tree, else in the
 * installation. The installed folder is found relative to the command's own path, so that the
 * installation can be moved. */
static int dropin_find(struct dropin *p)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int len = -1;

	if (n < 0)
		return fail(EXIT_FAILED, "/proc/self/exe cannot be read: %s", strerror(errno));
	exe[n] = '\0';
	*strrchr(exe, '/') = '\0';
	len = snprintf(p->dir, sizeof(p->dir), "%s/shim", exe);
	if (len < (int)sizeof(p->dir) && dropin_set_paths(p))
		return 0;
	if (PENSTOCK_LIBDIR[0] == '/')
		len = snprintf(p->dir, sizeof(p->dir), "%s/penstock", PENSTOCK_LIBDIR);
	else if (path_cut_tail(exe, PENSTOCK_BINDIR))
		len = snprintf(p->dir, sizeof(p->dir), "%s/%s/penstock", exe, PENSTOCK_LIBDIR);
	if (len < (int)sizeof(p->dir) && dropin_set_paths(p))
		return 0;
	return fail(EXIT_FAILED, "%s does not exist: install Penstock with the drop-in library",
		    p->library);
}

/* Tries to load the library. If the dynamic loader cannot preload a library, it only warns, and
 * the program would run with a different libcufile. */
static int library_try(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return fail(EXIT_FAILED, "the drop-in cannot be loaded: %s", dlerror());
	if (!dlsym(lib, "penstock_cufile_marker"))
		return fail(EXIT_FAILED, "%s is not Penstock's library: install Penstock again",
			    path);
	/* does not close the library: exec replaces this process anyway */
	return 0;
}

/* ---- the program ---- */

static bool is_program(const char *file)
{
	struct stat st;

	return !stat(file, &st) && !S_ISDIR(st.st_mode);
}

/* Finds the file that execvp() would run for `name`. Returns 0, or an exit code after it has
 * printed the error. */
static int program_find(const char *name, char *out, size_t len)
{
	const char *path = getenv("PATH"), *end;
	bool seen = false;

	if (strchr(name, '/')) {
		snprintf(out, len, "%s", name);
		if (!access(name, X_OK) && is_program(name))
			return 0;
		if (!access(name, F_OK) && !is_program(name))
			return fail(EXIT_CANNOT_RUN, "%s is a directory: name a program", name);
		access(name, X_OK); /* sets errno */
		return fail(errno == ENOENT || errno == ENOTDIR ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN,
			    "%s: %s", name, strerror(errno));
	}
	for (path = path ? path : "/bin:/usr/bin"; path; path = *end ? end + 1 : NULL) {
		end = strchrnul(path, ':');
		snprintf(out, len, "%.*s/%s", end == path ? 1 : (int)(end - path),
			 end == path ? "." : path, name);
		if (!is_program(out))
			continue;
		if (!access(out, X_OK))
			return 0;
		seen = true;
	}
	return seen ? fail(EXIT_CANNOT_RUN, "%s: permission denied: see ls -l for its permissions",
			   name)
		    : fail(EXIT_NOT_FOUND, "%s: not found in PATH, check the name", name);
}

/* Returns whether the program would run with other rights than this process (setuid, setgid or
 * capabilities). The dynamic loader then ignores LD_PRELOAD, and therefore the drop-in. */
static bool program_gains_rights(const char *file)
{
	struct stat st;
	struct statvfs fs;

	if (stat(file, &st) || (!statvfs(file, &fs) && (fs.f_flag & ST_NOSUID)))
		return false;
	if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
		return true;
	if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid())
		return true;
	return getuid() && getxattr(file, "security.capability", NULL, 0) > 0;
}

/* Returns whether the file is a statically linked ELF program, which no dynamic loader starts. A
 * file that is not ELF or not readable counts as dynamic, and exec reports the error. */
static bool program_is_static(int fd, const unsigned char *ident)
{
	Elf64_Ehdr head;
	Elf64_Phdr part;

	if (memcmp(ident, ELFMAG, SELFMAG) || ident[EI_CLASS] != ELFCLASS64 ||
	    pread(fd, &head, sizeof(head), 0) != sizeof(head))
		return false;
	for (unsigned i = 0; i < head.e_phnum; i++) {
		off_t off = (off_t)(head.e_phoff + (uint64_t)i * head.e_phentsize);

		if (pread(fd, &part, sizeof(part), off) != sizeof(part))
			return false;
		if (part.p_type == PT_INTERP)
			return false;
	}
	return true;
}

/* Writes the path of a script's interpreter to `out`. Returns false if the file is not a script. */
static bool script_interpreter(const char *start, char *out, size_t len)
{
	if (strncmp(start, "#!", 2))
		return false;
	start += 2 + strspn(start + 2, " \t");
	snprintf(out, len, "%.*s", (int)strcspn(start, " \t\n"), start);
	return out[0] != '\0';
}

/* Checks that the drop-in can be preloaded into the program and, if the program is a script,
 * into its interpreter. Returns 0, or an exit code after it has printed the error. */
static int program_check(const struct run_args *a, const char *file, unsigned depth)
{
	char start[256] = "", next[256];
	int fd;
	bool alone;

	if (program_gains_rights(file))
		return fail(EXIT_CANNOT_RUN,
			    "%s gets other rights when it starts (setuid, setgid or "
			    "capabilities), so nothing can be preloaded: run it as the user that "
			    "it becomes",
			    file);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, start, sizeof(start) - 1, 0) < 0)
		start[0] = '\0';
	alone = program_is_static(fd, (const unsigned char *)start);
	close(fd);
	if (alone && !a->quiet)
		fprintf(stderr,
			"penstock: %s is linked statically: only programs that it starts get the "
			"drop-in\n",
			file);
	if (depth && script_interpreter(start, next, sizeof(next)))
		return program_check(a, next, depth - 1);
	return 0;
}

/* ---- the environment ---- */

/* Returns whether the list contains `path`. If the list contains a libcufile other than `own`,
 * sets *other to the first such path. */
static bool list_has(const char *list, const char *path, const char *own, const char **other,
		     size_t *other_len)
{
	size_t len;

	for (list += strspn(list, ": "); *list; list += strspn(list, ": ")) {
		const char *slash;

		len = strcspn(list, ": ");
		if (strlen(path) == len && !strncmp(list, path, len))
			return true;
		slash = memrchr(list, '/', len);
		slash = slash ? slash + 1 : list;
		if (!*other && !strncmp(slash, "libcufile.so", 12) &&
		    (strlen(own) != len || strncmp(list, own, len))) {
			*other = list;
			*other_len = len;
		}
		list += len;
	}
	return false;
}

/* Appends `path` to the list in the environment variable `name`, unless the list already
 * contains it. Fails if the list contains a libcufile other than `own`, the path of the
 * drop-in. */
static int env_append(const char *name, const char *path, const char *own)
{
	const char *was = getenv(name), *other = NULL;
	size_t other_len = 0, len = (was ? strlen(was) : 0) + strlen(path) + 2;
	char *list;
	int ret;

	if (strpbrk(path, ": "))
		return fail(EXIT_FAILED,
			    "%s has a colon or a blank in its path, which %s cannot contain: "
			    "install Penstock elsewhere",
			    path, name);
	if (was && list_has(was, path, own, &other, &other_len))
		return 0;
	if (other)
		return fail(EXIT_FAILED,
			    "%s contains another libcufile, %.*s: remove it from the variable",
			    name, (int)other_len, other);
	list = malloc(len);
	if (!list)
		return fail(EXIT_FAILED, "out of memory");
	snprintf(list, len, "%s%s%s", was ? was : "", was && *was ? ":" : "", path);
	ret = setenv(name, list, 1);
	free(list);
	return ret ? fail(EXIT_FAILED, "out of memory") : 0;
}

/* ---- the command ---- */

/* Returns the number of command-line words before the program's name. All words after the name
 * belong to the program. */
static int own_word_count(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (argv[i][0] != '-' || !strcmp(argv[i], "--"))
			return i;
	return argc;
}

static int run_parse(int argc, char **argv, struct run_args *a)
{
	static const struct option options[] = {{"audit", no_argument, NULL, 'a'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	int c;

	while ((c = next_option(argc, argv, &cmd_run, options)) != -1) {
		if (c == 'a')
			a->audit = true;
		else if (c == 'q')
			a->quiet = true;
		else
			return c == 'h' ? -1 : EXIT_USAGE;
	}
	return 0;
}

static int dropin_preload(const struct run_args *a, const struct dropin *p)
{
	int ret = library_try(p->library);

	if (!ret && a->audit && access(p->auditor, R_OK))
		ret = fail(EXIT_FAILED, "%s: %s", p->auditor, strerror(errno));
	if (!ret)
		ret = env_append("LD_PRELOAD", p->library, p->library);
	if (!ret)
		/* The library p->name depends on libcufile.so.0, so dlsym() finds the marker symbol
		 * of libcufile.so.0 in it, too. */
		ret = library_try(p->name);
	if (!ret)
		ret = env_append("LD_PRELOAD", p->name, p->library);
	if (!ret && a->audit)
		ret = env_append("LD_AUDIT", p->auditor, p->library);
	return ret;
}

/* Replaces this process by the program. Returns an exit code, and only if the exec fails. */
static int program_exec(const struct run_args *a, const struct dropin *p)
{
	int code;

	if (!a->quiet)
		fprintf(stderr,
			"penstock: %s replaces any other libcufile for %s, by LD_PRELOAD%s\n",
			p->library, a->program[0], a->audit ? " and LD_AUDIT" : "");
	fflush(NULL);
	execvp(a->program[0], a->program);
	code = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
	return fail(code, "%s: %s", a->program[0], strerror(errno));
}

static int run_main(int argc, char **argv)
{
	/* Ignores SIGPIPE while the command prints its help. The program gets the old setting
	 * back. */
	void (*old_sigpipe)(int) = signal(SIGPIPE, SIG_IGN);
	int words = own_word_count(argc, argv), ret;
	struct run_args a = {.program = argv + words};
	char file[PATH_MAX + 256];
	struct dropin p;

	ret = run_parse(words, argv, &a);
	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	if (words < argc && !strcmp(argv[words], "--"))
		a.program++;
	if (!*a.program)
		return fail(EXIT_USAGE, "run needs a program: penstock run -- PROGRAM ...");
	ret = dropin_find(&p);
	if (!ret)
		ret = program_find(*a.program, file, sizeof(file));
	if (!ret)
		ret = program_check(&a, file, 1);
	if (!ret)
		ret = dropin_preload(&a, &p);
	signal(SIGPIPE, old_sigpipe);
	return ret ? ret : program_exec(&a, &p);
}

const struct command cmd_run = {
	.name = "run",
	.usage = "[--audit] [--quiet] -- PROGRAM ...",
	.summary = "run a program with the drop-in libcufile.so.0",
	.help = "  --audit  also replace a libcufile that the program loads by absolute path\n"
		"  --quiet  print no line about the drop-in on standard error\n"
		"\nExit status and signals are the program's. 126: the program cannot be run with\n"
		"the drop-in. 127: it was not found. See penstock-cufile(7).\n",
	.run = run_main,
	.becomes = true,
};
