# CPython's own tests of everything above sockets: Debian's interpreter with its test package, both unpacked.
MODULES="socket asyncio ssl multiprocessing_fork subprocess os eintr selectors epoll poll select timeout socketserver httplib
	httpservers urllib2_localnet ftplib smtplib smtpd poplib imaplib telnetlib nntplib xmlrpc docxmlrpc wsgiref asyncore
	asynchat logging signal"

fetch() {
	lists
	local version
	version=$(apt-cache depends python3 | sed -n 's/.*Depends: \(python3\.[0-9]*\)$/\1/p' | head -n 1)
	deb "$version" "$version-minimal" "lib$version-minimal" "lib$version-stdlib" "lib$version-testsuite"
	ln -sf "$ROOT/usr/bin/$version" "$SUITES/python3"
}

# The tests of one module, or of the part of a package that has to do with sockets, in a network of its own.
one() {
	local name=test.test_$1
	# The package as a whole has tests of no socket that take minutes.
	[ "$1" = asyncio ] && name=$(cd "$PYTHONHOME"/lib/python3*/test/test_asyncio && ls test_*.py | grep -v -E 'tasks|futures|locks|queues' | sed 's/\(.*\)\.py/test.test_asyncio.\1/')
	# shellcheck disable=SC2086
	under timeout -k 5 600 "$SUITES/python3" "$HERE/unittests.py" $name
}

# Most of the time goes by in tests that wait, so several modules run at once.
run() {
	export PYTHONHOME=$ROOT/usr SUITES HERE
	export -f one under alone
	printf '%s\n' $MODULES | xargs -P 3 -I MODULE bash -c 'one MODULE'
}
