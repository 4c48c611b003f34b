#!/usr/bin/env bash
# The steps of docs/quickstart-minio.md, checked: each command of the page stands
# here, in the same order, followed by what its output has to show.
#
# By default it runs against the compose file. To run it against another node:
#
#   URL=http://127.0.0.1:8082 KEYHOLE=bin/keyhole KEYHOLE_ADMIN_URL=… scripts/quickstart.sh
set -euo pipefail

URL=${URL:-http://127.0.0.1:8082}
if [ -n "${KEYHOLE:-}" ]; then
  keyhole() { "$KEYHOLE" "$@"; }
else
  keyhole() { docker compose exec -T keyhole keyhole "$@"; }
fi

# expect passes its input on and fails unless each argument is part of it.
expect() {
  local output wanted
  output=$(tr -d '\r')
  printf '%s\n' "$output"
  for wanted in "$@"; do
    case $output in
      *"$wanted"*) ;;
      *)
        echo "quickstart: expected \"$wanted\" above" >&2
        return 1
        ;;
    esac
  done
}

step() { printf '\n--- %s\n' "$1"; }

step "switches and a topic"
keyhole config set kv_index active | expect 'kv_index = active'
keyhole config set kv_index_enabled true | expect 'kv_index_enabled = true'
keyhole topic create prices -c redpanda.kv.index.enabled=true -c segment.bytes=65536 | expect 'created topic prices'

step "write"
seq 0 4999 | awk '{printf "{\"key\":\"item-%d\",\"value\":{\"eur\":%d.99}}\n", $1, $1}' | keyhole produce prices | expect 'produced 5000 records'
curl -sS -i -X PUT --data-binary '2.49' "$URL/kv/prices/apple" | expect '200 OK' 'X-Kv-Offset: 5000'

step "hot"
curl -sS -i "$URL/kv/prices/apple" | expect '200 OK' 'X-Kv-Source: local' '2.49'
curl -sS "$URL/kv/prices/item-4711" | expect '{"eur":4711.99}'

step "evict: the bucket has it all, the local disk nothing"
keyhole tier evict prices | expect '0..5000'

step "cold, and the switch is off"
curl -sS -i "$URL/kv/prices/apple" | expect '404 Not Found' 'X-Kv-Reason: remote_read_disabled' 'record only available in tiered storage'

step "the switch"
keyhole config set kv_index_remote_read_enabled true | expect 'kv_index_remote_read_enabled = true'
curl -sS -i "$URL/kv/prices/apple" | expect '200 OK' 'X-Kv-Source: remote' '2.49'
curl -sS -i "$URL/kv/prices/apple" | expect '200 OK' 'X-Kv-Source: cache' '2.49'

step "absent and deleted"
curl -sS -i "$URL/kv/prices/pear" | expect '404 Not Found' 'X-Kv-Reason: key_not_found'
curl -sS -i -X DELETE "$URL/kv/prices/apple" | expect '200 OK' 'X-Kv-Offset: 5001'
curl -sS -i "$URL/kv/prices/apple" | expect '404 Not Found' 'X-Kv-Reason: key_not_found'

step "the whole record"
keyhole get prices item-4711 --record | expect '"topic":"prices"' '"offset":"4711"'

step "passed"
