#!/usr/bin/env bash
# The long proof, minutes rather than seconds: `qp copy` of 1 GiB plain, of 1 GiB under all faults at once, and
# of a sparse file of 5 GiB; each with the digest re-read from the disk, at most 64 MiB resident in each process
# and less than 64 KiB over the side channel. Needs about 11 GiB of disk under target/. Before that, a million
# round trips of two threads that sleep until an event wakes them, messages of 2^31 bytes (2 GiB of memory), ten minutes
# of four processes on each other, of which one is killed 120 times, 100,000 simulated clusters, 1,000 more with reliable
# datagrams, and supervised connections through 1,000 simulated lives and 50 real ones over each transport.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export QP="$CARGO_TARGET_DIR/release/qp" QP_SCRATCH="$CARGO_TARGET_DIR/ci" PYTHONDONTWRITEBYTECODE=1
timeout --kill-after=10 1500 cargo test --release --locked -p rdma-soft --test cases -- \
    --ignored --exact completion_between_poll_and_arm::no_round_trip_of_a_million_stalls
timeout --kill-after=10 1500 cargo test --release --locked -p rdma-soft --test engine -- \
    --ignored --exact statuses::a_message_of_two_to_the_31st_bytes
cargo build --release --locked -p rdma-benches --bin soak
timeout --kill-after=10 900 "$CARGO_TARGET_DIR/release/soak" --seconds 600 --kills 120
cargo build --release --locked -p rdma-sim --bin sim
timeout --kill-after=10 3600 "$CARGO_TARGET_DIR/release/sim" --first 1 --count 100000 --keep-going --quiet --histogram
timeout --kill-after=10 600 "$CARGO_TARGET_DIR/release/sim" --supervise --count 1000 --quiet
timeout --kill-after=10 600 "$CARGO_TARGET_DIR/release/sim" --datagrams --count 1000 --quiet
timeout --kill-after=10 2400 cargo run --release --locked -p rdma-qp --example supervised -- --rounds 50 --transport all
timeout --kill-after=10 3000 bash ci/memcheck.sh --all
cargo build --release --locked --bin qp
exec timeout --kill-after=10 1500 python3 ci/outside/copy_check.py --long
