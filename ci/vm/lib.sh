# What the guest's scripts share. PATH has the programs of this project first.
PATH=/extra/bin:$PATH
passed=0 failed=0 skipped=0 expected=0

# check NAME COMMAND..: runs it, says how it came out and, where it failed, what it said.
check() {
    _name=$1
    shift
    if "$@" > /tmp/check.log 2>&1; then
        passed=$((passed + 1))
        echo "ok      $_name"
    else
        echo "FAILED  $_name (status $?)"
        failed=$((failed + 1))
        tail -n 30 /tmp/check.log
    fi
}

# finish: the tally of all checks; the script's status.
finish() {
    echo "tally: $passed passed, $failed failed, $skipped skipped, $expected expected differences"
    [ $failed = 0 ]
    exit
}

# The software device of the namespace "peer", for programs that run there. The kernel's device sends IPv4
# identifications of its own.
soft() {
    ip netns exec peer env RDMA_SOFT_ADDR=10.77.1.2,fd77:1::2 RDMA_SOFT_IP_IDS=any "$@"
}

# The wire loses, doubles and delays packets from now on, both ways: 1 in 100 each. Both ends know each other before: the kernel
# asks for a neighbour a second time after a second, when its device has given up (rdma_addr_find_l2_eth_by_grh in
# drivers/infiniband/core/addr.c).
faulty_wire() {
    modprobe sch_netem
    _left=$(cat /sys/class/net/ve0/address) _right=$(ip -n peer -o link show ve1 | sed 's/.*link.ether \([0-9a-f:]*\).*/\1/')
    for _net in 10.77.1. fd77:1::; do
        ip neigh replace "${_net}2" lladdr "$_right" dev ve0 nud permanent || return
        ip -n peer neigh replace "${_net}1" lladdr "$_left" dev ve1 nud permanent || return
    done
    for _end in "ve0" "-n peer ve1"; do
        # shellcheck disable=SC2086 # options and a name
        set -- $_end
        _device=$1 _in=
        [ "$1" != -n ] || _device=$3 _in="-n $2"
        tc $_in qdisc replace dev "$_device" root netem limit 20000 loss 1% duplicate 1% delay 1ms reorder 99%
    done
    tc qdisc show dev ve0
    tc -n peer qdisc show dev ve1
}

# How many packets the faulty wire has dropped and what it has sent.
wire_said() {
    tc -s qdisc show dev ve0 | sed -n 's/^ *Sent/ve0: sent/p'
    tc -n peer -s qdisc show dev ve1 | sed -n 's/^ *Sent/ve1: sent/p'
}
