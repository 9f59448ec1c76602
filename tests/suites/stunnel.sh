# stunnel's tests: a TLS server and client around it, in Python, and most of its options.
fetch() {
	needs openssl
	[ -x /usr/bin/python3 ] || skip "/usr/bin/python3 is not installed"
	source_of stunnel4
	deb stunnel4 libwrap0
	local source=$SRC/stunnel4
	ln -sfn "$ROOT/usr/bin/stunnel4" "$source/src/stunnel"
	[ -e "$source/tests/certs/made" ] && return
	(cd "$source/tests/certs" && ./maketestcert.sh && touch made) >&2 || skip "stunnel's certificates cannot be made"
}

# A test's line begins with its number and name; what it says goes into a line of dots and the result.
run() {
	export LD_LIBRARY_PATH=$ROOT/usr/lib/x86_64-linux-gnu
	# By this it takes an OpenSSL that is newer than the one stunnel was built with.
	export AUTOPKGTEST_TMP=$PWD
	cd "$SRC/stunnel4/tests" || return
	under timeout -k 5 400 /usr/bin/python3 maketest.py </dev/null 2>&1 | tee -a /dev/stderr |
		sed -unE 's/^([0-9]+\. .*)/\1/; t name
			s/^\.+ (succeeded|failed|skipped).*/\1/; T
			H; x; s/\n/ /g; s/^(.*) succeeded$/ok \1/; s/^(.*) failed$/not ok \1/; s/^(.*) skipped$/skip \1/; p; d
			:name
			s/^/begin /p; s/^begin //; h'
}
