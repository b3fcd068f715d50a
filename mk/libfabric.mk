# The libfabric provider over the library (integrations/libfabric): `make libfabric` builds build/libfabric/librdmat-fi.so; `make test-libfabric`, and
# a stage of `make test`, runs MPI programs over it; `make bench-libfabric` measures Open MPI over it beside its own ob1, and writes docs/libfabric.*.
STAGES += libfabric

.PHONY: libfabric test-libfabric bench-libfabric

libfabric: local
	cmake -S integrations/libfabric -B "$(BUILD)/libfabric" -DCMAKE_PREFIX_PATH="$(LOCAL)"
	cmake --build "$(BUILD)/libfabric" -j $(JOBS)

# The Soft-RoCE machine runs it, too.
test: libfabric

test-libfabric: libfabric
	@scripts/stage-libfabric

bench-libfabric: libfabric
	@bench/libfabric "$(BUILD)" $(BENCH_ARGS)
