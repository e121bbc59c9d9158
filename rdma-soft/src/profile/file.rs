//! A file of settings: one `name = value` a line, `#` begins a comment.

use std::path::{Path, PathBuf};

use super::ProfileError;

/// Where a setting stands.
#[derive(Clone, Debug)]
pub(super) struct Line {
    path: PathBuf,
    number: usize,
}

impl Line {
    /// What is wrong with the line.
    pub(super) fn error(&self, problem: String) -> ProfileError {
        ProfileError::Line {
            path: self.path.clone(),
            line: self.number,
            problem,
        }
    }
}

/// The settings of a file, by name, as they are written.
pub(super) fn read(path: &Path) -> Result<Vec<(Line, String, String)>, ProfileError> {
    let text = std::fs::read_to_string(path).map_err(|error| ProfileError::File {
        path: path.to_owned(),
        problem: error.to_string(),
    })?;
    let mut settings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let at = Line {
            path: path.to_owned(),
            number,
        };
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let Some((name, value)) = content.split_once('=') else {
            return Err(at.error(format!("{content:?} has no =; write name = value")));
        };
        settings.push((at, name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(settings)
}
