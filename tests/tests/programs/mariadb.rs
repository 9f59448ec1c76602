use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use system_tests::{Case, Ports, Proc, Side, case, count_skip, need, secs, skip};

use crate::until_seen;

/// A client, which must succeed; what it printed.
fn ask(c: &Case, program: &Path, port: u16, arguments: &[&str]) -> String {
    let mut command = Side::Run.command(program);
    command.arg("--no-defaults").args(["-h", "127.0.0.1", "-u", "root", "-P", &port.to_string()]);
    c.start("client", command.args(arguments)).success(secs(100))
}

fn has_ring(server: &Proc) -> bool {
    let all = fs::read_dir(format!("/proc/{}/fd", server.pid())).into_iter().flatten().flatten();
    all.filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|file| file == Path::new("anon_inode:[io_uring]"))
}

/// It reads and writes its files by a ring, which it makes unasked.
#[test]
fn mariadb_with_a_ring_for_its_files() {
    case("mariadb", |c| {
        let [install, server, client, slap] =
            ["mariadb-install-db", "mariadbd", "mariadb", "mariadb-slap"].map(need);
        let (install, server, client, slap) = (install?, server?, client?, slap?);
        if !rustix::process::geteuid().is_root() {
            return skip("its files are made for root here");
        }
        let (data, socket) = (c.dir().join("data"), c.dir().join("socket"));
        let (data, socket) = (data.to_string_lossy(), socket.to_string_lossy());
        let of_all = ["--no-defaults", "--user=root"];
        let mut make = Command::new(install);
        make.args(of_all).arg(format!("--datadir={data}"));
        make.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
        c.start("install", &mut make).success(secs(100));
        let port = Ports::Low.free();
        let mut command = Side::Run.command(&server);
        command.args(of_all).arg(format!("--datadir={data}")).arg(format!("--socket={socket}"));
        command.args([&format!("--port={port}"), "--bind-address=127.0.0.1"]);
        // Less memory than there is data, so that files are read all the time.
        command.args(["--innodb-buffer-pool-size=6M", "--innodb-flush-log-at-trx-commit=0"]);
        let mut server = c.serve("mariadb", port, &mut command);
        if !has_ring(&server) {
            count_skip("mariadb-ring", &system_tests::Skip("it makes no ring here".into()));
        }
        let ask = |program: &Path, arguments: &[&str]| ask(c, program, port, arguments);
        ask(
            &client,
            &[
                "-e",
                "create database shop; create table shop.parts (id int primary key, name varchar(400)) engine=innodb",
            ],
        );
        ask(
            &client,
            &[
                "shop",
                "-e",
                "insert into parts select seq, repeat(md5(seq), 12) from seq_1_to_40000",
            ],
        );
        let load = "--query=select * from parts where id between 100 and 160; \
                    update parts set name = concat(name, '') where id = 1 + connection_id() * 131 % 40000; \
                    select count(*), sum(crc32(name)) from parts where id between 20000 and 24000";
        until_seen(c, &[port], 8, |times| {
            let count = format!("--number-of-queries={}", 3000 * times);
            ask(&slap, &["--create-schema=shop", "--delimiter=;", "--concurrency=8", &count, load]);
        });
        // Every row as it was computed, in one answer of 16 MB.
        let rows = ask(
            &client,
            &[
                "shop",
                "-N",
                "-e",
                "select id, binary name = binary repeat(md5(id), 12), name from parts order by id",
            ],
        );
        let mut count = 0;
        for (n, row) in rows.lines().enumerate() {
            let fields: Vec<&str> = row.split('\t').collect();
            let [id, is_right, name] = fields[..] else { panic!("{row}") };
            assert_eq!((id, is_right), (&*(n + 1).to_string(), "1"));
            assert!(name.len() == 12 * 32 && name == name[..32].repeat(12), "{row}");
            count += 1;
        }
        assert_eq!(count, 40_000);
        server.signal(Signal::TERM);
        server.success(secs(60));
        Ok(())
    });
}
