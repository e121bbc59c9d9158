"""perftest: bandwidth and latency of every operation, over every transport, in every manner."""

import re

from harness import expect
from table import found, pair

OPERATIONS = {"RC": ("send", "write", "read", "atomic"), "UC": ("send", "write"), "UD": ("send",), "XRC": ("send", "write", "read", "atomic")}


def rows(table, quick=False):
    """All lines of the table."""

    def row(program, options, iterations=200, lines=1, **more):
        common = ["-d", "soft0", "-F", "-n", str(iterations)]
        variant = more.pop("variant", " ".join(options))
        table.row(program, variant, run, table.where, program, [*common, *options], lines, more)

    if quick:
        row("ib_send_bw", ["-c", "RC"])
        row("ib_write_lat", ["-c", "RC"])
        row("ib_read_bw", ["-c", "RC"])
        row("ib_atomic_lat", ["-c", "RC"])
        return
    for transport, operations in OPERATIONS.items():
        for operation in operations:
            for figure in ("bw", "lat"):
                row(f"ib_{operation}_{figure}", ["-c", transport])
    for transport, sizes in (("RC", 23), ("UC", 23), ("UD", 12)):
        row("ib_send_bw", ["-c", transport, "-a"], 20, sizes)
        row("ib_send_lat", ["-c", transport, "-a"], 20, sizes)
    row("ib_write_bw", ["-a"], 20, 23)
    row("ib_read_bw", ["-a"], 20, 23)
    row("ib_write_lat", ["-a"], 20, 23)
    row("ib_read_lat", ["-a"], 20, 23)
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"):
        row(program, ["-b"])
        row(program, ["-q", "64"], 20)
    row("ib_send_bw", ["-c", "UD", "-b"])
    row("ib_send_bw", ["-c", "UC", "-b"])
    row("ib_send_bw", ["-c", "UD", "-q", "64"], 20)
    for program in ("ib_send_bw", "ib_send_lat"):
        row(program, ["-e"])
        row(program, ["-c", "UD", "-e"])
        row(program, ["--use-srq"])
        row(program, ["--use-srq", "-q", "8"] if program.endswith("bw") else ["--use-srq", "-e"])
        row(program, ["-I", "64", "-s", "64"])
    row("ib_write_lat", ["-I", "64", "-s", "64"])
    row("ib_write_bw", ["-I", "64", "-s", "64"])
    row("ib_send_bw", ["-c", "XRC", "--use-srq"])
    row("ib_send_bw", ["-c", "XRC", "-q", "8"], 20)
    row("ib_send_bw", ["-l", "32"], 320)
    row("ib_write_bw", ["-l", "32"], 320)
    row("ib_send_bw", ["-r", "64", "-Q", "16"])
    row("ib_write_bw", ["-m", "256"])
    row("ib_atomic_bw", ["-A", "FETCH_AND_ADD"])
    row("ib_atomic_bw", ["-A", "CMP_AND_SWAP"])
    row("ib_send_bw", ["-c", "UD", "-g"], variant="-c UD multicast")
    row("ib_send_lat", ["-c", "UD", "-g"], variant="-c UD multicast")


def run(where, program, options, lines, more):
    """Both ends end well, and the client prints a line of figures for each size."""
    _, client = pair(where, program, options, **more)
    figures = re.findall(r"^ *(\d+) +(\d+)((?: +[\d.]+)+) *$", client.out, re.M)
    expect(len(figures) == lines, f"{lines} lines of figures wanted, {len(figures)} there:\n{client.out[-3000:]}")
    size, _, values = figures[-1]
    found(r"^ *#bytes", client.out, "the heading")
    values = values.split()
    if program.endswith("_bw"):
        return f"{size} bytes: {values[1]} MB/s"
    return f"{size} bytes: typical {values[2]} us"
