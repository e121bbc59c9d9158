#!/usr/bin/env python3
"""Are the tests any good? Faults that cargo-mutants puts into the core, one at a time, must be found by them.

  ci/mutants.py [--seed S] [--count N] [--seconds T] [--again] [--list]

Draws N of cargo-mutants' changes (50 if not given) to the engine, the wire formats, the node, the rules and the books by a
seed, puts each into one copy of the tree (target/mutants/tree), builds what it concerns, and runs its tests, the cheapest
first, and then the simulator, until one fails. Prints a line for each, and the share that was caught; the status is 1 below
90 in 100. What was tried is kept in target/mutants, so a run that was ended goes on; `--again` forgets it.

Needs cargo-mutants (cargo install cargo-mutants --locked), for the list of changes alone.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
WORK = TARGET / "mutants"
TREE = WORK / "tree"
GOAL = 0.9
# Seconds after which a test that does not end has found something.
LIMIT = 400
# Seeds of the simulator; some hundred find what one test in a thousand does not.
SIM = ["run", "-p", "rdma-sim", "--bin", "sim", "--", "--first", "1", "--count", "300", "--quiet"]


def test(package, *which):
    return ["test", "-p", package, *which]


# What is changed, and what is to find it, in this order.
SOFT = [
    test("rdma-soft", "--lib"),
    test("rdma-soft", "--test", "wire"),
    test("rdma-soft", "--test", "engine"),
    SIM,
    test("rdma-soft", "--test", "abi"),
    test("rdma-soft", "--test", "cases"),
    test("rdma-soft", "--test", "progress", "--test", "shm"),
]
AREAS = (
    ("rdma-soft/src/core/**/*.rs", SOFT),
    ("rdma-soft/src/wire/**/*.rs", SOFT),
    ("rdma-soft/src/node/**/*.rs", SOFT),
    ("rdma-core-sys/src/rules/**/*.rs", [test("rdma-core-sys", "--lib", "--test", "rules"), test("rdma-soft", "--test", "engine")]),
    ("rdma-qp/src/account/**/*.rs", [test("rdma-qp", "--lib"), test("rdma-qp", "--tests")]),
    ("rdma-qp/src/qp/modify/**/*.rs", [test("rdma-qp", "--lib"), test("rdma-qp", "--tests")]),
)


def environment():
    """No debug information, so that a build is quick; optimised a little, so that tests are."""
    return {
        **os.environ,
        "CARGO_TARGET_DIR": str(WORK / "build"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "CARGO_INCREMENTAL": "1",
        "RUSTFLAGS": "-Awarnings",
    }


def run(arguments, limit):
    """A cargo command in the copy: its status, or None if it did not end in time; and its output."""
    child = subprocess.Popen(
        ["cargo", *arguments],
        cwd=TREE,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out = child.communicate(timeout=limit)[0]
        return child.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0]
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise


def mutants():
    """All changes to the areas, with what is to find each."""
    found = []
    for files, tests in AREAS:
        listed = subprocess.run(
            ["cargo", "mutants", "--list", "--json", "--diff", "--file", files],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )
        # Code of tests is not the core's.
        found += [(m, tests) for m in json.loads(listed.stdout) if not m["file"].endswith("tests.rs") and "/tests/" not in m["file"]]
    return sorted(found, key=lambda pair: pair[0]["name"])


def copy():
    """Brings the copy in step with the tree; what did not change keeps its time, and is not built again."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    names = {name for name in names if name}
    for old in TREE.rglob("*"):
        if old.is_file() and str(old.relative_to(TREE)) not in names:
            old.unlink()
    for name in sorted(names):
        source, to = ROOT / name, TREE / name
        if not source.is_file():
            continue
        data = source.read_bytes()
        if not to.exists() or to.read_bytes() != data:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
            shutil.copymode(source, to)


def judge(tests):
    """Whether the tests find something in the copy: `caught`, `survived` or `unviable`; and which test, or how it was."""
    for arguments in tests:
        build = ["build", *arguments[1 : arguments.index("--")]] if arguments[0] == "run" else [*arguments, "--no-run"]
        status, out = run(build, 3000)
        if status != 0:
            errors = [line for line in out.splitlines() if line.startswith("error")]
            return "unviable", errors[0] if errors else "it does not build"
        status, out = run(arguments, LIMIT)
        what = " ".join(arguments[2:] if arguments[0] == "test" else ["sim"])
        if status is None:
            return "caught", f"{what}: it does not end"
        if status != 0:
            failed = [line for line in out.splitlines() if line.startswith(("test ", "VIOLATION")) and ("FAILED" in line or "VIOLATION" in line)]
            return "caught", f"{what}: {failed[0] if failed else out.strip().splitlines()[-1]}"
    return "survived", "all tests pass"


def attempt(mutant, tests):
    """Puts a change into the copy, lets the tests judge it, and takes it out again."""
    path = TREE / mutant["file"]
    original = path.read_bytes()
    try:
        # The change names the file in its head and, in place of the new name, itself: the file is told.
        patch = ["patch", "--silent", "--no-backup-if-mismatch", mutant["file"]]
        subprocess.run(patch, cwd=TREE, input=mutant["diff"], text=True, check=True)
        return judge(tests)
    finally:
        path.write_bytes(original)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=50)
    options.add_argument("--seconds", type=int, default=0, help="end after so long; the next run goes on")
    options.add_argument("--again", action="store_true", help="forget what was tried")
    options.add_argument("--list", action="store_true", help="print what was drawn, and the changes")
    options = options.parse_args()
    if subprocess.run(["cargo", "mutants", "--version"], capture_output=True, check=False).returncode != 0:
        print("SKIP mutants: cargo-mutants is not installed (cargo install cargo-mutants --locked)")
        return 77
    state = WORK / f"seed-{options.seed}-{options.count}.json"
    WORK.mkdir(parents=True, exist_ok=True)
    if options.again or not state.exists():
        # The list is kept with the results: the tree may change between two runs.
        everything = mutants()
        drawn = random.Random(options.seed).sample(everything, min(options.count, len(everything)))
        state.write_text(json.dumps({"of": len(everything), "drawn": [{"mutant": m, "tests": t, "outcome": None} for m, t in drawn]}))
    kept = json.loads(state.read_text())
    print(f"seed {options.seed}: {len(kept['drawn'])} of {kept['of']} changes")
    copy()
    if not options.list and not kept.get("sound"):
        # Tests that fail without a change would find anything.
        for files, tests in {str(tests): (files, tests) for files, tests in AREAS}.values():
            outcome, how = judge(tests)
            if outcome != "survived":
                sys.exit(f"mutants: without any change, the tests of {files} say: {how}")
        kept["sound"] = True
        state.write_text(json.dumps(kept))
    began = time.monotonic()
    for entry in kept["drawn"]:
        mutant = entry["mutant"]
        if options.list:
            print(mutant["name"], entry["outcome"], mutant["diff"], sep="\n")
            continue
        if entry["outcome"] is None:
            if options.seconds and time.monotonic() - began > options.seconds:
                continue
            entry["outcome"] = attempt(mutant, entry["tests"])
            state.write_text(json.dumps(kept))
        print(f"{entry['outcome'][0]:9} {mutant['name']}\n          {entry['outcome'][1]}", flush=True)
    outcomes = [entry["outcome"][0] if entry["outcome"] else "not tried" for entry in kept["drawn"]]
    count = {word: outcomes.count(word) for word in ("caught", "survived", "unviable", "not tried")}
    print(", ".join(f"{n} {word}" for word, n in count.items()))
    viable = count["caught"] + count["survived"]
    if options.list or count["not tried"] or not viable:
        return 0
    share = count["caught"] / viable
    print(f"{share:.0%} caught of those that build")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
