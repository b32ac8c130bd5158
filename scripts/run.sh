#!/usr/bin/env bash
# Starts Sluice with the quick start's models, streams a first chat through it, prints the answer as
# it arrives, and serves until Ctrl-C. With ONCE=1 it stops Sluice after the chat. CONFIG names
# another configuration file. API, ADMIN and MODEL then name its two listeners and the model to ask.
set -euo pipefail
cd "$(dirname "$0")/.."

api=${API:-http://127.0.0.1:8080}
admin=${ADMIN:-http://127.0.0.1:9090}
model=${MODEL:-chat}
question='Hello! What does a gateway for language models do?'
log=.out/run.log
body=$(printf '{"model":"%s","stream":true,"messages":[{"role":"user","content":"%s"}]}' "$model" "$question")

command -v curl >/dev/null || { echo "curl is needed: on Debian apt-get install curl" >&2; exit 1; }
mkdir -p .out
work=$(mktemp -d)
pid=

# stop stops Sluice, which stops its Envoy and its replicas, and returns Sluice's exit status.
stop() {
  local stopping=$pid
  pid=
  [ -z "$stopping" ] && return
  kill -TERM "$stopping" 2>/dev/null || true
  wait "$stopping"
}

clean_up() {
  stop || true
  rm -rf "$work"
}
trap clean_up EXIT

fail() {
  echo "$*" >&2
  if [ -s "$log" ]; then
    echo "the last lines of $log:" >&2
    tail -n 20 "$log" >&2
  fi
  exit 1
}

is_ready() {
  curl -fsS --max-time 2 -o /dev/null "$admin/readyz" 2>/dev/null
}

start() {
  ! is_ready || { : >"$log"; fail "another gateway listens at $admin: stop it first"; }
  # Job control gives Sluice a process group of its own. A Ctrl-C thus reaches only this script,
  # which then stops Sluice in order.
  set -m
  bin/sluice up ${CONFIG:+--config "$CONFIG"} >"$log" 2>&1 &
  pid=$!
  set +m
  for _ in $(seq 600); do
    is_ready && return
    kill -0 "$pid" 2>/dev/null || fail "Sluice has exited"
    sleep 0.1
  done
  fail "Sluice is not ready after a minute: $(curl -sS --max-time 2 "$admin/readyz" 2>&1)"
}

# show prints the text of a streamed chat as it arrives. It fails if the stream does not end with
# [DONE].
show() {
  local line status=1 content='"content":"(([^"\\]|\\.)*)"'
  while IFS= read -r line; do
    [[ $line == 'data: [DONE]'* ]] && status=0
    [[ $line =~ $content ]] && printf '%b' "${BASH_REMATCH[1]//\\\"/\"}"
  done
  echo
  return $status
}

chat() {
  curl -sSN --fail-with-body --max-time 120 -D "$work/headers" "$api/v1/chat/completions" \
    -H 'content-type: application/json' ${API_KEY:+-H "authorization: Bearer $API_KEY"} -d "$body" | tee "$work/answer" | show
}

header() {
  tr -d '\r' <"$work/headers" | sed -n "s/^$1: //Ip"
}

trap 'exit 130' INT TERM HUP
echo "starting Sluice (log: $log)"
start
printf '\n> %s\n\n' "$question"
chat || { cat "$work/headers" "$work/answer" >&2; fail "the chat failed"; }
printf '\nanswered by replica %s, request %s\n\n' "$(header x-sluice-replica)" "$(header x-request-id)"
if [ -n "${ONCE:-}" ]; then
  stop || fail "Sluice did not stop cleanly"
  exit
fi
cat <<END
  API         $api/v1
  admin page  $admin/
  metrics     $admin/metrics

  curl -N $api/v1/chat/completions -H 'content-type: application/json' \\
    -d '$body'

Ctrl-C stops everything.
END
trap 'echo; echo stopping; stop && exit; fail "Sluice did not stop cleanly"' INT TERM HUP
wait "$pid" || true
fail "Sluice has exited"
