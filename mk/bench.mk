# Instructions per transfer: `make bench-instructions`.
.PHONY: bench-instructions
bench-instructions: build
	@bench/instructions $(BUILD)
