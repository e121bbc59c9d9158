"""Runs `qp copy` for the outside checks: source files, both ways to start it, and its report."""

import hashlib
import json
import os
import random

import harness
from harness import Failed, expect

MIB = 1 << 20
READY = "listening on "


def make_source(path, size, seed=1):
    """Writes a file of `size` random bytes, the same for the same seed; returns its SHA-256."""
    rng, digest = random.Random(seed), hashlib.sha256()
    with open(path, "wb") as file:
        for start in range(0, size, MIB):
            block = rng.randbytes(min(MIB, size - start))
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def digest_on_disk(path):
    """The SHA-256 of a file, read from the disk and not from memory where the system lets us."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(MIB):
            digest.update(block)
    return digest.hexdigest()


def report(result):
    """The JSON object that `--json` prints as the last line of standard output."""
    expect(result.status == 0, f"qp copy failed: {result.describe()}")
    lines = [line for line in result.out.splitlines() if line.startswith("{")]
    expect(lines, f"qp copy --json printed no JSON object: {result.describe()}")
    try:
        return json.loads(lines[-1])
    except ValueError as error:
        raise Failed(f"qp copy --json printed bad JSON: {error}: {lines[-1][:300]}") from error


def copy(where, source, destination, *options, seconds=60, name="copy", **place):
    """`qp copy SRC DST`, which starts the receiving process itself; returns the Result."""
    return start(where, source, destination, *options, name=name, **place).wait(seconds)


def start(where, source, destination, *options, name="copy", **place):
    """Starts `qp copy SRC DST|ADDR`; returns the Process."""
    return harness.Process([harness.qp_binary(), "copy", source, destination, *options], where, name, **place)


def listen(where, address, directory, *options, name="listen", seconds=10, **place):
    """Starts `qp copy --listen ADDR DIR` and waits until it is ready; returns the Process and its address."""
    process = harness.Process([harness.qp_binary(), "copy", "--listen", address, directory, *options], where, name, **place)
    process.wait_for(READY, seconds)
    said = process.result(None)
    at = (said.out + said.err).split(READY, 1)[1].split()[0]
    return process, at.rstrip(".,;:")


def received(counters):
    """Frames received, and how many of them are accounted for: accepted or in one refusal counter."""
    tally = ("rx_frames", "rx_accepted", "rx_rnr_naks", "rx_sequence_naks", "rx_payload_bytes")
    refused = sum(value for name, value in counters.items() if name.startswith("rx_") and name not in tally)
    return counters["rx_frames"], counters["rx_accepted"] + refused


def leftovers(directory):
    """Names in a directory, hidden ones included."""
    return sorted(os.listdir(directory))
