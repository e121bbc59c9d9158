#!/usr/bin/env python3
"""Holds the software device to the rules with the programs of `conformance`, under the eyes of others.

`state-table` tries every move of a Queue Pair; `interop` runs every operation of RC (SEND, WRITE, READ, both
atomics) between two processes over the loopback interface. Its frames are captured: tshark must decode each
as RoCE, and every ICRC is recomputed.
"""

import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import capture_check  # noqa: E402
import harness  # noqa: E402
from harness import Skip, expect  # noqa: E402

# The opcodes of RC: SEND, WRITE, READ request and responses, acknowledgements, atomics.
RC_OPCODES = set(range(0x00, 0x15))


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
    capture = capture_check.Capture(where, "interop", namespace)
    control = "127.0.0.1:19004"
    far = harness.Process([program("interop"), "--verbs", "soft", "--listen", control], where, "interop-listen", namespace=namespace)
    near = None
    for _ in range(50):  # until the other end listens
        near = harness.run([program("interop"), "--verbs", "soft", "--quick", "--connect", control], where, "interop", 120, namespace=namespace)
        if near.status == 0 or "refused" not in near.err:
            break
    ended = far.wait(30)
    expect(ended.status == 0, ended.describe())
    harness.say(f"interop: {tally(near, 50)}")
    total = capture.stop()
    opcodes = capture_check.by_tshark(where, capture.path, "interop")
    checked = harness.run([sys.executable, harness.ROOT / "ci/outside/icrc_check.py", capture.path], where, "icrc", 120)
    expect(checked.status == 0, checked.describe())
    expect(total == json.loads(checked.out)["roce"] == sum(opcodes.values()), f"captured {total}, decoded {sum(opcodes.values())}")
    missing = RC_OPCODES - set(opcodes)
    expect(not missing, f"RC opcodes that never crossed: {sorted(missing)}")
    harness.say(f"{total} frames with all {len(RC_OPCODES)} opcodes of RC; every ICRC right, every frame decoded by tshark")


if __name__ == "__main__":
    harness.run_check("conformance", check)
