#!/bin/sh
# Two containers on one machine, as far as Shortwire sees them: network, mount and pid namespaces of their own, each with
# its own /dev/shm, joined by a cable and by a directory that both see. Run as root:
#
#     sh examples/containers/namespaces.sh
#
# iperf3 runs between them. `shortwire ss`, outside of both, shows its connections in mode SMCD.
set -eu
shortwire=${SHORTWIRE:-$(dirname "$0")/../../target/release/shortwire}
meet=$(mktemp -d)
ends=

container() {
    unshare --net --pid --mount --fork --kill-child sh -c '
        mount -t tmpfs none /dev/shm; mount -t proc proc /proc; ip link set lo up; exec sleep 600' &
    holder=$!
    ends="$ends $holder"
    # The first process inside of it, whose namespaces nsenter joins.
    until init=$(cat "/proc/$holder/task/$holder/children") && [ -n "$init" ] &&
        [ "$(cat "/proc/${init% }/comm")" = sleep ]; do sleep 0.05; done
    init=${init% }
}

clean() {
    # unshare minds no other signal, and takes its child along.
    kill -KILL $ends 2>/dev/null || true
    rm -r "$meet"
}
trap clean EXIT

container; server=$init
container; client=$init
nsenter -t "$server" -n ip link add eth0 type veth peer name eth0 netns "$client"
nsenter -t "$server" -n sh -c 'ip addr add 192.168.50.1/24 dev eth0; ip link set eth0 up'
nsenter -t "$client" -n sh -c 'ip addr add 192.168.50.2/24 dev eth0; ip link set eth0 up'

# The same command in both; without --rendezvous this stays TCP.
nsenter -t "$server" -n -p -m "$shortwire" run --rendezvous "$meet" -- iperf3 -s -1 > /dev/null &
ends="$ends $!"
until grep -q ':1451 .* 0A ' "/proc/$server/net/tcp6" "/proc/$server/net/tcp"; do
    sleep 0.05
done
nsenter -t "$client" -n -p -m "$shortwire" run --rendezvous "$meet" -- iperf3 -c 192.168.50.1 -t 3 &
client=$!
# Until the two ends have found each other, or it is over.
looks=0
while seen=$("$shortwire" ss) && [ "$(echo "$seen" | grep -c 'iperf3.*SMCD$')" -lt 2 ] && [ $looks -lt 200 ] &&
    kill -0 $client 2> /dev/null; do
    looks=$((looks + 1))
    sleep 0.05
done
echo "$seen"
wait $client
