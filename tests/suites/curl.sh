# curl's tests of HTTP, FTP and the mail protocols, against their own servers in C and Perl.
fetch() {
	needs cc make perl
	source_of curl
	[ -x "$SRC/curl/tests/server/sws" ] && return
	(
		cd "$SRC/curl" &&
			./configure -q --disable-shared --disable-manual --with-openssl --without-libpsl CFLAGS="-O1 -w" &&
			make -s -j2 && make -s -j2 -C tests/server && make -s -j2 -C tests/libtest
	) >&2 || skip "curl cannot be built"
}

run() {
	cd "$SRC/curl/tests" || return
	under timeout -k 5 900 perl runtests.pl -a -n -am 1 to 400 </dev/null 2>&1 | tee -a /dev/stderr |
		sed -nE 's/^PASS: ([0-9]+) .*/ok \1/p; s/^ *([0-9]+): .* FAILED.*/not ok \1/p; s/^FAIL: ([0-9]+) .*/not ok \1/p; s/^SKIP: ([0-9]+) .*/skip \1/p'
}
