# The library and its tests under sanitizers: too slow for `make test`. The fuzzers are a stage of it.
STAGES += fuzz

.PHONY: sanitize
sanitize: setup
	@scripts/stage-sanitize

.PHONY: fuzz
fuzz: setup
	@scripts/stage-fuzz
