# make build     the command, the library and the measuring programs, ready to run in target/release
# make demo      builds, then shows in under two minutes what Shortwire does on this machine
# make check     everything that continuous integration runs; the last line sums it up
# make quick     before a commit, in two minutes: format, lints, unit tests of what changed since main
# make torture TEST=name N=100 LOAD=8   one system test, N times, beside LOAD processes that only compute
# make check-system   only the whole-system tests (TEST=kill: those with that in their name)
# make check-guest   only the tests in virtual machines, and what they need
# make check-suites  other programs' own test suites, plain and under shortwire: a table (SUITES="redis node": only these)
# make soak      half an hour of Redis, nginx and PostgreSQL with kills and forks: nothing may grow (SOAK=SECONDS LOAD=BUSY_THREADS)
# make bench-base   before a change that may cost speed: the main rows of bench sockets, kept as $(BASE)
# make bench-gate   behind it: fails if one of them lost more than 5 % beyond its spread
# make install   into $(DESTDIR)$(PREFIX)

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
CARGO_TARGET_DIR ?= target
RELEASE = $(CARGO_TARGET_DIR)/release
# Where cargo leaves the libraries for C programs; `make build` puts them beside the command.
LIBRARY = $(CARGO_TARGET_DIR)/library
LIBRARIES = libshortwire.so libshortwire_rsocket.so libshortwire_rsocket.a libshortwire_csum.so libshortwire_csum.a
ROOT = $(DESTDIR)$(PREFIX)
CAPI = crates/checksum/capi
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Programs that the whole-system tests run under Shortwire. Where a name has changed: NAME/OLDER-NAME.
PACKAGES = nftables iperf3 sockperf redis-server memcached nginx wrk haproxy curl postgresql netcat-openbsd python3 libpython3-testsuite/libpython3.11-testsuite nodejs \
	default-jdk-headless golang-go socat openssh-server rsync musl-tools libmemcached-tools strace tshark libpcap0.8 qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross pkg-config \
	$(GUEST_PACKAGES)

# What runs virtual machines, and where the kernel for them is kept.
GUEST_PACKAGES = qemu-system-x86 busybox-static kmod iproute2 ibverbs-utils ibverbs-providers rdmacm-utils
GUEST = $(CARGO_TARGET_DIR)/guest

# What the recipes in tests/suites need beside that.
SUITE_PACKAGES = dpkg-dev make gcc libssl-dev tcl perl util-linux iproute2 $(if $(shell command -v npm),,npm)

# The rows that a change is held against, and where they are kept: a record is of one machine.
MAIN_ROWS = pingpong,roundtrip,stream,rr,one-cpu,few-rr-1,few-rr-4,short,redis-get,nginx-wrk,nginx-wrk-500,nginx-close,few-haproxy-8,pgbench
BASE = $(CARGO_TARGET_DIR)/bench-base.json

.PHONY: all build demo bench-base bench-gate check quick torture check-guest check-system check-suites soak guest-kernel packages install man clean

all: build

build:
	$(CARGO) build --release -p shortwire -p bench -p bench-checksum
	$(CARGO) build --profile library -p preload -p rsocket -p checksum-capi
	install $(addprefix $(LIBRARY)/,$(LIBRARIES)) $(RELEASE)/

demo: build
	$(RELEASE)/shortwire demo

bench-base: build
	$(RELEASE)/shortwire bench sockets --only $(MAIN_ROWS) --seconds 1 --json > $(BASE).new
	mv $(BASE).new $(BASE)

bench-gate: build
	@test -f $(BASE) || { echo "there is no $(BASE): make bench-base before the change" >&2; exit 1; }
	$(RELEASE)/shortwire bench sockets --only $(MAIN_ROWS) --seconds 1 --compare $(BASE) --gate

check: packages guest-kernel
	@$(CARGO) run --quiet --package check -- all

# Before a commit: format, lints and unit tests of the packages that differ from main.
quick:
	@$(CARGO) run --quiet --package check -- quick

torture: build
	@$(CARGO) run --quiet --package check -- torture "$(TEST)" $(or $(N),100) $(or $(LOAD),8)

check-guest: PACKAGES = $(GUEST_PACKAGES)
check-guest: packages guest-kernel build
	@$(CARGO) run --quiet --package check -- system "guest "

check-system: build
	@$(CARGO) run --quiet --package check -- system "$(TEST)"

check-suites: PACKAGES += $(SUITE_PACKAGES)
check-suites: packages build
	SHORTWIRE_SUITES="$(SUITES)" $(CARGO) test -p system-tests --release --test suites -- --ignored --nocapture every_suite

soak: packages build
	SHORTWIRE_SOAK=$(or $(SOAK),1800) SHORTWIRE_SOAK_LOAD=$(LOAD) $(CARGO) test -p system-tests --release --test programs soak -- --nocapture

# Debian's kernel, 70 MB, fetched once. Without it the tests in virtual machines are skipped.
guest-kernel:
	@mkdir -p $(GUEST); cd $(GUEST); \
	if ls linux-image-*.deb >/dev/null 2>&1; then exit 0; fi; \
	fetch() { \
		kernel=$$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$$/\1/p' | head -n 1); \
		[ -n "$$kernel" ] && echo "fetching $$kernel" && apt-get download -qq $$kernel; \
	}; \
	{ fetch || { apt-get update -qq && fetch; }; } 2>/dev/null || \
	echo "cannot fetch a kernel package (linux-image-amd64): tests in virtual machines will be skipped"

packages:
	@.ci/packages $(CARGO_TARGET_DIR)/check/missing-packages $(PACKAGES)

man:
	$(CARGO) run --quiet --package xtask -- man
	$(CARGO) run --quiet --package xtask -- completions

install: build man
	install -D -m 755 $(RELEASE)/shortwire $(ROOT)/bin/shortwire
	install -D -m 755 $(RELEASE)/libshortwire.so $(ROOT)/lib/shortwire/libshortwire.so
	install -D -m 755 $(RELEASE)/shortwire-peers $(ROOT)/lib/shortwire/shortwire-peers
	install -D -m 755 $(RELEASE)/shortwire-checksum-bench $(ROOT)/lib/shortwire/shortwire-checksum-bench
	install -D -m 755 $(RELEASE)/libshortwire_csum.so $(ROOT)/lib/libshortwire_csum.so.0
	ln -sf libshortwire_csum.so.0 $(ROOT)/lib/libshortwire_csum.so
	install -D -m 644 $(RELEASE)/libshortwire_csum.a $(ROOT)/lib/libshortwire_csum.a
	install -D -m 644 $(CAPI)/include/shortwire_csum.h $(ROOT)/include/shortwire_csum.h
	install -d $(ROOT)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' $(CAPI)/shortwire_csum.pc.in > $(ROOT)/lib/pkgconfig/shortwire_csum.pc
	install -D -m 755 $(RELEASE)/libshortwire_rsocket.so $(ROOT)/lib/shortwire/libshortwire_rsocket.so
	install -D -m 644 $(RELEASE)/libshortwire_rsocket.a $(ROOT)/lib/libshortwire_rsocket.a
	ln -sf shortwire/libshortwire_rsocket.so $(ROOT)/lib/libshortwire_rsocket.so
	install -D -m 644 crates/rsocket/include/rdma/rsocket.h $(ROOT)/include/shortwire/rdma/rsocket.h
	install -D -m 644 crates/rsocket/man/shortwire-rsocket.7 $(ROOT)/share/man/man7/shortwire-rsocket.7
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/rsocket/shortwire_rsocket.pc.in > $(ROOT)/lib/pkgconfig/shortwire_rsocket.pc
	install -d $(ROOT)/share/man/man1
	install -m 644 target/man/*.1 $(ROOT)/share/man/man1/
	install -D -m 644 target/completions/shortwire.bash $(ROOT)/share/bash-completion/completions/shortwire
	install -D -m 644 target/completions/_shortwire $(ROOT)/share/zsh/site-functions/_shortwire
	install -D -m 644 target/completions/shortwire.fish $(ROOT)/share/fish/vendor_completions.d/shortwire.fish

clean:
	$(CARGO) clean
