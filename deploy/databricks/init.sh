#!/bin/bash
# An init script of a Databricks cluster: installs keras-strom's wheel on every node, into the Python
# that notebooks and executors run.
#
# Put this file and the wheel into a volume, and give the script's path as the cluster's init script.
# STROM_WHEELS, a variable of the cluster, is the volume's folder with the wheel and constraints.txt
# (keras-strom refuses unknown variables that begin with KERAS_STROM_, so this one does not).
set -euo pipefail

wheels=${STROM_WHEELS:-/Volumes/main/default/keras_strom}
python=${STROM_PYTHON:-/databricks/python/bin/python}

shopt -s nullglob
found=("$wheels"/keras_strom-*_"$(uname -m)".whl)
if ((${#found[@]} != 1)); then
  echo "keras-strom: $wheels has ${#found[@]} wheels of keras-strom for $(uname -m) in place of one" >&2
  exit 1
fi
options=()
if [[ -e $wheels/constraints.txt ]]; then
  options+=(--constraint "$wheels/constraints.txt")
fi
# The runtime has pyspark, pandas and pyarrow; TensorFlow must be the one that the wheel was built for.
"$python" -m pip install --no-cache-dir "${options[@]}" "${found[0]}[${STROM_EXTRAS:-cpu,executor}]"
"$python" -m keras_strom --version
