# Gloo's transport over the library (integrations/gloo): `make gloo`, `make test-gloo`, and a stage of `make test`.
STAGES += gloo

.PHONY: gloo test-gloo

gloo: local
	cmake -S integrations/gloo -B $(BUILD)/gloo -DCMAKE_PREFIX_PATH="$(abspath $(LOCAL))"
	cmake --build $(BUILD)/gloo -j $(JOBS)

# The Soft-RoCE machine runs it, too.
test: gloo

test-gloo: gloo
	@scripts/stage-gloo
