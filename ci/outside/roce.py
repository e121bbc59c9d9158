"""RoCEv2 frames and their invariant CRC, read independently of the project's own code.

Only the standard library. The ICRC follows the RoCEv2 annex's rule: CRC-32 over eight
0xff bytes (the place of the link header), the IP header with its mutable fields set to ones, the UDP
header with its checksum set to ones, the BTH with byte 4 set to ones, then everything up to the ICRC
itself, which is sent least significant byte first.
"""

import pathlib
import struct
import zlib

ROCE_PORT = 4791
ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCEV1 = 0x0800, 0x86DD, 0x8915
LINK_NULL, LINK_ETHERNET, LINK_RAW, LINK_SLL, LINK_SLL2 = 0, 1, 101, 113, 276


class BadFrame(Exception):
    """A frame that does not hold together, with what is wrong."""


class Frame:
    """One RoCE frame: `kind` is v4, v6 or v1; `ip` the network header, `udp` the UDP header (empty for v1),
    `transport` BTH to padding, `icrc` the four bytes on the wire."""

    def __init__(self, kind, ip, udp, transport, icrc):
        self.kind, self.ip, self.udp, self.transport, self.icrc = kind, ip, udp, transport, icrc

    @property
    def source(self):
        """The source address, as bytes."""
        return self.ip[12:16] if self.kind == "v4" else self.ip[8:24]

    @property
    def opcode(self):
        """The BTH opcode."""
        return self.transport[0]

    @property
    def dest_qp(self):
        """The destination QP number."""
        return int.from_bytes(self.transport[5:8], "big")

    @property
    def psn(self):
        """The packet sequence number."""
        return int.from_bytes(self.transport[9:12], "big")

    def invariant(self):
        """The bytes that the ICRC covers, with those that routers may change set to ones."""
        head = bytearray(self.ip)
        if self.kind == "v4":
            head[1] = 0xFF  # type of service
            head[8] = 0xFF  # time to live
            head[10:12] = b"\xff\xff"  # header checksum
        else:
            head[0] |= 0x0F  # traffic class, upper half
            head[1:4] = b"\xff\xff\xff"  # traffic class, lower half, and flow label
            head[7] = 0xFF  # hop limit
        udp = bytearray(self.udp)
        if udp:
            udp[6:8] = b"\xff\xff"  # checksum
        transport = bytearray(self.transport)
        transport[4] = 0xFF  # FECN, BECN and reserved bits
        return bytes(head + udp + transport)

    def expected_icrc(self):
        """The ICRC that this frame must carry, as it must stand on the wire."""
        return struct.pack("<I", zlib.crc32(self.invariant(), zlib.crc32(b"\xff" * 8)))


def parse_ip(packet):
    """The RoCEv2 frame in an IP packet, or None where the packet is something else."""
    version = packet[0] >> 4 if packet else 0
    if version == 4:
        if len(packet) < 20:
            raise BadFrame("truncated IPv4 header")
        header = (packet[0] & 15) * 4
        total = int.from_bytes(packet[2:4], "big")
        if packet[9] != 17:
            return None
        if int.from_bytes(packet[6:8], "big") & 0x3FFF:
            raise BadFrame("an IPv4 fragment of UDP")
        kind = "v4"
    elif version == 6:
        if len(packet) < 40:
            raise BadFrame("truncated IPv6 header")
        header, total = 40, 40 + int.from_bytes(packet[4:6], "big")
        if packet[6] != 17:
            return None
        kind = "v6"
    else:
        return None
    if len(packet) < total or total < header + 8:
        raise BadFrame(f"IP length {total} but {len(packet)} bytes captured")
    udp = packet[header : header + 8]
    if int.from_bytes(udp[2:4], "big") != ROCE_PORT:
        return None
    if int.from_bytes(udp[4:6], "big") != total - header:
        raise BadFrame("UDP length differs from IP length")
    payload = packet[header + 8 : total]
    if len(payload) < 16:
        raise BadFrame(f"UDP payload of {len(payload)} bytes: too short for BTH and ICRC")
    return Frame(kind, packet[:header], udp, payload[:-4], payload[-4:])


def parse_ethernet(frame):
    """The RoCE frame in an Ethernet II frame without FCS, or None."""
    ethertype = int.from_bytes(frame[12:14], "big")
    if ethertype in (ETHERTYPE_IPV4, ETHERTYPE_IPV6):
        return parse_ip(frame[14:])
    if ethertype == ETHERTYPE_ROCEV1:
        grh = frame[14:54]
        end = 54 + int.from_bytes(grh[4:6], "big")
        if len(frame) < end or end < 54 + 16:
            raise BadFrame("GRH length does not fit the frame")
        return Frame("v1", grh, b"", frame[54 : end - 4], frame[end - 4 : end])
    return None


def parse_link(linktype, record):
    """The RoCE frame in a captured record of the given pcap link type, or None."""
    if linktype == LINK_ETHERNET:
        return parse_ethernet(record)
    skip = {LINK_RAW: 0, LINK_NULL: 4, LINK_SLL: 16, LINK_SLL2: 20}.get(linktype)
    if skip is None:
        raise BadFrame(f"pcap link type {linktype} is not known here")
    return parse_ip(record[skip:])


def read_pcap(path):
    """Yields (link type, record) of a classic pcap file or of a pcapng file; a truncated one raises BadFrame."""
    with open(path, "rb") as file:
        head = file.read(4)
    if head == PCAPNG_SECTION:
        return ((linktype, record) for linktype, _, record in read_pcapng(path))
    return read_classic(path)


PCAPNG_SECTION = b"\n\r\r\n"
INBOUND, OUTBOUND = 1, 2


def read_pcapng(path):
    """Yields (link type, direction, record) of a little-endian pcapng file; the direction is 0 where none is given."""
    data = pathlib.Path(path).read_bytes()
    interfaces, at = [], 0
    while at < len(data):
        if len(data) < at + 12:
            raise BadFrame(f"{path}: a truncated block at {at}")
        kind, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        body = data[at + 8 : at + length - 4]
        if length % 4 or length < 12 or data[at + length - 4 : at + length] != data[at + 4 : at + 8]:
            raise BadFrame(f"{path}: a block at {at} whose two lengths differ, or which is truncated")
        at += length
        if kind == PCAPNG_SECTION:
            if body[:4] != b"\x4d\x3c\x2b\x1a":
                raise BadFrame(f"{path}: not written by a little-endian machine")
            interfaces = []
        elif kind == b"\1\0\0\0":
            interfaces.append(int.from_bytes(body[:2], "little"))
        elif kind == b"\6\0\0\0":
            interface, _, _, captured, on_wire = struct.unpack("<5I", body[:20])
            record, options = body[20 : 20 + captured], body[20 + (captured + 3) // 4 * 4 :]
            if len(record) < captured or captured != on_wire:
                raise BadFrame(f"{path}: a record of {on_wire} bytes holds only {len(record)}")
            yield interfaces[interface], packet_flags(options) & 3, record


def packet_flags(options):
    """The flags among the options of a packet's block, 0 where there are none."""
    while len(options) >= 8:
        code, length = struct.unpack("<HH", options[:4])
        if code == 2:
            return int.from_bytes(options[4:8], "little")
        options = options[4 + (length + 3) // 4 * 4 :]
    return 0


def read_classic(path):
    """Yields (link type, record) of a classic pcap file; a truncated record or file raises BadFrame."""
    with open(path, "rb") as file:
        head = file.read(24)
        if len(head) < 24:
            raise BadFrame(f"{path}: too short for a pcap header")
        magics = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}
        order = magics.get(head[:4])
        if order is None:
            raise BadFrame(f"{path}: neither a classic pcap file nor a pcapng file")
        linktype = struct.unpack(order + "I", head[20:24])[0] & 0x0FFFFFFF
        while True:
            record = file.read(16)
            if not record:
                return
            if len(record) < 16:
                raise BadFrame(f"{path}: truncated record header")
            _, _, captured, on_wire = struct.unpack(order + "IIII", record)
            data = file.read(captured)
            if len(data) < captured or captured != on_wire:
                raise BadFrame(f"{path}: a record of {on_wire} bytes holds only {len(data)}")
            yield linktype, data


def internet_checksum(data):
    """The ones' complement sum of RFC 1071 over `data`."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
