#!/usr/bin/env python3
"""The binary interface of libqp, from include/qp.h, against what was recorded in abi.txt.

  abi.py           fails where something that was recorded is gone or different, or something new is not recorded
  abi.py --record  records what is new; what was there stays as it was, or it fails

Recorded are the numbers of all constants, the layout of every struct, and every function with its types. A number is never
given to something else, and a struct or function never changes: there is a new one beside it. (While the major version is 0,
a line may be taken out of abi.txt by hand, with an entry in the change log.)
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
HEADER = HERE / "include/qp.h"
RECORD = HERE / "abi.txt"


def lines(header):
    """The interface, one line per fact."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    found = []
    for name, value in re.findall(r"^#define (QP_\w+) (\S+)$", text, re.M):
        if not name.startswith("QP_VERSION") and name != "QP_H":
            found.append(f"constant {name} = {value}")
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r'extern "C" \{', " ", text)
    for name, body in re.findall(r"typedef enum (\w+) \{(.*?)\}", text, re.S):
        for entry, value in re.findall(r"(\w+) = (-?\d+)", body):
            found.append(f"enum {name}: {entry} = {value}")
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.S):
        fields = [" ".join(field.split()) for field in body.split(";") if field.strip()]
        found.append(f"struct {name} {{ {'; '.join(fields)} }}")
    text = re.sub(r"typedef (?:enum|struct) \w+ \{.*?\} \w+;", " ", text, flags=re.S)
    for statement in text.split(";"):
        statement = " ".join(statement.split()).replace("( ", "(")
        if statement.startswith("typedef") or "(" in statement:
            found.append(statement.lstrip("} "))
    return found


def main():
    now = lines(HEADER.read_text())
    kept = [line for line in RECORD.read_text().splitlines() if line and not line.startswith("//")] if RECORD.exists() else []
    gone = [line for line in kept if line not in now]
    new = [line for line in now if line not in kept]
    for line in gone:
        print(f"gone or different: {line}")
    if sys.argv[1:] == ["--record"]:
        if not gone:
            top = "// The binary interface of libqp. abi.py records what is new; nothing here changes.\n"
            RECORD.write_text(top + "".join(line + "\n" for line in kept + new))
            print(f"{len(new)} recorded, {len(kept)} kept")
    else:
        for line in new:
            print(f"not recorded (abi.py --record): {line}")
        if not gone and not new:
            print(f"{len(now)} facts as recorded")
    return 1 if gone or (new and sys.argv[1:] != ["--record"]) else 0


if __name__ == "__main__":
    sys.exit(main())
