//! `shortwire linkgroups`: which processes share memory with which, in the columns of
//! `smcd linkgroup`.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Result, bail};

use connections::{LinkGroup, snapshot};
use terminal::screen;

use crate::ss::shortened;

#[derive(clap::Args)]
#[command(about = "Show the link groups of programs under Shortwire")]
#[command(
    long_about = "Shows which processes share memory: a link group is what two processes have in common, over one device, for all \
connections that one of them proposes to the other. The first four columns are those of `smcd linkgroup`. Each end has a group of its own, so \
both are listed where both can be seen; a group without connections is kept for the next one."
)]
#[command(after_help = "Examples:
  shortwire linkgroups
  shortwire linkgroups -d           a block for each: EID, release, peer,
                                    memory
  shortwire linkgroups -d 00000100  only those with this id; each process
                                    counts its own")]
pub struct Linkgroups {
    /// A block of lines for each
    #[arg(short, long)]
    pub details: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Only groups with this id
    #[arg(value_name = "LG-ID")]
    pub group: Option<String>,
}

pub fn run(args: &Linkgroups) -> Result<ExitCode> {
    let wanted = args.group.as_deref().map(number).transpose()?;
    let snapshot = snapshot(|_| true);
    let groups: Vec<LinkGroup> = snapshot
        .tables
        .iter()
        .flat_map(|table| table.link_groups())
        .filter(|g| wanted.is_none_or(|id| id == g.id))
        .collect();
    if args.json {
        crate::json::print(&serde_json::json!({ "linkgroups": groups }))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::out!(
        "{}",
        if args.details { blocks(&groups) } else { table(&groups, screen::width()) }
    )?;
    if groups.is_empty() {
        eprintln!("No link groups of programs under `shortwire run`.");
    }
    if snapshot.hidden > 0 && !rustix::process::getuid().is_root() {
        eprintln!("Only your own programs are shown; run as root to see those of all users.");
    }
    Ok(ExitCode::SUCCESS)
}

/// As the table shows it: hexadecimal.
fn number(text: &str) -> Result<u32> {
    match u32::from_str_radix(text.trim_start_matches("0x"), 16) {
        Ok(id) => Ok(id),
        Err(_) => bail!(
            "{text} is no link group id; give one as the column LG-ID shows it, such as 00000100"
        ),
    }
}

/// Columns as wide as what stands in them; a narrow terminal shortens programs.
fn table(groups: &[LinkGroup], width: Option<usize>) -> String {
    let header = [
        "LG-ID",
        "VLAN",
        "#Conns",
        "PNET-ID",
        "Device",
        "LG-Role",
        "State",
        "Pid/program",
        "Peer-Pid",
    ];
    const PROGRAM: usize = 7;
    let mut rows = vec![header.map(String::from)];
    rows.extend(groups.iter().map(|group| {
        [
            format!("{:08x}", group.id),
            group.vlan.to_string(),
            group.connections.to_string(),
            group.pnet_id.clone(),
            group.device.to_string(),
            group.role.to_string(),
            group.state.to_string(),
            format!("{}/{}", group.pid, group.program),
            group.peer_pid.to_string(),
        ]
    }));
    let widest = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let mut widths: [usize; 9] = std::array::from_fn(widest);
    let all = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
    let over = all.saturating_sub(width.unwrap_or(all));
    widths[PROGRAM] = widths[PROGRAM].saturating_sub(over).max(header[PROGRAM].len());
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| {
            let cell = shortened(cell, width, false);
            format!("{cell:<width$}  ")
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

fn blocks(groups: &[LinkGroup]) -> String {
    let mut text = String::new();
    for group in groups {
        for (name, value) in [
            ("LG-ID", format!("{:08x}", group.id)),
            ("VLAN", group.vlan.to_string()),
            ("PNET-ID", group.pnet_id.clone()),
            ("Version", group.version.to_string()),
            ("Rel", group.release.to_string()),
            ("Peer-Host", group.peer_host.clone()),
            ("Peer-OS", group.peer_os.clone()),
            ("EID", group.eid.clone()),
            ("Integrity", if group.integrity { "Yes" } else { "No" }.into()),
            ("#Conns", group.connections.to_string()),
            ("Sndbuf", group.sndbuf.to_string()),
            ("DMB", group.dmb.to_string()),
            ("Device", format!("{}, CHID {}", group.device, group.chid)),
            ("LG-Role", group.role.into()),
            ("State", group.state.into()),
            ("GID", group.gid.clone()),
            ("Peer-GID", group.peer_gid.clone()),
            ("Pid/program", format!("{}/{}", group.pid, group.program)),
            ("Peer-Pid", group.peer_pid.to_string()),
            ("Peer-UID", group.peer_uid.to_string()),
        ] {
            let _ = writeln!(text, "{}", format!("{name:<12}: {value}").trim_end());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> LinkGroup {
        LinkGroup {
            id: 0x300,
            vlan: 0,
            connections: 12,
            pnet_id: "NET1".into(),
            device: "loopback",
            chid: "ffff".into(),
            role: "SERV",
            state: "READY",
            version: 2,
            release: 1,
            peer_host: "here".into(),
            peer_os: "Linux".into(),
            eid: "DEMO".into(),
            integrity: false,
            sndbuf: 65_536,
            dmb: 131_072,
            gid: "1_2".into(),
            peer_gid: "3_4".into(),
            pid: 4711,
            program: "redis-server".into(),
            peer_pid: 4712,
            peer_uid: 33,
        }
    }

    #[test]
    fn the_columns_of_smcd_come_first() {
        let text = table(&[group()], None);
        let narrow = table(&[group()], Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("4711/redi.."), "{narrow}");
        let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(header[..4], ["LG-ID", "VLAN", "#Conns", "PNET-ID"]);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            [
                "00000300",
                "0",
                "12",
                "NET1",
                "loopback",
                "SERV",
                "READY",
                "4711/redis-server",
                "4712"
            ]
        );
    }

    #[test]
    fn details_are_blocks() {
        let text = blocks(&[group(), group()]);
        assert_eq!(text.matches("LG-ID       : 00000300\n").count(), 2);
        for line in [
            "EID         : DEMO\n",
            "Peer-Host   : here\n",
            "DMB         : 131072\n",
            "Peer-OS     : Linux\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn ids_are_hexadecimal() {
        assert_eq!(number("00000300").unwrap(), 0x300);
        assert_eq!(number("0x1F00").unwrap(), 0x1f00);
        assert!(number("group").unwrap_err().to_string().contains("LG-ID"));
    }
}
