"""What the outside checks share: processes with deadlines, network namespaces, verdicts, and cleaning up.

A check is a script: it prints what it found, and `SKIP name: reason` for what it could not do; it exits with
0 (all good), 1 (something is wrong) or 77 (nothing could be checked). Only the standard library is used.
"""

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
SIOCETHTOOL = 0x8946
_children = []
_cleanups = []


class Failed(Exception):
    """The check found something wrong."""


class Skip(Exception):
    """The check cannot run here; the text says why."""


def expect(condition, message):
    """Raises Failed with `message` unless `condition` holds."""
    if not condition:
        raise Failed(message)


def say(text):
    """One line of what was found."""
    print(text, flush=True)


def skip(name, reason):
    """Reports one part of a check that cannot run here."""
    say(f"SKIP {name}: {reason}")


def cleanup(function, *args):
    """Registers something to undo at the end, last registered first."""
    _cleanups.append((function, args))


def _tidy():
    for child in _children:
        if child.poll() is None:
            child.kill()
    while _cleanups:
        function, args = _cleanups.pop()
        with contextlib.suppress(Exception):
            function(*args)


atexit.register(_tidy)


def run_check(name, function):
    """Runs one check as the whole script: prints its verdict and exits with its status."""

    def stop(*_):
        sys.exit(130)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    began = time.monotonic()
    try:
        function()
    except Skip as reason:
        skip(name, reason)
        sys.exit(SKIPPED)
    except Failed as reason:
        print(f"FAILED {name}: {reason}", flush=True)
        sys.exit(1)
    say(f"{name}: good, {time.monotonic() - began:.1f} s")


def scratch():
    """A fresh directory under target/, removed at the end."""
    base = pathlib.Path(os.environ.get("QP_SCRATCH", ROOT / "target" / "ci"))
    base.mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(prefix="outside-", dir=base))
    cleanup(shutil.rmtree, path, True)
    return path


def qp_binary():
    """The `qp` under test: $QP, or what a release build leaves in the target directory."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = pathlib.Path(os.environ.get("QP", target / "release" / "qp"))
    if not path.is_file():
        raise Failed(f"{path} is not there: build it with `cargo build --release --bin qp`")
    return str(path)


def need_tool(*names):
    """Skips the check where one of the programs is not installed."""
    for name in names:
        if shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            raise Skip(f"{name} is not installed")


class Result:
    """How a process ended: its status, output, and how long it took."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def describe(self):
        """Status and the tail of the output, for a failure message."""
        return f"status {self.status} after {self.seconds:.2f} s\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


class Process:
    """A process in a group of its own with its output in files, so that no pipe can fill up."""

    def __init__(self, command, where, name, namespace=None, env=None, prefix=(), cwd=None):
        full = (["ip", "netns", "exec", namespace] if namespace else []) + list(prefix) + [str(c) for c in command]
        self.name, self.out_path, self.err_path = name, where / f"{name}.out", where / f"{name}.err"
        environment = dict(os.environ, **(env or {}))
        environment["PATH"] = environment.get("PATH", "") + ":/usr/sbin:/sbin"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.began = time.monotonic()
            self.child = subprocess.Popen(
                full, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True, cwd=cwd
            )
        self.peak_resident, self.ended = 0, None
        _children.append(self)

    @property
    def pid(self):
        """The process id; `ip netns exec` replaces itself, so this is the program's own."""
        return self.child.pid

    def wait(self, seconds):
        """Waits for the end; past the deadline the whole group is killed and the check fails."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.poll()
            if status is not None:
                return self.result(status)
            if time.monotonic() > deadline:
                self.kill()
                raise Failed(f"{self.name} did not end within {seconds} s: it hangs\n{self.result(None).describe()}")
            time.sleep(0.002)

    def poll(self):
        """The exit status once the process has ended (negative: the signal that ended it), else None."""
        if self.child.returncode is None:
            pid, status, usage = os.wait4(self.child.pid, os.WNOHANG)
            if pid:
                self.child.returncode = os.waitstatus_to_exitcode(status)
                self.peak_resident, self.ended = usage.ru_maxrss * 1024, time.monotonic()
        return self.child.returncode

    def result(self, status):
        """What is known of the process now."""
        read = [path.read_text(errors="replace") for path in (self.out_path, self.err_path)]
        return Result(status, read[0], read[1], (self.ended or time.monotonic()) - self.began)

    def kill(self, number=signal.SIGKILL):
        """Signals the whole group and reaps the leader."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)
        deadline = time.monotonic() + 5
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)

    def kill_one(self):
        """Kills this process and nothing that it started."""
        os.kill(self.child.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.002)

    def wait_for(self, text, seconds):
        """Waits until the output holds `text`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.poll()
            seen = self.result(ended)
            if text in seen.out or text in seen.err:
                return
            expect(ended is None, f"{self.name} ended before it said {text!r}: {seen.describe()}")
            time.sleep(0.01)
        raise Failed(f"{self.name} did not say {text!r} within {seconds} s: {self.result(None).describe()}")


def run(command, where, name, seconds, **options):
    """Runs a process to its end, at most `seconds`."""
    return Process(command, where, name, **options).wait(seconds)


def tool(*command):
    """Runs a system tool that must succeed."""
    environment = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, env=environment, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def need_namespaces():
    """Skips the check where network namespaces cannot be made."""
    need_tool("ip")
    if os.geteuid() != 0:
        raise Skip("network namespaces need root")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, timeout=30, check=False)
    if probe.returncode != 0:
        raise Skip(f"network namespaces cannot be made here: {probe.stderr.strip()}")


def namespace(label):
    """A fresh network namespace with its loopback up; removed at the end."""
    name = f"qp-{label}-{os.getpid()}-{secrets.token_hex(3)}"
    tool("ip", "netns", "add", name)
    cleanup(tool, "ip", "netns", "del", name)
    # The kernel cuts runs of datagrams before they are captured, not behind that.
    tool("ip", "-n", name, "link", "set", "lo", "up", "gso_max_segs", "1")
    return name


def offload_off(interface):
    """Turns off checksum and segmentation offload, so that frames on the wire are whole and final.

    Must run inside the interface's namespace: `python3 harness.py offload-off NAME`.
    """
    set_rx, set_tx, set_sg, set_tso, set_gso, set_gro = 0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in (set_tso, set_gso, set_gro, set_sg, set_tx, set_rx):
            value = ctypes.create_string_buffer(struct.pack("II", command, 0), 8)  # struct ethtool_value
            ifreq = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(control.fileno(), SIOCETHTOOL, ifreq)
            except OSError as error:
                if command == set_tx:
                    raise Failed(f"{interface}: checksum offload cannot be turned off: {error}") from error


class Wire:
    """Two namespaces, A and B, joined by a faulty wire that runs in a third one."""

    def __init__(self, where, faults, seed, mtu=9000, addresses=("10.77.0.1/24", "10.77.0.2/24")):
        self.where, self.report_path = where, where / f"wire-{secrets.token_hex(3)}.json"
        self.a, self.b, middle = namespace("a"), namespace("b"), namespace("m")
        for end, name, address in (("left", self.a, addresses[0]), ("right", self.b, addresses[1])):
            tool("ip", "-n", middle, "link", "add", end, "mtu", str(mtu), "type", "veth", "peer", "name", "rdma0", "netns", name)
            tool("ip", "-n", name, "link", "set", "rdma0", "mtu", str(mtu))
            nodad = ["nodad"] if ":" in address else []
            tool("ip", "-n", name, "addr", "add", address, "dev", "rdma0", *nodad)
            for where_ns, interface in ((name, "rdma0"), (middle, end)):
                tool("ip", "netns", "exec", where_ns, sys.executable, __file__, "offload-off", interface)
                tool("ip", "-n", where_ns, "link", "set", interface, "up")
        options = [f"--{fault}={rate}" for fault, rate in faults.items()]
        self.process = Process(
            [sys.executable, ROOT / "ci/outside/faulty_wire.py", "left", "right", f"--seed={seed}", *options, "--report", self.report_path],
            where, "wire", namespace=middle,
        )
        self.process.wait_for("ready", 10)

    def close(self):
        """Ends the wire and returns its counts."""
        os.kill(self.process.pid, signal.SIGTERM)
        ended = self.process.wait(10)
        expect(ended.status == 0, f"the faulty wire failed: {ended.describe()}")
        return json.loads(self.report_path.read_text())


def udp_counters(name):
    """The kernel's own UDP counters of a namespace, IPv4 and IPv6 added up."""
    total = {"InDatagrams": 0, "NoPorts": 0, "InErrors": 0, "OutDatagrams": 0, "RcvbufErrors": 0, "InCsumErrors": 0}
    lines = tool("ip", "netns", "exec", name, "cat", "/proc/net/snmp").splitlines()
    names, values = [line.split()[1:] for line in lines if line.startswith("Udp:")]
    for key, value in zip(names, values):
        if key in total:
            total[key] += int(value)
    for line in tool("ip", "netns", "exec", name, "cat", "/proc/net/snmp6").splitlines():
        key, value = line.split()
        if key.startswith("Udp6") and key[4:] in total:
            total[key[4:]] += int(value)
    return total


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "offload-off":
        offload_off(sys.argv[2])
    else:
        sys.exit(__doc__)
