/* What test_hpp_modules.cpp takes from hpp_module.cpp, a module of its own. */
#ifndef HPP_MODULE_HPP
#define HPP_MODULE_HPP

#include <rdma_transport_msg.hpp>
#include <rdma_transport_pair.hpp>
#include <rdma_transport_store.hpp>

/* Objects of the layer whose callbacks are the module's, and hold `held`. */
struct Maker {
  rdma::Result<rdma::PairBuffer> (*buffer)(rdma::Pair &pair, std::uint64_t slot, void *data, std::size_t len,
                                           std::shared_ptr<int> held);
  rdma::Result<rdma::Manager> (*manager)(const char *name, const char *provider, std::shared_ptr<int> held);
  rdma::Result<rdma::MessageRequest> (*receive)(const rdma::Manager &manager, rdma_peer_t from, void *data,
                                                std::size_t len, std::shared_ptr<int> held);
  rdma::Status (*room)(const rdma::Manager &manager, rdma_peer_t to, std::shared_ptr<int> held);
  rdma::Result<rdma::Store> (*store)();
};
extern "C" __attribute__((visibility("default"))) const Maker hpp_module;

#endif
