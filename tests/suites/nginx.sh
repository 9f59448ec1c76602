# nginx's tests, against the nginx of this machine.
fetch() {
	needs nginx prove git openssl
	deb libnginx-mod-stream libnginx-mod-mail libio-socket-ssl-perl libnet-ssleay-perl libcache-memcached-perl libfcgi-perl libscgi-perl \
		libstring-crc32-perl libprotocol-websocket-perl
	# Of the modules that Debian packs apart the tests get two.
	cat >"$SUITES/nginx" <<-'SCRIPT'
		#!/bin/bash
		[ "$1" = -V ] || exec nginx "$@"
		nginx -V 2>&1 | sed -E 's/ --with-[a-z_]*=dynamic//g; s/$/ --with-mail --with-stream/' >&2
	SCRIPT
	chmod +x "$SUITES/nginx"
	[ -e "$SRC/nginx-tests" ] && return
	git clone -q --depth 1 https://github.com/nginx/nginx-tests "$SRC/nginx-tests.new" >&2 || skip "nginx's tests cannot be fetched"
	mv "$SRC/nginx-tests.new" "$SRC/nginx-tests"
}

run() {
	local modules=$ROOT/usr/lib/nginx/modules
	export TEST_NGINX_BINARY=$SUITES/nginx
	export TEST_NGINX_GLOBALS="user root; load_module $modules/ngx_stream_module.so; load_module $modules/ngx_mail_module.so;"
	PERL5LIB=$ROOT/usr/share/perl5:$(echo "$ROOT"/usr/lib/x86_64-linux-gnu/perl5/5*)
	export PERL5LIB
	cd "$SRC/nginx-tests" || return
	under timeout -k 5 1500 prove -j 3 . </dev/null 2>&1 | tee -a /dev/stderr |
		sed -nE 's/^\.\/([^ ]*\.t) \.+ ok$/ok \1/p; s/^\.\/([^ ]*\.t) \.+ (skipped.*)$/skip \1/p; s/^\.\/([^ ]*\.t) +\(Wstat.*/not ok \1/p' | sort -u
}
