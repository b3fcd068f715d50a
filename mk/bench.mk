# Instructions per transfer: `make bench-instructions`. Five processes on two processors, beside ZeroMQ: `make bench-processes`.
# Calls while a million receives are outstanding: `make bench-many`.
.PHONY: bench-instructions bench-processes bench-many
bench-instructions: build
	@bench/instructions $(BUILD)

bench-processes: build
	@bench/processes $(BUILD) $(BENCH_ARGS)

bench-many: build
	@$(BUILD)/bench/rdma_many $(BENCH_ARGS)
STAGES += instructions
