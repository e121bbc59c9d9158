#!/usr/bin/env python3
"""Accounts for every frame of a transfer under faults.

First with faults made by the device's own fault layer, then with faults made outside our code, by
`faulty_wire.py` between two network namespaces with its own seed and counts. Each way, for each end:
offered - dropped + duplicated = received by the far node, each received frame is accepted or in exactly one
counter, and the ICRC counter equals the corrupted frames that arrived. The kernel's UDP counters are the
third witness.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import copying  # noqa: E402
import harness  # noqa: E402
from harness import Skip, expect  # noqa: E402

SIZE = 16 << 20
SIDE_CHANNEL_LIMIT = 64 << 10
FAMILIES = {"IPv4": ("10.77.0.1", "10.77.0.2", 24), "IPv6": ("fd00:78::1", "fd00:78::2", 64)}


def account(name, counters):
    """Each frame that a node received is accepted or refused for exactly one reason."""
    frames, accounted = copying.received(counters)
    expect(frames == accounted, f"{name}: {frames} frames received, {accounted} accounted for: {counters}")


def own_faults(where):
    """Faults by the device itself."""
    source, destination = where / "source", where / "own"
    digest = copying.make_source(source, SIZE)
    options = "--loss 1% --duplicate 1% --reorder 1% --corrupt 0.1% --delay 200us --seed 7 --json".split()
    report = copying.report(copying.copy(where, source, destination, *options, name="own"))
    expect(copying.digest_on_disk(destination) == digest, "the copy differs from its source")
    for near, far in (("sender", "receiver"), ("receiver", "sender")):
        faults, counters = report[near]["faults"], report[far]["counters"]
        account(far, counters)
        passed = faults["offered"] - faults["dropped"] + faults["duplicated"]
        expect(faults["offered"] == report[near]["counters"]["tx_frames"], f"{near}: sent frames were not all offered: {faults}")
        expect(passed == counters["rx_frames"], f"{near} to {far}: {passed} frames passed, {counters['rx_frames']} received")
        expect(faults["corrupted"] == counters["rx_bad_icrc"], f"{near} to {far}: {faults['corrupted']} corrupted, {counters['rx_bad_icrc']} noticed")
    harmed = report["sender"]["faults"]
    for fault in ("dropped", "duplicated", "reordered", "corrupted"):
        expect(harmed[fault] > 0, f"no frame was {fault}: {harmed}")
    expect(report["sender"]["counters"]["tx_retransmitted"] > 0, "frames were lost but none was sent again")
    harness.say(f"own faults: {harmed}, all accounted for")


def foreign_faults(where, family):
    """Faults by a wire that is not ours to control."""
    source, inbox = where / "source", where / f"inbox-{family}"
    inbox.mkdir()
    digest = copying.digest_on_disk(source)
    a, b, prefix = FAMILIES[family]
    faults = {"loss": 0.01, "duplicate": 0.01, "reorder": 0.01, "corrupt": 0.005}
    wire = harness.Wire(where, faults, seed=11, addresses=(f"{a}/{prefix}", f"{b}/{prefix}"))
    control = f"[{b}]:0" if ":" in b else f"{b}:0"
    far, at = copying.listen(where, control, inbox, "--json", name=f"{family}-listen", namespace=wire.b, env={"RDMA_SOFT_ADDR": b})
    near = copying.start(where, source, at, "--json", name=f"{family}-send", namespace=wire.a, env={"RDMA_SOFT_ADDR": a})
    sender, receiver = copying.report(near.wait(90))["sender"], copying.report(far.wait(30))["receiver"]
    kernel = {"sender": harness.udp_counters(wire.a), "receiver": harness.udp_counters(wire.b)}
    counts = wire.close()
    expect(copying.digest_on_disk(inbox / source.name) == digest, "the copy differs from its source")
    for name, way, near_end, far_end, far_kernel in (
        ("sender to receiver", counts["left_to_right"], sender, receiver, kernel["receiver"]),
        ("receiver to sender", counts["right_to_left"], receiver, sender, kernel["sender"]),
    ):
        expect(way["missed"] == 0, f"{name}: the wire missed {way['missed']} frames")
        account(name, far_end["counters"])
        tx, rx = near_end["counters"]["tx_frames"], far_end["counters"]["rx_frames"]
        expect(tx == way["offered"], f"{name}: the device says it sent {tx}, the wire saw {way['offered']}")
        passed = way["offered"] - way["dropped"] + way["duplicated"]
        expect(passed == way["sent"], f"{name}: the wire's counts do not add up: {way}")
        lost = far_kernel["NoPorts"] + far_kernel["RcvbufErrors"]
        expect(rx == far_kernel["InDatagrams"], f"{name}: the kernel delivered {far_kernel}, the device received {rx}")
        expect(passed - lost == rx, f"{name}: {passed} frames passed, {lost} found no socket or room, {rx} received")
        bad = far_end["counters"]["rx_bad_icrc"]
        expect(way["corrupted"] - lost <= bad <= way["corrupted"], f"{name}: {way['corrupted']} corrupted, {bad} noticed")
        expect(far_kernel["InCsumErrors"] == 0, f"{name}: the wire left a wrong UDP checksum")
    side = counts["left_to_right"]["other_bytes"] + counts["right_to_left"]["other_bytes"]
    expect(side < SIDE_CHANNEL_LIMIT, f"{side} bytes beside the RoCE frames: the limit is {SIDE_CHANNEL_LIMIT}")
    harness.say(f"foreign faults, {family}: {counts['left_to_right']}, all accounted for; {side} bytes beside RoCE, headers included")


def check():
    where = harness.scratch()
    own_faults(where)
    try:
        harness.need_namespaces()
    except Skip as reason:
        harness.skip("foreign-faults", str(reason))
        return
    for family in FAMILIES:
        foreign_faults(where, family)


if __name__ == "__main__":
    harness.run_check("accounting", check)
