"""`qp run` itself: status, signals, arguments, and what it says of a process when it ends."""

import json
import os
import signal

from harness import Process, expect
from table import SECONDS, harness, on_device


def rows(table):
    """All lines of the table."""
    table.row("qp run", "status and arguments", status, table.where)
    table.row("qp run", "signals", signals, table.where)
    table.row("qp run", "counters of each process", counters, table.where)


def status(where):
    """The program's exit status and its arguments are its own."""
    ended = harness.run(on_device(["sh", "-c", 'echo "$0" "$#"; exit 7', "a  b", "-c"]), where, "status", SECONDS)
    expect((ended.status, ended.out) == (7, "a  b 1\n"), ended.describe())


def signals(where):
    """A signal ends the program, which is the process that was started."""
    process = Process(on_device(["sh", "-c", "echo $$; exec sleep 60"]), where, "signals")
    process.wait_for("\n", SECONDS)
    expect(process.result(None).out == f"{process.pid}\n", "the program has another process number")
    os.kill(process.pid, signal.SIGTERM)
    ended = process.wait(10)
    expect(ended.status == -signal.SIGTERM, ended.describe())


def counters(where):
    """Every process that listed devices reports those that it used, in a line of its own."""
    path = where / "counters.json"
    command = on_device(["sh", "-c", "ibv_devices; ibv_devinfo; ibv_devinfo"], "--counters", path)
    ended = harness.run(command, where, "counters", SECONDS)
    expect(ended.status == 0, ended.describe())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    expect([line["program"] for line in lines] == ["ibv_devinfo"] * 2, f"{lines}")
    expect(len({line["pid"] for line in lines}) == 2, f"{lines}")
    expect(lines[0]["device"] == "soft0" and lines[0]["counters"]["rx_frames"] == 0, f"{lines}")
