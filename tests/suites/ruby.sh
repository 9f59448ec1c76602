# Ruby's own tests of sockets, net/http and TLS, by Debian's interpreter, unpacked.
fetch() {
	lists
	local version
	version=$(apt-cache depends ruby | sed -n 's/.*Depends: \(ruby[0-9][0-9.]*\)$/\1/p' | head -n 1)
	deb "$version" "lib$version" libyaml-0-2
	source_of "$version"
	ln -sfn "$SRC/$version" "$SRC/ruby"
	ln -sf "$ROOT/usr/bin/$version" "$SUITES/ruby"
}

run() {
	local lib=$ROOT/usr/lib arch=x86_64-linux-gnu api
	api=$(cd "$lib/ruby" && ls -d [0-9]*)
	cd "$SRC/ruby" || return
	under timeout -k 5 600 env LD_LIBRARY_PATH="$lib/$arch" RUBYLIB="$lib/ruby/$api:$lib/$arch/ruby/$api" \
		"$SUITES/ruby" -Itool/lib -Itest/lib -Itest -e '
			require "test/unit"
			Dir["test/socket/test_*.rb", "test/net/*/test_*.rb", "test/openssl/test_ssl*.rb"].each { |file| require "./#{file}" }
		' -- -v </dev/null 2>&1 | tee -a /dev/stderr |
		awk '/^\[ *[0-9]+\/[0-9]+\] / { sub(/^\[[^]]*\] /, ""); print "ok", $1 }
			failure { sub(/:$/, "", $1); print "not ok", $1 }
			{ failure = /^ +[0-9]+\) (Failure|Error):$/ }
			/^ +[0-9]+\) Skipped:$/ { getline; sub(/:$/, "", $1); print "skip", $1 }'
}
