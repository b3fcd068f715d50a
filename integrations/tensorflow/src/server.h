// The server of protocol "grpc+verbs": TensorFlow's gRPC server, with tensors through the library.
#ifndef RDMA_TF_SERVER_H_
#define RDMA_TF_SERVER_H_

namespace rdma_tf {

// Makes TensorFlow know the protocol. Once.
void RegisterServerFactory();

}  // namespace rdma_tf

#endif  // RDMA_TF_SERVER_H_
