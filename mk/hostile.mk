# The mutating proxy for long: at least 15 minutes and 20,000 connections. A minute of it is in the stage hostile.
.PHONY: hostile-long
hostile-long: setup
	RDMA_PROXY_SECONDS=900 RDMA_PROXY_CONNECTIONS=20000 $(CARGO) test -p rdma-hostile --test r15_proxy -- --nocapture
