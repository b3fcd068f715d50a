# Instructions per transfer: `make bench-instructions`. Five processes on two processors, beside ZeroMQ: `make bench-processes`.
.PHONY: bench-instructions bench-processes
bench-instructions: build
	@bench/instructions $(BUILD)

bench-processes: build
	@bench/processes $(BUILD) $(BENCH_ARGS)
