#!/usr/bin/env python3
"""XRC between two nodes, in two processes, and what it looks like on the wire.

The program `xrc` of `conformance` sends through two targets into two SRQs, over IPv4 and IPv6, and once more with
losses, duplicates and reordering at both ends. Its frames are captured on the loopback interface and taken apart
here, by a parser that knows nothing of the project's own (and tshark 4.0 does not know XRC's header): every
request has an XRCETH right behind its BTH that names an SRQ of the other end, no response has one, every header
behind it holds what the program says that it asked for, and every ICRC is right.
"""

import collections
import ipaddress
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import capture_check  # noqa: E402
import harness  # noqa: E402
import roce  # noqa: E402
from conformance_check import program, tally  # noqa: E402
from harness import Skip, expect  # noqa: E402

XRC = 0xA0
BTH = 12
# The headers behind the BTH by operation, and whether there is a payload: N none, F a full one, P any.
X, RETH, IMM, IETH, ATOMIC, AETH, ATOMIC_ACK = "XRCETH", "RETH", "ImmDt", "IETH", "AtomicETH", "AETH", "AtomicAckETH"
LENGTHS = {X: 4, RETH: 16, IMM: 4, IETH: 4, ATOMIC: 28, AETH: 4, ATOMIC_ACK: 8}
OPERATIONS = {
    0x00: ("SEND first", [X], "F"),
    0x01: ("SEND middle", [X], "F"),
    0x02: ("SEND last", [X], "P"),
    0x03: ("SEND last with immediate", [X, IMM], "P"),
    0x04: ("SEND only", [X], "P"),
    0x05: ("SEND only with immediate", [X, IMM], "P"),
    0x06: ("WRITE first", [X, RETH], "F"),
    0x07: ("WRITE middle", [X], "F"),
    0x08: ("WRITE last", [X], "P"),
    0x09: ("WRITE last with immediate", [X, IMM], "P"),
    0x0A: ("WRITE only", [X, RETH], "P"),
    0x0B: ("WRITE only with immediate", [X, RETH, IMM], "P"),
    0x0C: ("READ request", [X, RETH], "N"),
    0x0D: ("READ response first", [AETH], "F"),
    0x0E: ("READ response middle", [], "F"),
    0x0F: ("READ response last", [AETH], "P"),
    0x10: ("READ response only", [AETH], "P"),
    0x11: ("acknowledgement", [AETH], "N"),
    0x12: ("atomic acknowledgement", [AETH, ATOMIC_ACK], "N"),
    0x13: ("compare and swap", [X, ATOMIC], "N"),
    0x14: ("fetch and add", [X, ATOMIC], "N"),
}
BEGINS = {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0C, 0x13, 0x14}
WORD, SWAP, ADDED = 0x0123456789ABCDEF, 0xFEEDFACECAFEBEEF, 0x7FFFFFFF00000001


class Packet:
    """One frame of XRC, taken apart."""

    def __init__(self, frame):
        bytes_ = frame.transport
        expect(frame.opcode & 0xE0 == XRC, f"opcode {frame.opcode:#04x} is none of XRC")
        self.operation = frame.opcode & 0x1F
        expect(self.operation in OPERATIONS, f"XRC has no operation {self.operation:#04x}")
        self.name, order, self.kind = OPERATIONS[self.operation]
        self.request = X in order
        self.qp, self.psn = frame.dest_qp, frame.psn
        at, self.headers = BTH, {}
        for header in order:
            self.headers[header] = bytes_[at : at + LENGTHS[header]]
            at += LENGTHS[header]
        padding = bytes_[1] >> 4 & 3
        expect(at + padding <= len(bytes_), f"{self.name}: {len(bytes_)} bytes are too few for its headers")
        self.payload = bytes_[at : len(bytes_) - padding]
        expect(len(bytes_) % 4 == 0, f"{self.name}: {len(bytes_)} bytes are no multiple of 4")
        expect(not any(bytes_[len(bytes_) - padding :]), f"{self.name}: padding that is not zero")
        if self.kind == "N":
            expect(not self.payload and not padding, f"{self.name} with {len(self.payload)} bytes of payload")

    def srq(self):
        """The SRQ that its XRCETH names."""
        header = self.headers[X]
        expect(header[0] == 0, f"{self.name}: the reserved byte of XRCETH is {header[0]:#04x}")
        return int.from_bytes(header[1:], "big")


class Facts:
    """What the connecting program said of the other end."""

    def __init__(self, said):
        found = re.findall(r"^srq (\d+) reaches (\d+) x (\d+) bytes at (0x[0-9a-f]+) by key (0x[0-9a-f]+)$", said, re.M)
        expect(len(found) == 2, f"two SRQs, not {found}")
        self.memory = {int(n): (int(at, 16), int(slots) * int(size), int(key, 16)) for n, slots, size, at, key in found}
        self.slot = int(found[0][2])
        self.none = int(re.search(r"^no srq (\d+)$", said, re.M)[1])

    def reaches(self, packet, address, length, key):
        """The bytes lie in the memory of one of the SRQs."""
        inside = any(at <= address and address + length <= at + size and key == own for at, size, own in self.memory.values())
        expect(inside, f"{packet.name} reaches {length} bytes at {address:#x} by key {key:#x}: not the memory of an SRQ")


def check_request(packet, facts, mtus):
    """Every header of a request holds what was asked for; gives the SRQ."""
    srq = packet.srq()
    expect(srq in facts.memory or srq == facts.none, f"{packet.name} names SRQ {srq}")
    if RETH in packet.headers:
        reth = packet.headers[RETH]
        address, key, length = (int.from_bytes(reth[a:b], "big") for a, b in ((0, 8), (8, 12), (12, 16)))
        facts.reaches(packet, address, length, key)
        if packet.operation in (0x0A, 0x0B):
            expect(length == len(packet.payload), f"{packet.name}: {length} bytes, and {len(packet.payload)} in the packet")
        if packet.operation == 0x06:
            expect(length > len(packet.payload), f"{packet.name}: {length} bytes, and {len(packet.payload)} in the first packet")
    if ATOMIC in packet.headers:
        atomic = packet.headers[ATOMIC]
        address, key, swap, compare = (int.from_bytes(atomic[a:b], "big") for a, b in ((0, 8), (8, 12), (12, 20), (20, 28)))
        facts.reaches(packet, address, 8, key)
        wanted = (SWAP, WORD) if packet.operation == 0x13 else (ADDED, 0)
        expect((swap, compare) == wanted, f"{packet.name} by {swap:#x} and {compare:#x}")
    if IMM in packet.headers:
        expect(packet.headers[IMM][0] == 0x80, f"{packet.name}: immediate data {packet.headers[IMM].hex()}")
    if packet.kind == "F":
        expect(len(packet.payload) in mtus, f"{packet.name} with {len(packet.payload)} bytes")
    return srq


def check_frames(path, facts, initiator, mtus):
    """Checks a capture; gives how often each operation is there."""
    seen, requests, ways = collections.Counter(), {}, set()
    for number, (linktype, record) in enumerate(roce.read_pcap(path), 1):
        frame = roce.parse_link(linktype, record)
        expect(frame is not None, f"frame {number} is not RoCE")
        expect(frame.icrc == frame.expected_icrc(), f"frame {number}: the ICRC is {frame.icrc.hex()}, not {frame.expected_icrc().hex()}")
        packet = Packet(frame)
        seen[packet.operation] += 1
        expect(packet.request == (frame.source == initiator), f"frame {number}: a {packet.name} of the wrong end")
        if not packet.request:
            if packet.kind == "F":
                expect(len(packet.payload) in mtus, f"{packet.name} with {len(packet.payload)} bytes")
            continue
        srq = check_request(packet, facts, mtus)
        ways.add((packet.qp, srq))
        # However often it is sent: the same PSN is the same packet.
        before = requests.setdefault((packet.qp, packet.psn), (packet.operation, srq, packet.payload))
        expect(before == (packet.operation, srq, packet.payload), f"frame {number}: PSN {packet.psn} was another packet before")
    # All packets of a message name one SRQ.
    for (qp, psn), (operation, srq, _) in requests.items():
        if operation not in BEGINS:
            before = requests.get((qp, psn - 1 & 0xFFFFFF))
            expect(before is None or before[1] == srq, f"QP {qp} PSN {psn}: SRQ {srq} in the middle of a message to {before}")
    missing = [name for operation, (name, _, _) in OPERATIONS.items() if not seen[operation]]
    expect(not missing, f"never on the wire: {', '.join(missing)}")
    both = [qp for qp in {qp for qp, _ in ways} if all((qp, srq) in ways for srq in facts.memory)]
    expect(both, "no target through which both SRQs were reached")
    for srq in facts.memory:
        targets = {qp for qp, other in ways if other == srq}
        expect(len(targets) >= 2, f"SRQ {srq} was reached through {len(targets)} target")
    expect(any(srq == facts.none for _, srq in ways), f"SRQ {facts.none}, which is none, was never named")
    return seen


def one(where, name, namespace, ends, mtus, faults):
    """One run of the two programs and its frames."""
    initiator, target = ends
    capture = capture_check.Capture(where, name, namespace)
    control = "127.0.0.1:19005"
    # What goes through shared memory nobody else can look at.
    env = {"RDMA_SOFT_SHM": "0", **({"RDMA_SOFT_FAULTS": faults} if faults else {})}
    options = [part for mtu in mtus for part in ("--mtu", mtu)] + (["--lossy"] if faults else [])
    far = harness.Process([program("xrc"), "--listen", control], where, f"{name}-listen", namespace=namespace, env={"RDMA_SOFT_ADDR": target, **env})
    near = harness.run([program("xrc"), "--connect", control, *options], where, name, 90, namespace=namespace, env={"RDMA_SOFT_ADDR": initiator, **env})
    tried = tally(near, 13 * len(mtus))
    ended = far.wait(30)
    expect(ended.status == 0, ended.describe())
    total = capture.stop()
    seen = check_frames(capture.path, Facts(near.out), ipaddress.ip_address(initiator).packed, mtus)
    expect(total == sum(seen.values()), f"{total} frames captured, {sum(seen.values())} of XRC")
    harness.say(f"{name}: {tried}; {total} frames, {sum(n for o, n in seen.items() if X in OPERATIONS[o][1])} of them requests")


def check():
    harness.need_tool("dumpcap")
    where = harness.scratch()
    harness.need_namespaces()
    namespace = harness.namespace("xrc")
    for family, (initiator, target, _) in capture_check.FAMILIES.items():
        if family == "IPv6":
            for address in (initiator, target):
                harness.tool("ip", "-n", namespace, "addr", "add", f"{address}/128", "dev", "lo", "nodad")
        one(where, family, namespace, (initiator, target), (256, 1024, 4096), None)
    ends = capture_check.FAMILIES["IPv4"][:2]
    one(where, "lossy", namespace, ends, (256, 1024), "loss=2%,duplicate=2%,reorder=2%")


if __name__ == "__main__":
    harness.run_check("xrc", check)
