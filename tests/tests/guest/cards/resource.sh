# Without an IOMMU: registers by their resource file, memory on huge pages.

echo "== bound"
shortwire engine /net/bound.toml --duration 1 > /tmp/bound 2>&1
echo "status $?"
cat /tmp/bound
# What the message says is typed.
told /tmp/bound 'hand it over' 0000:00:04.0 | sh
told /tmp/bound 'hand it over' 0000:00:05.0 | sh
[ -e $pci/0000:00:04.0/driver ] && failed "still bound"

echo "== no huge pages"
shortwire engine /net/bound.toml --duration 1 2>&1
echo "status $?"
# Two engines, each with 16 pages of packets and one of rings.
echo 34 > /proc/sys/vm/nr_hugepages

echo "== transfer"
transfer capture first

echo "== killed"
killed

echo "== again"
transfer capture-again again

echo "== given back"
from_kernel /tmp/bound

echo "== end"
echo "04: bus master $(bus_master 0000:00:04.0)"
echo "free huge pages: $(sed -n 's/HugePages_Free: *//p' /proc/meminfo)"
