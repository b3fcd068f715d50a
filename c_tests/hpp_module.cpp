/* A plugin that uses the C++ layer and hands out what it made. It is built with hidden symbols, so that whatever the headers
 * had one of in each module would be there twice. */
#include "hpp_module.hpp"

static rdma::Result<rdma::PairBuffer> buffer(rdma::Pair &pair, std::uint64_t slot, void *data, std::size_t len,
                                             std::shared_ptr<int> held) {
  return pair.recv_buffer(slot, data, len, [held](const rdma::BufferEvent &) { ++*held; });
}
static rdma::Result<rdma::Manager> manager(const char *name, const char *provider, std::shared_ptr<int> held) {
  auto made = rdma::Manager::create(
      rdma::Options().name(name).provider(provider).timeout_ms(20000).peer_event([held](rdma::StringView, const rdma::Status &) {}));
  if (!made.ok()) return made;
  rdma::Status set = made->set_source([held](rdma::Response response, rdma::StringView, rdma::StringView, std::int64_t) {
    ++*held;
    response.fail(RDMA_NOT_FOUND, "the module has nothing");
  });
  if (!set.ok()) return set;
  return made;
}
static rdma::Result<rdma::MessageRequest> receive(const rdma::Manager &manager, rdma_peer_t from, void *data, std::size_t len,
                                                  std::shared_ptr<int> held) {
  rdma::MessageOptions options;
  options.done = [held](const rdma::MessageStatus &) { ++*held; };
  return rdma::Messages(manager).irecv(from, 1, 1, RDMA_MSG_TAG_MASK, data, len, std::move(options));
}
static rdma::Status room(const rdma::Manager &manager, rdma_peer_t to, std::shared_ptr<int> held) {
  return rdma::Messages(manager).on_room(to, 1, [held](const rdma::Status &, std::uint64_t) { ++*held; });
}
static rdma::Result<rdma::Store> store() { return rdma::Store::memory(); }

const Maker hpp_module = {buffer, manager, receive, room, store};
