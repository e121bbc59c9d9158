"""Open MPI and MPICH, over UCX over the device: an MPI program that checks every byte, on four ranks."""

import json
import pathlib
import shutil
import subprocess

import ucx
from harness import Failed, Skip, expect
from table import SECONDS, harness, on_device

SOURCE = pathlib.Path(__file__).with_name("exchange.c")
RANKS = 4
LEAST = 1 << 20  # payload bytes of one rank: the ping-pong alone has more


def rows(table):
    """All lines of the table."""
    for transport in ucx.TRANSPORTS.values():
        table.row("Open MPI", f"{transport}, {RANKS} ranks", run, table, "openmpi", transport)
        table.row("MPICH", f"{transport}, {RANKS} ranks", run, table, "mpich", transport)


def launcher(kind, program):
    """The command that starts all ranks."""
    if kind == "mpich":
        return ["mpiexec.mpich", "-n", str(RANKS), str(program)]
    # All messages through UCX, none through shared memory.
    through = ["--mca", "pml", "ucx", "--mca", "btl", "^openib,uct", "--mca", "osc", "^ucx"]
    return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), *through, str(program)]


def run(table, kind, transport):
    """The program finds all its data right, and the device's counters say that it came over the device."""
    compiler = f"mpicc.{kind}"
    if shutil.which(compiler) is None:
        raise Skip(f"{compiler} is not installed")
    program = table.where / f"exchange-{kind}"
    built = subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", program, SOURCE], capture_output=True, text=True, timeout=120, check=False)
    expect(built.returncode == 0, f"{compiler}: {built.stderr}")
    counters = table.where / f"{kind}-{transport}.json"
    command = on_device(launcher(kind, program), "--counters", counters)
    ended = harness.run(command, table.where, f"{kind}-{transport}", SECONDS, env=ucx.environment(transport))
    expect(ended.status == 0, ended.describe())
    expect(f"all data right on {RANKS} ranks" in ended.out, ended.describe())
    ranks = [json.loads(line) for line in counters.read_text().splitlines()]
    sent = [rank["counters"]["tx_payload_bytes"] for rank in ranks if rank["program"] == program.name[:15]]
    if len(sent) != RANKS or min(sent) < LEAST:
        raise Failed(f"{RANKS} ranks with {LEAST} bytes each were expected on the device; it counted {sent}")
    return f"all data right, {sum(sent) >> 20} MiB over the device"
