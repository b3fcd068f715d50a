# The TensorFlow integration: `make tensorflow`, `make test-tensorflow`, `make bench-tensorflow`, and a stage of
# `make test`.
STAGES += tensorflow

# The plugin is built for each of these; the first runs the whole test suite, the others its first item.
TF_VERSIONS ?= 2.21.0 2.15.1
TF_MAIN := $(firstword $(TF_VERSIONS))
TF_OTHERS := $(filter-out $(TF_MAIN),$(TF_VERSIONS))
TF_SRC := integrations/tensorflow
TF_CACHE := .cache
TF_BUILD := build/tensorflow
TF_STAGE := $(TF_BUILD)/wheel
TF_RELEASE ?= target/release
TF_PLUGINS := $(foreach v,$(TF_VERSIONS),$(TF_BUILD)/rdma_tf_$(subst .,_,$(v)).so)
TF_PYTHON = $(TF_CACHE)/tf-$(1)/bin/python

.PHONY: tensorflow test-tensorflow bench-tensorflow softroce-tensorflow
.SECONDARY:

$(TF_CACHE)/tf-%/.ready: $(TF_SRC)/setup.sh | setup
	$(TF_SRC)/setup.sh $* $(TF_CACHE)/tf-$*

# Wherever cargo has been told to build.
$(TF_RELEASE)/librdma_transport.so: Cargo.toml $(shell find src -name '*.rs') | setup
	mkdir -p $(TF_RELEASE)
	cmake -DCARGO="$(CARGO)" -DTARGET_DIR="$${CARGO_TARGET_DIR:-$(CURDIR)/target}" \
	  -DSHARED="$(CURDIR)/$(TF_RELEASE)/librdma_transport.so" -DSTATIC="$(CURDIR)/$(TF_RELEASE)/librdma_transport.a" \
	  -P cmake/CargoBuild.cmake -- build --lib --release

define TF_PLUGIN_RULE
$(TF_BUILD)/rdma_tf_$(subst .,_,$(1)).so: $(TF_CACHE)/tf-$(1)/.ready $(TF_RELEASE)/librdma_transport.so \
		include/rdma_transport.h $(TF_SRC)/CMakeLists.txt $(wildcard $(TF_SRC)/src/*) $(TF_SRC)/tests/receive.cc
	cmake -S $(TF_SRC) -B $(TF_BUILD)/$(1) -DTF_VERSION=$(1) -DRDMA_TF_TESTS=$(if $(filter $(TF_MAIN),$(1)),ON,OFF) \
	  -DTF_DIR="$$$$($(call TF_PYTHON,$(1)) -c 'import importlib.util as u; print(u.find_spec("tensorflow").submodule_search_locations[0])')" \
	  -DRDMA_INCLUDE_DIR="$$(CURDIR)/include" -DRDMA_LIBRARY="$$(CURDIR)/$(TF_RELEASE)/librdma_transport.so"
	cmake --build $(TF_BUILD)/$(1)
	cp $(TF_BUILD)/$(1)/rdma_tf_$(subst .,_,$(1)).so $$@
endef
$(foreach v,$(TF_VERSIONS),$(eval $(call TF_PLUGIN_RULE,$(v))))

# The wheel, and the same files unpacked in $(TF_STAGE) for PYTHONPATH.
tensorflow: $(TF_PLUGINS)
	rm -rf $(TF_STAGE)
	mkdir -p $(TF_STAGE) dist
	cp -r LICENSE $(TF_SRC)/setup.py $(TF_SRC)/rdma_tensorflow $(TF_STAGE)/
	mkdir -p $(TF_STAGE)/rdma_tensorflow/lib
	cp $(TF_RELEASE)/librdma_transport.so $(TF_STAGE)/rdma_tensorflow/lib/librdma_transport.so.0
	cp $(TF_PLUGINS) $(TF_STAGE)/rdma_tensorflow/lib/
	strip --strip-debug $(TF_STAGE)/rdma_tensorflow/lib/*.so*
	rm -f dist/rdma_tensorflow-*.whl
	$(call TF_PYTHON,$(TF_MAIN)) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist $(TF_STAGE)
	$(foreach v,$(TF_VERSIONS),$(call TF_PYTHON,$(v)) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/rdma_tensorflow-*.whl &&) true

test-tensorflow:
	@scripts/stage-tensorflow

bench-tensorflow: tensorflow
	$(call TF_PYTHON,$(TF_MAIN)) $(TF_SRC)/bench/bench.py --out docs

# A parameter server and a worker over Soft-RoCE in the virtual machine. Imports take minutes there.
softroce-tensorflow: tensorflow
	softroce/prepare.sh
	softroce/tensorflow_image.sh $(call TF_PYTHON,$(TF_MAIN)) $(TF_STAGE) .cache/softroce/tensorflow.img
	SOFTROCE_MEMORY=4G softroce/run.sh --list softroce/tensorflow.list --disk .cache/softroce/tensorflow.img --timeout 3000
	rm -f .cache/softroce/tensorflow.img
