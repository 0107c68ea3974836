# SPDX-License-Identifier: Apache-2.0
# Short names for the usual commands. New users need only `make demo` and `make test`. These two
# targets install missing packages (tools/bootstrap), build everything in build/ and run. Meson does
# the build.
MESON ?= meson
NINJA ?= ninja
# `make install` runs ldconfig, so that the dynamic linker finds the library. Users who may not
# run ldconfig set LD_LIBRARY_PATH instead.
LDCONFIG ?= ldconfig || true
# In continuous integration ($CI is set) compiler warnings are errors.
MESON_FLAGS ?= $(if $(CI),-Dwerror=true)

.PHONY: build demo test test-fast test-all soak lab lab-all lab-fetch install uninstall format clean

build:
	@tools/bootstrap build test
	@test -f build/build.ninja || $(MESON) setup build $(MESON_FLAGS)
	@$(NINJA) -C build

# make demo [FILE=model.safetensors]: copies a file into device memory and back.
demo: build
	@tools/demo $(if $(FILE),"$(FILE)")

# Runs the tests that CI runs. The last line of the output is 'N passed, N failed, N
# skipped'; the logs are in build/test-logs/.
test: lab-fetch
	@tools/bootstrap s3
	@tests/run fast core lab

# Runs the tests that take less than ten seconds together and need no hardware and no
# virtual machine.
test-fast: build
	@tests/run fast

# Runs all tests: those of `make test`, every lab suite, long property runs, and tests that
# need torch.
test-all: lab-fetch
	@tools/bootstrap s3 dev
	@tests/run

# Repeats tests of rare events many times: a process is killed while it saves a checkpoint, or bytes
# of a checkpoint are damaged. Takes about half an hour.
soak: build
	@tests/run ckpt-long

# Runs the lab suites that `make test` includes; lab-all runs the other ones. The lab is a
# virtual machine with real peer-to-peer DMA.
lab: lab-fetch
	@tests/run lab

lab-all: lab-fetch
	@tests/run lab-all

# Downloads the lab's kernels before the suites start, so that the suites' time limits do not
# include the download. If the download fails, each suite reports the reason.
lab-fetch: build
	@tools/bootstrap lab
	@lab/run --fetch --kernel p2pdma --kernel without >/dev/null || true

install: build
	@$(MESON) install -C build --no-rebuild
	@test -n "$(DESTDIR)" || $(LDCONFIG)

uninstall:
	@$(NINJA) -C build uninstall
	@test -n "$(DESTDIR)" || $(LDCONFIG)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build
