#!/usr/bin/env bash
# Batches on the software device: doorbells for several requests, and acknowledgements of several events. Options go to
# both programs; `--json` prints one JSON document per program.
#
#   benches/batching/run.sh [--json] [--passes N]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for program in batching events; do
    cargo run --release --quiet --locked -p rdma-benches --bin "$program" -- "$@"
done
