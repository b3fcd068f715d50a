# make demo      installs what is missing, builds, trains a model through the library
# make test      installs what is missing, builds, runs every test and check
# make bench-shm the shm provider alone, below the protocol
# make bench     latency, rate and bandwidth, beside UCX and Open MPI; writes docs/performance.*
# make install   PREFIX=/usr/local; DESTDIR=... before it, for packages
# make uninstall what the last `make install` of this folder has put there
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
CARGO  ?= cargo

# Lists of Debian packages and test stages; the files included below may add to both.
PACKAGES := packages.txt
STAGES   := fmt clippy rust hostile ctest examples
# BUILD, PREFIX and DESTDIR may have spaces in them: no function of make takes them apart, and recipes quote them.
LOCAL    := $(if $(filter /%,$(BUILD)),,$(CURDIR)/)$(BUILD)/prefix

export PATH := $(PATH):$(HOME)/.cargo/bin
export BUILD JOBS CARGO LOCAL

.PHONY: all setup build local demo test bench bench-shm install uninstall clean
all: build

setup:
	@scripts/install-packages $(PACKAGES)

build: setup
	cmake -S . -B "$(BUILD)" -DCMAKE_BUILD_TYPE=Release
	cmake --build "$(BUILD)" -j $(JOBS)

# The examples are built against an installed library, as anybody's program is. Named by its component, the installation leaves
# the list by which `make uninstall` goes alone; and it stays in the build folder whatever DESTDIR is.
local: build
	DESTDIR= cmake --install "$(BUILD)" --prefix "$(LOCAL)" --component Unspecified >/dev/null
	cmake -S examples -B "$(BUILD)/examples" -DCMAKE_PREFIX_PATH="$(LOCAL)"
	cmake --build "$(BUILD)/examples" -j $(JOBS)

demo: local
	@scripts/demo

test: local
	@scripts/run-tests $(STAGES)

bench-shm: setup
	$(CARGO) test --release --test shm_bench -- --ignored --nocapture --test-threads=1 bench_

bench: build
	@bench/run "$(BUILD)" $(BENCH_ARGS)

# What `make` has built is installed as it is: `sudo make install` does not build as root. Files are for everybody to read, and so
# are the folders that are made for them, whatever the umask.
install: $(if $(shell test -e "$(BUILD)/lib/librdma_transport.so" && echo built),,build)
	umask 022 && cmake --install "$(BUILD)" --prefix "$(PREFIX)"

uninstall:
	cmake --build "$(BUILD)" --target uninstall

clean:
	rm -rf "$(BUILD)"
	$(CARGO) clean

# Parts with needs of their own: each file may add targets, PACKAGES and STAGES.
-include mk/*.mk
