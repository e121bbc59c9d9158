#!/usr/bin/env python3
"""Copies files with `qp copy` as people do, and as things go wrong.

  copy_check.py            a file of 64 MiB and every case below: part of ci/check.sh
  copy_check.py --long     files of gigabytes, with and without faults: ci/long.sh

Checks digests re-read from the disk, resident memory of each process, an empty file, a destination that
exists, an unreadable source, a full disk, ports in use.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import copying  # noqa: E402
import harness  # noqa: E402
from harness import Skip, expect  # noqa: E402

RESIDENT_LIMIT = 64 << 20
SIDE_CHANNEL_LIMIT = 64 << 10
FAULTS = "--loss 1% --duplicate 1% --reorder 1% --corrupt 0.1% --delay 200us --seed 7".split()
NOBODY = "65534"


def pair(where, label, size, options, seconds):
    """Two processes in two terminals; digest, resident memory and side channel of both."""
    source, inbox = where / f"{label}-source", where / f"{label}-inbox"
    inbox.mkdir()
    digest = copying.make_source(source, size)
    far, at = copying.listen(where, "127.0.0.1:0", inbox, "--json", name=f"{label}-listen")
    near = copying.start(where, source, at, *options, "--json", name=f"{label}-send")
    report = copying.report(near.wait(seconds))
    copying.report(far.wait(30))
    expect(copying.digest_on_disk(inbox / source.name) == digest, f"{label}: the copy differs from its source")
    expect(report["sha256"] == digest, f"{label}: the digest that qp printed is not the file's")
    for process in (near, far):
        peak = process.peak_resident
        expect(peak <= RESIDENT_LIMIT, f"{label}: {process.name} had {peak >> 20} MiB resident")
    side = report["side_channel_bytes"]
    expect(side < SIDE_CHANNEL_LIMIT, f"{label}: {side} bytes over the side channel")
    moved = report["receiver"]["counters"]["rx_payload_bytes"]
    expect(moved == size, f"{label}: the device accepted {moved} bytes of {size}")
    seconds = near.ended - near.began
    harness.say(
        f"{label}: {size >> 20} MiB in {seconds:.1f} s, resident {near.peak_resident >> 20} and {far.peak_resident >> 20} MiB, {side} bytes beside"
    )
    source.unlink()
    shutil.rmtree(inbox)


def wire(where, size, carries=9000, mtu=4096, addresses=("10.77.0.1", "10.77.0.2"), bits=24):
    """Through a wire between two namespaces that counts every byte: what moved the file is the device. Nobody says what MTU: it is
    what the interfaces carry."""
    harness.need_namespaces()
    source, inbox = where / f"wire-{carries}-{bits}", where / f"wire-{carries}-{bits}-inbox"
    inbox.mkdir()
    digest = copying.make_source(source, size)
    line = harness.Wire(where, {}, seed=1, mtu=carries, addresses=[f"{address}/{bits}" for address in addresses])
    near, far = ({"RDMA_SOFT_ADDR": address} for address in addresses)
    host = f"[{addresses[1]}]" if ":" in addresses[1] else addresses[1]
    far, at = copying.listen(where, f"{host}:0", inbox, "--json", name="wire-listen", namespace=line.b, env=far)
    near = copying.start(where, source, at, "--json", name="wire-send", namespace=line.a, env=near)
    report = copying.report(near.wait(400))
    copying.report(far.wait(30))
    counts = line.close()
    expect(report["path_mtu"] == mtu, f"over a wire that carries {carries} bytes: a path MTU of {report['path_mtu']}")
    expect(copying.digest_on_disk(inbox / source.name) == digest, "over the wire: the copy differs from its source")
    side = sum(way["other_bytes"] for way in counts.values() if isinstance(way, dict) and "other_bytes" in way)
    expect(side < SIDE_CHANNEL_LIMIT, f"over the wire: {side} bytes were not RoCE")
    harness.say(f"over a wire: {size >> 20} MiB, {counts['left_to_right']['sent']} RoCE frames one way, {side} bytes that were not RoCE")


def refused(result, label, *words):
    """A clear failure: not zero, no panic, and an error that says what is wrong."""
    expect(result.status is not None and result.status > 0, f"{label}: must fail: {result.describe()}")
    expect("panicked" not in result.err, f"{label}: panicked: {result.describe()}")
    for word in words:
        expect(word.lower() in result.err.lower(), f"{label}: the error does not say {word!r}: {result.describe()}")
    harness.say(f"{label}: {result.err.strip().splitlines()[-1]}")


def empty_file(where):
    """An empty file arrives as an empty file."""
    source, destination = where / "empty", where / "empty-copy"
    source.touch()
    copying.report(copying.copy(where, source, destination, "--json", name="empty"))
    expect(destination.exists() and destination.stat().st_size == 0, "an empty file did not arrive as one")
    harness.say("empty file: arrived")


def odd_sizes(where):
    """Sizes around the packet and block boundaries."""
    for size in (1, 3, 4095, 4096, 4097, (1 << 20) - 1, (1 << 20) + 1):
        source, destination = where / f"odd-{size}", where / f"odd-{size}-copy"
        copying.make_source(source, size, seed=size)
        done = copying.copy(where, source, destination, name=f"odd-{size}")
        expect(done.status == 0, f"{size} bytes: {done.describe()}")
        expect(source.read_bytes() == destination.read_bytes(), f"{size} bytes: the copy differs")
    harness.say("sizes around packet and block boundaries: right")


def destination_exists(where):
    """A destination that exists is kept, unless --force is given."""
    source, destination = where / "new", where / "old"
    source.write_text("new")
    destination.write_text("old")
    refused(copying.copy(where, source, destination, name="exists"), "destination exists", str(destination), "--force")
    expect(destination.read_text() == "old", "a destination that exists was touched")
    forced = copying.copy(where, source, destination, "--force", name="forced")
    expect(forced.status == 0 and destination.read_text() == "new", f"--force did not replace: {forced.describe()}")


def unreadable_source(where):
    """A source that is missing, dangling, or not ours to read."""
    destination = where / "never"
    dangling = where / "dangling"
    dangling.symlink_to(where / "nothing-here")
    for name in ("missing", "dangling"):
        refused(copying.copy(where, where / name, destination, name=name), f"source {name}", str(where / name))
    secret = where / "secret"
    secret.write_text("secret")
    secret.chmod(0o000)
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            harness.skip("unreadable-source", "setpriv is not installed")
            return
        public = pathlib.Path("/tmp") / f"qp-nobody-{os.getpid()}"
        public.mkdir()
        harness.cleanup(shutil.rmtree, public, True)
        shutil.copy(harness.qp_binary(), public / "qp")
        shutil.copy(secret, public / "secret")
        for path, mode in ((public, 0o777), (public / "qp", 0o755), (public / "secret", 0o000)):
            path.chmod(mode)
        as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        result = harness.run([public / "qp", "copy", public / "secret", public / "never"], where, "secret", 20, prefix=as_nobody, cwd=public)
    else:
        result = copying.copy(where, secret, destination, name="secret")
    refused(result, "source unreadable", "secret", "permission denied")
    expect(not destination.exists(), "a copy of what cannot be read appeared")


def full_disk(where):
    """A full disk ends both processes with an error, and leaves nothing under the final name."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        harness.skip("full-disk", "a small file system cannot be mounted here")
        return
    source, small = where / "source-16M", where / "small"
    copying.make_source(source, 16 << 20)
    small.mkdir()
    script = 'mount -t tmpfs -o size=4m none "$1" || exit 99; "$2" copy "$3" "$1/copy"; status=$?; echo "left: $(ls -A "$1")"; exit $status'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", small, harness.qp_binary(), source]
    result = harness.run(command, where, "full", 60)
    expect(result.status != 99, f"the small file system could not be mounted: {result.describe()}")
    refused(result, "full disk", "space")
    expect(result.out.splitlines()[-1] == "left: ", f"something is left of the copy: {result.describe()}")


def port_in_use(where):
    """The side channel's TCP port and the device's UDP port, each taken by somebody else."""
    inbox = where / "busy-inbox"
    inbox.mkdir()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        result = harness.run([harness.qp_binary(), "copy", "--listen", at, inbox], where, "busy-tcp", 20)
        refused(result, "TCP port in use", at, "in use")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.8.8.8", 4791))
        place = {"env": {"RDMA_SOFT_ADDR": "127.8.8.8"}}
        result = harness.run([harness.qp_binary(), "copy", "--listen", "127.0.0.1:0", inbox], where, "busy-udp", 20, **place)
        refused(result, "UDP port 4791 in use", "127.8.8.8", "in use")
    source = where / "lonely"
    source.write_text("x")
    nobody = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    nobody.bind(("127.0.0.1", 0))
    at = f"127.0.0.1:{nobody.getsockname()[1]}"
    nobody.close()
    refused(copying.copy(where, source, at, name="lonely"), "nobody listens", at)


def sparse(where):
    """Five gigabytes with holes."""
    source, destination = where / "sparse", where / "sparse-copy"
    with open(source, "wb") as file:
        file.truncate(5 << 30)
        for offset in (0, (1 << 30) + 12345, (4 << 30) - 7, (5 << 30) - 100):
            file.seek(offset)
            file.write(os.urandom(100))
    report = copying.report(copying.copy(where, source, destination, "--json", seconds=400, name="sparse"))
    expect(destination.stat().st_size == 5 << 30, "the size of the sparse file's copy differs")
    expect(copying.digest_on_disk(destination) == copying.digest_on_disk(source) == report["sha256"], "the sparse file's copy differs")
    harness.say(f"5 GiB sparse: arrived, {destination.stat().st_blocks >> 11} MiB on disk")


def check():
    where = harness.scratch()
    if "--long" in sys.argv:
        pair(where, "1 GiB", 1 << 30, [], 300)
        pair(where, "1 GiB with faults", 1 << 30, FAULTS, 600)
        try:
            wire(where, 1 << 30)
        except Skip as reason:
            harness.skip("long-wire", str(reason))
        sparse(where)
        return
    pair(where, "plain", 64 << 20, [], 60)
    pair(where, "with faults", 32 << 20, FAULTS, 120)
    empty_file(where)
    odd_sizes(where)
    destination_exists(where)
    unreadable_source(where)
    full_disk(where)
    try:
        # What two hosts on ordinary Ethernet have, and little more than 2048 bytes with their headers.
        wire(where, 1 << 20, carries=1500, mtu=1024)
        wire(where, 1 << 20, carries=2048 + 88, mtu=2048, addresses=("fd77::1", "fd77::2"), bits=64)
    except Skip as reason:
        harness.skip("ethernet", str(reason))
    try:
        port_in_use(where)
    except Skip as reason:
        harness.skip("port-in-use", str(reason))


if __name__ == "__main__":
    harness.run_check("copy", check)
