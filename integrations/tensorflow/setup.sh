#!/bin/sh
# Makes a virtual environment with one version of TensorFlow, what the tests and the benchmark need, and nothing of
# ours. Does nothing if it is there already.
#
#   setup.sh <TensorFlow version> <directory>
set -eu
version=$1
dir=$2
python=${PYTHON:-python3}
if [ -e "$dir/.ready" ]; then
  exit 0
fi
"$python" -m venv "$dir"
"$dir/bin/pip" install --quiet --disable-pip-version-check \
  "tensorflow-cpu==$version" "setuptools>=65" wheel pytest scikit-learn matplotlib
touch "$dir/.ready"
