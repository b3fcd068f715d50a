# The library and its tests under sanitizers: too slow for `make test` but for a part. The fuzzers are a stage of it.
STAGES += asan fuzz

.PHONY: sanitize
sanitize: setup
	@scripts/stage-sanitize

.PHONY: fuzz
fuzz: setup
	@scripts/stage-fuzz
