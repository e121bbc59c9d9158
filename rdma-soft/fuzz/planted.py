#!/usr/bin/env python3
"""Puts three panics into a copy of the tree, each where one fuzzer must find it.

  planted.py TREE     prints a line for each: the target, and what the panic says

Each is a mistake as programmers make it, behind conditions that have to come together: no committed input meets it, and
random bytes would not. What leads there is that inputs that meet one condition more are kept.
"""

import pathlib
import sys

# Target, words, file, the line in front of which it stands (whose first words are enough), and the code.
PLANTED = (
    (
        # A length taken as a signed number; only for a WRITE with immediate data that asks for an event, from others than
        # our own nodes, and with its checksum right.
        "packets",
        "planted: a length with a sign",
        "rdma-soft/src/link/ingress.rs",
        "    Ok((packet, &transport[header..header + len]))",
        """    if let (IpIds::Any, Some(reth), Some(_)) = (ids, packet.reth, packet.imm) {{
        if packet.bth.solicited {{ i32::try_from(reth.len).expect("{words}"); }}
    }}
""",
    ),
    (
        # A case that nobody thought of: a READ of more than one packet that was answered, comes again, and asks for an event.
        "ingress",
        "planted: a long READ again, with an event",
        "rdma-soft/src/core/responder.rs",
        "        // Answers that wait already are not doubled; this also bounds the queue.",
        """        if let (Operation::ReadRequest, Some(reth)) = (info.op, packet.reth) {{
            for _ in self.rq.fetched.iter().filter(|f| f.psn == psn && f.packets > 1) {{
                if reth.len > self.mtu && packet.bth.solicited {{ panic!("{words}"); }}
            }}
        }}
""",
    ),
    (
        # A table that is one entry short: three moves in order, and in the state that they lead to a call with one attribute
        # that it need not have, which is a code of 5 bits.
        "modify",
        "planted: no RNR timer 31",
        "rdma-soft/src/core/modify.rs",
        "        self.commit(shared, attr, mask, path, to);",
        """        if from == S::IBV_QPS_RTS && to == from && mask.contains(M::IBV_QP_MIN_RNR_TIMER) {{
            [0; 31].get(usize::from(attr.min_rnr_timer)).expect("{words}");
        }}
""",
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
