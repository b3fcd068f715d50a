// The sending side: a peer asks for a tensor, TensorFlow's rendezvous has it or will have it.
#ifndef RDMA_TF_SOURCE_H_
#define RDMA_TF_SOURCE_H_

#include "rdma_transport.h"

namespace rdma_tf {

// An rdma_source_fn; `userdata` is the Context. Never blocks: it runs on the library's progress thread.
void OnRequest(rdma_mgr_t* mgr, rdma_response_t response, const char* peer, size_t peer_length, const char* key,
               size_t key_length, int64_t step, void* userdata);

}  // namespace rdma_tf

#endif  // RDMA_TF_SOURCE_H_
