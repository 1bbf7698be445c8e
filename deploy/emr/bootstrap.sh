#!/bin/bash
# A bootstrap action of Amazon EMR: an environment with keras-strom under /opt/keras-strom, on every node.
#
#   aws s3 cp dist/keras_strom-VERSION.whl s3://BUCKET/keras-strom/
#   aws s3 cp constraints.txt s3://BUCKET/keras-strom/
#   aws emr create-cluster ... --bootstrap-actions Path=s3://BUCKET/bootstrap.sh,Args=[s3://BUCKET/keras-strom/]
#
# The argument is a folder, in S3 or not, with one wheel and perhaps constraints.txt.
# deploy/emr/configuration.json has Spark use this Python.
set -euo pipefail

if (($# != 1)); then
  echo "usage: ${0##*/} FOLDER" >&2
  exit 2
fi
source=$1
as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ $source == s3://* ]]; then
  aws s3 cp --recursive "$source" "$folder"
else
  cp "$source"/* "$folder"
fi
shopt -s nullglob
wheels=("$folder"/keras_strom-*_"$(uname -m)".whl)
if ((${#wheels[@]} != 1)); then
  echo "keras-strom: $source has ${#wheels[@]} wheels of keras-strom for $(uname -m) in place of one" >&2
  exit 1
fi

if ! command -v python3.11 >/dev/null; then
  "${as_root[@]}" dnf install --assumeyes python3.11
fi
options=()
if [[ -e $folder/constraints.txt ]]; then
  options+=(--constraint "$folder/constraints.txt")
fi
"${as_root[@]}" python3.11 -m venv /opt/keras-strom
# Spark's own pyspark is found beside it.
"${as_root[@]}" /opt/keras-strom/bin/pip install --no-cache-dir "${options[@]}" \
  "${wheels[0]}[cpu,executor]"
/opt/keras-strom/bin/keras-strom --version
