//! Traces as a graph in the language of Graphviz.

use std::fmt::Write;

use engine::lua::traces::TraceFacts;

use super::{percent, short};

/// Circles are looping traces. A line is an exit, its number beside it; a broken line leads on from
/// the end of a trace.
pub fn graph(facts: &TraceFacts) -> String {
    let mut out = String::from(
        "digraph traces {\n  rankdir=LR;\n  node [shape=box, style=filled, fillcolor=white];\n",
    );
    for trace in &facts.traces {
        let shape = if trace.looping { "ellipse" } else { "box" };
        let share = percent(trace.samples, facts.samples());
        let app = trace.app.as_deref().unwrap_or("");
        let _ = writeln!(
            out,
            "  t{} [shape={shape}, fillcolor=\"0.03 {:.2} 1.0\", label=\"{}  {:.1} %\\n{}:{} {app}\"];",
            trace.id,
            (share / 40.0).min(0.8),
            trace.id,
            share,
            escape(&short(&trace.file)),
            trace.line
        );
        if let (Some(parent), Some(exit)) = (trace.parent, trace.exit) {
            let _ = writeln!(out, "  t{parent} -> t{} [label=\"{exit}\"];", trace.id);
        }
        if let Some(link) = trace.link {
            let _ = writeln!(out, "  t{} -> t{link} [style=dashed];", trace.id);
        }
        if trace.falls() > 0 {
            let _ = writeln!(
                out,
                "  t{} -> interpreter [style=dotted, label=\"{}\"];",
                trace.id,
                trace.falls()
            );
        }
    }
    out.push_str("  interpreter [shape=plaintext, style=\"\"];\n}\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
