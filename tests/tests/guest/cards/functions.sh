# In the guest, before the script of a test. Parts begin with "== NAME"; what the test looks at is printed or left in /out.
# 04 and 05 share a cable; 06 and 07 do, and 08 and 09. 07 and 09 are the kernel's.

pci=/sys/bus/pci/devices
failed() { echo "FAILED: $*"; dmesg | tail -30; exit 1; }
faults() { dmesg | grep -c 'DMAR:.*fault addr'; }
# Bit 2 of the command register: the device may read and write memory.
bus_master() { echo $(( 0x$(od -An -tx1 -j4 -N1 $pci/$1/config | tr -d ' ') >> 2 & 1 )); }
interface() { echo $(ls $pci/$1/net $pci/$1/virtio*/net 2>/dev/null | grep -v : ); }
expected=$(stat -c %s /net/in.pcap)

# Starts an engine; $engine is its process.
begin() {
    shortwire engine /net/$1.toml --report links,apps > /tmp/$1.out 2> /tmp/$1.err &
    engine=$!; engines="$engines $engine"
    tries=0
    until grep -q '^running:' /tmp/$1.err; do
        [ -d /proc/$engine ] || failed "$1: $(cat /tmp/$1.err)"
        tries=$((tries + 1)); [ $tries -lt 3000 ] || failed "$1 does not start"
        sleep 0.1
    done
}
finish() { kill -INT $2; wait $2 || failed "$1 ended with $?: $(tail -n 5 /tmp/*.err)"; }
# Ends with what each engine that runs and each interface has counted: which of them had the packets that did not arrive.
lost() {
    kill -INT $engines 2>/dev/null
    sleep 2
    tail -n 20 /tmp/*.out
    cat /proc/net/dev
    failed "$@"
}
# Waits until a capture has the size of the recording.
arrived() {
    tries=0
    until [ $(stat -c %s /out/$1.pcap) -ge $expected ]; do
        tries=$((tries + 1)); [ $tries -lt 2000 ] || lost "$1: $(stat -c %s /out/$1.pcap) of $expected bytes"
        sleep 0.1
    done
}
# Card 05 receives what 04 sends, by the rest of the arguments or as usual.
transfer() {
    begin $1; receiver=$engine; capture=$2
    shift 2
    [ $# -gt 0 ] || set -- engine /net/replay.toml --until-finished --report links,apps
    shortwire "$@" || failed "$*"
    arrived $capture
    finish "the receiver" $receiver
}
# Gives a card to VFIO.
hand_over() {
    [ -e $pci/$1/driver ] && echo $1 > $pci/$1/driver/unbind
    echo vfio-pci > $pci/$1/driver_override
    echo $1 > /sys/bus/pci/drivers_probe
}
# Ends an engine that moves packets by kill -9, while its neighbour goes on sending.
killed() {
    begin flood-a; first=$engine
    begin flood-b; second=$engine
    sleep 1
    echo "busy: bus master $(bus_master 0000:00:04.0)"
    shortwire engine /net/flood-a.toml --duration 1 2>&1 | grep "^app 'a'"
    kill -9 $first
    wait $first
    # Without an IOMMU another process does it, in its turn.
    tries=0
    until [ $(bus_master 0000:00:04.0) = 0 ]; do
        tries=$((tries + 1)); [ $tries -lt 3000 ] || break
        sleep 0.1
    done
    echo "killed: bus master $(bus_master 0000:00:04.0)"
    finish flood-b $second
}
# The commands of a message that follow a line with these words.
told() { grep -A1 "$2" $1 | tail -n +2 | sed 's/0000:00:04.0/'$3'/g'; }
# Card 05 goes back to the kernel's driver, as the message in $1 says, and that driver then sends to 04.
from_kernel() {
    told $1 'give it back' 0000:00:05.0 | sh
    ip link set $(interface 0000:00:05.0) name k0
    ip link set k0 up
    begin capture-kernel; kernel=$engine
    until [ "$(cat /sys/class/net/k0/carrier)" = 1 ]; do sleep 0.1; done
    shortwire packetblaster replay /net/in.pcap --no-loop --raw k0 --rate 2kpps 2>&1 || failed packetblaster
    arrived kernel
    finish capture-kernel $kernel
}

# Nothing but what a test sends is on the cables.
for name in all default; do echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6; done
