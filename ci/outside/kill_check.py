#!/usr/bin/env python3
"""Kills one end of a transfer in the middle and watches the other.

The sending side must end non-zero within three times its printed retry budget, the receiving side within
one second, each naming the peer's GID and QP number and the cause; nothing hangs, and no half-written file
stands under the final name.
"""

import pathlib
import re
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import copying  # noqa: E402
import harness  # noqa: E402
from harness import Failed, expect  # noqa: E402

SIZE = 256 << 20
SLOW = ("--delay", "2ms")  # so that there is a middle even on a fast machine
PASSIVE_SECONDS, BUDGET_SECONDS, SLACK = 1.0, 2.0, 0.5  # the slack is for the process to end, not for the protocol


def wait_for_middle(directory, process):
    """Waits until some part of the file has arrived, under whatever name."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in directory.iterdir():
            if path.is_file() and path.stat().st_blocks * 512 > SIZE // 64:
                return
        expect(process.poll() is None, f"the transfer ended before it could be killed: {process.result(process.poll()).describe()}")
        time.sleep(0.002)
    raise Failed(f"nothing arrived within 30 s: {process.result(None).describe()}")


def endpoints(text):
    """The GIDs and QP numbers that a program printed."""
    return set(re.findall(r"::ffff:[\d.]+", text)), set(re.findall(r"\b0x[0-9a-f]{1,6}\b", text))


def names_peer(survivor, victim_address, label):
    """The survivor's error names the peer's GID, a QP number and a cause."""
    error = survivor.err + survivor.out
    expect(f"::ffff:{victim_address}" in error, f"{label}: the error does not name the peer's GID ::ffff:{victim_address}\n{survivor.describe()}")
    _, numbers = endpoints(survivor.err)
    expect(numbers, f"{label}: the error names no QP number\n{survivor.describe()}")
    expect(
        re.search(r"retry|retries|exceeded|closed|reset|gone|lost|died|ended", survivor.err, re.I),
        f"{label}: the error names no cause\n{survivor.describe()}",
    )


def one(victim_name):
    """Two processes in two terminals; one of them is killed."""
    where = harness.scratch()
    source, inbox = where / "big", where / "inbox"
    inbox.mkdir()
    copying.make_source(source, SIZE)
    receiver_address, sender_address = "127.9.9.1", "127.9.9.2"
    far, at = copying.listen(where, "127.0.0.1:0", inbox, env={"RDMA_SOFT_ADDR": receiver_address})
    near = copying.start(where, source, at, *SLOW, name="send", env={"RDMA_SOFT_ADDR": sender_address})
    wait_for_middle(inbox, near)
    victim, survivor = (near, far) if victim_name == "sender" else (far, near)
    address = sender_address if victim_name == "sender" else receiver_address
    victim.kill()
    died = time.monotonic()
    limit = (PASSIVE_SECONDS if victim_name == "sender" else 3 * BUDGET_SECONDS) + SLACK
    ended = survivor.wait(limit + 10)
    took = survivor.ended - died
    expect(ended.status > 0, f"{victim_name} killed: the other end must fail by itself: {ended.describe()}")
    expect(took <= limit, f"{victim_name} killed: the other end took {took:.2f} s of {limit} s: {ended.describe()}")
    names_peer(ended, address, f"{victim_name} killed")
    expect(not (inbox / source.name).exists(), f"{victim_name} killed: a half-written file stands under the final name")
    if victim_name == "sender":
        expect(not copying.leftovers(inbox), f"the receiver left {copying.leftovers(inbox)}")
    harness.say(f"{victim_name} killed: the other end failed after {took:.2f} s: {ended.err.strip().splitlines()[-1]}")


def parent():
    """`qp copy SRC DST`: the process that starts the receiver is killed; the receiver must not stay."""
    where = harness.scratch()
    source, inbox = where / "big", where / "inbox"
    inbox.mkdir()
    copying.make_source(source, SIZE)
    both = copying.start(where, source, inbox / "big", *SLOW)
    wait_for_middle(inbox, both)
    children = [int(pid) for pid in pathlib.Path(f"/proc/{both.pid}/task/{both.pid}/children").read_text().split()]
    expect(children, "qp copy SRC DST has no child: it must start the receiving process")
    both.kill_one()
    died = time.monotonic()
    while any(pathlib.Path(f"/proc/{pid}").exists() and running(pid) for pid in children):
        expect(time.monotonic() - died < PASSIVE_SECONDS + SLACK, f"the receiving process {children} stayed")
        time.sleep(0.01)
    expect(not copying.leftovers(inbox), f"the receiver left {copying.leftovers(inbox)}")
    harness.say(f"parent killed: the receiving process ended after {time.monotonic() - died:.2f} s and left nothing")


def running(pid):
    """Whether a process is neither gone nor a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def check():
    one("receiver")
    one("sender")
    parent()


if __name__ == "__main__":
    harness.run_check("kill", check)
