# The tests on a real RDMA device: the kernel's Soft-RoCE in a virtual machine. Alone: `make softroce`.
STAGES += softroce

.PHONY: softroce
softroce: gloo libfabric
	@scripts/stage-softroce
