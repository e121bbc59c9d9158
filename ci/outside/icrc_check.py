#!/usr/bin/env python3
"""Recomputes the ICRC of every RoCE frame in pcap and pcapng files, independently of the project's own code.

  icrc_check.py CAPTURE.pcap ...        check captures; prints a JSON line of counts for each
  icrc_check.py --vectors FILE.tsv      check this script itself against known frames
  icrc_check.py --scapy CAPTURE.pcap    recompute with scapy (2.6 or newer) as well

Exits with 1 at the first frame whose ICRC is wrong, and where a capture holds no RoCE frame at all.
"""

import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import roce  # noqa: E402


def check_frame(frame, where):
    """Raises BadFrame where the ICRC on the wire is not the one that the frame's bytes give."""
    expected = frame.expected_icrc()
    if expected != frame.icrc:
        raise roce.BadFrame(
            f"{where}: opcode {frame.opcode:#04x} QP {frame.dest_qp:#08x} PSN {frame.psn}: "
            f"ICRC on the wire {frame.icrc.hex()}, recomputed {expected.hex()}"
        )


def check_vectors(path):
    """Checks every row of a vectors file and that one flipped bit is noticed; returns the count."""
    count = 0
    columns = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        if columns is None:
            columns = line.split("\t")
            continue
        row = dict(zip(columns, line.split("\t")))
        frame = roce.parse_ethernet(bytes.fromhex(row["frame_hex"]))
        if frame is None or frame.kind != row["kind"] or frame.icrc.hex() != row["icrc_wire"]:
            raise roce.BadFrame(f"{path}:{number}: {row['name']} does not parse as a {row['kind']} frame")
        check_frame(frame, f"{path}:{number}: {row['name']}")
        flipped = bytearray(frame.transport)
        flipped[-1] ^= 1
        frame.transport = bytes(flipped)
        if frame.expected_icrc() == frame.icrc:
            raise roce.BadFrame(f"{path}:{number}: {row['name']}: a flipped bit went unnoticed")
        count += 1
    if count == 0:
        raise roce.BadFrame(f"{path}: no vectors")
    return count


def scapy_checker():
    """A function that recomputes one frame's ICRC with scapy; raises ImportError where scapy is too old."""
    import scapy
    from scapy.config import conf

    conf.verb = 0
    version = tuple(int(part) for part in scapy.VERSION.split(".")[:2])
    if version < (2, 6):
        raise ImportError(f"scapy {scapy.VERSION} is older than 2.6")
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6

    def check(frame, where):
        raw = frame.ip + frame.udp + frame.transport + frame.icrc
        packet = (IP if frame.kind == "v4" else IPv6)(raw)
        bth = packet[BTH]
        computed = bth.compute_icrc(bytes(bth)[:-4] + b"\0\0\0\0")
        if computed != frame.icrc:
            raise roce.BadFrame(f"{where}: ICRC on the wire {frame.icrc.hex()}, by scapy {computed.hex()}")

    return check


def check_capture(path, scapy_limit):
    """Checks every frame of one capture; returns counts."""
    counts = {"file": path.name, "records": 0, "roce": 0, "other": 0, "by_source": {}, "scapy": 0}
    by_scapy = scapy_checker() if scapy_limit else None
    for number, (linktype, record) in enumerate(roce.read_pcap(path), 1):
        counts["records"] += 1
        where = f"{path.name} frame {number}"
        try:
            frame = roce.parse_link(linktype, record)
        except roce.BadFrame as error:
            raise roce.BadFrame(f"{where}: {error}") from error
        if frame is None:
            counts["other"] += 1
            continue
        check_frame(frame, where)
        if by_scapy and counts["scapy"] < scapy_limit:
            by_scapy(frame, where)
            counts["scapy"] += 1
        counts["roce"] += 1
        source = frame.source.hex()
        counts["by_source"][source] = counts["by_source"].get(source, 0) + 1
    if counts["roce"] == 0:
        raise roce.BadFrame(f"{path.name}: no RoCE frame at all")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", nargs="*", type=pathlib.Path)
    parser.add_argument("--vectors", type=pathlib.Path, help="check this script against known frames")
    parser.add_argument("--scapy", action="store_true", help="recompute with scapy as well")
    parser.add_argument("--scapy-limit", type=int, default=2000, help="frames per capture given to scapy (default 2000)")
    args = parser.parse_args()
    if not args.captures and not args.vectors:
        parser.error("nothing to check")
    try:
        if args.vectors:
            print(f"{check_vectors(args.vectors)} vectors agree")
        for path in args.captures:
            print(json.dumps(check_capture(path, args.scapy_limit if args.scapy else 0)))
    except (roce.BadFrame, ImportError, OSError) as error:
        print(f"icrc_check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
