# Instructions per transfer: `make bench-instructions`. Five processes on two processors, beside ZeroMQ: `make bench-processes`.
# Calls while a million receives from one peer, and from 1,000, are outstanding: `make bench-many`.
# Tagged messages, beside UCX and Open MPI: `make bench-msg`; writes docs/performance-messages.*.
# Many ranks: `make bench-scale`; writes docs/scale.md.
.PHONY: bench-instructions bench-processes bench-many bench-msg bench-scale
bench-instructions: build
	@bench/instructions "$(BUILD)"

bench-processes: build
	@bench/processes "$(BUILD)" $(BENCH_ARGS)

bench-many: build
	@"$(BUILD)"/bench/rdma_many $(BENCH_ARGS)
	@$(if $(BENCH_ARGS),,"$(BUILD)"/bench/rdma_many 1000000 10000 1000)

bench-msg: build
	@bench/messages "$(BUILD)" $(BENCH_ARGS)

bench-scale: build
	@bench/scale "$(BUILD)" $(BENCH_ARGS)

STAGES += instructions
