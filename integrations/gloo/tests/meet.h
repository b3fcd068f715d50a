/* Contexts that connect, with Gloo as it is in Debian and as it became: stores were given by reference, and are shared now. */
#ifndef RDMA_GLOO_TESTS_MEET_H
#define RDMA_GLOO_TESTS_MEET_H

#include <memory>
#include <string>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

using Store = std::shared_ptr<gloo::rendezvous::Store>;

template <class Context>
auto meet(Context &context, Store store, std::shared_ptr<gloo::transport::Device> device) -> decltype(context.connectFullMesh(*store, device)) {
  context.connectFullMesh(*store, device);
}
template <class Context>
auto meet(Context &context, Store store, std::shared_ptr<gloo::transport::Device> device) -> decltype(context.connectFullMesh(store, device)) {
  context.connectFullMesh(store, device);
}

template <class Prefixed = gloo::rendezvous::PrefixStore>
auto with_prefix(const std::string &prefix, Store store) -> decltype(Prefixed(prefix, *store), Store()) {
  return std::make_shared<Prefixed>(prefix, *store);
}
template <class Prefixed = gloo::rendezvous::PrefixStore>
auto with_prefix(const std::string &prefix, Store store) -> decltype(Prefixed(prefix, store), Store()) {
  return std::make_shared<Prefixed>(prefix, store);
}

#endif
