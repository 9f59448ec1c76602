# lighttpd's tests of its core, FastCGI and SCGI. Their client sends a request at once and shuts its side, which leaves a
# connection on TCP; here it sends in pieces, so that connections are in shared memory by then.
fetch() {
	needs cc perl
	source_of lighttpd
	deb lighttpd lighttpd-mod-deflate libnettle8 libxxhash0
	local tests=$SRC/lighttpd/tests name
	[ -x "$tests/scgi-responder" ] && return
	mkdir -p "$SRC/lighttpd/build" && ln -sf "$ROOT"/usr/lib/lighttpd/* "$ROOT/usr/sbin/lighttpd" "$SRC/lighttpd/build/"
	# shellcheck disable=SC2016
	sed -i 's|print $remote $_,$BLANK;|{ my $rest = $_.$BLANK; my $size = length($rest) / 20 + 1; while (length $rest) { syswrite($remote, substr($rest, 0, $size, "")); select(undef, undef, undef, 0.002); } }|' "$tests/LightyTest.pm"
	grep -q 'my $size' "$tests/LightyTest.pm" || skip "lighttpd's tests are not as expected"
	for name in fcgi scgi; do cc -O1 -w "$tests/$name-responder.c" -o "$tests/$name-responder" >&2 || skip "lighttpd's tests cannot be built"; done
}

run() {
	local file
	export LD_LIBRARY_PATH=$ROOT/usr/lib/x86_64-linux-gnu
	cd "$SRC/lighttpd/tests" || return
	./prepare.sh >&2
	for file in ./*.t; do
		under timeout -k 5 120 perl "$file" </dev/null | tee -a /dev/stderr | tap | sed "s|\$| ($file)|"
	done
}
