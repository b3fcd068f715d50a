# Gloo's transport over the library (integrations/gloo): `make gloo`, `make test-gloo`, and a stage of `make test`;
# `make bench-gloo` measures it beside Gloo's tcp and Open MPI, and writes docs/gloo.*.
STAGES += gloo

.PHONY: gloo test-gloo bench-gloo

gloo: local
	cmake -S integrations/gloo -B "$(BUILD)/gloo" -DCMAKE_PREFIX_PATH="$(LOCAL)"
	cmake --build "$(BUILD)/gloo" -j $(JOBS)

# The Soft-RoCE machine runs it, too.
test: gloo

test-gloo: gloo
	@scripts/stage-gloo

bench-gloo: gloo
	@bench/gloo "$(BUILD)" $(BENCH_ARGS)
