# CPython's own tests of everything above sockets: Debian's interpreter with its test package, both unpacked.
MODULES="socket socketserver selectors epoll poll select timeout ssl httplib httpservers urllib2_localnet ftplib smtplib
	smtpd poplib imaplib telnetlib nntplib xmlrpc docxmlrpc wsgiref asyncore asynchat asyncio logging eintr os io
	subprocess multiprocessing_fork multiprocessing_spawn multiprocessing_forkserver concurrent_futures"

fetch() {
	lists
	local version
	version=$(apt-cache depends python3 | sed -n 's/.*Depends: \(python3\.[0-9]*\)$/\1/p' | head -n 1)
	deb "$version" "$version-minimal" "lib$version-minimal" "lib$version-stdlib" "lib$version-testsuite"
	ln -sf "$ROOT/usr/bin/$version" "$SUITES/python3"
}

run() {
	local module name
	export PYTHONHOME=$ROOT/usr
	for module in $MODULES; do
		name=test.test_$module
		# The package as a whole has tests of no socket that take minutes.
		[ "$module" = asyncio ] && name=$(cd "$PYTHONHOME"/lib/python3*/test/test_asyncio && ls test_*.py | grep -v -E 'tasks|futures|locks|queues' | sed 's/\(.*\)\.py/test.test_asyncio.\1/')
		# shellcheck disable=SC2086
		under timeout -k 5 600 "$SUITES/python3" "$HERE/unittests.py" $name
	done
}
