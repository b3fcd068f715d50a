/* Answers to peers: kept while there is no room for them, and taken back where nobody is there to hear them. */
#include "answer.h"

#include "ep.h"

namespace rdmat {

void Answer::ended(const rdma_msg_status_t *status, void *userdata) {
  Answer *answer = static_cast<Answer *>(userdata);
  answer->code_ = status->code;
  answer->end_part();
}

void Answer::end_part() {
  if (parts_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  ep->answers.remove(this);
  sent(code_);
  delete this;
}

bool Answer::deliver() {
  rdma_msg_options_t options{};
  options.struct_size = sizeof options;
  options.timeout_ms = RDMA_MSG_FOREVER;
  options.done = ended;
  options.userdata = this;
  parts_.store(2, std::memory_order_relaxed);
  uint64_t id = 0;
  const rdma_code_t code = post(&options, &id);
  if (code == RDMA_RESOURCE_EXHAUSTED) return false;
  if (code != RDMA_OK || id == 0) {
    if (code != RDMA_OK) refusal(code, FI_LOG_EP_DATA, "an answer");
    sent(code);
    delete this;
    return true;
  }
  ep->answers.add(this, id);
  ep->watch();
  end_part();
  return true;
}

bool Answers::keep(Answer *answer) {
  std::unique_ptr<Answer> owned(answer);
  std::lock_guard<std::mutex> hold(lock_);
  if (answer == nullptr || kept_.size() >= kQueue) {
    RDMAT_WARN(FI_LOG_EP_DATA, "an answer is lost: there is no room for it, and %zu wait already\n", kept_.size());
    return false;
  }
  if (kept_.empty()) RDMAT_WARN(FI_LOG_EP_DATA, "there is no room for an answer: it is sent later\n");
  kept_.push_back(std::move(owned));
  keeps_ = kept_.size();
  return true;
}

void Answers::go_on(const std::atomic<bool> &closing) {
  while (keeps_ > 0 && !closing) {
    std::unique_ptr<Answer> first;
    {
      std::lock_guard<std::mutex> hold(lock_);
      if (kept_.empty()) return;
      first = std::move(kept_.front());
      kept_.pop_front();
    }
    const bool went = first->go();
    if (went) (void)first.release();
    std::lock_guard<std::mutex> hold(lock_);
    if (!went) kept_.push_front(std::move(first));
    keeps_ = kept_.size();
    if (!went) return;
  }
}

void Answers::add(Answer *answer, uint64_t message) {
  std::lock_guard<std::mutex> hold(lock_);
  answer->message_ = message;
  answer->missed_ = false;
  answer->before_ = nullptr;
  answer->after_ = first_;
  if (first_ != nullptr) first_->before_ = answer;
  first_ = answer;
  ++under_way_;
}

void Answers::remove(Answer *answer) {
  std::lock_guard<std::mutex> hold(lock_);
  (answer->before_ != nullptr ? answer->before_->after_ : first_) = answer->after_;
  if (answer->after_ != nullptr) answer->after_->before_ = answer->before_;
  --under_way_;
}

namespace {

/* That an operation has ended; of a read, why nothing comes. */
class End : public Answer {
 public:
  End(Ep *ep, bool read, rdma_peer_t peer, uint64_t number, int err)
      : Answer(ep, peer), read_(read), number_(number), err_(err) {}
  void sent(rdma_code_t) override {}

 private:
  rdma_code_t post(rdma_msg_options_t *options, uint64_t *id) override {
    if (err_ != 0) {
      options->header = &err_;
      options->header_len = sizeof err_;
    }
    return read_ ? rdma_msg_isend(ep->manager(), peer, kReplies, number_, nullptr, 0, options, id)
                 : rdma_msg_am_isend(ep->manager(), peer, kOnAck, number_, nullptr, 0, options, id);
  }

  const bool read_;
  const uint64_t number_;
  const int32_t err_;
};

}  // namespace

bool Ep::answer_with(Answer *answer) {
  if (answer != nullptr && answers.kept() == 0 && answer->go()) return true;
  if (answers.keep(answer)) watch();
  return false;
}

void Ep::tell(bool read, rdma_peer_t peer, uint64_t number, int err) {
  if (!closing_) answer_with(new (std::nothrow) End(this, read, peer, number, err));
}

/* Tells the peer that its operation has ended. */
void Ep::acknowledge(rdma_peer_t peer, uint64_t number, int err) { tell(false, peer, number, err); }

/* The receive of the result ends with this instead. */
void Ep::refuse_read(rdma_peer_t peer, uint64_t number, int err) { tell(true, peer, number, err); }

}  // namespace rdmat
