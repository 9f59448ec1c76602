//! The walk of a new user through a Debian of its own: the package is installed, services are
//! enabled and started with the restrictions of their units, clients of other users check every byte;
//! then everything that an operator does happens to them, up to the removal of the package.
//!
//! What was said and answered is left in `target/check/walkthrough.txt`.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;

use crate::system::System;
use crate::{debs, next};
use system_tests::{
    Case, Deadline, Outcome, Proc, Skip, case, compile, connections, count_skip, millis, need,
    plain, prog, secs, shortwire, skip,
};

/// Where the tools of the walk are in the system: they are no part of what a user has.
const TOOLS: &str = "/run/walk";
/// Connections of each client; each has two ends.
const CONNECTIONS: usize = 4;

struct Service {
    /// What `enable` and systemctl know it by.
    unit: &'static str,
    /// What the client calls it.
    name: &'static str,
    port: u16,
    /// The user whose client it has, and a group.
    client: (&'static str, &'static str),
    /// How it is stopped if it went to the background, as its ExecStop says.
    stop: Option<&'static str>,
}

const SERVICES: [Service; 4] = [
    Service {
        unit: "redis-server",
        name: "redis",
        port: 6379,
        client: ("games", "games"),
        stop: None,
    },
    Service {
        unit: "memcached",
        name: "memcached",
        port: 11211,
        client: ("mail", "mail"),
        stop: None,
    },
    Service {
        unit: "nginx",
        name: "nginx",
        port: 80,
        client: ("nobody", "nogroup"),
        stop: Some("start-stop-daemon --quiet --stop --retry QUIT/5 --pidfile /run/nginx.pid"),
    },
    Service {
        unit: "postgresql@15-main",
        name: "postgresql",
        port: 5432,
        client: ("news", "news"),
        stop: Some("pg_ctlcluster --skip-systemctl-redirect -m fast 15-main stop"),
    },
];
const REDIS: usize = 0;
const MEMCACHED: usize = 1;
const NGINX: usize = 2;
const POSTGRESQL: usize = 3;

struct Walk<'a> {
    c: &'a Case,
    system: System,
    told: RefCell<String>,
    /// Of what does not go to the background.
    running: RefCell<[Option<Proc>; 4]>,
}

/// At most so many lines, and long ones on several.
fn shortened(text: &str, lines: usize) -> String {
    // What a line said before it was written anew is gone from a terminal.
    let all = text.lines().filter_map(|line| line.trim_end().rsplit('\r').next());
    let all: Vec<&str> = all.filter(|line| !line.is_empty()).collect();
    let mut kept = String::new();
    for line in all.iter().take(lines) {
        let inner = line.len() - line.trim_start().len();
        let (indent, mut row) = (" ".repeat(inner + 4), String::new());
        for word in line.trim_start().split(' ') {
            if row.len() + word.len() + inner > 140 {
                kept += &format!("{indent}{}\n", row.trim_end());
                row = "  ".into();
            }
            row += &format!("{word} ");
        }
        kept += &format!("{indent}{}\n", row.trim_end());
    }
    if all.len() > lines {
        kept += &format!("    [{} more lines]\n", all.len() - lines);
    }
    kept
}

impl Walk<'_> {
    fn note(&self, text: String) {
        print!("{text}");
        *self.told.borrow_mut() += &text;
    }

    fn chapter(&self, title: &str) {
        self.note(format!("\n== {title}\n"));
    }

    fn say(&self, words: &str) {
        self.note(format!("-- {words}\n"));
    }

    /// What root types, which ends with this status; what it printed.
    fn types(&self, line: &str, status: i32, lines: usize) -> String {
        let mut shell = self.shell(line);
        let ended = shell.wait(secs(180));
        let said = shell.stdout() + &shell.stderr();
        let told = if status == 0 { String::new() } else { format!("    (status {status})\n") };
        self.note(format!("# {line}\n{}{told}", shortened(&said, lines)));
        assert_eq!(ended.code(), Some(status), "{line}: {said}");
        said
    }

    fn root(&self, line: &str) -> String {
        self.types(line, 0, 24)
    }

    /// Without the directories of the test, which are not in there.
    fn shell(&self, line: &str) -> Proc {
        let unset = ["-u", "TMPDIR", "-u", "XDG_RUNTIME_DIR", "-u", "SHORTWIRE_RUN_DIR"];
        let mut command = self.system.command("env");
        self.c.start("root", command.args(unset).args(["HOME=/root", "sh", "-ec", line]))
    }

    /// systemctl restart, by hand: the unit's program with the unit's settings.
    fn restart(&self, which: usize) {
        let service = &SERVICES[which];
        self.stop(which);
        let mut command = self.system.service("python3");
        command.arg(format!("{TOOLS}/as_unit.py")).arg(service.unit);
        let mut started = match service.stop {
            None => self.c.serve(service.unit, service.port, &mut command),
            Some(_) => self.c.start(service.unit, &mut command),
        };
        if service.stop.is_some() {
            started.success(secs(60));
        }
        let said = started.stdout();
        let own: Vec<&str> = said.lines().take(4).collect();
        self.note(format!(
            "# systemctl restart {}\n{}",
            service.unit,
            shortened(&own.join("\n"), 4)
        ));
        if service.stop.is_none() {
            self.running.borrow_mut()[which] = Some(started);
        } else {
            self.running.borrow_mut()[which] = None;
        }
    }

    fn stop(&self, which: usize) {
        if let Some(mut running) = self.running.borrow_mut()[which].take() {
            running.stop();
        } else if let Some(stop) = SERVICES[which].stop {
            self.shell(&format!("{stop} || true")).success(secs(60));
        }
    }

    /// A client of another user, which goes on until it is told to end.
    fn client(&self, which: usize, under: &str) -> Proc {
        let Service { name, client: (user, group), .. } = &SERVICES[which];
        let line = format!(
            "setpriv --reuid {user} --regid {group} --clear-groups --reset-env {under}python3 {TOOLS}/walk_client.py {name} {CONNECTIONS}"
        );
        self.note(format!("# {} &\n", line.replace(&format!("{TOOLS}/"), "")));
        let mut client = self.shell(&format!("exec {line}"));
        client.wait_lines("begun", CONNECTIONS, secs(60));
        client
    }

    fn clients(&self) -> Vec<Proc> {
        (0..4).map(|which| self.client(which, "shortwire run -- ")).collect()
    }

    /// One more connection of each of them, while the others go on.
    fn one_more(&self, clients: &mut [Proc], count: usize) {
        for client in clients {
            client.say("new\n");
            client.wait_lines("begun", CONNECTIONS + count, secs(60));
        }
    }

    /// Its end: every byte was right, or it would have ended before.
    fn end(&self, which: usize, mut client: Proc) {
        client.say("end\n");
        let said = client.success(secs(60));
        let verdict = said.lines().last().unwrap_or_default();
        assert!(verdict.ends_with("all right"), "{said}");
        self.say(&format!("the client of {}: {verdict}", SERVICES[which].name));
    }

    /// Waits until connections of this service are so: ends in shared memory, and ends on TCP with
    /// these words.
    fn until(
        &self,
        which: usize,
        what: &str,
        holds: impl Fn(usize, usize, usize) -> bool,
        words: &str,
    ) {
        let end = Deadline::within(secs(60));
        loop {
            let all = connections(&[SERVICES[which].port]);
            let smcd = all.iter().filter(|end| end.smcd).count();
            let tcp = all.iter().filter(|end| !end.smcd && end.state.contains(words)).count();
            if holds(smcd, tcp, all.len()) {
                return;
            }
            let seen: Vec<_> = all.iter().map(|end| (end.pid, end.smcd, &end.state)).collect();
            assert!(!end.is_over(), "{} not {what}: {seen:#?}", SERVICES[which].name);
            sleep(millis(50));
        }
    }

    fn until_shared(&self, which: usize) {
        self.until(which, "shared", |smcd, _, _| smcd >= 2 * CONNECTIONS, "");
    }
}

/// Everything below switches off and on what it sees: only where that is its own.
fn alone() -> Result<(), Skip> {
    let first = fs::read_to_string("/proc/1/cmdline").unwrap_or_default();
    match first.contains("none /run") {
        true => Ok(()),
        false => skip("would switch off other people's programs: run it by `make check-packages`"),
    }
}

fn target() -> PathBuf {
    shortwire().ancestors().nth(2).expect("the target directory").to_path_buf()
}

fn begin(c: &Case) -> Result<(Walk<'_>, Vec<PathBuf>), Skip> {
    let lower = target().join("check/walk");
    if !lower.join("usr/bin/redis-server").exists() {
        return skip("no Debian with the services is here (make check-packages fetches one)");
    }
    alone()?;
    let confine = compile("confine")?;
    let debs = debs(c)?;
    let system = System::over(c, &lower)?;
    let tools = system.outside("root").join(&TOOLS[1..]);
    fs::create_dir(&tools).expect("a directory for tools");
    for (file, name) in [
        (confine, "confine"),
        (prog("as_unit.py"), "as_unit.py"),
        (prog("walk_client.py"), "walk_client.py"),
    ] {
        fs::copy(file, tools.join(name)).expect("a tool");
    }
    Ok((Walk { c, system, told: Default::default(), running: Default::default() }, debs))
}

/// The package, the drop-ins, and the services with what their units allow them.
fn installed_and_enabled(walk: &Walk, command: &Path) {
    walk.chapter("Installing");
    walk.root("grep PRETTY_NAME /etc/os-release; uname -sr");
    walk.system.take(command);
    let name = command.file_name().expect("a name").to_string_lossy();
    walk.types(&format!("apt-get install -q -y /tmp/{name}"), 0, 12);
    walk.root("shortwire --version");
    walk.chapter("Enabling");
    let said = walk.types("shortwire enable redis-server memcached nginx postgresql", 1, 60);
    assert!(said.contains("postgresql@15-main"), "{said}");
    walk.say("PostgreSQL's unit starts nothing itself; its cluster is named in the answer");
    walk.root("shortwire enable postgresql@15-main");
    walk.chapter("Starting, as the units say");
    walk.say("no systemd runs here: tests/progs/as_unit.py reads the unit and its drop-ins, and applies what it can");
    walk.say("PostgreSQL's environment is in the cluster's file, which pg_ctlcluster reads");
    // What the clients ask for.
    walk.shell(&format!("python3 {TOOLS}/walk_client.py data > /var/www/html/data.bin"))
        .success(secs(60));
    // As at boot.
    walk.shell("systemd-tmpfiles --create --prefix=/run/memcached --prefix=/run/postgresql")
        .success(secs(60));
    (0..4).for_each(|which| walk.restart(which));
    walk.root(
        "cd /; runuser -u postgres -- psql -qc \"create role walker login password 'walks'\"",
    );
}

fn shared_and_why_not(walk: &Walk) -> Vec<Proc> {
    walk.chapter("Clients of other users, every byte checked");
    let mut clients = walk.clients();
    for which in [MEMCACHED, NGINX, POSTGRESQL] {
        walk.until_shared(which);
    }
    let why = "no name in the user namespace";
    walk.until(REDIS, "on TCP", |smcd, tcp, all| smcd == 0 && tcp > 0 && tcp == all, why);
    walk.types("shortwire ss", 0, 60);
    walk.say("Redis stays TCP: its unit says PrivateUsers, and there other users have no names");
    walk.types("shortwire doctor redis-server.service", 0, 30);
    walk.root("shortwire enable redis-server --set PORT_PROOF=1");
    walk.restart(REDIS);
    // The server that it talked to has gone, and that is what it says.
    let mut cut = clients.remove(REDIS);
    cut.wait(secs(60));
    clients.insert(REDIS, walk.client(REDIS, "shortwire run -- "));
    (0..4).for_each(|which| walk.until_shared(which));
    walk.types("shortwire ss program redis-server", 0, 10);
    walk.root("shortwire ss -s");
    clients
}

fn seen(walk: &Walk) {
    walk.chapter("Seeing");
    walk.types("shortwire top --once", 0, 14);
    walk.types("shortwire top --by pair --once", 0, 12);
    walk.types("shortwire stats", 0, 11);
    let place = "127.0.0.1:9988";
    let mut metrics = walk.shell("exec shortwire metrics");
    metrics.wait_line("serving", secs(60));
    walk.note("# shortwire metrics &\n".into());
    let job = "  - job_name: shortwire\\n    scrape_interval: 1s\\n    static_configs:\\n      - targets: [\"127.0.0.1:9988\"]\\n";
    walk.root(&format!("printf '{job}' >> /etc/prometheus/prometheus.yml"));
    walk.root("promtool check config /etc/prometheus/prometheus.yml");
    let start = "setpriv --reuid prometheus --regid prometheus --clear-groups --reset-env prometheus \
                 --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/tmp/tsdb --web.listen-address=127.0.0.1:9090";
    walk.note(format!("# {start} &\n"));
    let mut prometheus = walk.shell(&format!("exec {start} 2>/dev/null"));
    let ask = |query: &str| format!("promtool query instant http://127.0.0.1:9090 '{query}'");
    let memory = "sum by (program) (shortwire_memory_bytes_total{direction=\"tx\"}) > 0";
    let until = |query: &str, parts: &[&str]| {
        let end = Deadline::within(secs(60));
        loop {
            let mut asked = walk.shell(&ask(query));
            let _ = asked.wait(secs(60));
            if parts.iter().all(|part| asked.stdout().contains(part)) {
                break;
            }
            assert!(!end.is_over(), "Prometheus has: {}{}", asked.stdout(), asked.stderr());
            sleep(millis(300));
        }
        walk.root(&ask(query));
    };
    // Of a scrape that takes longer than its second Prometheus says "down", and has no figures until the next one.
    until("up{job=\"shortwire\"}", &["=> 1 @"]);
    until(memory, &["\"redis-server\"", "\"memcached\"", "\"nginx\"", "\"postgres\""]);
    walk.root(&ask("sum by (program, mode) (shortwire_connections)"));
    prometheus.stop();
    page(walk, place);
    metrics.stop();
}

/// What a browser of this machine makes of the page.
fn page(walk: &Walk, place: &str) {
    let chromium = match need("chromium") {
        Ok(path) => path,
        Err(why) => {
            walk.say("no Chromium is here to look at the page with");
            return count_skip("package-walk, the page", &why);
        }
    };
    let mut command = Command::new(chromium);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--virtual-time-budget=3000", "--dump-dom"]).env("HOME", walk.c.dir());
    command.arg(format!("--user-data-dir={}", walk.c.dir().join("browser").display()));
    command.arg(format!("http://{place}/"));
    let page = walk.c.start("browser", &mut command).success(secs(120));
    let drawn = page.split("<svg").nth(1).and_then(|rest| rest.split("</svg>").next());
    let drawn = drawn.unwrap_or_default();
    for name in ["redis-server", "memcached", "nginx", "postgres", "class=\"memory\""] {
        assert!(drawn.contains(name), "{name} is not drawn in\n{page}");
    }
    walk.note(format!("# chromium --headless --dump-dom http://{place}/\n"));
    walk.say(&format!(
        "Chromium, of the machine around the chroot, drew {} ways, {} of them through memory, with all four services",
        drawn.matches("class=\"memory\"").count() + drawn.matches("class=\"tcp\"").count(),
        drawn.matches("class=\"memory\"").count()
    ));
}

fn ruled(walk: &Walk, clients: &mut Vec<Proc>) {
    walk.chapter("Another policy");
    walk.root("echo 'tcp program=memcached' > /etc/shortwire.conf; shortwire config check");
    walk.root("shortwire config show /usr/bin/memcached");
    let again = |clients: &mut Vec<Proc>| {
        walk.end(MEMCACHED, clients.remove(MEMCACHED));
        walk.restart(MEMCACHED);
        clients.insert(MEMCACHED, walk.client(MEMCACHED, "shortwire run -- "));
    };
    again(clients);
    walk.until(MEMCACHED, "on TCP", |smcd, tcp, all| smcd == 0 && tcp == all && tcp > 0, "");
    let said = walk.root("shortwire ss program memcached");
    assert!(said.contains("RULE") || said.contains("rule"), "{said}");
    walk.root("rm /etc/shortwire.conf");
    again(clients);
    walk.until_shared(MEMCACHED);
    walk.root("shortwire ss -s program memcached");
}

fn switched(walk: &Walk, clients: &mut [Proc]) {
    walk.chapter("The kill switch, with traffic running");
    walk.root("shortwire off");
    walk.one_more(clients, 1);
    for which in 0..4 {
        walk.until(which, "off", |_, tcp, _| tcp >= 2, "switched off");
    }
    walk.root("shortwire ss -s");
    let said = walk.root("shortwire off --drain --wait 60");
    assert!(said.contains("No connection is left in shared memory"), "{said}");
    // Those of nginx it has closed itself, now and then.
    let before =
        said.split_once(" were:").and_then(|(text, _)| text.rsplit_once('(')?.1.parse().ok());
    assert!(before.is_some_and(|ends: usize| ends >= 6 * CONNECTIONS), "{said}");
    for which in 0..4 {
        walk.until(which, "drained", |smcd, _, _| smcd == 0, "");
    }
    walk.one_more(clients, 2);
    walk.root("shortwire ss -s");
    walk.root("shortwire on");
    walk.one_more(clients, 3);
    for which in 0..4 {
        walk.until(which, "on again", |smcd, _, _| smcd >= 2, "");
    }
    walk.root("shortwire ss -s");
}

fn upgraded_and_removed(walk: &Walk, command: &Path, mut clients: Vec<Proc>) {
    walk.chapter("Another version, under load");
    walk.system.take(&next(walk.c, command));
    walk.types("apt-get install -q -y /tmp/next.deb", 0, 12);
    let pid = walk.running.borrow()[REDIS].as_ref().expect("Redis").pid();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    assert!(maps.contains("libshortwire.so (deleted)"), "it keeps the library that it has");
    walk.types("shortwire doctor $(pidof redis-server)", 0, 20);
    walk.one_more(&mut clients, 4);
    walk.say("a client that has the new library, and Redis, which has the old one:");
    let new = walk.client(REDIS, "shortwire run -- ");
    let own = |smcd: usize, _: usize, _: usize| smcd >= 2 * CONNECTIONS + 2;
    walk.until(REDIS, "shared by both versions", own, "");
    walk.end(REDIS, new);
    walk.chapter("Removal, under load");
    walk.root("shortwire disable redis-server memcached nginx postgresql@15-main");
    walk.types("apt-get purge -q -y shortwire", 0, 12);
    walk.one_more(&mut clients, 5);
    walk.say("nothing has been started anew yet: all go on, and make connections, with the library that they have");
    for (which, client) in clients.into_iter().enumerate() {
        walk.end(which, client);
    }
    for which in 0..4 {
        walk.restart(which);
        let client = walk.client(which, "");
        walk.end(which, client);
        walk.stop(which);
    }
    let said = walk
        .root("find / -xdev -name '*shortwire*' | grep -v ^/var/lib/dpkg/ || echo nothing is left");
    assert_eq!(said.trim(), "nothing is left");
    for service in &SERVICES {
        let drop_ins = format!("root/etc/systemd/system/{}.service.d", service.unit);
        assert!(!walk.system.outside(&drop_ins).exists(), "{drop_ins} is left");
    }
    let left = walk.system.changes();
    let ours: Vec<_> = left.iter().filter(|name| name.contains("shortwire")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

#[test]
fn a_new_user_walks_through() {
    case("package-walk", |c| -> Outcome {
        if plain() {
            return skip("it is about the library");
        }
        let (walk, debs) = begin(c)?;
        let command = debs
            .iter()
            .find(|deb| deb.to_string_lossy().contains("/shortwire_"))
            .expect("a package of the command");
        installed_and_enabled(&walk, command);
        let mut clients = shared_and_why_not(&walk);
        seen(&walk);
        ruled(&walk, &mut clients);
        switched(&walk, &mut clients);
        upgraded_and_removed(&walk, command, clients);
        let told = target().join("check/walkthrough.txt");
        fs::write(&told, walk.told.borrow().trim_start()).expect("a transcript");
        println!("{}", told.display());
        Ok(())
    });
}
