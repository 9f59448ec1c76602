# In the guest: two cards whose devices the engine of this machine is, joined there.

pci=/sys/bus/pci/devices
failed() { echo "FAILED: $*"; dmesg | tail -20; exit 1; }
interface() { echo $(ls $pci/0000:00:$1.0/virtio*/net); }
# Waits for the carrier of an interface, which QEMU takes away while nobody stands for the device.
carrier() {
    tries=0
    until [ "$(cat /sys/class/net/$1/carrier 2>/dev/null)" = $2 ]; do
        tries=$((tries + 1)); [ $tries -lt 600 ] || failed "carrier of $1 is not $2"
        sleep 0.1
    done
}
expected=$(stat -c %s /net/in.pcap)
# What is sent at one card is captured at the other.
transfer() {
    shortwire engine /net/capture-$3.toml > /tmp/$3 2>&1 &
    engine=$!
    until grep -q '^running:' /tmp/$3; do [ -d /proc/$engine ] || failed "$(cat /tmp/$3)"; sleep 0.1; done
    shortwire packetblaster replay /net/in.pcap --no-loop --raw $1 --rate 2kpps 2>&1 || failed packetblaster
    tries=0
    until [ $(stat -c %s /out/$3.pcap) -ge $expected ]; do
        tries=$((tries + 1)); [ $tries -lt 2000 ] || failed "$3: $(stat -c %s /out/$3.pcap) of $expected bytes"
        sleep 0.1
    done
    kill -INT $engine
    wait $engine || failed "the capture ended with $?"
}

for name in all default; do echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6; done
ip link set $(interface 04) name v0
ip link set $(interface 05) name v1
ip link set v0 up; ip link set v1 up
carrier v0 1; carrier v1 1

transfer v0 v1 there
transfer v1 v0 back
echo "== transferred"
carrier v0 0; carrier v1 0
echo "== gone"
carrier v0 1; carrier v1 1
transfer v0 v1 again

# Streams of the guest's own kernel, which leaves checksums to the card.
# The listener reads what never comes: at an end of its input it would close its side.
mkfifo /tmp/nothing
unshare -n sh -c 'echo $$ > /tmp/other; until ip link show v1 > /dev/null 2>&1; do sleep 0.1; done
    ip addr add 10.9.0.2/24 dev v1; ip link set v1 up; nc -l -p 5000 <> /tmp/nothing > /out/stream' &
other=$!
until [ -s /tmp/other ]; do sleep 0.1; done
ip link set v1 netns $(cat /tmp/other)
ip addr add 10.9.0.1/24 dev v0
tries=0
until nc 10.9.0.2 5000 < /net/in.pcap; do
    tries=$((tries + 1)); [ $tries -lt 50 ] || failed "no connection"
    sleep 0.2
done
wait $other
cmp /net/in.pcap /out/stream || failed "the stream differs"
echo "== streamed"
