/* What a peer waits for: the result of a read, or that an operation has ended. It may have to wait for room, and then for the peer. */
#pragma once

#include "objects.h"

namespace rdmat {

class Answer {
 public:
  Answer(Ep *ep, rdma_peer_t peer) : ep(ep), peer(peer) {}
  virtual ~Answer() = default;
  Answer(const Answer &) = delete;

  /* The next step to it. True: it sees to its own end now. False: there is no room. */
  virtual bool go() { return deliver(); }
  /* Content of the peer is to come before; that ends by itself when the peer has gone. */
  virtual bool receives() const { return false; }
  /* It has been sent, or will not be. The answer ends behind it. */
  virtual void sent(rdma_code_t code) = 0;

  Ep *const ep;
  const rdma_peer_t peer;

 protected:
  /* go() of one that is ready. */
  bool deliver();
  /* Whether the peer still waits when a result could not be sent, and has to hear why nothing comes: not if it has gone, or this
   * end goes. */
  static bool heard_of(rdma_code_t code) {
    return code != RDMA_OK && code != RDMA_UNAVAILABLE && code != RDMA_CANCELLED;
  }
  /* Begins to send it with these options. */
  virtual rdma_code_t post(rdma_msg_options_t *options, uint64_t *id) = 0;

 private:
  friend class Answers;
  static void ended(const rdma_msg_status_t *status, void *userdata);
  void end_part();

  /* The call that sends it, the end of the message. */
  std::atomic<uint8_t> parts_{0};
  rdma_code_t code_ = RDMA_OK;
  /* While it is under way, under the lock of the endpoint's answers: its message, its neighbours, and whether its peer was already not
   * there when somebody looked last. */
  uint64_t message_ = 0;
  Answer *before_ = nullptr, *after_ = nullptr;
  bool missed_ = false;
};

/* Those of an endpoint that wait. */
class Answers {
 public:
  /* One for which there is no room; false: there are too many, and it has ended. */
  bool keep(Answer *answer);
  /* Has them go on, as far as there is room. */
  void go_on(const std::atomic<bool> &closing);
  /* How many are kept, and whether there is any at all. */
  size_t kept() const { return keeps_.load(std::memory_order_relaxed); }
  bool any() const { return keeps_ > 0 || under_way_ > 0; }

  /* One whose message is under way, until it ends. */
  void add(Answer *answer, uint64_t message);
  void remove(Answer *answer);

  /* Ends those to this peer, which is gone, unless `back` says that it is connected again. */
  template <typename F>
  void forsake(rdma_mgr_t *mgr, rdma_peer_t peer, F back) {
    end_those(mgr, [peer](Answer *answer) { return answer->peer == peer; }, back);
  }
  /* Ends those whose peers were not there (by `there`) when this was called last, and are not now. */
  template <typename F>
  void look(rdma_mgr_t *mgr, F there) {
    const auto gone = [&there](Answer *answer) {
      const bool before = answer->missed_;
      answer->missed_ = !there(answer->peer);
      return before && answer->missed_;
    };
    end_those(mgr, gone, [] { return false; });
  }

 private:
  template <typename Gone, typename Back>
  void end_those(rdma_mgr_t *mgr, Gone gone, Back back) {
    if (!any()) return;
    std::vector<uint64_t> messages;
    std::deque<std::unique_ptr<Answer>> ended, others;
    {
      /* What begins after this goes to a peer that has come back. */
      std::lock_guard<std::mutex> hold(lock_);
      if (back()) return;
      for (Answer *answer = first_; answer != nullptr; answer = answer->after_) {
        if (gone(answer)) messages.push_back(answer->message_);
      }
      for (auto &answer : kept_) {
        const bool ends = !answer->receives() && gone(answer.get());
        (ends ? ended : others).push_back(std::move(answer));
      }
      kept_.swap(others);
      keeps_ = kept_.size();
    }
    for (const auto &answer : ended) answer->sent(RDMA_UNAVAILABLE);
    /* They end as any message does, perhaps in this call. */
    for (const uint64_t message : messages) rdma_msg_cancel(mgr, message);
  }

  std::mutex lock_;
  std::deque<std::unique_ptr<Answer>> kept_;
  Answer *first_ = nullptr;
  std::atomic<size_t> keeps_{0}, under_way_{0};
};

}  // namespace rdmat
