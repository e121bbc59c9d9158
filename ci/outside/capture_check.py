#!/usr/bin/env python3
"""Captures a transfer on the loopback interface and lets programs of other people judge the frames.

tshark must decode every frame as RoCE and none as malformed; the frames of each end must be as many as its
device says that it sent; every ICRC is recomputed by `icrc_check.py`, and by scapy where that is installed;
the file is put together again from the captured RDMA WRITEs; and the capture file that the device itself
wrote (pcapng) holds the same frames, with their directions. Over IPv4 and over IPv6.
"""

import collections
import ipaddress
import json
import os
import pathlib
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import copying  # noqa: E402
import harness  # noqa: E402
import roce  # noqa: E402
from harness import Skip, expect  # noqa: E402

SIZE = 8 << 20
FAMILIES = {
    "IPv4": ("127.0.0.77", "127.0.0.78", "127.0.0.1:0"),
    "IPv6": ("fd00:77::1", "fd00:77::2", "[::1]:0"),
}


class Capture:
    """dumpcap on the loopback interface of a namespace, with nothing lost."""

    def __init__(self, where, name, namespace):
        self.path = where / f"{name}.pcap"
        command = ["dumpcap", "-q", "-i", "lo", "-f", "udp port 4791", "-P", "-s", "262144", "-B", "256", "-w", self.path]
        self.process = harness.Process(command, where, f"{name}-dumpcap", namespace=namespace)
        self.process.wait_for("File: ", 15)
        time.sleep(0.3)

    def stop(self):
        """Ends the capture after the kernel has handed everything over; fails where frames were lost."""
        time.sleep(1.0)
        os.kill(self.process.pid, signal.SIGINT)
        said = self.process.wait(20)
        counts = re.search(r"received/dropped on interface .*: (\d+)/(\d+) \((.*?)\)", said.err)
        expect(counts, f"dumpcap gave no counts: {said.describe()}")
        received, dropped, places = counts.groups()
        expect(dropped == "0" and not re.search(r":[1-9]", places), f"the capture lost frames: {counts[0]}")
        return int(received)


def guesses(where):
    """The protocols that tshark believes to find in any payload of RoCE; ours is none of them."""
    listed = harness.run(["tshark", "-G", "heuristic-decodes"], where, "heuristics", 60)
    expect(listed.status == 0, listed.describe())
    rows = (line.split("\t") for line in listed.out.splitlines())
    return [row[1] for row in rows if row[0] == "infiniband.payload" and row[1] != "ethertype"]


def by_tshark(where, capture, name):
    """Decodes every frame; returns how many have each opcode."""
    fields = ["frame.protocols", "infiniband.bth.opcode", "_ws.malformed", "_ws.expert.severity"]
    command = ["tshark", "-n", "-r", capture, "-T", "fields"] + [part for field in fields for part in ("-e", field)]
    for guess in guesses(where):
        command += ["--disable-protocol", guess]
    decoded = harness.run(command, where, f"{name}-tshark", 90)
    expect(decoded.status == 0, decoded.describe())
    opcodes = collections.Counter()
    for number, line in enumerate(decoded.out.splitlines(), 1):
        protocols, opcode, malformed, _ = (line.split("\t") + [""] * 4)[:4]
        expect("infiniband" in protocols.split(":"), f"tshark: frame {number} is not RoCE but {protocols}")
        # A payload that begins like an EtherType is taken for one; this guess cannot be switched off, for Ethernet
        # itself needs that dissector. What is then malformed lies inside the payload.
        guessed = ":infiniband:ethertype" in protocols
        expect(guessed or not malformed, f"tshark: frame {number} is malformed: {line}")
        expect(opcode, f"tshark: frame {number} has no opcode: {line}")
        opcodes[int(opcode, 0)] += 1
    return opcodes


def rebuilt(path, sender):
    """The bytes that the captured RDMA WRITEs of `sender` carry, in order of their PSNs, each once."""
    first_psn, pieces = {}, {}
    for linktype, record in roce.read_pcap(path):
        frame = roce.parse_link(linktype, record)
        if frame is None or frame.source != sender or not 0x06 <= frame.opcode <= 0x0B:
            continue
        skip = 12
        if frame.opcode in (0x06, 0x0A, 0x0B):
            skip += 16  # RETH
        if frame.opcode in (0x09, 0x0B):
            skip += 4  # immediate
        pad = (frame.transport[1] >> 4) & 3
        payload = frame.transport[skip : len(frame.transport) - pad]
        start = first_psn.setdefault(frame.dest_qp, frame.psn)
        pieces.setdefault(frame.dest_qp, {})[(frame.psn - start) & 0xFFFFFF] = payload
    return b"".join(piece for qp in pieces.values() for _, piece in sorted(qp.items()))


def frames(path):
    """How often each frame is in a capture, without what routers may change; the order is left out."""
    parsed = (roce.parse_link(linktype, record) for linktype, record in roce.read_pcap(path))
    return collections.Counter(frame.invariant() + frame.icrc for frame in parsed if frame)


def one_family(where, family, namespace, scapy_python):
    """Captures one transfer and checks it in every way."""
    sender, receiver, control = FAMILIES[family]
    source, inbox = where / f"source-{family}", where / f"inbox-{family}"
    inbox.mkdir()
    digest = copying.make_source(source, SIZE)
    capture = Capture(where, family, namespace)
    far, at = copying.listen(where, control, inbox, "--json", name=f"{family}-listen", namespace=namespace, env={"RDMA_SOFT_ADDR": receiver})
    own = where / f"{family}-own.pcapng"
    near = copying.start(where, source, at, "--json", "--pcap", own, name=f"{family}-send", namespace=namespace, env={"RDMA_SOFT_ADDR": sender})
    reports = {sender: copying.report(near.wait(60)), receiver: copying.report(far.wait(30))}
    total = capture.stop()
    expect(copying.digest_on_disk(inbox / source.name) == digest, "the copy differs from its source")

    opcodes = by_tshark(where, capture.path, family)
    checked = harness.run([sys.executable, harness.ROOT / "ci/outside/icrc_check.py", capture.path], where, f"{family}-icrc", 90)
    expect(checked.status == 0, checked.describe())
    counts = json.loads(checked.out)
    expect(total == counts["roce"] == sum(opcodes.values()), f"captured {total}, ICRC {counts['roce']}, tshark {sum(opcodes.values())}")
    for address in (sender, receiver):
        here = "sender" if address == sender else "receiver"
        device = reports[address][here]["counters"]["tx_frames"]
        seen = counts["by_source"].get(packed(address).hex(), 0)
        expect(seen == device, f"{here} {address}: {seen} frames captured, its device says it sent {device}")
    expect(frames(own) == frames(capture.path), "the device's own capture file holds other frames than the interface carried")
    expect(by_tshark(where, own, f"{family}-own") == opcodes, "tshark finds other opcodes in the device's own capture file")
    directions = collections.Counter(direction for _, direction, _ in roce.read_pcapng(own))
    expect(directions == by_direction(reports[sender]["sender"]["counters"]), f"the device's own capture says {directions}")
    carried = rebuilt(capture.path, packed(sender))
    expect(source.read_bytes() in carried, f"the captured WRITEs ({len(carried)} bytes) do not hold the file")
    harness.say(f"{family}: {total} frames, opcodes {dict(sorted(opcodes.items()))}; every ICRC right; file rebuilt from the capture")

    if scapy_python:
        command = [scapy_python, harness.ROOT / "ci/outside/icrc_check.py", "--scapy", capture.path]
        by_scapy = harness.run(command, where, f"{family}-scapy", 120)
        expect(by_scapy.status == 0, by_scapy.describe())
        harness.say(f"{family}: scapy agrees on {json.loads(by_scapy.out)['scapy']} frames")
        read = harness.run([scapy_python, "-c", READ_BY_SCAPY, own], where, f"{family}-scapy-own", 120)
        expect(read.status == 0, read.describe())
        seen = json.loads(read.out)
        expect(seen["names"] == [sender], f"scapy: the interface is named {seen['names']}, not {sender}")
        expect(seen["directions"] == {str(way): count for way, count in directions.items()}, f"scapy: {seen['directions']}")


# Reads a pcapng file with scapy alone: how many frames went each way, and the names of the interfaces.
READ_BY_SCAPY = """
import collections, json, sys
from scapy.utils import PcapNgReader
directions, names = collections.Counter(), set()
for packet in PcapNgReader(sys.argv[1]):
    directions[packet.direction] += 1
    names.add(packet.sniffed_on)
print(json.dumps({"directions": directions, "names": sorted(names)}))
"""


def by_direction(counters):
    """The frames that a device's capture must hold, each way, by its own counters."""
    return collections.Counter({roce.OUTBOUND: counters["tx_frames"], roce.INBOUND: counters["rx_frames"]})


def packed(address):
    """An IP address as bytes."""
    return ipaddress.ip_address(address).packed


def check():
    harness.need_tool("dumpcap", "tshark")
    where = harness.scratch()
    try:
        harness.need_namespaces()
        namespace = harness.namespace("lo")
    except Skip as reason:
        harness.skip("capture-IPv6", str(reason))
        namespace = None
    scapy_python = os.environ.get("QP_VENV", str(harness.ROOT / "target/ci/venv")) + "/bin/python"
    if not pathlib.Path(scapy_python).exists() or harness.run([scapy_python, "-c", "import scapy"], where, "scapy", 30).status != 0:
        harness.skip("scapy", "scapy 2.6 or newer could not be installed")
        scapy_python = None
    for family, (sender, receiver, _) in FAMILIES.items():
        if family == "IPv6":
            if namespace is None:
                continue
            for address in (sender, receiver):
                harness.tool("ip", "-n", namespace, "addr", "add", f"{address}/128", "dev", "lo", "nodad")
        one_family(where, family, namespace, scapy_python)


if __name__ == "__main__":
    harness.run_check("capture", check)
