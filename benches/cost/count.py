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
# What the last line is made of: R is the second over the first, I the third, T the fourth.
LAST_LINE = ("c-fields", "unsafe", "safe", "safe-lists")
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
    # What depends on the number itself, such as reading it from the command line, is no cost of a request.
    return {where: spent / N for where, spent in twice.items() if abs(spent) > N / 1000}


def part(cost, belongs):
    """The sum over the functions that `belongs` says yes to."""
    return sum(spent for (function, _, _), spent in cost.items() if belongs(function))


def lines(cost, root):
    """The non-provider instructions by source line, in the order of the source."""
    by_line = collections.Counter()
    for (function, file, line), spent in cost.items():
        if not PROVIDER.search(function):
            by_line[file, line] += spent
    for (file, line), spent in sorted(by_line.items()):
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
    for missing in sorted(functions - seen):
        # The C library's copying of bytes is the only thing outside that a loop may call.
        if not re.match(r"_*mem(cpy|move|set|cmp)", missing):
            found.append(f"{missing}: not found in the disassembly")
    return found


def timed(program, arguments):
    """Nanoseconds, their ratio to the first loop, and allocations per request, by loop."""
    done = subprocess.run([*program, "time", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return {row.split()[0]: [float(figure) for figure in row.split()[1:]] for row in done.stdout.splitlines()}


def main():
    """Prints the table; what must not be is told, and makes the status 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the program `cost`")
    parser.add_argument("--c", help="the loops in C, a shared object")
    parser.add_argument("--beside", help="another program of the same kind, whose loops come after")
    parser.add_argument("--root", type=pathlib.Path, help="the folder that names of files are relative to")
    parser.add_argument("--quick", action="store_true", help="only what the last line needs, and no times")
    parser.add_argument("--lines", action="append", default=[], metavar="LOOP", help="also print this loop line by line")
    options = parser.parse_args()
    loops, times = {}, {}
    for path in filter(None, [options.program, options.beside]):
        program = [path, *(["--c", options.c] if options.c else [])]
        names = subprocess.run([*program, "list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        # Each program times the first loop in C too, as what its others are compared with.
        found = timed(program, ["--passes=1", "--n=65536"] if options.quick else [])
        for name in names:
            if name not in loops and (not options.quick or name in LAST_LINE):
                loops[name], times[name] = program, found[name]
    costs, sums, problems = {}, {}, []
    print(f"{'loop':<24}{'caller':>8}{'others':>8}{'sum':>8}{'ns':>8}{'ratio':>7}{'allocations':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for name, program in loops.items():
            cost = costs[name] = per_request(program, name, pathlib.Path(folder))
            caller = part(cost, CALLER.search)
            others = part(cost, lambda f: not CALLER.search(f) and not PROVIDER.search(f))
            sums[name] = caller + others
            ns, ratio, allocations = times[name]
            clock = f"{'':>15}" if options.quick else f"{ns:>8.2f}{ratio:>7.2f}"
            print(f"{name:<24}{caller:>8.1f}{others:>8.1f}{sums[name]:>8.1f}{clock}{allocations:>13g}", flush=True)
            if name.startswith("safe"):
                if allocations:
                    problems.append(f"{name} allocates {allocations:g} times per request")
                problems += locked(options.program, {f for f, _, _ in cost if not PROVIDER.search(f)})
    for name in options.lines:
        print(f"\n{name}, instructions per request by source line")
        for spent, where, text in lines(costs[name], options.root):
            print(f"{spent:>7.2f}  {where:<40} {text}")
    for problem in problems:
        print(f"PROBLEM {problem}")
    figures = [f"{sums[name]:.1f}" if name in sums else "-" for name in LAST_LINE]
    if "c-fields" in sums:
        figures[1] = f"{sums['unsafe'] / sums['c-fields']:.2f}"
    print(f"raw {figures[1] if 'c-fields' in sums else '-'} safe {figures[2]} tight {figures[3]}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
