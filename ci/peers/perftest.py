"""perftest: bandwidth and latency of every operation, over every transport, in every manner."""

import re

from harness import expect
from table import found, pair

OPERATIONS = {"RC": ("send", "write", "read", "atomic"), "UC": ("send", "write"), "UD": ("send",), "XRC": ("send", "write", "read", "atomic")}

# 239.7.7.7: on a device with IPv4 GIDs a group has one, too. Numbers between the colons are decimal.
GROUP = "0:0:0:0:0:0:0:0:0:0:255:255:239:7:7:7"


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
    # UC sends nothing twice, and a message that is lost is waited for to the end of days: none is.
    for transport, sizes in (("RC", 23), ("UC", 23), ("UD", 12)):
        row("ib_send_bw", ["-c", transport, "-a"], 20, sizes)
        if transport != "UD":
            row("ib_send_bw", ["-c", transport, "-a", "-b"], 20, sizes)
        row("ib_send_lat", ["-c", transport, "-a"], 20, sizes)
    row("ib_write_bw", ["-a"], 20, 23)
    row("ib_read_bw", ["-a"], 20, 23)
    row("ib_write_lat", ["-a"], 20, 23)
    row("ib_read_lat", ["-a"], 20, 23)
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"):
        row(program, ["-b"])
        row(program, ["-q", "64"], 20)
    row("ib_send_bw", ["-c", "UD", "-b"])
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
    for program in ("ib_send_bw", "ib_send_lat"):
        row(program, ["-c", "UD", "-g", "-M", GROUP], variant="-c UD -g (multicast)")


def run(where, program, options, lines, more):
    """Both ends end well, and the client prints a line of figures for each size."""
    _, client = pair(where, program, options, **more)
    heading = found(r"^ *#bytes.*$", client.out, "the heading")
    figures = re.findall(r"^[ \t]*(\d+)[ \t]+\d+[ \t]+(\S.*)$", client.out[heading.end() :], re.M)
    expect(len(figures) == lines, f"{lines} lines of figures wanted, {len(figures)} there:\n{client.out[-3000:]}")
    size, values = figures[-1][0], figures[-1][1].split()
    if program.endswith("_bw"):
        return f"{size} bytes: {values[1]} MB/s"
    return f"{size} bytes: typical {values[2]} us"
