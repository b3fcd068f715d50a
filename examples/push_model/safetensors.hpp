// A safetensors file, mapped: 8 bytes of header length, a JSON header, the tensors' bytes.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

struct FileTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, nbytes = 0;  // from the beginning of the file
};

// A file in memory; written back when it was created.
class Mapping {
 public:
  static Mapping open(const std::string &path);                        // throws std::runtime_error
  static Mapping create(const std::string &path, std::uint64_t size);  // likewise
  static Mapping memory(std::uint64_t size);
  Mapping(Mapping &&other) noexcept { *this = std::move(other); }
  Mapping &operator=(Mapping &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();
  char *data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  Mapping() = default;
  static Mapping map(int fd, std::uint64_t size, bool write);
  char *data_ = nullptr;
  std::uint64_t size_ = 0;
};

// Checks everything that a header says against the size of the file. Throws std::runtime_error.
std::vector<FileTensor> parse_header(const char *data, std::uint64_t available, std::uint64_t file_size);
// Length of the header with its 8 bytes in front.
std::uint64_t header_size(const char *data, std::uint64_t available);
// TensorFlow's number of a type, 0 for those it lacks.
std::uint32_t dtype_number(const std::string &dtype);
