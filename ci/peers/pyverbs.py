"""pyverbs' own test-suite, as the distribution ships it."""

import contextlib
import gzip
import pathlib
import re
import shutil
from collections import Counter

import harness
from harness import Skip, expect
from table import on_device

TESTS = pathlib.Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"  # the one that the distribution's pyverbs is for
HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
SECONDS = 400
LEAST = 118  # tests that a RoCE device without optional hardware passes

# Why a test may be skipped: what a RoCE adapter or the kernel's rxe may lack as well, or what this machine has not.
REASONS = (
    r"(non|not an) (MLX5|EFA) device",  # tests of two vendors' extensions
    r"PCI device must be passed",  # of a vendor's VFIO driver
    r"cuda-python",
    r"ODP is not supported",
    r"dmabuf is not supported",
    r"Create QP type 8 is not supported",  # raw packets
    r"Raw Packet",
    r"doesn't have net interface",  # raw Ethernet and rdma_cm
    r"no huge pages",
    r"Converting timestamp to nanoseconds",
    r"All gid indices populated",
    r"(tag matching|Tag Matching|Extended CQ) is not supported",  # of the tests here, those of tag matching
    r"Extended QP is not supported",  # of the tests here, the one of atomic writes
)


def rows(table):
    """The whole suite in one process, which is both ends of every connection."""
    table.row("pyverbs", "the test-suite of rdma-core", suite, table)


@contextlib.contextmanager
def huge_pages(count):
    """One test uses huge pages; where they cannot be had, it is skipped."""
    before = HUGE_PAGES.read_text()
    with contextlib.suppress(OSError):
        HUGE_PAGES.write_text(str(max(count, int(before))))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            HUGE_PAGES.write_text(before)


def suite(table):
    """No failure, no error, enough passes, and no skip without a reason that is known."""
    if not TESTS.is_dir():
        raise Skip(f"{TESTS} is not there (package python3-pyverbs, and documentation that is not left out)")
    tests = table.where / "tests"
    shutil.copytree(TESTS, tests)
    for packed in tests.glob("*.py.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    command = [PYTHON, str(tests / "run_tests.py"), "--dev", "soft0", "--port", "1", "--gid", "0", "-v"]
    # One test looks for an empty entry of the GID table.
    options = ["--addr", "127.45.6.7", "--set", "gids=127.45.6.7,-"]
    with huge_pages(8):
        ended = harness.run(on_device(command, *options), table.where, "pyverbs", SECONDS)
    total = re.search(r"^Ran (\d+) tests", ended.err, re.M)
    expect(total, f"it did not run to its end: {ended.describe()}")
    wrong = re.findall(r"^(?:ERROR|FAIL): .*$", ended.err, re.M)
    errors = re.findall(r"^(?:\w+\.)*\w+(?:Error|Exception)\b.*$", ended.err, re.M)
    expect(not wrong, "\n".join([f"{len(wrong)} of {total[1]} tests failed", *wrong, *sorted(set(errors))]))
    expect(ended.status == 0, ended.describe())
    skips = Counter(re.findall(r"\.\.\. skipped (.*)$", ended.err, re.M))
    passed = int(total[1]) - sum(skips.values())
    unknown = [reason for reason in skips if not any(re.search(known, reason) for known in REASONS)]
    expect(not unknown, "\n".join(["skips without a known reason", *unknown]))
    expect(passed >= LEAST, f"{passed} passed, at least {LEAST} wanted")
    listed = [f"{count} skipped: {reason}" for reason, count in skips.most_common()]
    return "\n".join([f"{passed} of {total[1]} passed, none failed", *listed])
