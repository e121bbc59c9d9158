//! How findings are printed.

use std::io::{self, Write};

use rdma_qp::doctor::{Finding, Weight};
use serde::Serialize;

use crate::failure::Failure;
use crate::term::{Harmless, Style, WIDTH, folded};

/// What machines read.
#[derive(Serialize)]
struct Report<'a> {
    /// How the program ended, where one was run.
    program: Option<&'a str>,
    findings: &'a [Finding],
}

/// Prints findings; `program` is how the program that was run ended.
///
/// # Errors
/// [`Failure::Found`] if there are any; or the output cannot be written.
pub fn findings(found: &[Finding], program: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json {
        let report = Report {
            program,
            findings: found,
        };
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        text(&mut out, Style::of(&io::stdout()), found, program)?;
    }
    out.flush()?;
    if found.is_empty() {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

/// Says what to do next, where nothing was found.
///
/// # Errors
/// The output cannot be written.
pub fn hint(text: &str) -> io::Result<()> {
    let style = Style::of(&io::stdout());
    paragraph(&mut io::stdout().lock(), "", text, |line| {
        style.dim(line).to_string()
    })
}

/// Prints findings for people, and how many there are.
///
/// # Errors
/// The output cannot be written.
pub fn text(
    out: &mut impl Write,
    style: Style,
    found: &[Finding],
    program: Option<&str>,
) -> io::Result<()> {
    if let Some(program) = program {
        paragraph(out, "", program, |line| style.dim(line).to_string())?;
    }
    let mut before: Option<&Finding> = None;
    let groups = groups(found);
    for (place, group) in groups.iter().enumerate() {
        let finding = group[0];
        // Causes of one failure stand together, and what they have in common is said once.
        let follows = |before: &Finding| {
            finding.weight == Weight::Possible
                && (before.weight, &before.end, &before.evidence)
                    == (finding.weight, &finding.end, &finding.evidence)
        };
        let follows = before.is_some_and(follows);
        if place > 0 && !follows {
            writeln!(out)?;
        }
        one(out, style, place + 1, group, follows)?;
        before = Some(finding);
    }
    if !found.is_empty() {
        writeln!(out)?;
    }
    // As they are numbered: what is said of several ends is one.
    let count = |weight| {
        let of = groups.iter().filter(|group| group[0].weight == weight);
        of.count()
    };
    let counts: Vec<_> = [
        Weight::Certain,
        Weight::Likely,
        Weight::Possible,
        Weight::Risk,
    ]
    .into_iter()
    .filter_map(|weight| match (count(weight), weight) {
        (0, _) => None,
        (more @ 2.., Weight::Risk) => Some(format!("{more} risks")),
        (count, weight) => Some(format!("{count} {weight}")),
    })
    .collect();
    match counts.is_empty() {
        true => writeln!(out, "{}", style.green("nothing was found")),
        false => writeln!(
            out,
            "{}",
            style.dim(format!("found: {}", counts.join(", ")))
        ),
    }
}

/// Findings that say the same of several ends, together, in the order of the first of each.
fn groups(found: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in found {
        let same = |group: &&mut Vec<&Finding>| {
            let first = group[0];
            (&first.code, &first.cause, &first.cure)
                == (&finding.code, &finding.cause, &finding.cure)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

/// Ends that are named where a finding is of several.
const NAMED: usize = 3;

/// Prints what is said of the ends of a group; without its evidence if it `follows` a finding with the same.
fn one(
    out: &mut impl Write,
    style: Style,
    number: usize,
    group: &[&Finding],
    follows: bool,
) -> io::Result<()> {
    let finding = group[0];
    let weight = finding.weight.to_string();
    let weight = match finding.weight {
        Weight::Certain => style.red(weight),
        Weight::Likely => style.bold(weight),
        _ => style.dim(weight),
    };
    let end = finding.end.as_deref().unwrap_or_default();
    write!(
        out,
        "{number:>2}  {weight}  {}",
        style.cyan(Harmless(&finding.code))
    )?;
    if !end.is_empty() && !follows {
        // Names of hosts may be long.
        let head = 8 + finding.weight.to_string().len() + finding.code.len();
        let room = WIDTH.saturating_sub(head) >= end.chars().count();
        let gap = if room { "  " } else { "\n    " };
        write!(out, "{gap}{}", style.dim(Harmless(end)))?;
    }
    writeln!(out)?;
    paragraph(out, "    ", &finding.cause, |line| {
        style.bold(line).to_string()
    })?;
    for evidence in finding.evidence.iter().filter(|_| !follows) {
        paragraph(out, "    - ", evidence, str::to_owned)?;
    }
    let others: Vec<_> = group[1..]
        .iter()
        .filter_map(|other| other.end.as_deref())
        .collect();
    if !others.is_empty() {
        let mut also = format!("also {}", others[..others.len().min(NAMED)].join(", "));
        if others.len() > NAMED {
            also.push_str(&format!(", and {} more", others.len() - NAMED));
        }
        paragraph(out, "    - ", &also, str::to_owned)?;
    }
    paragraph(out, "    → ", &finding.cure, |line| {
        style.green(line).to_string()
    })
}

/// Prints a text in lines of at most [`WIDTH`] columns; `head` stands before the first, blanks before the others.
pub fn paragraph(
    out: &mut impl Write,
    head: &str,
    text: &str,
    style: impl Fn(&str) -> String,
) -> io::Result<()> {
    let text = Harmless(text).to_string();
    let indent = head.chars().count();
    let mut before = head.to_owned();
    for line in folded(&text, WIDTH.saturating_sub(indent).max(20)) {
        writeln!(out, "{before}{}", style(line))?;
        before = " ".repeat(indent);
    }
    Ok(())
}
