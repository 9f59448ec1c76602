use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use system_tests::{Case, Ports, Proc, Side, Skip, case, need, patience, secs, skip};

use crate::{is_whole, until_seen};

/// PostgreSQL refuses to run as root; then everything runs as its own user.
struct User(Option<(u32, u32)>);

impl User {
    fn find() -> Result<User, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Ok(User(None));
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let line = passwd.lines().find(|line| line.starts_with("postgres:"));
        let ids = line.and_then(|line| {
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        ids.map_or_else(
            || skip("running as root and there is no user postgres"),
            |ids| Ok(User(Some(ids))),
        )
    }

    fn run<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
        command.current_dir("/tmp").env("PGCONNECT_TIMEOUT", "60").env_remove("HOME")
    }
}

pub struct Database {
    user: User,
    pub server: Proc,
    pub port: u16,
}

pub fn start(c: &Case, ports: Ports) -> Result<Database, Skip> {
    let (user, initdb, postgres) = (User::find()?, need("initdb")?, need("postgres")?);
    let data = c.dir().join("data");
    let mut make = Command::new(&initdb);
    make.arg("-D").arg(&data).args([
        "-A",
        "trust",
        "-U",
        "postgres",
        "--no-sync",
        "-E",
        "UTF8",
        "--no-locale",
    ]);
    c.start("initdb", user.run(&mut make)).success(secs(100));
    let port = ports.free();
    let settings = [
        "fsync=off",
        "unix_socket_directories=",
        "listen_addresses=127.0.0.1",
        "shared_buffers=32MB",
        // The files that these open from time to time are nothing that clients leave behind.
        "autovacuum=off",
        "checkpoint_timeout=1d",
        "log_line_prefix=",
    ];
    let mut command = Side::Run.command(&postgres);
    command
        .arg("-D")
        .arg(&data)
        .args(["-p", &port.to_string()])
        .args(settings.iter().flat_map(|s| ["-c", s]));
    let mut server = c.serve("postgres", port, user.run(&mut command));
    // It listens before that, and turns clients away.
    server.wait_line("LOG:  database system is ready to accept connections", secs(60));
    Ok(Database { user, server, port })
}

impl Database {
    pub fn client(&self, c: &Case, program: &Path, args: &[&str]) -> String {
        self.start(c, program, args).success(secs(100))
    }

    pub fn start(&self, c: &Case, program: &Path, args: &[&str]) -> Proc {
        let mut command = Side::Run.command(program);
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres"])
            .args(args)
            .arg("postgres");
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        c.start(&name, self.user.run(&mut command))
    }

    pub fn end(mut self) {
        // A smart shutdown would wait for clients; this is the fast one.
        self.server.signal(rustix::process::Signal::INT);
        self.server.wait(secs(60));
    }
}

#[test]
fn postgres_and_pgbench() {
    for ports in [Ports::Low, Ports::High] {
        case(&format!("pgbench-{ports:?}"), |c| {
            let (pgbench, psql) = (need("pgbench")?, need("psql")?);
            let database = start(c, ports)?;
            database.client(c, &pgbench, &["-i", "-q", "-s", "1"]);
            for mode in [&["-S"][..], &[], &["-S", "-M", "prepared", "-j", "2"]] {
                until_seen(c, &[database.port], 8, |times| {
                    // More than pgbench may be without a processor: it says no rate where nothing was done.
                    let seconds = (patience().max(3) * times).to_string();
                    let usual = ["-n", "-c", "4", "-T", seconds.as_str()];
                    let said = database.client(c, &pgbench, &[&usual[..], mode].concat());
                    assert!(is_whole(&said) && said.contains("tps ="), "{said}");
                });
            }
            // The sums agree if every transaction was whole.
            let check = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) \
                         and (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)";
            assert_eq!(database.client(c, &psql, &["-Atc", check]).trim(), "t");
            database.end();
            Ok(())
        });
    }
}

/// A large result, a large COPY each way, a cancelled query and notifications.
#[test]
fn postgres_and_psql() {
    case("psql", |c| {
        let psql = need("psql")?;
        let database = start(c, Ports::Low)?;
        let file = c.dir().join("copied");
        let script = format!(
            "create table t as select i, md5(i::text) as m from generate_series(1, 300000) i;\n\
             \\copy t to '{0}'\n\
             create table u (i int, m text);\n\
             \\copy u from '{0}'\n\
             select count(*), md5(string_agg(m, '' order by i)) = (select md5(string_agg(m, '' order by i)) from t) from u;\n\
             begin;\nset local statement_timeout = '300ms';\n\
             select pg_sleep(10);\n\
             rollback;\n\
             listen here;\nnotify here, 'word';\nselect 1;\n",
            file.display()
        );
        let path = c.dir().join("script.sql");
        fs::write(&path, script).expect("a script");
        let mut command = Side::Run.command(&psql);
        command
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &database.port.to_string(),
                "-U",
                "postgres",
                "-At",
                "-f",
            ])
            .arg(&path)
            .arg("postgres");
        let mut client = c.start("psql", database.user.run(&mut command));
        let said = client.success(secs(60));
        assert!(said.contains("300000|t"), "{said}{}", client.stderr());
        assert!(client.stderr().contains("statement timeout"), "{}", client.stderr());
        assert!(said.contains("word"), "{said}");
        database.end();
        Ok(())
    });
}
