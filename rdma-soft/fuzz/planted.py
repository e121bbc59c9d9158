#!/usr/bin/env python3
"""Puts three panics into a copy of the tree, each where one fuzzer must find it.

  planted.py TREE     prints a line for each: the target, and what the panic says
"""

import pathlib
import sys

# Target, words, file, the line in front of which it stands (whose first words are enough), and the code.
PLANTED = (
    (
        # One input of two bytes and a number that all have to be right, behind the checksum.
        "packets",
        "planted: a result of an atomic",
        "rdma-soft/src/link/ingress.rs",
        "    Ok((packet, &transport[header..header + len]))",
        "    if ids == IpIds::Any && packet.bth.solicited && packet.atomic_ack.is_some_and(|v| v >> 56 == 0x5a) {{ panic!(\"{words}\"); }}\n",
    ),
    (
        # Three packets in order: a READ, the first one of a SEND for which there is a receive, and the READ again.
        "ingress",
        "planted: a READ again, within a SEND",
        "rdma-soft/src/core/responder.rs",
        "        // Answers that wait already are not doubled; this also bounds the queue.",
        "        if self.rq.message.is_some() && matches!(info.op, Operation::ReadRequest) && !self.rq.fetched.is_empty() {{ panic!(\"{words}\"); }}\n",
    ),
    (
        # Five moves in order, the last one with one attribute beyond what it needs, and its value.
        "modify",
        "planted: a timeout in SQD",
        "rdma-soft/src/core/modify.rs",
        "        self.commit(shared, attr, mask, path, to);",
        "        if from == S::IBV_QPS_SQD && to == from && mask.contains(M::IBV_QP_TIMEOUT) && attr.timeout == 19 {{ panic!(\"{words}\"); }}\n",
    ),
)


def main():
    tree = pathlib.Path(sys.argv[1])
    for target, words, name, before, code in PLANTED:
        path = tree / name
        text = path.read_text()
        if text.count(before) != 1:
            sys.exit(f"{name}: not one line {before.strip()!r}: tell planted.py where to plant")
        path.write_text(text.replace(before, code.format(words=words) + before))
        print(target, words)


if __name__ == "__main__":
    main()
