#!/bin/sh
# Fuzzes what reads strangers' bytes with clang's libFuzzer: tests/fuzz/run_fuzz.sh [seconds] [folder]
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
folder=${2:-build/fuzz}
mkdir -p "$folder/corpus"
comm=motley/comm
clang++ -std=c++20 -O1 -g -I. -DMOTLEY_LIBFUZZER -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  tests/fuzz/comm_fuzz.cpp $comm/collective_frame.cpp $comm/collective_schedule.cpp $comm/collective_element.cpp \
  $comm/execution.cpp $comm/frame.cpp $comm/handshake.cpp $comm/byte_stream.cpp $comm/stream_lane.cpp \
  $comm/membership_messages.cpp $comm/group_ledger.cpp \
  -o "$folder/comm_fuzz" -lfmt -lssl -lcrypto
"$folder/comm_fuzz" -max_total_time="$seconds" -max_len=8192 -rss_limit_mb=2048 "$folder/corpus"
