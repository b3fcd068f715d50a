#include "safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace {
struct Type {
  const char *name;
  std::uint64_t bytes;
  std::uint32_t number;
};
const Type types[] = {{"BOOL", 1, 10}, {"U8", 1, 4},  {"I8", 1, 6},   {"F8_E5M2", 1, 24}, {"F8_E4M3", 1, 25},
                      {"I16", 2, 5},   {"U16", 2, 17}, {"F16", 2, 19}, {"BF16", 2, 14},    {"I32", 4, 3},
                      {"U32", 4, 22},  {"F32", 4, 1},  {"F64", 8, 2},  {"I64", 8, 9},      {"U64", 8, 23}};

const Type *type_of(const std::string &name) {
  for (const Type &t : types)
    if (name == t.name) return &t;
  return nullptr;
}

[[noreturn]] void bad(const std::string &what) { throw std::runtime_error("not a safetensors file: " + what); }
[[noreturn]] void system_error(const std::string &what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

FileTensor one(const std::string &name, const nlohmann::json &entry, std::uint64_t start, std::uint64_t file_size) {
  FileTensor t;
  t.name = name;
  t.dtype = entry.at("dtype").get<std::string>();
  const Type *type = type_of(t.dtype);
  if (!type) bad("tensor \"" + name + "\" has the unknown type " + t.dtype);
  std::uint64_t want = type->bytes;
  for (const auto &dim : entry.at("shape")) {
    std::uint64_t d = dim.get<std::uint64_t>();
    if (!dim.is_number_unsigned() || __builtin_mul_overflow(want, d, &want)) bad("the shape of \"" + name + "\"");
    t.shape.push_back(static_cast<std::int64_t>(d));
  }
  const auto &offsets = entry.at("data_offsets");
  if (offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    bad("the offsets of \"" + name + "\"");
  std::uint64_t begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > file_size - start || end - begin != want) bad("the offsets of \"" + name + "\"");
  t.offset = start + begin;
  t.nbytes = want;
  return t;
}
}  // namespace

std::uint64_t header_size(const char *data, std::uint64_t available) {
  std::uint64_t n = 0;
  if (available < 8) bad("shorter than 8 bytes");
  for (int i = 0; i < 8; i++) n |= std::uint64_t(static_cast<unsigned char>(data[i])) << (8 * i);
  if (n > 100000000 || n > available - 8) bad("the header is longer than the file or than 100 MB");
  return n + 8;
}

std::vector<FileTensor> parse_header(const char *data, std::uint64_t available, std::uint64_t file_size) {
  std::uint64_t start = header_size(data, available);
  std::vector<FileTensor> all;
  if (start > file_size) bad("the header is longer than the file");
  try {
    const auto header = nlohmann::json::parse(data + 8, data + start);
    for (const auto &[name, entry] : header.items())
      if (name != "__metadata__") all.push_back(one(name, entry, start, file_size));
  } catch (const nlohmann::json::exception &e) {
    bad(e.what());
  }
  std::sort(all.begin(), all.end(), [](const FileTensor &a, const FileTensor &b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < all.size(); i++)
    if (all[i].offset < all[i - 1].offset + all[i - 1].nbytes) bad("\"" + all[i].name + "\" overlaps its neighbour");
  return all;
}

std::uint32_t dtype_number(const std::string &dtype) {
  const Type *type = type_of(dtype);
  return type ? type->number : 0;
}

Mapping Mapping::map(int fd, std::uint64_t size, bool write) {
  Mapping m;
  if (size == 0) return m;
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : write ? MAP_SHARED : MAP_PRIVATE;
  void *p = mmap(nullptr, size, write ? PROT_READ | PROT_WRITE : PROT_READ, flags, fd, 0);
  if (p == MAP_FAILED) system_error("mmap");
  m.data_ = static_cast<char *>(p);
  m.size_ = size;
  return m;
}

Mapping Mapping::open(const std::string &path) {
  struct stat st;
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0) system_error(path);
  Mapping m = map(fd, static_cast<std::uint64_t>(st.st_size), false);
  close(fd);
  return m;
}

Mapping Mapping::create(const std::string &path, std::uint64_t size) {
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) system_error(path);
  Mapping m = map(fd, size, true);
  close(fd);
  return m;
}

Mapping Mapping::memory(std::uint64_t size) { return map(-1, size, true); }

Mapping::~Mapping() {
  if (data_) munmap(data_, size_);
}
