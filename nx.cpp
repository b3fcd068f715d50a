#include <rdma_transport_msg.hpp>
#include <rdma_transport_pair.hpp>
#include <rdma_transport_store.hpp>
int main(){ rdma::Manager m; return m.listen("x").ok(); }
