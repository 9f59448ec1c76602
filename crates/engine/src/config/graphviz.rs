//! A configuration as a drawing.

use std::fmt::Write;

use crate::config::Config;

impl Config {
    /// The graph in the language of Graphviz: `dot -Tsvg`. Apps of one thread stand in one box if
    /// there are several.
    pub fn graphviz(&self) -> String {
        let threads = self.threads();
        let mut out = String::from("digraph config {\n  rankdir=LR;\n  node [shape=box];\n");
        for &thread in &threads {
            let boxed = threads.len() > 1;
            if boxed {
                let _ =
                    writeln!(out, "  subgraph cluster_{thread} {{\n  label=\"thread {thread}\";");
            }
            for (name, spec) in self.apps().filter(|(_, spec)| spec.thread == thread) {
                let _ = writeln!(out, "  \"{name}\" [label=\"{name}\\n{}\"];", spec.kind);
            }
            if boxed {
                out.push_str("  }\n");
            }
        }
        for link in self.links() {
            let _ = writeln!(
                out,
                "  \"{}\" -> \"{}\" [taillabel=\"{}\", headlabel=\"{}\"];",
                link.from.app, link.to.app, link.from.port, link.to.port
            );
        }
        out.push_str("}\n");
        out
    }
}
