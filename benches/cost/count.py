#!/usr/bin/env python3
"""What a work request costs: run.sh says how this is called.

Instructions come from callgrind: the difference between a run of 2N and one of N requests, over N, so start-up drops out.
Whatever is not in a function of the provider (their names begin with `fake_`) counts: `caller` is the loop itself with
all that the compiler put into it, `others` what it calls.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

N = 64000
PROVIDER = re.compile(r"\bfake_\w+")
CALLER = re.compile(r"\bloop_\w+")


def callgrind(command, scratch):
    """Instructions by (function, file, line) of one run, without those of called functions."""
    out = scratch / "callgrind.out"
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *command],
        capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed under callgrind:\n{done.stdout}{done.stderr}")
    return parse(out.read_text())


def parse(text):
    """Reads the callgrind format: names are given once and numbered, line numbers may be relative."""
    names = {"file": {}, "function": {}}

    def name(kind, value):
        number, _, rest = value.partition(" ")
        if rest:
            names[kind][number] = rest
        return names[kind][number]

    cost = collections.Counter()
    function = file = None
    line, inclusive = 0, False
    for row in text.splitlines():
        if match := re.match(r"(fl|fi|fe|fn|cfn|cfi|cfl)=(.*)", row):
            key, value = match.groups()
            named = name("function" if key in ("fn", "cfn") else "file", value)
            if key == "fn":
                function = named
            elif key in ("fl", "fi", "fe"):
                file = named
        elif row.startswith("calls="):
            inclusive = True
        elif match := re.match(r"([+-]?\d+|\*)(?: (\d+))?$", row):
            where, spent = match.groups()
            line = line if where == "*" else line + int(where) if where[0] in "+-" else int(where)
            if not inclusive:
                cost[function, file, line] += int(spent or 0)
            inclusive = False
    return cost


def per_request(program, name, scratch):
    """Instructions per request by (function, file, line), the provider's among them."""
    once, twice = (callgrind([*program, "run", name, str(n)], scratch) for n in (N, 2 * N))
    twice.subtract(once)
    return {where: spent / N for where, spent in twice.items() if spent}


def part(cost, belongs):
    """The sum over the functions that `belongs` says yes to."""
    return sum(spent for (function, _, _), spent in cost.items() if belongs(function))


def lines(cost, root, least=0.05):
    """The non-provider instructions by source line, most expensive first."""
    by_line = collections.Counter()
    for (function, file, line), spent in cost.items():
        if not PROVIDER.search(function):
            by_line[file, line] += spent
    for (file, line), spent in sorted(by_line.items()):
        if abs(spent) >= least:
            path = pathlib.Path(file)
            try:
                text = path.read_text().splitlines()[line - 1].strip()
            except (OSError, IndexError):
                text = ""
            try:
                path = path.relative_to(root)
            except ValueError:
                path = pathlib.Path(*path.parts[-3:])
            yield spent, f"{path}:{line}", text


def locked(binary, functions):
    """The instructions with a `lock` prefix in these functions of a program."""
    text = subprocess.run(
        ["objdump", "-d", "--demangle", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True
    ).stdout
    found, seen, current = [], set(), None
    for row in text.splitlines():
        if match := re.match(r"[0-9a-f]+ <(.*)>:$", row):
            current = match[1]
            seen.add(current)
        elif current in functions and re.search(r"\t\s*lock\b", row):
            found.append(f"{current}: {row.strip()}")
    return found, functions - seen


def main():
    """Prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program", help="the program `cost`")
    arguments.add_argument("--c", help="the loops in C, a shared object")
    arguments.add_argument("--root", type=pathlib.Path, help="the folder that names of files are relative to")
    arguments.add_argument("--lines", action="append", default=[], metavar="LOOP", help="also print this loop line by line")
    options = arguments.parse_args()
    program = [options.program, *(["--c", options.c] if options.c else [])]
    names = subprocess.run([*program, "list"], capture_output=True, text=True, check=True).stdout.split()
    times = {}
    for row in subprocess.run([*program, "time"], capture_output=True, text=True, check=True).stdout.splitlines():
        name, *figures = row.split()
        times[name] = [float(figure) for figure in figures]
    costs = {}
    print(f"{'loop':<20}{'caller':>8}{'others':>8}{'sum':>8}{'ns':>8}{'ratio':>7}{'allocations':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            cost = costs[name] = per_request(program, name, pathlib.Path(folder))
            caller = part(cost, CALLER.search)
            others = part(cost, lambda f: not CALLER.search(f) and not PROVIDER.search(f))
            ns, ratio, allocations = times[name]
            print(f"{name:<20}{caller:>8.1f}{others:>8.1f}{caller + others:>8.1f}{ns:>8.2f}{ratio:>7.2f}{allocations:>13g}")
    for name in options.lines:
        print(f"\n{name}, instructions per request by source line")
        for spent, where, text in lines(costs[name], options.root):
            print(f"{spent:>7.2f}  {where:<40} {text}")


if __name__ == "__main__":
    main()
