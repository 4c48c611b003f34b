#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other, for the given time
# each. With --list it only names them.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
duration=${1:-20s}

# One line per target: package and name. A package that does not build ends the
# script here, rather than to be taken for one without targets.
targets=$(go list ./... | while read -r package; do
  go test -list '^Fuzz' "$package" | sed -n "s|^Fuzz|$package &|p"
done)

# What the source says, so that none is missed behind a build constraint.
written=$(git grep -hE '^func Fuzz[A-Z][A-Za-z0-9]*\(' -- '*_test.go' | wc -l)
found=$(wc -l <<<"$targets")
if [ "$found" -ne "$written" ]; then
  echo "fuzz.sh: $written targets are written, $found found:" >&2
  echo "$targets" >&2
  exit 1
fi
if [ "$duration" = --list ]; then
  echo "$targets"
  exit
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while read -r package target; do
  echo "== $package $target ($duration)"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "$package" </dev/null 2>&1 | tee "$log" && continue
  # On a busy machine go test can call it a failure that the time ended in the
  # middle of an input (go.dev/issue/75804, until Go 1.27). A finding names its input.
  if grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input written' "$log"; then
    echo "   (the time was up in the middle of an input, which is no finding)"
    continue
  fi
  exit 1
done <<<"$targets"
