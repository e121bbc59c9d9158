//! What is measured: how each measure is called and drawn, what is compared with what, and what is wanted.

/// What the numbers on the axis of a measure are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Bytes of a message.
    Bytes,
    /// How many there are of what this says.
    Count(&'static str),
    /// Nothing: there is one place.
    None,
}

/// A measure.
#[derive(Debug)]
pub struct Measure {
    /// Its name, in results and of its plot.
    pub name: &'static str,
    /// The part that measures it.
    pub part: &'static str,
    /// What stands above its table and its plot.
    pub title: &'static str,
    /// What its values are counted in; empty where the ways say it.
    pub unit: &'static str,
    /// Its axis.
    pub axis: Axis,
    /// Which ways are compared with which.
    pub ratios: &'static [(&'static str, &'static str)],
}

const FABRIC: &str = "libfabric udp;ofi_rxd";
const FABRIC_ONE: &str = "libfabric udp;ofi_rxd, one at a time";
const GSO: &str = "plain UDP, GSO and GRO";
const LISTS: &[(&str, &str)] = &[
    ("WRITE, batch 32", "WRITE, batch 1"),
    ("SEND, batch 32", "SEND, batch 1"),
];

/// All measures, in the order of the page.
pub const ALL: &[Measure] = &[
    Measure {
        name: "inside hot",
        part: "inside",
        title: "In one process, the same memory again and again",
        unit: "GB/s",
        axis: Axis::Bytes,
        ratios: &[("WRITE", "memcpy"), ("SEND", "memcpy")],
    },
    Measure {
        name: "inside walking",
        part: "inside",
        title: "In one process, walking over 64 MiB",
        unit: "GB/s",
        axis: Axis::Bytes,
        ratios: &[("WRITE", "memcpy"), ("SEND", "memcpy")],
    },
    Measure {
        name: "inside rate",
        part: "inside",
        title: "In one process, messages per second",
        unit: "M/s",
        axis: Axis::Bytes,
        ratios: LISTS,
    },
    Measure {
        name: "udp latency",
        part: "udp",
        title: "Two processes over UDP, one way",
        unit: "us",
        axis: Axis::Bytes,
        ratios: &[("SEND", "plain UDP"), ("SEND", FABRIC)],
    },
    Measure {
        name: "udp bandwidth",
        part: "udp",
        title: "Two processes over UDP, bandwidth",
        unit: "GB/s",
        axis: Axis::Bytes,
        ratios: &[
            ("WRITE", GSO),
            ("SEND", GSO),
            ("WRITE", "plain UDP"),
            ("SEND", "plain UDP"),
            ("SEND", FABRIC_ONE),
        ],
    },
    Measure {
        name: "udp rate",
        part: "udp",
        title: "Two processes over UDP, messages of 64 bytes per second",
        unit: "M/s",
        axis: Axis::Bytes,
        ratios: LISTS,
    },
    Measure {
        name: "shm latency",
        part: "shm",
        title: "Two processes through shared memory, one way",
        unit: "us",
        axis: Axis::Bytes,
        ratios: &[("SEND", "UCX, tag"), ("SEND", "Open MPI")],
    },
    Measure {
        name: "shm bandwidth",
        part: "shm",
        title: "Two processes through shared memory, bandwidth",
        unit: "GB/s",
        axis: Axis::Bytes,
        ratios: &[("SEND", "UCX, tag"), ("SEND", "Open MPI")],
    },
    Measure {
        name: "shm rate",
        part: "shm",
        title: "Two processes through shared memory, messages of 64 bytes per second",
        unit: "M/s",
        axis: Axis::Bytes,
        ratios: LISTS,
    },
    Measure {
        name: "connections",
        part: "many",
        title: "Connections, thousands per second",
        unit: "k/s",
        axis: Axis::None,
        ratios: &[("QPs to RTS", "TCP sockets connected")],
    },
    Measure {
        name: "many",
        part: "many",
        title: "10,000 Queue Pairs of one process",
        unit: "",
        axis: Axis::None,
        ratios: &[],
    },
    Measure {
        name: "growth in QPs",
        part: "many",
        title: "Messages of 64 bytes per second, by the Queue Pairs that send in turn",
        unit: "M/s",
        axis: Axis::Count("Queue Pairs"),
        ratios: &[],
    },
    Measure {
        name: "growth in size",
        part: "growth",
        title: "Time of a WRITE in one process, by its size",
        unit: "us",
        axis: Axis::Bytes,
        ratios: &[("WRITE", "memcpy")],
    },
    Measure {
        name: "growth in SGEs",
        part: "growth",
        title: "Time of a WRITE of 4 KiB in one process, by its scatter/gather entries",
        unit: "ns",
        axis: Axis::Count("entries"),
        ratios: &[],
    },
    Measure {
        name: "growth in nodes",
        part: "growth",
        title: "Messages of 64 bytes per second between all nodes of one process, driven by one thread",
        unit: "M/s",
        axis: Axis::Count("nodes"),
        ratios: &[],
    },
];

/// Something that is wanted: the ratio of a way to another.
#[derive(Debug)]
pub struct Goal {
    /// What it is about.
    pub text: &'static str,
    /// The measure.
    pub measure: &'static str,
    /// The way, and what it is compared with.
    pub ways: (&'static str, &'static str),
    /// The places where it must hold; none stands for all of them.
    pub places: &'static [u64],
    /// The ratio is to be at least so much; else at most.
    pub at_least: bool,
    /// How much.
    pub bound: f64,
}

const fn goal(
    text: &'static str,
    measure: &'static str,
    ways: (&'static str, &'static str),
    places: &'static [u64],
    at_least: bool,
    bound: f64,
) -> Goal {
    Goal {
        text,
        measure,
        ways,
        places,
        at_least,
        bound,
    }
}

const MIB: &[u64] = &[1 << 20];

/// What is wanted.
#[rustfmt::skip]
pub const GOALS: &[Goal] = &[
    goal("1 MiB in one process, hot: WRITE to memcpy", "inside hot", ("WRITE", "memcpy"), MIB, true, 0.8),
    goal("1 MiB in one process, hot: SEND to memcpy", "inside hot", ("SEND", "memcpy"), MIB, true, 0.8),
    goal("1 MiB in one process, walking: WRITE to memcpy", "inside walking", ("WRITE", "memcpy"), MIB, true, 0.8),
    goal("1 MiB in one process, walking: SEND to memcpy", "inside walking", ("SEND", "memcpy"), MIB, true, 0.8),
    goal("UDP latency to plain UDP, both busy", "udp latency", ("SEND", "plain UDP"), &[], false, 1.3),
    goal("UDP bandwidth, WRITEs of 1 MiB, to a stream with GSO and GRO", "udp bandwidth", ("WRITE", GSO), MIB, true, 0.5),
    goal("UDP bandwidth, SENDs of 1 MiB, to a stream with GSO and GRO", "udp bandwidth", ("SEND", GSO), MIB, true, 0.5),
    goal("UDP bandwidth, WRITEs of 1 MiB, to one datagram per call", "udp bandwidth", ("WRITE", "plain UDP"), MIB, true, 3.0),
    goal("UDP bandwidth, SENDs of 1 MiB, to one datagram per call", "udp bandwidth", ("SEND", "plain UDP"), MIB, true, 3.0),
    goal("UDP latency to udp;ofi_rxd, every size", "udp latency", ("SEND", FABRIC), &[], false, 1.0),
    goal("UDP bandwidth to udp;ofi_rxd, every size", "udp bandwidth", ("SEND", FABRIC_ONE), &[], true, 1.0),
    goal("lists of 32 to single WRITEs, in one process", "inside rate", LISTS[0], &[], true, 1.2),
    goal("lists of 32 to single SENDs, in one process", "inside rate", LISTS[1], &[], true, 1.2),
    goal("lists of 32 to single WRITEs, over UDP", "udp rate", LISTS[0], &[], true, 1.2),
    goal("lists of 32 to single SENDs, over UDP", "udp rate", LISTS[1], &[], true, 1.2),
    goal("lists of 32 to single WRITEs, shared memory", "shm rate", LISTS[0], &[], true, 1.2),
    goal("lists of 32 to single SENDs, shared memory", "shm rate", LISTS[1], &[], true, 1.2),
];
