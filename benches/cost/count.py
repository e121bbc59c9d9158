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
# What --quick counts too if it is there: libqp's loops, and what its lists are compared with.
LIBQP = ("libqp-raw", "libqp", "libqp-lists", "c-list")
PROVIDER = re.compile(r"\bfake_\w+")
# What a function of ours is for, where the compiler put it into the loop: the innermost of these names counts.
FOR = {
    "slice": "bounds of the region",
    "holds": "bounds of the region",
    "is_of": "form of the request",
    "is_also_of": "form of the request",
    "post_send_alike": "room in the queue, id of the request",
    "build_alike": "room in the queue, id of the request",
    "posted": "room in the queue, id of the request",
    "begin": "room in the queue, id of the request",
    "limit_of": "room in the queue, id of the request",
    "limit": "room in the queue, id of the request",
    "distance": "room in the queue, id of the request",
    "next_mark": "room in the queue, id of the request",
    "find_room": "room in the queue, id of the request",
    "post_on": "room in the queue, id of the request",
    "enter": "books of the queue",
    "enter_below": "books of the queue",
    "aim": "building the request",
    "only": "building the request",
    "set_next": "doorbell",
    "fill_to": "doorbell",
    "finish": "doorbell",
    "ring": "doorbell",
    "ring_sends": "doorbell",
    "hand_over_some": "doorbell",
    "ibv_post_send": "call of post_send",
    "ibv_poll_cq": "call of poll_cq",
    "look": "polling",
    "look_at": "polling",
    "poll_batch": "polling",
    "refill": "polling",
    "fill": "polling",
    "rest": "polling",
    "leave": "polling",
    "set_left": "polling",
    "is_done": "polling",
    "next_unusual": "polling",
    "find": "finding the queue",
    "row": "finding the queue",
    "is_due": "books and fence",
    "retire_due": "books and fence",
    "retire_row": "books and fence",
    "retire_one": "books and fence",
    "retire_below": "books and fence",
    "bump": "books and fence",
    "success": "making the completion",
    "completion": "making the completion",
    "poll": "making the completion",
    "new": "ticket",
    "wr_id": "ticket",
    "eq": "ticket",
    "send": "result of the post",
    "post": "result of the post",
    "post_keeping": "result of the post",
    "post_alike": "result of the post",
}
# What the instructions of libqp itself are for, by the file of rdma-capi/src that the innermost function of it is in.
LIBQP_FOR = {
    "slots.rs": "libqp: handles looked up and entered",
    "done.rs": "libqp: completion in C's form",
    "export.rs": "libqp: the border, NULL, lengths",
    "fault.rs": "libqp: the border, NULL, lengths",
    "values.rs": "libqp: the request's fields",
    "post.rs": "libqp: the request's fields",
    "cq.rs": "libqp: completion in C's form",
    "pair.rs": "libqp: which transport",
    "memory.rs": "libqp: handles looked up and entered",
}
CALLER = re.compile(r"\bloop_\w+")


def callgrind(command, scratch):
    """Instructions by place, as `parse` gives them, of one run."""
    out = scratch / "callgrind.out"
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--dump-instr=yes", f"--callgrind-out-file={out}", *command],
        capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed under callgrind:\n{done.stdout}{done.stderr}")
    return parse(out.read_text())


def parse(text):
    """Reads the callgrind format: instructions by (function, address), without those of called functions.

    Names are given once and numbered; addresses may be relative to the one before.
    """
    names = {}
    cost = collections.Counter()
    function = None
    address, inclusive = 0, False
    for row in text.splitlines():
        if match := re.match(r"c?fn=\((\d+)\)(?: (.*))?$", row):
            number, name = match.groups()
            if name:
                names[number] = name
            if row.startswith("fn="):
                function = names[number]
        elif row.startswith("calls="):
            inclusive = True
        elif match := re.match(r"([+-]?)(0x[0-9a-f]+|\d+|\*) \S+(?: (\d+))?$", row):
            sign, where, spent = match.groups()
            if where != "*":
                where = int(where, 0)
                address = address + where if sign == "+" else address - where if sign == "-" else where
            if not inclusive:
                cost[function, address] += int(spent or 0)
            inclusive = False
    return cost


def per_request(program, name, scratch):
    """Instructions per request by (function, address within the function), the provider's among them."""
    once, twice = (callgrind([*program, "run", name, str(n)], scratch) for n in (N, 2 * N))
    begins = {}
    for function, address in twice:
        begins[function] = min(address, begins.get(function, address))
    twice.subtract(once)
    # What depends on the number itself, such as reading it from the command line, is no cost of a request.
    # (A function that ran the first time only is of a thread beside.)
    return {(f, a - begins[f]): spent / N for (f, a), spent in twice.items() if f in begins and abs(spent) > N / 1000}


def part(cost, belongs):
    """The sum over the functions that `belongs` says yes to."""
    return sum(spent for (function, _), spent in cost.items() if belongs(function))


def places(binary, cost):
    """For each non-provider instruction: its address, what it costs, and the inlined functions that it is of, innermost
    first, as (name, file, line)."""
    symbols = subprocess.run(["nm", "--demangle", binary], capture_output=True, text=True, check=True).stdout
    starts = {row[19:]: int(row[:16], 16) for row in symbols.splitlines() if row[17:18] in "tT"}
    wanted = [(f, a) for f, a in sorted(cost) if f in starts and not PROVIDER.search(f)]
    told = subprocess.run(
        ["addr2line", "-a", "-i", "-f", "-C", "-e", binary, *(hex(starts[f] + a) for f, a in wanted)],
        capture_output=True, text=True, check=True,
    ).stdout
    for where, chain in zip(wanted, re.split(r"^0x[0-9a-f]+\n", told, flags=re.M)[1:]):
        rows = chain.splitlines()
        address = starts[where[0]] + where[1]
        yield address, cost[where], [(name, *place.rpartition(":")[::2]) for name, place in zip(rows[::2], rows[1::2])]


def lines(binary, cost, root):
    """The non-provider instructions by the innermost source line of ours, in the order of the source."""
    by_line = collections.Counter()
    for _, spent, chain in places(binary, cost):
        ours = [(file, line) for _, file, line in chain if file.startswith(f"{root}/")]
        by_line[ours[0] if ours else chain[0][1:]] += spent
    for (file, line), spent in sorted(by_line.items(), key=lambda item: (item[0][0], int(re.match(r"\d*", item[0][1])[0] or 0))):
        number = int(re.match(r"\d*", line)[0] or 0)
        path = pathlib.Path(file)
        text = path.read_text().splitlines()[number - 1].strip() if number and path.is_file() else ""
        yield spent, f"{path.relative_to(root) if path.is_relative_to(root) else path}:{number}", text


def listing(binary, cost):
    """What most requests run through outside the provider, instruction by instruction, each with its innermost line."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True).stdout
    code = dict(re.findall(r"^ +([0-9a-f]+):\t(.*)$", text, flags=re.M))
    for where, spent, chain in places(binary, cost):
        if spent >= 0.5:
            name, file, line = chain[0]
            yield f"{code.get(f'{where:x}', '').strip():<56} {pathlib.Path(file).name}:{line} {name}"


def for_libqp(names, chain):
    """What an instruction is for if libqp put it there, by the innermost frame that says so; None for those of others."""
    if not any("/rdma-capi/" in file for _, file, _ in chain):
        return None
    for name, (_, file, _) in zip(names, chain):
        if "/rdma-capi/" in file:
            path = pathlib.Path(file)
            return LIBQP_FOR.get(path.name) or LIBQP_FOR.get(f"{path.parent.name}.rs", "libqp: other")
        if name in FOR and "/rdma-" in file:
            return FOR[name]
    return None


def checks(binary, cost):
    """The non-provider instructions by what they are for."""
    found = collections.Counter()
    for _, spent, chain in places(binary, cost):
        names = [re.sub(r"<.*", "", name).rpartition("::")[2] for name, _, _ in chain]
        # The innermost function that says what an instruction is for; one of the library that none of these stands for
        # appears under its own name.
        if of_libqp := for_libqp(names, chain):
            found[of_libqp] += spent
            continue
        unknown = next((name for name, (_, file, _) in zip(names, chain) if "/rdma-qp/" in file and not CALLER.search(name)), "the loop")
        found[next((FOR[name] for name in names if name in FOR), unknown)] += spent
    return found


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
    parser.add_argument("--beside", action="append", default=[], help="another program of the same kind, whose loops come after")
    parser.add_argument("--root", type=pathlib.Path, help="the folder that names of files are relative to")
    parser.add_argument("--quick", action="store_true", help="only what the last line needs, and no times")
    parser.add_argument("--lines", action="append", default=[], metavar="LOOP", help="also print this loop line by line")
    parser.add_argument("--instructions", action="append", default=[], metavar="LOOP", help="also list this loop's instructions")
    options = parser.parse_args()
    loops, times = {}, {}
    for path in [options.program, *options.beside]:
        program = [path, *(["--c", options.c] if options.c else [])]
        names = subprocess.run([*program, "list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        # Each program times the first loop in C too, as what its others are compared with.
        found = timed(program, ["--passes=1", "--n=65536"] if options.quick else [])
        for name in names:
            if name not in loops and (not options.quick or name in LAST_LINE or (name in LIBQP and len(options.beside) > 0)):
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
            if allocations and name.startswith(("safe", "libqp")):
                problems.append(f"{name} allocates {allocations:g} times per request")
            if name.startswith("safe"):
                problems += locked(options.program, {f for f, _ in cost if not PROVIDER.search(f)})
    for name in options.lines:
        print(f"\n{name}, instructions per request by source line")
        for spent, where, text in lines(loops[name][0], costs[name], options.root):
            print(f"{spent:>7.2f}  {where:<40} {text}")
    for name in options.instructions:
        print(f"\n{name}, instruction by instruction", *listing(loops[name][0], costs[name]), sep="\n")
    explained = [name for name in ("unsafe", "safe", "safe-lists", "libqp", "libqp-lists") if name in loops]
    if not options.quick or "libqp" in loops:
        columns = {name: checks(loops[name][0], costs[name]) for name in explained}
        print(f"\n{'what the instructions are for':<36}" + "".join(f"{name:>12}" for name in columns))
        named = dict.fromkeys(["the loop", *LIBQP_FOR.values(), *FOR.values()])
        for what in [*named, *sorted(set().union(*columns.values()) - set(named))]:
            if any(column[what] for column in columns.values()):
                print(f"{what:<36}" + "".join(f"{column[what]:>12.2f}" for column in columns.values()))
        print()
    for problem in problems:
        print(f"PROBLEM {problem}")
    figures = [f"{sums[name]:.1f}" if name in sums else "-" for name in LAST_LINE]
    if "c-fields" in sums:
        figures[1] = f"{sums['unsafe'] / sums['c-fields']:.2f}"
    if "libqp" in sums and "c-fields" in sums:
        raw, lists = sums["libqp-raw"] / sums["c-fields"], sums["libqp-lists"] / sums["c-list"]
        print(f"libqp: raw {raw:.2f} single {sums['libqp']:.1f} lists {sums['libqp-lists']:.1f}, {lists:.2f} of c-list")
    print(f"raw {figures[1] if 'c-fields' in sums else '-'} safe {figures[2]} tight {figures[3]}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
