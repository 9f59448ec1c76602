# The tests of Twisted that have to do with connections, on each of its reactors (select, poll, epoll, asyncio).
. "$HERE/python.sh"
fetch_python=$(declare -f fetch | sed '1s/fetch/fetch_python/')
eval "$fetch_python"

fetch() {
	fetch_python
	deb python3-twisted python3-attr python3-automat python3-bcrypt python3-cffi-backend python3-constantly python3-cryptography \
		python3-hamcrest python3-hyperlink python3-idna python3-incremental python3-openssl python3-pyasn1 python3-pyasn1-modules \
		python3-service-identity python3-six python3-typing-extensions python3-zope.interface
}

# A third of them is skipped: reactors of other systems and of desktops. test_sslverify makes keys for minutes, and is left out.
# Two fail with the OpenSSL of Debian 12, under Shortwire or not.
run() {
	export PYTHONHOME=$ROOT/usr
	for module in internet.test.test_tcp internet.test.test_tls internet.test.test_endpoints internet.test.test_stdio test.test_tcp \
		test.test_tcp_internals test.test_ssl test.test_ftp test.test_policies test.test_amp test.test_loopback \
		protocols.haproxy.test.test_wrapper web.test.test_webclient web.test.test_wsgi web.test.test_xmlrpc web.test.test_proxy \
		web.test.test_distrib spread.test.test_pb; do
		under timeout -k 5 300 "$SUITES/python3" "$HERE/unittests.py" "twisted.$module"
	done
}
