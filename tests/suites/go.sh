# Go's own tests of net and net/http, as cgo programs, which `--go auto` follows, by the compiler of this machine.
PACKAGES="net net/http"

fetch() {
	needs go cc
	local package root
	root=$(go env GOROOT)/src
	mkdir -p "$SRC/go"
	for package in $PACKAGES; do
		[ -d "$root/$package" ] || skip "go has no sources of its packages"
		(cd "$root/$package" && CGO_ENABLED=1 go test -c -o "$SRC/go/${package//\//-}.test" .) >&2 || skip "the tests of $package cannot be built"
	done
}

# They want the files beside their sources.
run() {
	local package
	for package in $PACKAGES; do
		cd "$(go env GOROOT)/src/$package" || return
		under timeout -k 5 400 "$SRC/go/${package//\//-}.test" -test.short -test.v -test.timeout 380s </dev/null 2>&1 | tee -a /dev/stderr |
			sed -nE "s,^ *=== RUN +(.*),begin $package \1,p; s,^ *--- PASS: ([^ ]+) .*,ok $package \1,p; s,^ *--- FAIL: ([^ ]+) .*,not ok $package \1,p; s,^ *--- SKIP: ([^ ]+) .*,skip $package \1,p"
	done
}
