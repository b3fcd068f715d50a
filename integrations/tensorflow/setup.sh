#!/bin/sh
# Makes a virtual environment with one version of TensorFlow, what the tests and the benchmark need, and nothing of
# ours. Does nothing if this script made it already.
#
#   setup.sh <TensorFlow version> <directory>
set -eu
version=$1
dir=$2
python=${PYTHON:-python3}
made_by=$(sha256sum <"$0")
if [ "$(cat "$dir/.ready" 2>/dev/null)" = "$made_by" ]; then
  touch "$dir/.ready" # newer than this script: make has nothing more to do
  exit 0
fi
"$python" -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check \
  "tensorflow-cpu==$version" "setuptools>=65" wheel pytest scikit-learn matplotlib
echo "$made_by" >"$dir/.ready"
