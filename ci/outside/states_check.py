#!/usr/bin/env python3
"""Compares `qp states --tsv` with the kernel's own transition table, cell by cell.

The fixture was extracted from the kernel's source and is used by tests only; the command derives its output
by asking the rules about every mask bit.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from harness import expect  # noqa: E402

TRANSPORTS = ("RC", "UC", "UD", "XRC_INI", "XRC_TGT")


def rows(text):
    """The table's lines without comments."""
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


def check():
    fixtures = list(harness.ROOT.glob("*/tests/fixtures/qp_state_table.tsv"))
    expect(len(fixtures) == 1, f"one fixture wanted, found {fixtures}")
    fixture = rows(fixtures[0].read_text())
    wanted = [fixture[0]] + [row for row in fixture[1:] if row[0] in TRANSPORTS]
    printed = harness.run([harness.qp_binary(), "states", "--tsv"], harness.scratch(), "states", 20)
    expect(printed.status == 0, printed.describe())
    found = rows(printed.out)
    differing = [
        f"row {number}: kernel {want}, qp {have}"
        for number, (want, have) in enumerate(zip(wanted, found), 1)
        if want != have
    ]
    expect(not differing, f"{len(differing)} rows differ:\n" + "\n".join(differing[:20]))
    expect(len(wanted) == len(found), f"the kernel's table has {len(wanted)} rows, qp prints {len(found)}")
    expect(len(wanted) > 100, f"only {len(wanted)} rows were compared")
    harness.say(f"{len(wanted) - 1} transitions of {', '.join(TRANSPORTS)}: 0 cells differ")


if __name__ == "__main__":
    harness.run_check("states", check)
