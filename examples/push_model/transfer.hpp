// The two ends of the transfer.
#pragma once
#include <string>

struct Settings {
  std::string file;      // what to send
  std::string out;       // where to write what arrives; empty: memory only
  std::string listen = "127.0.0.1:0";
  std::string from;      // the sender's address
  std::string provider;  // empty: chosen by the library
  int announce_fd = -1;  // the launcher learns the sender's address here
};

int serve(const Settings &s);  // sends the file to one receiver
int pull(const Settings &s);   // receives it
