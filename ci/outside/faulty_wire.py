#!/usr/bin/env python3
"""A transparent wire between two network interfaces that loses, duplicates, reorders and corrupts RoCE frames.

  faulty_wire.py LEFT RIGHT --seed N --loss P --duplicate P --reorder P --corrupt P --report FILE

Everything arriving at LEFT leaves at RIGHT and the other way round; only UDP to port 4791 suffers. Each frame
meets at most one fault. A corrupted frame has one bit of its UDP payload flipped (never in BTH byte 4, which
the ICRC leaves out) and its UDP checksum made right again, so that only the ICRC can notice. Prints `ready`
once both ends are open; at SIGTERM flushes what it holds, writes the counts of each direction and the seed
as JSON to FILE and ends. For each direction: offered - dropped + duplicated = sent.
"""

import argparse
import collections
import json
import pathlib
import random
import select
import signal
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import roce  # noqa: E402

ETH_P_ALL = 0x0003
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_STATISTICS = 263, 6
SO_RCVBUFFORCE = 33
HOLD_SECONDS = 0.002
HOLD_FRAMES = 8


def transport_bounds(frame):
    """Where the UDP header and its payload begin in an Ethernet frame to port 4791, or None."""
    ethertype = int.from_bytes(frame[12:14], "big")
    if ethertype == roce.ETHERTYPE_IPV4 and len(frame) >= 42 and frame[23] == 17:
        udp = 14 + (frame[14] & 15) * 4
    elif ethertype == roce.ETHERTYPE_IPV6 and len(frame) >= 62 and frame[20] == 17:
        udp = 54
    else:
        return None
    if int.from_bytes(frame[udp + 2 : udp + 4], "big") != roce.ROCE_PORT:
        return None
    return udp, udp + 8


def corrupted(frame, rng):
    """A copy of an Ethernet frame with one payload bit flipped and the UDP checksum made right."""
    udp, start = transport_bounds(frame)
    end = udp + int.from_bytes(frame[udp + 4 : udp + 6], "big")
    while True:
        at = rng.randrange(start, end)
        if at != start + 4:
            break
    frame = bytearray(frame)
    frame[at] ^= 1 << rng.randrange(8)
    frame[udp + 6 : udp + 8] = b"\0\0"
    addresses = frame[26:34] if udp < 54 else frame[22:54]
    length = end - udp
    pseudo = bytes(addresses) + struct.pack(">IHH", length, 0, 17)
    checksum = roce.internet_checksum(pseudo + bytes(frame[udp:end])) or 0xFFFF
    frame[udp + 6 : udp + 8] = struct.pack(">H", checksum)
    return bytes(frame)


class Direction:
    """One way through the wire: counts, and frames held back to be overtaken."""

    def __init__(self, name, source, sink, rates, rng):
        self.name, self.source, self.sink, self.rates, self.rng = name, source, sink, rates, rng
        self.counts = collections.Counter(
            offered=0, dropped=0, duplicated=0, reordered=0, corrupted=0, sent=0, other=0, other_bytes=0
        )
        self.held = collections.deque()  # (due, frames still to let pass, frame)

    def offer(self, frame):
        """Takes one frame from the source and decides its fate."""
        if transport_bounds(frame) is None:
            self.counts["other"] += 1
            self.counts["other_bytes"] += len(frame)
            self.put(frame)
            return
        self.counts["offered"] += 1
        roll = self.rng.random()
        fate = None
        for name, rate in self.rates:
            if roll < rate:
                fate = name
                break
            roll -= rate
        if fate:
            self.counts[fate] += 1
        if fate == "reordered":
            self.held.append([time.monotonic() + HOLD_SECONDS, self.rng.randint(1, HOLD_FRAMES), frame])
            return
        if fate != "dropped":
            self.send(corrupted(frame, self.rng) if fate == "corrupted" else frame)
        if fate == "duplicated":
            self.send(frame)
        for entry in self.held:
            entry[1] -= 1
        self.release()

    def release(self, everything=False):
        """Sends held frames that have waited long enough."""
        now = time.monotonic()
        waiting = collections.deque()
        for entry in self.held:
            if everything or entry[0] <= now or entry[1] <= 0:
                self.send(entry[2])
            else:
                waiting.append(entry)
        self.held = waiting

    def send(self, frame):
        self.counts["sent"] += 1
        self.put(frame)

    def put(self, frame):
        """Writes to the far side, waiting where its queue is full: the wire itself loses nothing untold."""
        while True:
            try:
                self.sink.send(frame)
                return
            except BlockingIOError:
                select.select([], [self.sink], [], 0.1)
            except OSError as error:
                if error.errno != 105:  # ENOBUFS: the queue is full, try again
                    raise
                time.sleep(0.0005)

    def pump(self):
        """Moves what has arrived, a bounded number of frames at a time."""
        for _ in range(64):
            try:
                frame, address = self.source.recvfrom(1 << 17)
            except BlockingIOError:
                return
            if address[2] != PACKET_OUTGOING:
                self.offer(frame)


def open_interface(name):
    """A raw socket on one interface, with a large receive buffer."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    link.setblocking(False)
    link.bind((name, ETH_P_ALL))
    return link


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("left")
    parser.add_argument("right")
    parser.add_argument("--report", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    faults = {"loss": "dropped", "duplicate": "duplicated", "reorder": "reordered", "corrupt": "corrupted"}
    for option in faults:
        parser.add_argument(f"--{option}", type=float, default=0.0, help="probability, 0 to 1")
    args = parser.parse_args()
    rates = [(count, getattr(args, option)) for option, count in faults.items()]

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    signal.signal(signal.SIGINT, lambda *_: stop.append(True))
    left, right = open_interface(args.left), open_interface(args.right)
    directions = {
        left: Direction("left_to_right", left, right, rates, random.Random(args.seed)),
        right: Direction("right_to_left", right, left, rates, random.Random(args.seed + 1)),
    }
    print("ready", flush=True)
    parent_gone = time.monotonic() + 3600  # never outlives a script that died
    while not stop and time.monotonic() < parent_gone:
        held = any(direction.held for direction in directions.values())
        readable, _, _ = select.select(list(directions), [], [], 0.0005 if held else 0.05)
        for link in readable:
            directions[link].pump()
        for direction in directions.values():
            if direction.held:
                direction.release()
    report = {"seed": args.seed, "rates": dict(rates)}
    for link, direction in directions.items():
        direction.pump()
        direction.release(everything=True)
        _, missed = struct.unpack("II", link.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        report[direction.name] = dict(direction.counts, missed=missed)
    args.report.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
