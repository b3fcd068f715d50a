/* TensorFlow's keys: src;incarnation;dst;name;frame:iter */
#include "harness.h"
#include <inttypes.h>

#define SRC "/job:ps/replica:0/task:1/device:CPU:0"
#define DST "/job:worker/replica:0/task:2/device:GPU:7"

static void parse(void) {
  const char *key = SRC ";00000000deadbeef;" DST ";edge_17_weight/read;3:18446744073709551615";
  rdma_parsed_key_t k;
  memset(&k, 0, sizeof k);
  k.struct_size = sizeof k;
  CHECK_OK(rdma_key_parse(key, strlen(key), &k));
  CHECK(k.src_device == key);
  CHECK_INT(strlen(SRC), k.src_device_len);
  CHECK_INT(0xdeadbeef, k.src_incarnation);
  CHECK(memcmp(k.dst_device, DST, k.dst_device_len) == 0);
  CHECK_INT(strlen(DST), k.dst_device_len);
  CHECK_INT(strlen("edge_17_weight/read"), k.edge_name_len);
  CHECK(memcmp(k.edge_name, "edge_17_weight/read", k.edge_name_len) == 0);
  CHECK_INT(3, k.frame);
  CHECK(k.iter == UINT64_MAX);
}

static void build(void) {
  rdma_parsed_key_t k, again;
  char buf[512];
  size_t len = 0;
  memset(&k, 0, sizeof k);
  k.struct_size = again.struct_size = sizeof k;
  k.src_device = SRC;
  k.src_device_len = strlen(SRC);
  k.dst_device = DST;
  k.dst_device_len = strlen(DST);
  k.edge_name = "edge";
  k.edge_name_len = 4;
  k.src_incarnation = 0x1234567890abcdefu;
  k.frame = 5;
  k.iter = 6;
  CHECK_OK(rdma_key_build(&k, buf, sizeof buf, &len));
  CHECK_STR(SRC ";1234567890abcdef;" DST ";edge;5:6", buf);
  CHECK_INT(strlen(buf), len);
  CHECK_OK(rdma_key_parse(buf, len, &again));
  CHECK(again.src_incarnation == k.src_incarnation && again.frame == 5 && again.iter == 6);
  size_t need = len;
  CHECK_BAD(RDMA_OUT_OF_RANGE, rdma_key_build(&k, buf, need, &len));
  CHECK_INT(need, len);
  CHECK_OK(rdma_key_build(&k, buf, need + 1, &len));
  k.src_incarnation = 1;
  CHECK_OK(rdma_key_build(&k, buf, sizeof buf, &len));
  CHECK_OK(rdma_key_parse(buf, len, &again));
  CHECK_INT(1, again.src_incarnation);
}

static void build_rejects(void) {
  rdma_parsed_key_t k;
  char buf[512];
  size_t len = 0;
  memset(&k, 0, sizeof k);
  k.struct_size = sizeof k;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_key_build(&k, buf, sizeof buf, &len));
  k.src_device = SRC;
  k.src_device_len = strlen(SRC);
  k.dst_device = DST;
  k.dst_device_len = strlen(DST);
  k.edge_name = "a;b";
  k.edge_name_len = 3;
  CHECK_BAD(RDMA_INVALID_ARGUMENT, rdma_key_build(&k, buf, sizeof buf, &len));
}

static void malformed(void) {
  static const char *const bad[] = {
      "", ";", ";;;;", "a", SRC, SRC ";1", SRC ";1;" DST, SRC ";1;" DST ";name",
      SRC ";1;" DST ";name;", SRC ";1;" DST ";name;1", SRC ";1;" DST ";name;1:", SRC ";1;" DST ";name;:1",
      SRC ";1;" DST ";name;1:2:3", SRC ";1;" DST ";name;1:2;", SRC ";1;" DST ";name;-1:2",
      SRC ";1;" DST ";name;1:x", SRC ";1;" DST ";name; 1:2", SRC ";1;" DST ";name;+1:2",
      SRC ";1;" DST ";name;0:18446744073709551616", SRC ";xyz;" DST ";name;0:0", SRC ";;" DST ";name;0:0",
      SRC ";10000000000000000;" DST ";name;0:0", ";1;" DST ";name;0:0", SRC ";1;;name;0:0",
      SRC ";1;" DST ";;0:0",
  };
  rdma_parsed_key_t k;
  for (size_t i = 0; i < COUNT_OF(bad); i++) {
    memset(&k, 0, sizeof k);
    k.struct_size = sizeof k;
    rdma_code_t rc = rdma_key_parse(bad[i], strlen(bad[i]), &k);
    CHECK_MSG(rc == RDMA_INVALID_ARGUMENT, "\"%s\" is parsed with %s", bad[i], rdma_code_name(rc));
    CHECK_MSG(k.src_device == NULL && k.edge_name == NULL, "\"%s\": output written on failure", bad[i]);
  }
}

static const test_case cases[] = {CASE(parse), CASE(build), CASE(build_rejects), CASE(malformed)};
TEST_MAIN(cases)
