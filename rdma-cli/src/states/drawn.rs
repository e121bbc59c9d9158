//! The states and their moves as a diagram: Mermaid, for pages that draw it, and SVG.
//!
//! RESET and ERR are reached from nearly everywhere, which a sentence says better than arrows.

use std::fmt::Write as _;
use std::io::{self, Write};

use rdma_core_sys::rules::{STATES, Transport};
use rdma_core_sys::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
    ibv_qp_attr_mask, ibv_qp_state,
};

use super::text::meaning;
use super::{Transition, ask, names, transitions};

/// Whether the move has an arrow of its own.
fn has_arrow(t: &Transition) -> bool {
    t.to != IBV_QPS_RESET && t.to != IBV_QPS_ERR
}

/// From where a state is reached, in words.
fn reached_from(transport: Transport, to: ibv_qp_state) -> String {
    let not: Vec<_> = STATES
        .iter()
        .filter(|&&from| ask(transport, from, to).is_none())
        .map(ToString::to_string)
        .collect();
    match not.is_empty() {
        true => "from every state".to_owned(),
        false => format!("from every state but {}", not.join(" and ")),
    }
}

/// Whether a failed send leads to SQE: on RC and XRC it leads to ERR.
fn comes_to_sqe(transport: Transport) -> bool {
    matches!(transport, Transport::Uc | Transport::Ud)
}

/// What a move takes that neither needs nor takes any attribute.
const ALONE: &str = "the state alone";
const BY_ITSELF: &str = "or by itself, after an error";

/// Writes one state diagram per transport, for Mermaid.
///
/// # Errors
/// Those of `out`.
pub fn mermaid(out: &mut impl Write, transports: &[Transport]) -> io::Result<()> {
    for (at, &transport) in transports.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "---\ntitle: {transport}, {}\n---", meaning(transport))?;
        writeln!(out, "stateDiagram-v2")?;
        writeln!(out, "    [*] --> {IBV_QPS_RESET}")?;
        for t in transitions(transport).filter(has_arrow) {
            let lines: Vec<_> = [("needs", t.required), ("may set", t.optional)]
                .into_iter()
                .filter(|(_, mask)| !mask.is_empty())
                .map(|(what, mask)| format!("{what} {}", names(mask).join(" ")))
                .collect();
            let label = match lines.is_empty() {
                true => ALONE.to_owned(),
                false => lines.join("<br/>"),
            };
            writeln!(out, "    {} --> {}: {label}", t.from, t.to)?;
        }
        if comes_to_sqe(transport) {
            writeln!(
                out,
                "    {IBV_QPS_RTS} --> {IBV_QPS_SQE}: by itself, after a failed send"
            )?;
        }
        let reset = reached_from(transport, IBV_QPS_RESET);
        let err = reached_from(transport, IBV_QPS_ERR);
        writeln!(out, "    note right of {IBV_QPS_RESET}: {reset}")?;
        writeln!(out, "    state {IBV_QPS_ERR}")?;
        writeln!(out, "    note right of {IBV_QPS_ERR}: {err}, {BY_ITSELF}")?;
    }
    Ok(())
}

/// Size of one diagram.
const SIZE: (i32, i32) = (960, 715);
/// Size of the box of a state.
const BOX: (i32, i32) = (110, 44);
/// Height of a line of text.
const LINE: i32 = 15;

/// The middle of the box of a state.
fn middle(state: ibv_qp_state) -> (i32, i32) {
    match state {
        IBV_QPS_RESET => (450, 100),
        IBV_QPS_INIT => (450, 215),
        IBV_QPS_RTR => (450, 345),
        IBV_QPS_RTS => (450, 495),
        IBV_QPS_SQD => (800, 495),
        IBV_QPS_SQE => (100, 495),
        // Of those that the table knows, ERR is left.
        _ => (450, 665),
    }
}

/// Where the label of a move begins, its anchor, and how many characters it has room for.
struct Place {
    at: (i32, i32),
    anchor: &'static str,
    room: usize,
}

/// The arrow of a move, as the `d` of a path, and the place of its label.
///
/// The way from RESET to RTS goes down, SQD is to the right of RTS and SQE to its left; a state that is set up again has a loop.
fn arrow(from: ibv_qp_state, to: ibv_qp_state) -> (String, Place) {
    let ((x, y), (tx, ty)) = (middle(from), middle(to));
    let (w, h) = (BOX.0 / 2, BOX.1 / 2);
    match (from, to) {
        (IBV_QPS_SQD, IBV_QPS_SQD) => (
            loop_at(x, y + h, (-12, 12), (0, 34)),
            Place {
                at: (x + 24, y + h + 44),
                anchor: "middle",
                room: 27,
            },
        ),
        (IBV_QPS_RTS, IBV_QPS_RTS) => (
            loop_at(x, y + h, (-40, -16), (0, 34)),
            Place {
                at: (x - 48, y + h + 38),
                anchor: "end",
                room: 34,
            },
        ),
        (from, to) if from == to => (
            loop_at(x - w, y, (-10, 10), (-34, 0)),
            Place {
                at: (x - w - 38, y - 4),
                anchor: "end",
                room: 34,
            },
        ),
        // Beside each other: to the right above, to the left below, so that there and back do not meet.
        _ if y == ty => {
            let (aside, label) = match tx > x {
                true => (1, y - 16),
                false => (-1, y + 12 + LINE),
            };
            (
                format!("M{} {}H{}", x + aside * w, y - aside * 10, tx - aside * w),
                Place {
                    at: ((x + tx) / 2, label),
                    anchor: "middle",
                    room: 32,
                },
            )
        }
        _ => (
            format!("M{x} {}V{}", y + h, ty - h),
            Place {
                at: (x + 14, (y + ty) / 2 - LINE),
                anchor: "start",
                room: 62,
            },
        ),
    }
}

/// A loop at the edge of a box: it leaves at the first offset along the edge, comes back at the second, and goes out so far.
fn loop_at(x: i32, y: i32, (out, back): (i32, i32), (dx, dy): (i32, i32)) -> String {
    let along = |offset: i32| match dx {
        0 => (x + offset, y),
        _ => (x, y + offset),
    };
    let ((ax, ay), (bx, by)) = (along(out), along(back));
    format!(
        "M{ax} {ay}C{} {} {} {} {bx} {by}",
        ax + dx,
        ay + dy,
        bx + dx,
        by + dy
    )
}

/// The names of a mask in lines of at most `room` characters.
fn lines(what: &str, mask: ibv_qp_attr_mask, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let words = std::iter::once(what.to_owned()).chain(names(mask));
    for word in words.filter(|_| !mask.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= room => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Writes the diagrams of the transports, one under another, as one SVG.
///
/// # Errors
/// Those of `out`.
pub fn svg(out: &mut impl Write, transports: &[Transport]) -> io::Result<()> {
    let (width, height) = SIZE;
    let all = height * i32::try_from(transports.len()).unwrap_or(1);
    writeln!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {all}" width="{width}" height="{all}" font-family="sans-serif" font-size="12">
<style>.title{{font-size:20px;font-weight:bold}} .state{{font-size:16px;font-weight:bold}} .box{{fill:#eef3fb;stroke:#1f4e8c;stroke-width:1.5}} .err{{fill:#fbeeee;stroke:#9c1f1f}} .way{{fill:none;stroke:#1f4e8c;stroke-width:1.5;marker-end:url(#tip)}} .itself{{stroke-dasharray:5 4;stroke:#9c1f1f}} .may,.note{{fill:#5a5a5a}}</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#1f4e8c"/></marker></defs>
<rect width="{width}" height="{all}" fill="white"/>"##
    )?;
    for (at, &transport) in (0..).zip(transports) {
        writeln!(out, r#"<g transform="translate(0 {})">"#, height * at)?;
        out.write_all(diagram(transport).as_bytes())?;
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>")
}

fn diagram(transport: Transport) -> String {
    let mut svg = String::new();
    let mut text = |class: &str, (x, y): (i32, i32), anchor: &str, line: &str| {
        // A String takes whatever is written.
        let _ = writeln!(
            svg,
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{line}</text>"#
        );
    };
    let (rx, ry) = middle(IBV_QPS_RESET);
    let (ex, ey) = middle(IBV_QPS_ERR);
    text("title", (24, 36), "start", transport.name());
    text("note", (24, 58), "start", meaning(transport));
    let beside = BOX.0 / 2 + 14;
    let reset = reached_from(transport, IBV_QPS_RESET);
    text("note", (rx + beside, ry + 4), "start", &reset);
    let err = reached_from(transport, IBV_QPS_ERR);
    text("note", (ex + beside, ey - 2), "start", &err);
    text("note", (ex + beside, ey + LINE - 2), "start", BY_ITSELF);
    let itself = comes_to_sqe(transport).then(|| arrow(IBV_QPS_RTS, IBV_QPS_SQE));
    if let Some((_, place)) = &itself {
        text(
            "note",
            place.at,
            place.anchor,
            "by itself, after a failed send",
        );
    }
    if let Some((path, _)) = itself {
        let _ = writeln!(svg, r#"<path class="way itself" d="{path}"/>"#);
    }
    for t in transitions(transport).filter(has_arrow) {
        let (path, place) = arrow(t.from, t.to);
        let _ = writeln!(
            svg,
            r#"<g><title>{} to {}</title><path class="way" d="{path}"/>"#,
            t.from, t.to
        );
        let (x, mut y) = place.at;
        if t.required.is_empty() && t.optional.is_empty() {
            let anchor = place.anchor;
            let _ = writeln!(
                svg,
                r#"<text class="may" x="{x}" y="{y}" text-anchor="{anchor}">{ALONE}</text>"#
            );
        }
        for (class, what, mask) in [
            ("needs", "needs", t.required),
            ("may", "may set", t.optional),
        ] {
            for line in lines(what, mask, place.room) {
                let anchor = place.anchor;
                let _ = writeln!(
                    svg,
                    r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{line}</text>"#
                );
                y += LINE;
            }
        }
        svg.push_str("</g>\n");
    }
    let (w, h) = BOX;
    for state in STATES {
        let (x, y) = middle(state);
        let class = if [IBV_QPS_ERR, IBV_QPS_SQE].contains(&state) {
            "box err"
        } else {
            "box"
        };
        let _ = writeln!(
            svg,
            r#"<rect class="{class}" x="{}" y="{}" width="{w}" height="{h}" rx="8"/><text class="state" x="{x}" y="{}" text-anchor="middle">{state}</text>"#,
            x - w / 2,
            y - h / 2,
            y + 6
        );
    }
    svg
}
