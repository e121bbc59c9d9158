#!/usr/bin/env python3
"""Holds the software device to the rules with the programs of `conformance`, under the eyes of others.

`state-table` tries every move of a Queue Pair; `interop` runs every operation of RC, UC and UD, multicast
included, between two processes over the loopback interface, by IPv4 and by IPv6. Its frames are captured: tshark
must decode each as RoCE, and every ICRC is recomputed, by scapy too where that is installed. Datagrams are taken
apart here and by tshark, and both must find the same: who sent it, the Q_Key, the P_Key, the group, and no route
header, which is for the receiver's memory and never on this wire.
"""

import collections
import ipaddress
import json
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import capture_check  # noqa: E402
import harness  # noqa: E402
import roce  # noqa: E402
from harness import Skip, expect  # noqa: E402

# The opcodes of RC (SEND, WRITE, READ request and responses, acknowledgements, atomics), UC (SEND, WRITE) and UD.
OPCODES = set(range(0x00, 0x15)) | set(range(0x20, 0x2C)) | {0x64, 0x65}
UD, UD_IMMEDIATE = 0x64, 0x65
BTH, DETH = 12, 8
# What `interop` uses: the key of all its QPs, one that is wrong, the groups, the hop limit, the longest datagram.
QKEY, WRONG = 0x12345678, 0x12345679
GROUPS = {"IPv4": "239.192.77.1", "IPv6": "ff15::4d:1"}
HOPS, MTU = 64, 4096
EVERY_MEMBER = 0xFFFFFF
# The datagrams of a quick run, by their bytes.
QUICK = {0, 1, 128, MTU // 2 + 1, MTU // 2 + 3, MTU - 3, MTU}


def tally(result, least):
    """The line that ends a program's output: nothing failed, and enough was tried."""
    found = re.search(r"^tally: (\d+) passed, (\d+) failed, (\d+) skipped", result.out, re.M)
    expect(result.status == 0 and found, result.describe())
    passed, failed = int(found[1]), int(found[2])
    expect(failed == 0 and passed >= least, f"{found[0]}: {result.describe()}")
    for line in result.out.splitlines():
        if line.startswith("SKIP "):
            harness.say(line)
    return found[0]


def program(name):
    """A release build of one of the programs."""
    return str(pathlib.Path(harness.qp_binary()).with_name(name))


class Datagram:
    """What this script finds in a frame of UD."""

    def __init__(self, frame):
        head, at = frame.transport, BTH + DETH
        self.pkey = int.from_bytes(head[2:4], "big")
        self.qkey = int.from_bytes(head[BTH : BTH + 4], "big")
        self.reserved, self.source = head[BTH + 4], int.from_bytes(head[BTH + 5 : BTH + 8], "big")
        self.qp, self.sender = frame.dest_qp, ipaddress.ip_address(frame.source)
        v4 = frame.kind == "v4"
        self.to = ipaddress.ip_address(frame.ip[16:20] if v4 else frame.ip[24:40])
        self.hops = frame.ip[8] if v4 else frame.ip[7]
        if frame.opcode == UD_IMMEDIATE:
            expect(head[at] == 0x80, f"immediate data {head[at : at + 4].hex()}")
            at += 4
        padding = head[1] >> 4 & 3
        self.bytes = len(head) - at - padding
        expect(not any(head[len(head) - padding :]), "padding that is not zero")

    def check(self, family, ends):
        """Every field holds what `interop` asked for."""
        expect(self.pkey == 0xFFFF, f"P_Key {self.pkey:#06x}")
        expect(self.qkey in (QKEY, WRONG), f"Q_Key {self.qkey:#010x}")
        expect(self.reserved == 0 and 0 < self.source < EVERY_MEMBER, f"DETH: reserved {self.reserved}, source QP {self.source}")
        expect(str(self.sender) in ends and self.hops == HOPS, f"a datagram of {self.sender} with {self.hops} hops left")
        expect(self.bytes in QUICK, f"a datagram of {self.bytes} bytes, which nobody sent: is there a route header?")
        expect((self.qp == EVERY_MEMBER) == self.to.is_multicast, f"QP {self.qp:#08x} at {self.to}")
        expect(str(self.to) in (*ends, GROUPS[family]), f"a datagram to {self.to}")


def check_datagrams(where, path, family, ends):
    """Takes the datagrams of a capture apart, and compares with what tshark finds in them; returns how many there are."""
    frames = [roce.parse_link(linktype, record) for linktype, record in roce.read_pcap(path)]
    found = [Datagram(frame) for frame in frames if frame.opcode in (UD, UD_IMMEDIATE)]
    for datagram in found:
        datagram.check(family, ends)
    expect({d.bytes for d in found} == QUICK, f"lengths {sorted({d.bytes for d in found})}")
    wrong = [d for d in found if d.qkey == WRONG]
    expect(wrong, "nobody sent a wrong Q_Key")
    senders = {str(d.sender) for d in found if d.to.is_multicast}
    expect(senders == set(ends), f"only {senders} sent to the group")
    fields = ["infiniband.bth.p_key", "infiniband.bth.destqp", "infiniband.deth.q_key", "infiniband.deth.srcqp"]
    command = ["tshark", "-n", "-r", path, "-Y", f"infiniband.bth.opcode >= {UD} && infiniband.bth.opcode <= {UD_IMMEDIATE}", "-T", "fields"]
    decoded = harness.run(command + [part for field in fields for part in ("-e", field)], where, f"{family}-deth", 90)
    expect(decoded.status == 0, decoded.describe())
    theirs = [[int(value, 0) for value in line.split("\t")] for line in decoded.out.splitlines()]
    expect(theirs == [[d.pkey, d.qp, d.qkey, d.source] for d in found], "tshark finds other keys or QPs in the datagrams")
    kinds = collections.Counter("to the group" if d.to.is_multicast else "to one QP" for d in found)
    return f"{len(found)} datagrams ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}, {len(wrong)} with a wrong Q_Key)"


def scapy_python():
    """A Python that has scapy, or none."""
    path = os.environ.get("QP_VENV", str(harness.ROOT / "target/ci/venv")) + "/bin/python"
    return path if pathlib.Path(path).exists() else None


def one_family(where, family, ends, namespace):
    """Runs `interop` under the eyes of others."""
    capture = capture_check.Capture(where, f"interop-{family}", namespace)
    control = "127.0.0.1:19004"
    start = [program("interop"), "--verbs", "soft"]
    # What goes through shared memory nobody else can look at.
    env = [{"RDMA_SOFT_ADDR": end, "RDMA_SOFT_SHM": "0"} for end in ends]
    far = harness.Process([*start, "--listen", control], where, f"listen-{family}", namespace=namespace, env=env[1])
    plan = ["--quick", "--longest", 65536, "--connect", control, "--mtu", 256, "--mtu", 4096]
    near = harness.run([*start, *plan], where, f"connect-{family}", 150, namespace=namespace, env=env[0])
    tried = tally(near, 400)
    ended = far.wait(30)
    expect(ended.status == 0, ended.describe())
    total = capture.stop()
    opcodes = capture_check.by_tshark(where, capture.path, f"interop-{family}")
    python, by_scapy = (scapy_python(), ["--scapy"]) if scapy_python() else (sys.executable, [])
    command = [python, harness.ROOT / "ci/outside/icrc_check.py", *by_scapy, capture.path]
    checked = harness.run(command, where, f"icrc-{family}", 120)
    expect(checked.status == 0, checked.describe())
    expect(total == json.loads(checked.out)["roce"] == sum(opcodes.values()), f"captured {total}, decoded {sum(opcodes.values())}")
    missing = OPCODES - set(opcodes)
    expect(not missing, f"opcodes that never crossed: {sorted(map(hex, missing))}")
    harness.say(f"interop, {family}: {tried}")
    datagrams = check_datagrams(where, capture.path, family, ends)
    harness.say(f"{total} frames with all {len(OPCODES)} opcodes of RC, UC and UD; every ICRC right, every frame decoded by tshark; {datagrams}")


def check():
    where = harness.scratch()
    table = harness.run([program("state-table"), "--verbs", "soft"], where, "state-table", 60)
    harness.say(f"state-table: {tally(table, 700)}")

    try:
        harness.need_tool("dumpcap", "tshark")
        harness.need_namespaces()
    except Skip as reason:
        harness.skip("interop-capture", str(reason))
        return
    namespace = harness.namespace("if")
    for family, (*ends, _) in capture_check.FAMILIES.items():
        if family == "IPv6":
            for address in ends:
                harness.tool("ip", "-n", namespace, "addr", "add", f"{address}/128", "dev", "lo", "nodad")
            # The loopback interface carries no group traffic of IPv6 by itself.
            harness.tool("ip", "-n", namespace, "-6", "route", "add", "local", "ff00::/8", "dev", "lo", "table", "local")
        one_family(where, family, tuple(ends), namespace)


if __name__ == "__main__":
    harness.run_check("conformance", check)
