"""UCX: the device is listed, and every kind of operation runs over its two transports for plain verbs."""

from harness import Skip, expect
from table import SECONDS, found, harness, on_device, pair, preloaded

# `rc` brings ud_verbs along, over which its connections are set up.
TRANSPORTS = {"rc_verbs": "rc", "ud_verbs": "ud_verbs"}
OPERATIONS = (
    ("tag_lat", 8, 200),
    ("tag_bw", 1 << 16, 100),
    ("tag_bw", 1 << 20, 20),
    ("ucp_put_lat", 8, 200),
    ("ucp_put_bw", 1 << 16, 100),
    ("ucp_get", 1 << 16, 100),
    ("ucp_add", 8, 200),
    ("ucp_fadd", 8, 200),
    ("ucp_swap", 8, 200),
    ("ucp_cswap", 8, 200),
    ("ucp_am_bw", 1 << 16, 100),
    ("stream_bw", 1 << 16, 100),
)


def rows(table):
    """All lines of the table."""
    table.row("ucx_info", "-d", info, table.where)
    for name, transport in TRANSPORTS.items():
        for test, size, count in OPERATIONS:
            table.row("ucx_perftest", f"{name} {test} {size}", perftest, table.where, transport, test, size, count)
    table.row("ucx_perftest", "ud_verbs tag_lat 8, LD_PRELOAD only", perftest, table.where, "ud_verbs", "tag_lat", 8, 200, preloaded)
    table.row("rping, fi_pingpong", "", connection_manager)


def environment(transport):
    """UCX uses this device and this transport alone, and ends when something fails."""
    return {"UCX_TLS": f"{transport},self", "UCX_NET_DEVICES": "soft0:1", "UCX_HANDLE_ERRORS": "none", "UCX_WARN_UNUSED_ENV_VARS": "n"}


def info(where):
    """Both transports are there on the device's port."""
    ended = harness.run(on_device(["ucx_info", "-d"]), where, "ucx_info", SECONDS)
    expect(ended.status == 0, ended.describe())
    for name in TRANSPORTS:
        found(rf"Transport: {name}\n#\s+Device: soft0:1", ended.out, f"{name} on soft0:1")
    return "rc_verbs and ud_verbs on soft0:1"


def perftest(where, transport, test, size, count, launch=on_device):
    """Both ends end well, and the client says how fast it was."""
    options = ["-t", test, "-s", str(size), "-n", str(count), "-w", "10", "-f"]
    _, client = pair(where, "ucx_perftest", [], client=["127.0.0.1", *options], env=environment(transport), launch=launch)
    # Iterations; half the messages took; average (since a line before, so that it may be infinite) and overall time in us; bandwidth
    # twice; rate twice.
    figures = client.out.split("\n")[-2].split() if client.out.strip() else []
    figures = [word for word in figures if word == "inf" or word.replace(".", "", 1).isdigit()]
    expect(len(figures) >= 8 and int(figures[0]) == count, f"no figures of {count} operations: {client.describe()}")
    return f"{figures[3]} us on average, {figures[5]} MB/s"


def connection_manager():
    """What needs librdmacm."""
    raise Skip("not yet: these connect through librdmacm, as perftest -R does")
