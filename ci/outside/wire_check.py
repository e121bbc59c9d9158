#!/usr/bin/env python3
"""Checks the faulty wire itself: its counts against the kernel's own, with plain sockets at both ends.

Sends known RoCE frames' payloads from one namespace, counts what arrives in the other, and compares with
what the wire says that it dropped, duplicated and corrupted. Without this, the accounting of a transfer
through the wire would rest on the wire's word.
"""

import json
import pathlib
import socket
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from harness import expect  # noqa: E402

COUNT = 20000
PAYLOAD = bytes(range(64))


def send(address):
    """Sends COUNT numbered datagrams to port 4791, paced by small pauses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for number in range(COUNT):
            link.sendto(number.to_bytes(4, "big") * 2 + PAYLOAD, (address, 4791))
            if number % 50 == 0:
                time.sleep(0.001)


def receive(address, quiet=1.5):
    """Counts datagrams until none has come for a while; prints what arrived as JSON."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        link.bind((address, 4791))
        link.settimeout(10)
        print("ready", flush=True)
        received, damaged, late, last, seen = 0, 0, 0, -1, set()
        while True:
            try:
                data = link.recv(2048)
            except socket.timeout:
                break
            link.settimeout(quiet)
            received += 1
            number = int.from_bytes(data[:4], "big")
            if data[:4] != data[4:8] or data[8:] != PAYLOAD:
                damaged += 1
                continue
            late += number < last
            last = max(last, number)
            seen.add(number)
        print(json.dumps({"received": received, "damaged": damaged, "late": late, "distinct": len(seen)}))


def check():
    harness.need_namespaces()
    where = harness.scratch()
    faults = {"loss": 0.02, "duplicate": 0.02, "reorder": 0.02, "corrupt": 0.02}
    wire = harness.Wire(where, faults, seed=7)
    me = pathlib.Path(__file__).resolve()
    sink = harness.Process([sys.executable, me, "receive", "10.77.0.2"], where, "receive", namespace=wire.b)
    sink.wait_for("ready", 10)
    sent = harness.run([sys.executable, me, "send", "10.77.0.2"], where, "send", 60, namespace=wire.a)
    expect(sent.status == 0, sent.describe())
    arrived = json.loads(sink.wait(30).out.splitlines()[-1])
    kernel = harness.udp_counters(wire.b)
    counts = wire.close()
    way = counts["left_to_right"]
    harness.say(f"wire {way}; arrived {arrived}; kernel {kernel}")
    expect(way["missed"] == 0, f"the wire missed {way['missed']} frames")
    expect(way["offered"] == COUNT, f"offered {way['offered']}, but {COUNT} were sent")
    expect(way["offered"] - way["dropped"] + way["duplicated"] == way["sent"], "the wire's counts do not add up")
    expect(way["sent"] == arrived["received"] == kernel["InDatagrams"], "sent by the wire is not what arrived")
    expect(kernel["InCsumErrors"] == 0, "the wire left a wrong UDP checksum")
    expect(way["corrupted"] == arrived["damaged"], "corrupted by the wire is not what arrived damaged")
    expect(arrived["distinct"] == COUNT - way["dropped"] - way["corrupted"], "distinct numbers do not add up")
    expect(0 < arrived["late"], "no frame arrived out of order")
    for fault in ("dropped", "duplicated", "reordered", "corrupted"):
        expect(COUNT * 0.01 < way[fault] < COUNT * 0.03, f"{fault}: {way[fault]} of {COUNT} at 2 %")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2])
    else:
        harness.run_check("faulty wire", check)
