# The tests on a real RDMA device: the kernel's Soft-RoCE in a virtual machine.
.PHONY: softroce
softroce: local
	@scripts/stage-softroce

# Not a stage of `make test` yet: the whole list has not been seen to pass in one run. `make softroce` runs it.
