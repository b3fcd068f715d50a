/* Gloo's transport over librdma_transport: shared memory on one host, RDMA or TCP between hosts.
 *
 *   auto device = gloo::transport::rdma::CreateDevice("127.0.0.1:0");
 *
 * in place of gloo::transport::tcp::CreateDevice, and all else stays: contexts, pairs, buffers, unbound buffers.
 * docs/gloo.md says what is different. */
#ifndef RDMA_GLOO_DEVICE_H
#define RDMA_GLOO_DEVICE_H

#include <memory>
#include <string>

#include <gloo/transport/device.h>

namespace gloo {
namespace transport {
namespace rdma {

struct attr {
  attr() = default;
  /* implicit */ attr(const char *listen) : listen(listen) {}

  /* Where the ranks of this process are reached, `host:port`. One address: all of it has to fit into Gloo's address of
   * a pair, 192 bytes. Port 0: any. Another port is that of the first context; further ones beside it listen on any. */
  std::string listen = "127.0.0.1:0";
  /* "auto", "shm", "ibverbs", "tcp", "loopback"; RDMA_PROVIDER in the environment goes before it. */
  std::string provider = "auto";
  /* A secret that all ranks share. Without one, others than this host are let in only with `allowRemote`. */
  std::string secret;
  bool allowRemote = false;
  /* Sends of unbound buffers end once another rank has received them, however short they are: so their waits time out for a rank that
   * does not take part, as over Gloo's tcp. A word back for each; a rank that leaves as soon as it has received may be told as gone. */
  bool synchronousSends = false;
};

/* Throws ::gloo::IoException if the attributes cannot be met here. */
std::shared_ptr<::gloo::transport::Device> CreateDevice(const attr &attr = rdma::attr());

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
