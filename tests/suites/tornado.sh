# The tests of Tornado, a web server and client of Python.
. "$HERE/python.sh"
fetch_python=$(declare -f fetch | sed '1s/fetch/fetch_python/')
eval "$fetch_python"

fetch() {
	fetch_python
	deb python3-tornado
}

run() {
	export PYTHONHOME=$ROOT/usr
	for module in httpclient httpserver http1connection iostream ioloop netutil simple_httpclient tcpclient tcpserver web websocket process asyncio; do
		under timeout -k 5 300 "$SUITES/python3" "$HERE/unittests.py" "tornado.test.${module}_test"
	done
}
