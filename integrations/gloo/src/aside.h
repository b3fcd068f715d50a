#ifndef RDMA_GLOO_ASIDE_H
#define RDMA_GLOO_ASIDE_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rdma_transport.h>

namespace gloo {
namespace transport {
namespace rdma {

/* A short content is copied aside and sent from there: its memory is free when send returns, as Gloo's older algorithms expect, and nobody
 * has to wait for that. It may live longer than the buffer whose sends it makes, not longer than the manager. */
class Aside {
 public:
  Aside(rdma_mgr_t *mgr, rdma_pair_t pair, int slot, size_t size);
  ~Aside();
  Aside(const Aside &) = delete;
  Aside &operator=(const Aside &) = delete;
  bool takes(size_t length) const { return length > 0 && length <= cell_; }
  rdma_code_t send(const char *data, size_t length, size_t roffset, int64_t timeout);
  /* Whether there are sends that nobody has waited for; waits for one of them. */
  bool waits() const { return told_ < begun_; }
  rdma_code_t waitSend(int64_t timeout);
  /* Whether all its sends have ended, well or not. */
  bool over() const;

 private:
  rdma_code_t open();
  /* Takes the end of the next send, and counts it, whatever its code. The library's wait has one code for its own time-out and for that of
   * a send: so it is asked when there is one. */
  rdma_code_t end(int64_t timeout);
  rdma_mgr_t *const mgr_;
  const rdma_pair_t pair_;
  const int slot_;
  const size_t cell_;
  rdma_buffer_t buffer_ = 0;
  std::vector<char> cells_;
  size_t begun_ = 0, ended_ = 0, told_ = 0; /* sends: of `ended_` the library was asked, of `told_` the owner has heard */
};

}  // namespace rdma
}  // namespace transport
}  // namespace gloo

#endif
