#!/usr/bin/env python3
"""Kills or freezes one end of a transfer in the middle and watches the other.

The sending side must end non-zero within three times its printed retry budget, the receiving side of a killed
sender within one second, each naming the peer's GID, its QP number and the cause; nothing hangs, and no
half-written file stands under the final name. A frozen peer keeps its control channel open and answers
nothing: only the Queue Pair's own retries find that out.
"""

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
from harness import Failed, expect  # noqa: E402

SIZE = 256 << 20
SLOW = ("--delay", "2ms")  # so that there is a middle even on a fast machine
PASSIVE_SECONDS, LARGEST_BUDGET = 1.0, 2.0
SLACK = 0.5  # for the process to end, beyond what the protocol takes


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


def qp_number(victim):
    """The QP number that the victim printed with its transitions."""
    numbers = set(re.findall(r"QP (0x[0-9a-f]+)", victim.result(None).out))
    expect(len(numbers) == 1, f"one QP number wanted, the other end printed {numbers}")
    return numbers.pop()


def budget(process):
    """The retry budget that a process printed, in seconds."""
    found = re.search(r"retry budget ([\d.]+) (m?s)\b", process.result(None).out)
    expect(found, f"no retry budget was printed: {process.result(None).describe()}")
    seconds = float(found[1]) * (0.001 if found[2] == "ms" else 1)
    expect(seconds <= LARGEST_BUDGET, f"the retry budget is {seconds} s, more than {LARGEST_BUDGET} s")
    return seconds


def lose(victim_name, number, how, cause):
    """Two processes in two terminals; one of them gets a signal and the other must notice."""
    where = harness.scratch()
    source, inbox = where / "big", where / "inbox"
    inbox.mkdir()
    copying.make_source(source, SIZE)
    receiver_address, sender_address = "127.9.9.1", "127.9.9.2"
    far, at = copying.listen(where, "127.0.0.1:0", inbox, env={"RDMA_SOFT_ADDR": receiver_address})
    near = copying.start(where, source, at, *SLOW, name="send", env={"RDMA_SOFT_ADDR": sender_address})
    wait_for_middle(inbox, near)
    victim, survivor = (near, far) if victim_name == "sender" else (far, near)
    gid = "::ffff:" + (sender_address if victim_name == "sender" else receiver_address)
    label, peer = f"{victim_name} {how}", qp_number(victim)
    passive = victim_name == "sender" and number == signal.SIGKILL
    limit = (PASSIVE_SECONDS if passive else 3 * budget(near)) + SLACK
    os.kill(victim.pid, number)
    lost = time.monotonic()
    ended = survivor.wait(limit + 10)
    took = survivor.ended - lost
    victim.kill()
    expect(ended.status > 0, f"{label}: the other end must fail by itself: {ended.describe()}")
    expect(took <= limit, f"{label}: the other end took {took:.2f} s of {limit:.2f} s: {ended.describe()}")
    for what, word in (("GID", gid), ("QP number", f"QP {peer}"), ("cause", cause)):
        expect(word in ended.err, f"{label}: the error does not name the peer's {what} ({word}): {ended.describe()}")
    expect(not (inbox / source.name).exists(), f"{label}: a half-written file stands under the final name")
    if victim_name == "sender":
        expect(not copying.leftovers(inbox), f"{label}: the receiver left {copying.leftovers(inbox)}")
    harness.say(f"{label}: the other end failed after {took:.2f} s: {ended.err.strip().splitlines()[-1]}")


def family():
    """`qp copy SRC DST` in the middle of its work; returns its Process, the receiver's pid and the directory."""
    where = harness.scratch()
    source, inbox = where / "big", where / "inbox"
    inbox.mkdir()
    copying.make_source(source, SIZE)
    both = copying.start(where, source, inbox / "big", *SLOW)
    wait_for_middle(inbox, both)
    children = pathlib.Path(f"/proc/{both.pid}/task/{both.pid}/children").read_text().split()
    expect(len(children) == 1, f"qp copy SRC DST has the children {children}: it must start one receiving process")
    return both, int(children[0]), inbox


def parent():
    """The process that started the receiver is killed; the receiver must not stay."""
    both, child, inbox = family()
    both.kill_one()
    died = time.monotonic()
    while running(child):
        expect(time.monotonic() - died < PASSIVE_SECONDS + SLACK, f"the receiving process {child} stayed")
        time.sleep(0.01)
    expect(not copying.leftovers(inbox), f"the receiver left {copying.leftovers(inbox)}")
    harness.say(f"parent killed: the receiving process ended after {time.monotonic() - died:.2f} s and left nothing")


def child():
    """The receiver that `qp copy SRC DST` started is killed; the sender must say so."""
    both, child, inbox = family()
    limit = 3 * budget(both) + SLACK
    os.kill(child, signal.SIGKILL)
    died = time.monotonic()
    ended = both.wait(limit + 10)
    took = both.ended - died
    expect(ended.status > 0, f"child killed: the parent must fail: {ended.describe()}")
    expect(took <= limit, f"child killed: the parent took {took:.2f} s of {limit:.2f} s: {ended.describe()}")
    expect("GID ::ffff:127." in ended.err and "QP 0x" in ended.err, f"child killed: the error does not name the peer: {ended.describe()}")
    expect(not (inbox / "big").exists(), "child killed: a half-written file stands under the final name")
    harness.say(f"child killed: the parent failed after {took:.2f} s: {ended.err.strip().splitlines()[-1]}")


def running(pid):
    """Whether a process is neither gone nor a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def check():
    for victim in ("receiver", "sender"):
        lose(victim, signal.SIGKILL, "killed", "control channel")
        lose(victim, signal.SIGSTOP, "frozen", "IBV_WC_RETRY_EXC_ERR")
    parent()
    child()


if __name__ == "__main__":
    harness.run_check("kill", check)
