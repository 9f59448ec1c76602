# Tcl's tests of sockets, HTTP and channels.
fetch() {
	needs tclsh
	source_of tcl8.6
}

run() {
	local file
	cd "$SRC/tcl8.6/tests" || return
	for file in socket http http11 httpold io chan chanio event; do
		under timeout -k 5 300 tclsh "$file.test" -verbose pe </dev/null 2>&1 | tee -a /dev/stderr |
			sed -nE 's/^\+\+\+\+ (.*) PASSED$/ok \1/p; s/^==== ([^ ]*) .*FAILED$/not ok \1/p' | sort -u
	done
}
