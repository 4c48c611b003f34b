#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for the given time.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-20s}

for package in $(go list ./...); do
  targets=$(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true)
  for target in $targets; do
    echo "== $package $target ($duration)"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "$package"
  done
done
