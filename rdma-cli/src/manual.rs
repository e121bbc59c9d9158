//! `qp completions` and `qp man`: what a packager installs beside the program, made from its own options.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::Failure;
use crate::{Cli, term::Harmless};

/// Options of `qp completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qp completions bash > ~/.local/share/bash-completion/completions/qp
  qp completions zsh > ~/.zfunc/_qp              with ~/.zfunc in $fpath
  qp completions fish > ~/.config/fish/completions/qp.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Options of `qp man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  qp man ping | man -l -                         one page
  qp man --dir /usr/local/share/man/man1         all of them")]
pub struct ManualPages {
    /// The command whose page is printed, such as ping or doctor path; qp itself if not given
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,
    /// Write the pages of qp and of all its commands to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completion script of a shell.
///
/// # Errors
/// The output cannot be written.
pub fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "qp", &mut script);
    let mut out = io::stdout().lock();
    Ok(out.write_all(&script).and_then(|()| out.flush())?)
}

/// Prints or writes manual pages.
///
/// # Errors
/// There is no such command; a file or the output cannot be written.
pub fn pages(args: &ManualPages) -> Result<(), Failure> {
    // `help` says nothing that the pages do not say.
    let mut qp = Cli::command().disable_help_subcommand(true);
    // Gives each command its whole name, `qp-ping`, and the options that all have.
    qp.build();
    if let Some(dir) = &args.dir {
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        return write_pages(dir, &qp);
    }
    let mut command = &qp;
    for name in &args.command {
        command = (command.get_subcommands().filter(|command| is_page(command)))
            .find(|command| command.get_name() == name)
            .ok_or_else(|| {
                let (above, name) = (command.get_bin_name().unwrap_or("qp"), Harmless(name));
                Failure::Usage(format!(
                    "{above} has no command {name}: `{above} --help` names them"
                ))
            })?;
    }
    let mut out = io::stdout().lock();
    Ok(out.write_all(&page(command)?).and_then(|()| out.flush())?)
}

fn is_page(command: &Command) -> bool {
    command.get_name() != "help"
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(is_page) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        page.extend(sections(&text.to_string()).into_bytes());
    }
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// What stands below the options of a help, as sections of a page: examples, exit status, and the rest as notes. Lines that
/// are indented there stay as they are, from the same column on: filled, they would be no table any more.
fn sections(text: &str) -> String {
    let mut page = String::new();
    let mut section = "";
    for paragraph in text.split("\n\n") {
        let (title, text) = if let Some(status) = paragraph.strip_prefix("Status: ") {
            ("EXIT STATUS", status)
        } else if let Some((_, examples)) = (paragraph.split_once('\n'))
            .filter(|(head, _)| head.starts_with("Example") && head.ends_with(':'))
        {
            ("EXAMPLES", examples)
        } else {
            ("NOTES", paragraph)
        };
        page.push_str(&match section == title {
            true => ".PP\n".to_owned(),
            false => format!(".SH \"{title}\"\n"),
        });
        section = title;
        let mut as_it_is = false;
        for line in text.lines() {
            if as_it_is != line.starts_with(' ') {
                as_it_is = !as_it_is;
                page.push_str(if as_it_is {
                    ".nf\n.in 0\n"
                } else {
                    ".in\n.fi\n"
                });
            }
            page.push_str(&roff(line));
        }
        if as_it_is {
            page.push_str(".in\n.fi\n");
        }
    }
    page
}

/// A line as roff takes it literally.
fn roff(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    let line = line
        .replace('`', "\\(ga")
        .replace('\'', "\\(aq")
        .replace('^', "\\(ha");
    let line = line.replace('~', "\\(ti");
    match line.starts_with(['.', ' ']) {
        true => format!("\\&{line}\n"),
        false => format!("{line}\n"),
    }
}

/// Writes the page of a command and those of its commands.
fn write_pages(dir: &Path, command: &Command) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page(command)?).map_err(|error| cannot_write(&path, &error))?;
    (command.get_subcommands().filter(|command| is_page(command)))
        .try_for_each(|command| write_pages(dir, command))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let path = Harmless(path.display());
    Failure::told(format!("cannot write {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_a_table() {
        let help = "A note\nof two lines.\n\nExamples:\n  qp a -x   one\n  qp b      two\n\nStatus: 0 or 1.";
        assert_eq!(
            sections(help),
            ".SH \"NOTES\"\nA note\nof two lines.\n.SH \"EXAMPLES\"\n.nf\n.in 0\n\\&  qp a \\-x   one\n\\&  qp b      two\n\
             .in\n.fi\n.SH \"EXIT STATUS\"\n0 or 1.\n"
        );
    }
}
