# PHP's own tests of sockets, streams, HTTP, FTP, TLS and its web server, by Debian's interpreter, unpacked.
fetch() {
	lists
	local version
	version=$(apt-cache depends php-cli | sed -n 's/.*Depends: \(php[0-9.]*\)-cli$/\1/p' | head -n 1)
	deb "$version-cli" "$version-common" "$version-curl" libargon2-1 libsodium23
	source_of "$version"
	ln -sfn "$SRC/$version" "$SRC/php"
	ln -sf "$ROOT/usr/bin/$version" "$SUITES/php"
}

run() {
	local php=$SUITES/php extensions
	extensions=$(echo "$ROOT"/usr/lib/php/2*/)
	export LD_LIBRARY_PATH=$ROOT/usr/lib/x86_64-linux-gnu NO_INTERACTION=1 TEST_PHP_EXECUTABLE=$php
	cd "$SRC/php" || return
	under timeout -k 5 900 "$php" -n -d "extension_dir=$extensions" run-tests.php -n -q -j4 --no-color --set-timeout 60 -d "extension_dir=$extensions" -d extension=posix.so \
		ext/sockets/tests ext/standard/tests/{streams,network,http} ext/{curl,ftp,openssl}/tests sapi/cli/tests </dev/null 2>&1 |
		tee -a /dev/stderr | tr '\r' '\n' |
		sed -nE 's/^PASS .*\[([^]]*\.phpt)\].*/ok \1/p; s/^(FAIL|BORK|LEAK|WARN) .*\[([^]]*\.phpt)\].*/not ok \2/p; s/^SKIP .*\[([^]]*\.phpt)\].*/skip \1/p'
}
