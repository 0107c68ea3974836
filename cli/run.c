/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock run: puts the drop-in libcufile.so.0 in front for one program, then
 * becomes that program, so that exit status and signals are its own. What the loader
 * would ignore without a word (a library that does not load, a setuid program) is
 * refused before. Never changes a file; children of the program inherit it.
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

/* As a shell has them, so that they are not taken for the program's own. */
enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

#define LIBRARY "libcufile.so.0"
#define NAME "penstock-cufile-name.so" /* libcufile.so to who asks for that */
#define AUDITOR "penstock-audit.so"

struct args {
	bool audit, quiet;
	char **program; /* NULL-terminated */
};

struct place {
	char dir[PATH_MAX], library[PATH_MAX + 32], name[PATH_MAX + 32], auditor[PATH_MAX + 32];
};

/* ---- where the library is ---- */

/* True with the last part of `path` cut off where it ends in "/`tail`". */
static bool cut_tail(char *path, const char *tail)
{
	size_t len = strlen(path), more = strlen(tail);

	if (len <= more + 1 || path[len - more - 1] != '/' || strcmp(path + len - more, tail))
		return false;
	path[len - more - 1] = '\0';
	return true;
}

static bool has_library(struct place *p)
{
	snprintf(p->library, sizeof(p->library), "%s/%s", p->dir, LIBRARY);
	snprintf(p->name, sizeof(p->name), "%s/%s", p->dir, NAME);
	snprintf(p->auditor, sizeof(p->auditor), "%s/%s", p->dir, AUDITOR);
	return !access(p->library, R_OK);
}

/* The build tree's where the command stands in one, else the installed one: beside
 * the folder that the command was installed in, wherever that was moved to. */
static int find_library(struct place *p)
{
	char exe[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int len = -1;

	if (n < 0)
		return fail(EXIT_FAILED, "/proc/self/exe cannot be read: %s", strerror(errno));
	exe[n] = '\0';
	*strrchr(exe, '/') = '\0';
	len = snprintf(p->dir, sizeof(p->dir), "%s/shim", exe);
	if (len < (int)sizeof(p->dir) && has_library(p))
		return 0;
	if (PENSTOCK_LIBDIR[0] == '/')
		len = snprintf(p->dir, sizeof(p->dir), "%s/penstock", PENSTOCK_LIBDIR);
	else if (cut_tail(exe, PENSTOCK_BINDIR))
		len = snprintf(p->dir, sizeof(p->dir), "%s/%s/penstock", exe, PENSTOCK_LIBDIR);
	if (len < (int)sizeof(p->dir) && has_library(p))
		return 0;
	return fail(EXIT_FAILED,
		    "%s is not there: this build of the command came without the drop-in",
		    p->library);
}

/* The loader only warns of what it cannot preload, and the program would run with
 * another library. */
static int try_library(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return fail(EXIT_FAILED, "the drop-in cannot be loaded: %s", dlerror());
	if (!dlsym(lib, "penstock_cufile_marker"))
		return fail(EXIT_FAILED, "%s is not Penstock's", path);
	return 0; /* left loaded: this process is about to become another */
}

/* ---- the program ---- */

static bool is_program(const char *file)
{
	struct stat st;

	return !stat(file, &st) && !S_ISDIR(st.st_mode);
}

/* Where execvp will find it; 0, or an exit code with the error printed. */
static int find_program(const char *name, char *out, size_t len)
{
	const char *path = getenv("PATH"), *end;
	bool seen = false;

	if (strchr(name, '/')) {
		snprintf(out, len, "%s", name);
		if (!access(name, X_OK) && is_program(name))
			return 0;
		if (!access(name, F_OK) && !is_program(name))
			return fail(EXIT_CANNOT_RUN, "%s is a directory", name);
		access(name, X_OK); /* for its errno */
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
	return seen ? fail(EXIT_CANNOT_RUN, "%s: permission denied", name)
		    : fail(EXIT_NOT_FOUND, "%s: not found in PATH, check the name", name);
}

/* Whether exec gives it other rights than ours: the loader takes nothing from the
 * environment then. */
static bool gains_rights(const char *file)
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

/* Whether the loader has a part in it; a file that is neither ELF nor readable is left
 * to exec. */
static bool is_static(int fd, const unsigned char *ident)
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

/* The interpreter of a script into `out`; false: it is none. */
static bool interpreter(const char *start, char *out, size_t len)
{
	if (strncmp(start, "#!", 2))
		return false;
	start += 2 + strspn(start + 2, " \t");
	snprintf(out, len, "%.*s", (int)strcspn(start, " \t\n"), start);
	return out[0] != '\0';
}

static int look_at(const struct args *a, const char *file, unsigned depth)
{
	char start[256] = "", next[256];
	int fd;
	bool alone;

	if (gains_rights(file))
		return fail(EXIT_CANNOT_RUN,
			    "%s gets other rights when it starts (setuid, setgid or "
			    "capabilities): nothing can be put in front of it",
			    file);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, start, sizeof(start) - 1, 0) < 0)
		start[0] = '\0';
	alone = is_static(fd, (const unsigned char *)start);
	close(fd);
	if (alone && !a->quiet)
		fprintf(stderr,
			"penstock: %s is linked statically: only what it starts gets the "
			"drop-in\n",
			file);
	if (depth && interpreter(start, next, sizeof(next)))
		return look_at(a, next, depth - 1);
	return 0;
}

/* ---- the environment ---- */

/* Whether `list` has `path`; *other is the first that is a libcufile, too, and not `own`. */
static bool listed(const char *list, const char *path, const char *own, const char **other,
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

/* Puts `path` behind what the variable has. `own` is the drop-in's. */
static int put_in(const char *name, const char *path, const char *own)
{
	const char *was = getenv(name), *other = NULL;
	size_t other_len = 0, len = (was ? strlen(was) : 0) + strlen(path) + 2;
	char *list;
	int ret;

	if (strpbrk(path, ": "))
		return fail(EXIT_FAILED,
			    "%s has a colon or a blank in its name, which %s cannot hold: "
			    "install it elsewhere",
			    path, name);
	if (was && listed(was, path, own, &other, &other_len))
		return 0;
	if (other)
		return fail(EXIT_FAILED, "%s holds another libcufile, %.*s: take it out", name,
			    (int)other_len, other);
	list = malloc(len);
	if (!list)
		return fail(EXIT_FAILED, "no memory");
	snprintf(list, len, "%s%s%s", was ? was : "", was && *was ? ":" : "", path);
	ret = setenv(name, list, 1);
	free(list);
	return ret ? fail(EXIT_FAILED, "no memory") : 0;
}

/* ---- the command ---- */

/* Options end with the program's name: what stands behind it is the program's. */
static int own_words(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (argv[i][0] != '-' || !strcmp(argv[i], "--"))
			return i;
	return argc;
}

static int parse(int argc, char **argv, struct args *a)
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

static int put_in_front(const struct args *a, const struct place *p)
{
	int ret = try_library(p->library);

	if (!ret && a->audit && access(p->auditor, R_OK))
		ret = fail(EXIT_FAILED, "%s: %s", p->auditor, strerror(errno));
	if (!ret)
		ret = put_in("LD_PRELOAD", p->library, p->library);
	if (!ret)
		ret = try_library(p->name); /* finds the mark in what it depends on */
	if (!ret)
		ret = put_in("LD_PRELOAD", p->name, p->library);
	if (!ret && a->audit)
		ret = put_in("LD_AUDIT", p->auditor, p->library);
	return ret;
}

static int become(const struct args *a, const struct place *p)
{
	int code;

	if (!a->quiet)
		fprintf(stderr, "penstock: %s is in front of any other for %s, by LD_PRELOAD%s\n",
			p->library, a->program[0], a->audit ? " and LD_AUDIT" : "");
	fflush(NULL);
	execvp(a->program[0], a->program);
	code = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
	return fail(code, "%s: %s", a->program[0], strerror(errno));
}

static int run(int argc, char **argv)
{
	void (*pipes)(int) = signal(SIGPIPE, SIG_IGN); /* for the help, as elsewhere */
	int words = own_words(argc, argv), ret;
	struct args a = {.program = argv + words};
	char file[PATH_MAX + 256];
	struct place p;

	ret = parse(words, argv, &a);
	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	if (words < argc && !strcmp(argv[words], "--"))
		a.program++;
	if (!*a.program)
		return fail(EXIT_USAGE, "run wants a program: penstock run -- PROGRAM ...");
	ret = find_library(&p);
	if (!ret)
		ret = find_program(*a.program, file, sizeof(file));
	if (!ret)
		ret = look_at(&a, file, 1);
	if (!ret)
		ret = put_in_front(&a, &p);
	signal(SIGPIPE, pipes);
	return ret ? ret : become(&a, &p);
}

const struct command cmd_run = {
	.name = "run",
	.usage = "[--audit] [--quiet] -- PROGRAM ...",
	.summary = "a program with the drop-in libcufile.so.0 in front",
	.help = "  --audit  also where the program loads a libcufile by its absolute path\n"
		"  --quiet  do not say on standard error that it is in front\n"
		"\nExit status and signals are the program's; 126: it cannot be run so, 127: it\n"
		"is not found. See penstock-cufile(7).\n",
	.run = run,
	.becomes = true,
};
