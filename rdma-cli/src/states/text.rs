//! The table as people read it.

use std::io::{self, Write};

use rdma_core_sys::ibv_qp_attr_mask;
use rdma_core_sys::rules::{Posts, STATES, Transport, Work, allowed_posts};

use super::{Transition, ask, names, transitions};
use crate::term::{Style, WIDTH};

/// Writes one section per transport: its moves as a matrix, what each state does with work, and the attributes of
/// each move.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, transports: &[Transport]) -> io::Result<()> {
    let style = Style::of(&io::stdout());
    for (at, &transport) in transports.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(
            out,
            "{}  {}",
            style.bold(transport),
            style.dim(meaning(transport))
        )?;
        writeln!(out)?;
        matrix(out, style, transport)?;
        writeln!(out)?;
        attributes(out, style, transport)?;
    }
    writeln!(out)?;
    let notes = [
        "Every move needs IBV_QP_STATE too; names are those of ibv_qp_attr_mask",
        "without IBV_QP_. A QP comes to SQE by itself, after a failed send, on UC and",
        "UD only; to ERR by itself from any state that works.",
    ];
    notes
        .iter()
        .try_for_each(|note| writeln!(out, "{}", style.dim(note)))
}

/// What the transport is, in a few words.
pub fn meaning(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "reliable connection",
        Transport::Uc => "unreliable connection",
        Transport::Ud => "unreliable datagram",
        Transport::XrcIni => "extended reliable connection, the sending end",
        Transport::XrcTgt => "extended reliable connection, the receiving end (into SRQs)",
        Transport::Smi => "subnet management, QP 0: the kernel's own",
        Transport::Gsi => "general services, QP 1: the kernel's own",
        Transport::RawPacket => "raw Ethernet packets",
    }
}

fn matrix(out: &mut impl Write, style: Style, transport: Transport) -> io::Result<()> {
    write!(out, "  {:<7}", style.dim("from"))?;
    for to in STATES {
        write!(out, "{:>5}", style.cyan(to))?;
    }
    writeln!(out, "  {}", style.dim("may post   sends      receives"))?;
    for from in STATES {
        write!(out, "  {:<7}", style.cyan(from))?;
        for to in STATES {
            let mark = match ask(transport, from, to) {
                None => "·",
                Some(rule) if rule.required.is_empty() && rule.optional.is_empty() => "✓",
                Some(_) => "▪",
            };
            if mark == "·" {
                write!(out, "{:>5}", style.dim(mark))?;
            } else {
                write!(out, "{:>5}", style.bold(mark))?;
            }
        }
        if let Some(posts) = allowed_posts(transport, from) {
            let Posts {
                post_send,
                post_recv,
                send,
                recv,
            } = posts;
            let may = match (post_send, post_recv) {
                (true, true) => "send recv",
                (true, false) => "send",
                (false, true) => "recv",
                (false, false) => "-",
            };
            write!(out, "  {may:<9}  {:<9}  {}", work(send), work(recv))?;
        }
        writeln!(out)?;
    }
    let legend = "✓ the state alone   ▪ with attributes, see below   · no such move";
    writeln!(out, "  {}", style.dim(legend))
}

fn work(work: Work) -> &'static str {
    match work {
        Work::Idle => "-",
        Work::Processed => "processed",
        Work::Drains => "drain",
        Work::Flushed => "flushed",
    }
}

fn attributes(out: &mut impl Write, style: Style, transport: Transport) -> io::Result<()> {
    for Transition {
        from,
        to,
        required,
        optional,
    } in transitions(transport)
    {
        let mut lead = format!("  {from:>5} → {to:<5}");
        for (what, mask) in [("needs", required), ("may set", optional)] {
            if mask.is_empty() {
                continue;
            }
            write!(out, "{} {:>8}  ", style.cyan(&lead), style.dim(what))?;
            let indent = lead.chars().count() + 11;
            list(out, mask, indent)?;
            lead = " ".repeat(lead.chars().count());
        }
    }
    Ok(())
}

/// The names of a mask, broken into lines that begin at column `indent`.
fn list(out: &mut impl Write, mask: ibv_qp_attr_mask, indent: usize) -> io::Result<()> {
    let mut column = indent;
    for (at, name) in names(mask).iter().enumerate() {
        if at > 0 && column + 1 + name.len() > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if at > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{name}")?;
        column += name.len();
    }
    writeln!(out)
}
