/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step FILE DEVICE: reads 1 MiB of FILE into DEVICE while FILE is not in the page cache. Prints
 * every function of libpenstock.so that the calling thread enters, in the order of the calls.
 * Each line is "0xOFFSET", the offset of one function in the library. tests/harness/walk runs
 * this program and compares the source files of these functions with ARCHITECTURE.md.
 *
 * A child process makes the read, between two stops. From the first stop to the second the parent
 * executes the child instruction by instruction (ptrace). It prints each executed address at
 * which a function of the library begins.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "penstock.h"

#define LEN (1u << 20)

static int fail(const char *what)
{
	fprintf(stderr, "step: %s: %s\n", what, errno ? strerror(errno) : penstock_errmsg());
	return 1;
}

/* Drops the file's pages from the page cache. */
static int make_cold(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		return fail(path);
	return close(fd);
}

/* Runs in the child. A first read opens everything. A second read, between two stops, is traced. */
static int read_once(const char *path, const char *device)
{
	struct penstock_storage *file;
	struct penstock_device *dev;
	void *buf;

	errno = 0;
	if (penstock_open(path, NULL, &file) || penstock_device_open(device, NULL, &dev) < 0 ||
	    penstock_alloc(dev, LEN, &buf) || penstock_prepare(file, dev, PENSTOCK_READ) ||
	    penstock_read(file, dev, buf, LEN, LEN) != LEN)
		return fail("the first read");
	if (make_cold(path))
		return 1;
	raise(SIGSTOP);
	if (penstock_read(file, dev, buf, LEN, 0) != LEN)
		return fail("the read");
	raise(SIGSTOP);
	return 0;
}

struct library {
	uint64_t base, end; /* addresses at which the library begins and ends in the child */
	bool *starts;	    /* for each offset in the library: whether a function begins there */
	size_t len;
};

/* Finds the library in the child's address space. */
static int library_find(pid_t child, struct library *lib, char *path, size_t path_len)
{
	char name[64], line[512];
	FILE *maps;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)child);
	maps = fopen(name, "r");
	lib->base = 0;
	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long long from, to, off;
		int at = 0;

		if (!strstr(line, "/libpenstock.so") ||
		    sscanf(line, "%llx-%llx %*s %llx %*s %*s %n", &from, &to, &off, &at) < 3)
			continue;
		if (!lib->base) {
			lib->base = from - off;
			snprintf(path, path_len, "%.*s", (int)strcspn(line + at, "\n"), line + at);
		}
		lib->end = to;
	}
	if (maps)
		fclose(maps);
	return lib->base ? 0 : fail("libpenstock.so is not mapped");
}

/* Reads the library's symbol table, which names static functions too. */
static int library_symbols(struct library *lib, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat stat;
	const Elf64_Ehdr *elf;
	const Elf64_Shdr *sections;

	if (fd < 0 || fstat(fd, &stat))
		return fail(path);
	elf = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (elf == MAP_FAILED)
		return fail(path);
	lib->len = lib->end - lib->base;
	lib->starts = calloc(lib->len, sizeof(*lib->starts));
	sections = (const Elf64_Shdr *)((const char *)elf + elf->e_shoff);
	for (unsigned i = 0; lib->starts && i < elf->e_shnum; i++) {
		const Elf64_Sym *symbols =
			(const Elf64_Sym *)((const char *)elf + sections[i].sh_offset);

		if (sections[i].sh_type != SHT_SYMTAB)
			continue;
		for (size_t k = 0; k < sections[i].sh_size / sizeof(*symbols); k++)
			if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC &&
			    symbols[k].st_value < lib->len)
				lib->starts[symbols[k].st_value] = true;
	}
	close(fd);
	return lib->starts ? 0 : fail("no memory");
}

/* Executes the child until its second stop. Returns 0, or 1 after an error. */
static int step_through(pid_t child, const struct library *lib)
{
	for (;;) {
		struct user_regs_struct regs;
		int status;

		if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) ||
		    waitpid(child, &status, 0) != child)
			return fail("single step");
		if (!WIFSTOPPED(status)) {
			errno = ECHILD;
			return fail("the read has ended the process");
		}
		if (WSTOPSIG(status) == SIGSTOP)
			return 0;
		if (ptrace(PTRACE_GETREGS, child, NULL, &regs))
			return fail("registers");
		if (regs.rip >= lib->base && regs.rip < lib->end &&
		    lib->starts[regs.rip - lib->base])
			printf("0x%llx\n", (unsigned long long)(regs.rip - lib->base));
	}
}

int main(int argc, char **argv)
{
	struct library lib;
	char path[512] = "";
	int status, ret;
	pid_t child;

	if (argc != 3)
		return 2;
	child = fork();
	if (!child) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(77); /* Skips the test: this container forbids ptrace. */
		_exit(read_once(argv[1], argv[2]));
	}
	if (waitpid(child, &status, 0) != child)
		return fail("wait");
	while (WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP) {
		ptrace(PTRACE_CONT, child, NULL, (void *)(uintptr_t)WSTOPSIG(status));
		waitpid(child, &status, 0);
	}
	if (!WIFSTOPPED(status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	ret = library_find(child, &lib, path, sizeof(path)) || library_symbols(&lib, path) ||
	      step_through(child, &lib);
	kill(child, SIGKILL);
	return ret;
}
