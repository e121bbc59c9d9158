//! What a terminal gets: lines that fit, and styles where a person reads.

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

/// Columns of a line.
pub const WIDTH: usize = 80;

/// A text in lines of at most `width` columns, broken between words; a word that is longer stays whole.
pub fn folded(mut text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    loop {
        let Some((end, _)) = text.char_indices().nth(width) else {
            lines.push(text);
            return lines;
        };
        let at = match text[end..].starts_with(' ') {
            true => Some(end),
            false => text[..end].rfind(' ').filter(|at| *at > 0),
        };
        let Some(at) = at.or_else(|| text[end..].find(' ').map(|more| end + more)) else {
            lines.push(text);
            return lines;
        };
        lines.push(text[..at].trim_end());
        text = text[at..].trim_start();
    }
}

/// A text in lines of at most [`WIDTH`] columns; `head` stands before the first, blanks before the others.
pub fn hung(head: &str, text: &str) -> Vec<String> {
    let indent = head.chars().count();
    let lines = folded(text, WIDTH.saturating_sub(indent))
        .into_iter()
        .enumerate();
    lines
        .map(|(at, line)| match at {
            0 => format!("{head}{line}"),
            _ => format!("{:indent$}{line}", ""),
        })
        .collect()
}

/// So many of something: the word for one of them, or for more.
pub fn counted(count: u64, one: &str, more: &str) -> String {
    let word = if count == 1 { one } else { more };
    format!("{} {word}", indicatif::HumanCount(count))
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
    fn lines_are_broken_between_words() {
        assert_eq!(folded("", 4), [""]);
        assert_eq!(folded("ab cd", 5), ["ab cd"]);
        assert_eq!(folded("ab  cd ef", 5), ["ab", "cd ef"]);
        assert_eq!(folded("→→ cd ef", 5), ["→→ cd", "ef"]);
        assert_eq!(folded("abcdefgh ij", 4), ["abcdefgh", "ij"]);
        assert_eq!(folded("abcdefgh", 4), ["abcdefgh"]);
    }

    #[test]
    fn one_is_no_more() {
        assert_eq!(counted(1, "frame", "frames"), "1 frame");
        assert_eq!(counted(0, "frame", "frames"), "0 frames");
        assert_eq!(counted(1234, "node", "nodes"), "1,234 nodes");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let evil = "a\x1b]0;owned\x07\u{9b}2J\r\nb é → \t";
        assert_eq!(
            Harmless(evil).to_string(),
            "a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\nb é → \\t"
        );
    }
}
