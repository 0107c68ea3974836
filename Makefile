# SPDX-License-Identifier: Apache-2.0
# The front door. `make demo` and `make test` are all that a newcomer needs:
# both install what is missing (tools/bootstrap), build into build/ and run.
# The build itself is meson's; this file only spells the usual commands.
MESON ?= meson
NINJA ?= ninja
# So that the loader finds the library; who may not run it sets LD_LIBRARY_PATH.
LDCONFIG ?= ldconfig || true
# Warnings are errors where nobody reads them.
MESON_FLAGS ?= $(if $(CI),-Dwerror=true)

.PHONY: build demo test test-fast test-all lab lab-all lab-fetch install uninstall format clean

build:
	@tools/bootstrap build test
	@test -f build/build.ninja || $(MESON) setup build $(MESON_FLAGS)
	@$(NINJA) -C build

# make demo [FILE=model.safetensors]
demo: build
	@tools/demo $(if $(FILE),"$(FILE)")

# The last line is 'N passed, N failed, N skipped'. Logs: build/test-logs/.
test: lab-fetch
	@tests/run fast core lab

# Under ten seconds, no hardware, no virtual machine.
test-fast: build
	@tests/run fast

# With the slow ones: every lab suite, long property runs, what needs torch.
test-all: lab-fetch
	@tools/bootstrap dev
	@tests/run

# A virtual machine with real peer-to-peer DMA: what make test runs of it, and
# what it does not.
lab: lab-fetch
	@tests/run lab

lab-all: lab-fetch
	@tests/run lab-all

# Ahead of the suites, whose limits are for what they do. Where it fails they say why.
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
