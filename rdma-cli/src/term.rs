//! Styles of the terminal: used where a person reads, absent everywhere else.

use std::fmt;
use std::io::IsTerminal;

/// Whether to style what is written to one stream.
#[derive(Clone, Copy, Debug)]
pub struct Style(bool);

impl Style {
    /// Styled if `stream` is a terminal that can do it, and the user did not say no (`NO_COLOR`).
    pub fn of(stream: &impl IsTerminal) -> Style {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Style(stream.is_terminal() && !dumb && !unwanted)
    }

    /// For what matters most.
    pub fn bold<T: fmt::Display>(self, text: T) -> Styled<T> {
        self.with("1", text)
    }

    /// For what need not be read.
    pub fn dim<T: fmt::Display>(self, text: T) -> Styled<T> {
        self.with("2", text)
    }

    /// For what went well.
    pub fn green<T: fmt::Display>(self, text: T) -> Styled<T> {
        self.with("32", text)
    }

    /// For what went wrong.
    pub fn red<T: fmt::Display>(self, text: T) -> Styled<T> {
        self.with("1;31", text)
    }

    /// For names.
    pub fn cyan<T: fmt::Display>(self, text: T) -> Styled<T> {
        self.with("36", text)
    }

    fn with<T: fmt::Display>(self, code: &'static str, text: T) -> Styled<T> {
        Styled {
            code: self.0.then_some(code),
            text,
        }
    }
}

/// A text that somebody else may have made, such as a name or what a peer says: control characters, by which it could
/// command the terminal, are shown as escapes.
#[derive(Debug)]
pub struct Harmless<T>(pub T);

impl<T: fmt::Display> fmt::Display for Harmless<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            control if control.is_control() => write!(self.0, "{}", control.escape_default()),
            other => self.0.write_char(other),
        })
    }
}

/// A text in a style. Width and alignment of the format apply to the text alone.
#[derive(Debug)]
pub struct Styled<T> {
    code: Option<&'static str>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Styled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            None => self.text.fmt(f),
            Some(code) => {
                write!(f, "\x1b[{code}m")?;
                self.text.fmt(f)?;
                f.write_str("\x1b[0m")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let evil = "a\x1b]0;owned\x07\u{9b}2J\r\nb é → \t";
        assert_eq!(
            Harmless(evil).to_string(),
            "a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\nb é → \\t"
        );
    }
}
