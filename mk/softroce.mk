# The tests on a real RDMA device: the kernel's Soft-RoCE in a virtual machine.
.PHONY: softroce
softroce: build
	@scripts/stage-softroce

STAGES += softroce
