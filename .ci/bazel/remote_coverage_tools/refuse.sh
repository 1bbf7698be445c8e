#!/bin/sh
echo "Coverage reports need Bazel's own coverage tools, which are not here." >&2
exit 1
