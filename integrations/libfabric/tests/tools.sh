#!/bin/bash
# libfabric's own tools on the provider, which FI_PROVIDER_PATH names: what it offers, what it refuses, and fi_pingpong.
# Ends with "N passed, N failed, N skipped".
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# Runs a command; its status and a pattern of what it says have to be these.
expect() { # <status> <pattern> <command>...
  local wanted=$1 pattern=$2 said code
  shift 2
  said=$(timeout --foreground 60 "$@" 2>&1)
  code=$?
  if [ $code = "$wanted" ] && grep -qE -- "$pattern" <<<"$said"; then
    passed=$((passed + 1))
    echo "ok     $*"
  else
    failed=$((failed + 1))
    printf 'FAILED %s: exit status %d instead of %d, or nothing like "%s" in:\n%s\n' "$*" $code "$wanted" "$pattern" "$said"
  fi
}
expect 0 'type: FI_EP_RDM' fi_info -p rdmat
expect 0 '^rdmat' fi_info -l
# What Open MPI asks for.
expect 0 'provider: rdmat' fi_info -p rdmat -t FI_EP_RDM -c 'FI_TAGGED|FI_DIRECTED_RECV|FI_LOCAL_COMM|FI_REMOTE_COMM' -m 'FI_CONTEXT|FI_CONTEXT2'
expect 0 'provider: rdmat' fi_info -p rdmat -c 'FI_MSG|FI_MULTI_RECV|FI_SOURCE'
expect 0 'provider: rdmat' fi_info -p rdmat -c 'FI_RMA|FI_READ|FI_WRITE|FI_REMOTE_READ|FI_REMOTE_WRITE'
# 61 is FI_ENODATA: there is none of that kind.
no_data=61
expect $no_data "-$no_data" fi_info -p rdmat -t FI_EP_MSG
expect $no_data "-$no_data" fi_info -p rdmat -t FI_EP_DGRAM
expect 0 'No data available' fi_strerror $no_data

port=$((10000 + $$ % 20000)) # below those that the system gives to anybody
# A server and its client: both check what they get, and both end well.
pingpong() { # <provider> <option>...
  local provider=$1 code server client
  shift
  port=$((port + 1))
  RDMA_PROVIDER=$provider timeout 120 fi_pingpong -p rdmat -e rdm -c -I 10 -B $port "$@" >"$work/server" 2>&1 &
  server=$!
  # It listens when /proc says so; the port is its fourth field's, in hexadecimal.
  for _ in $(seq 600); do
    grep -qiE ":$(printf %04X $port) [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null && break
    kill -0 $server 2>/dev/null || break
    sleep 0.05
  done
  RDMA_PROVIDER=$provider timeout 120 fi_pingpong -p rdmat -e rdm -c -I 10 -P $port "$@" 127.0.0.1 >"$work/client" 2>&1
  client=$?
  wait $server
  code=$?
  if [ $client = 0 ] && [ $code = 0 ] && grep -q '^bytes' "$work/client"; then
    passed=$((passed + 1))
    echo "ok     fi_pingpong $* on $provider"
  else
    failed=$((failed + 1))
    echo "FAILED fi_pingpong $* on $provider: client $client, server $code"
    cat "$work/client" "$work/server"
  fi
}
for provider in shm tcp; do
  for mode in msg tagged; do
    for size in 1 4097 65536 1000000; do
      pingpong $provider -m $mode -S $size
    done
  done
done
pingpong shm -m tagged -S all
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
