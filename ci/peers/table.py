"""The table of results, and how programs are run on the software device."""

import pathlib
import re
import shutil
import signal
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "outside"))
import harness  # noqa: E402
from harness import Failed, Process, Skip, expect  # noqa: E402,F401

SECONDS = 90  # against hanging only


class Table:
    """One line per program and variant."""

    def __init__(self):
        self.where = harness.scratch()
        self.passed = self.failed = 0
        self.skips = []

    def row(self, program, variant, function, *arguments):
        """Runs a function and prints what came of it: it returns a text, or raises Failed or Skip."""
        try:
            result, kind = function(*arguments) or "", "passed"
        except Skip as reason:
            result, kind = str(reason), "skipped"
        except Failed as reason:
            result, kind = str(reason), "FAILED"
        self.passed += kind == "passed"
        self.failed += kind == "FAILED"
        if kind == "skipped":
            self.skips.append(f"SKIP {program} {variant}: {result}")
        first, *rest = (result.strip() or "").splitlines() or [""]
        print(f"{program:<20} {variant:<34} {kind:<8} {first}", flush=True)
        for line in rest:
            print(f"    {line}", flush=True)

    def end(self):
        """The last line, and the exit status."""
        for skip in self.skips:
            print(skip)
        print(f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped", flush=True)
        return 1 if self.failed else 0


def on_device(command, *options):
    """The command line that runs a program on the software device; what is not installed is skipped."""
    if shutil.which(command[0]) is None:
        raise Skip(f"{command[0]} is not installed")
    return [harness.qp_binary(), "run", *options, "--", *command]


def free_port():
    """A TCP port that nobody has at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listening(port):
    """True once somebody listens at a TCP port, whatever the address."""
    wanted = f":{port:04X} "
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(name).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if (local + " ").endswith(wanted) and state == "0A":
                return True
    return False


def preloaded(command):
    """The command line that runs a program on the software device without `qp run`: with nothing but the library."""
    if shutil.which(command[0]) is None:
        raise Skip(f"{command[0]} is not installed")
    library = pathlib.Path(harness.qp_binary()).with_name("librdma_soft_preload.so")
    return ["env", f"LD_PRELOAD={library}", *command]


def wait_listening(server, port):
    """Waits until a process listens at a TCP port."""
    deadline = harness.time.monotonic() + 20
    while not listening(port):
        if server.poll() is not None:
            raise Failed(f"the server ended: {server.result(server.poll()).describe()}")
        if harness.time.monotonic() > deadline:
            server.kill()
            raise Failed(f"the server does not listen: {server.result(None).describe()}")
        harness.time.sleep(0.01)


def pair(where, program, options, client=None, seconds=SECONDS, env=None, prefix=(), launch=on_device):
    """Runs a program twice, as server and as client of the other: the results of both, which ended well."""
    port = free_port()
    name = re.sub(r"\W+", "_", f"{program}-{port}")
    own = [*prefix, program, "-p", str(port), *options]
    server = Process(launch(own), where, f"{name}-server", env=env)
    wait_listening(server, port)
    client = Process(launch(own + (client or ["127.0.0.1"])), where, f"{name}-client", env=env)
    ended = {}
    try:
        ended["client"] = client.wait(seconds)
        if ended["client"].status != 0:
            # What the server says may be the reason; it may wait for ever for a client that is gone.
            harness.time.sleep(0.3)
            server.kill(signal.SIGTERM)
        ended["server"] = server.wait(10)
    finally:
        for process in (client, server):
            if process.poll() is None:
                process.kill()
    for side, result in ended.items():
        if result.status != 0:
            other = server.result(None) if side == "client" else client.result(None)
            raise Failed(f"the {side} failed: {result.describe()}\n--- the other side\n{other.out[-1500:]}\n{other.err[-1500:]}")
    return ended["server"], ended["client"]


def found(pattern, text, what):
    """The match of a pattern that must be there."""
    match = re.search(pattern, text, re.M)
    expect(match, f"{what} is not there:\n{text[-3000:]}")
    return match
