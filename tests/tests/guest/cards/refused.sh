# Behind an IOMMU that does not remap interrupts, with half of VFIO loaded.

hand_over 0000:00:04.0
hand_over 0000:00:05.0

echo "== half"
shortwire engine /net/bound.toml --duration 1 > /tmp/half 2>&1
echo "status $?"
cat /tmp/half
# What the message says is typed, here and below.
sed -n 's/.*type `\(.*\)`.*/\1/p' /tmp/half | sh

echo "== refused"
shortwire engine /net/bound.toml --duration 1 > /tmp/refused 2>&1
echo "status $?"
cat /tmp/refused
grep '^  echo' /tmp/refused | sh

echo "== allowed"
transfer capture first
