# Go's own tests of what meets connections, children, signals and stacks, by the compiler of this machine: as cgo programs, which
# `--go auto` follows, and without the C library, which `--raw auto` does.
PACKAGES="net net/http os/exec os/signal runtime"

# What the test of a package, built with or without cgo, is called.
name() {
	local plain=${1//\//-}
	[ "$2" = 1 ] && echo "$plain" || echo "$plain-static"
}

fetch() {
	needs go cc
	local package root cgo
	root=$(go env GOROOT)/src
	mkdir -p "$SRC/go"
	for package in $PACKAGES; do
		[ -d "$root/$package" ] || skip "go has no sources of its packages"
		for cgo in 1 0; do
			(cd "$root/$package" && CGO_ENABLED=$cgo go test -c -o "$SRC/go/$(name "$package" $cgo).test" .) >&2 || skip "the tests of $package cannot be built"
		done
	done
}

# They want the files beside their sources.
run() {
	local package cgo name
	export SHORTWIRE_RAW=auto
	for package in $PACKAGES; do
		cd "$(go env GOROOT)/src/$package" || return
		for cgo in 1 0; do
			name=$(name "$package" $cgo)
			under timeout -k 5 400 "$SRC/go/$name.test" -test.short -test.v -test.timeout 380s </dev/null 2>&1 | tee -a /dev/stderr |
				sed -nE "s,^ *=== RUN +(.*),begin $name \1,p; s,^ *--- PASS: ([^ ]+) .*,ok $name \1,p; s,^ *--- FAIL: ([^ ]+) .*,not ok $name \1,p; s,^ *--- SKIP: ([^ ]+) .*,skip $name \1,p"
		done
	done
}
