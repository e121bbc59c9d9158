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
    /// The command whose page is printed; the page of qp itself if not given
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Option<String>,
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
    let mut qp = Cli::command();
    // Gives each command its whole name, `qp-ping`, and the options that all have.
    qp.build();
    if let Some(dir) = &args.dir {
        fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
        return std::iter::once(&qp)
            .chain(qp.get_subcommands().filter(|command| is_page(command)))
            .try_for_each(|command| write_page(dir, command));
    }
    let command = match &args.command {
        None => &qp,
        Some(name) => (qp.get_subcommands().filter(|command| is_page(command)))
            .find(|command| command.get_name() == name)
            .ok_or_else(|| {
                let name = Harmless(name);
                Failure::Usage(format!("qp has no command {name}: `qp help` names them"))
            })?,
    };
    let mut out = io::stdout().lock();
    Ok(out.write_all(&page(command)?).and_then(|()| out.flush())?)
}

/// `help` is of clap, and says nothing that the pages do not say.
fn is_page(command: &Command) -> bool {
    command.get_name() != "help"
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

fn write_page(dir: &Path, command: &Command) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page(command)?).map_err(|error| cannot_write(&path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let path = Harmless(path.display());
    Failure::told(format!("cannot write {path}: {error}"))
}
