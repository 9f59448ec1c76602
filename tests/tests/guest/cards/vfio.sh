# Behind an IOMMU, by VFIO.

# A transmit ring where nothing is mapped: a device that strays is seen.
echo "== control"
echo 0000:00:06.0 > $pci/0000:00:06.0/driver/unbind
echo 1 > $pci/0000:00:06.0/enable
printf '\006' | dd of=$pci/0000:00:06.0/config bs=1 seek=4 conv=notrunc 2>/dev/null
read bar rest < $pci/0000:00:06.0/resource
for write in 3800:1000 3804:0 3808:80 3810:0 0400:2 3818:1; do
    devmem $((bar + 0x${write%:*})) 32 0x${write#*:}
done
sleep 1
echo 0 > $pci/0000:00:06.0/enable
echo "faults: $(faults)"

for wrong in absent other bound; do
    echo "== $wrong"
    shortwire engine /net/$wrong.toml --duration 1 > /tmp/$wrong 2>&1
    echo "status $?"
    cat /tmp/$wrong
done

# What the message says is typed.
echo "== as told"
told /tmp/bound 'hand it over' 0000:00:04.0 | sh
basename $(readlink $pci/0000:00:04.0/driver)
told /tmp/bound 'hand it over' 0000:00:05.0 | sh

echo "== transfer"
transfer capture first

echo "== killed"
killed
echo "faults: $(faults)"

echo "== again"
transfer capture-again again snsh /net/replay.lua

# From a driver of the kernel through two of ours to a driver of the kernel.
echo "== shunt"
hand_over 0000:00:06.0
hand_over 0000:00:08.0
ip link set $(interface 0000:00:07.0) name v0
ip link set $(interface 0000:00:09.0) name v1
ip link set v0 up; ip link set v1 up
begin shunt; shunt=$engine
begin end; end=$engine
shortwire packetblaster replay /net/in.pcap --no-loop --raw v0 --rate 2kpps 2>&1 || failed packetblaster
arrived shunted
finish end $end
finish shunt $shunt

echo "== given back"
from_kernel /tmp/bound

echo "== end"
for card in 04 06 08; do echo "$card: bus master $(bus_master 0000:00:$card.0)"; done
echo "faults: $(faults)"
