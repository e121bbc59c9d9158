"""Runs groups of peers' programs and prints the table; ci/peers.sh calls it."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from table import SECONDS, Table, harness, on_device  # noqa: E402
import ibverbs  # noqa: E402
import mpi  # noqa: E402
import own  # noqa: E402
import perftest  # noqa: E402
import pyverbs  # noqa: E402
import ucx  # noqa: E402


def quick(table):
    """A little of everything that takes seconds."""
    own.rows(table)
    ibverbs.rows(table, quick=True)
    perftest.rows(table, quick=True)


GROUPS = {"quick": quick, "own": own.rows, "ibverbs": ibverbs.rows, "perftest": perftest.rows, "pyverbs": pyverbs.rows, "ucx": ucx.rows, "mpi": mpi.rows}


def main():
    """The groups that were named."""
    unknown = [name for name in sys.argv[1:] if name not in GROUPS]
    if unknown:
        sys.exit(f"no group is called {unknown[0]}: there are {', '.join(GROUPS)}")
    table = Table()
    # Without the programs of this project nothing below can be judged.
    probe = harness.run(on_device(["true"]), table.where, "probe", SECONDS)
    if probe.status != 0:
        sys.exit(f"{harness.qp_binary()} runs nothing, so build it all with `cargo build --release`: {probe.err}")
    for name in sys.argv[1:]:
        GROUPS[name](table)
    sys.exit(table.end())


main()
