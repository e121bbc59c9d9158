//! The program to run: where it is, and whether a library can be preloaded into it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A program.
#[derive(Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
}

/// How many interpreters of interpreters are followed, as many as Linux does.
const INTERPRETERS: usize = 5;

impl Program {
    /// Finds `name` as execvp(3) does: as a path if it has a slash, else in the directories of `PATH`.
    ///
    /// # Errors
    /// There is none that may be executed.
    pub fn find(name: &OsStr) -> Result<Program, Failure> {
        let executable = |path: &Path| {
            fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        };
        let text = name.to_string_lossy();
        if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            return match fs::metadata(&path) {
                Ok(_) if executable(&path) => Ok(Program { path }),
                Ok(_) => Err(Failure::CannotRun(format!("{text} is no executable file"))),
                Err(error) => Err(Failure::NoProgram(format!("cannot run {text}: {error}"))),
            };
        }
        let path =
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        (std::env::split_paths(&path).map(|dir| dir.join(name)))
            .find(|path| executable(path))
            .map(|path| Program { path })
            .ok_or_else(|| {
                Failure::NoProgram(format!(
                    "there is no program {text} in the directories of PATH"
                ))
            })
    }

    /// Checks that the dynamic linker will load a preloaded library into it.
    ///
    /// # Errors
    /// A program without a dynamic linker, one that runs with rights of its own (the dynamic linker ignores LD_PRELOAD
    /// then), or one for another kind of machine or C library.
    pub fn check(&self) -> Result<(), Failure> {
        let mut path = self.path.clone();
        for _ in 0..INTERPRETERS {
            if let Some(why) = own_rights(&path) {
                return Err(refused(
                    &path,
                    &format!(
                        "it {why}, and the dynamic linker preloads nothing into such a program"
                    ),
                ));
            }
            let file = File::open(&path).map_err(|error| {
                Failure::CannotRun(format!("cannot look at {}: {error}", path.display()))
            })?;
            match kind(&file) {
                Kind::Script(interpreter) => path = interpreter,
                Kind::Elf(elf) => return elf.check(&path),
                Kind::Other => {
                    return Err(refused(&path, "it is neither an ELF program nor a script"));
                }
            }
        }
        Err(refused(
            &self.path,
            "its interpreters are scripts without end",
        ))
    }
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::CannotRun(format!(
        "{} cannot run on the software device: {why}",
        path.display()
    ))
}

/// Why the program has rights that its caller does not have, if it has.
fn own_rights(path: &Path) -> Option<String> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    let meta = fs::metadata(path).ok()?;
    let mode = meta.mode();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if mode & SETUID != 0 && meta.uid() != uid.as_raw() {
        return Some(format!("is setuid to user {}", meta.uid()));
    }
    if mode & SETGID != 0 && meta.gid() != gid.as_raw() {
        return Some(format!("is setgid to group {}", meta.gid()));
    }
    let mut capabilities = [0u8; 64];
    let has = rustix::fs::getxattr(path, "security.capability", &mut capabilities)
        .is_ok_and(|len| len > 0);
    (has && !uid.is_root()).then(|| "has file capabilities".to_owned())
}

/// What kind of file it is.
enum Kind {
    /// A script, by its interpreter.
    Script(PathBuf),
    Elf(Elf),
    Other,
}

fn kind(file: &File) -> Kind {
    let mut head = [0u8; 64];
    let read = file.read_at(&mut head, 0).unwrap_or(0);
    if head.starts_with(b"#!") {
        let mut line = Vec::new();
        // A line that cannot be read names no interpreter.
        let _ = BufReader::new(file).read_until(b'\n', &mut line);
        let mut words = line
            .get(2..)
            .unwrap_or_default()
            .split(|b| b.is_ascii_whitespace());
        return match words.find(|word| !word.is_empty()) {
            Some(word) => Kind::Script(OsString::from_vec(word.to_vec()).into()),
            None => Kind::Other,
        };
    }
    if read == head.len() && head.starts_with(b"\x7fELF") {
        return Kind::Elf(Elf::read(file, &head));
    }
    Kind::Other
}

/// What an ELF header says (elf(5)).
struct Elf {
    /// Class, byte order and machine.
    target: (u8, u8, u16),
    /// The dynamic linker, for a program of our own class and byte order that has one.
    interpreter: Option<Vec<u8>>,
}

impl Elf {
    /// Reads the program headers of a 64-bit file in our byte order; of another only what it is.
    fn read(file: &File, head: &[u8; 64]) -> Elf {
        const CLASS_64: u8 = 2;
        const PT_INTERP: u32 = 3;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let target = (head[4], head[5], half(18));
        let mut interpreter = None;
        if target.0 == CLASS_64 {
            let word = |bytes: &[u8], at: usize| {
                bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
            };
            let (start, size, count) = (word(head, 32), u64::from(half(54)), u64::from(half(56)));
            for i in 0..count {
                let mut header = [0u8; 56];
                if file
                    .read_exact_at(&mut header, start.saturating_add(i * size))
                    .is_err()
                {
                    break;
                }
                if header[..4] == PT_INTERP.to_ne_bytes() {
                    let (offset, len) = (word(&header, 8), word(&header, 32).min(4096));
                    let mut path = vec![0; usize::try_from(len).unwrap_or(0)];
                    if file.read_exact_at(&mut path, offset).is_ok() {
                        interpreter = Some(path);
                    }
                }
            }
        }
        Elf {
            target,
            interpreter,
        }
    }

    fn check(&self, path: &Path) -> Result<(), Failure> {
        let own = File::open("/proc/self/exe").ok().map(|file| kind(&file));
        if let Some(Kind::Elf(own)) = own
            && own.target != self.target
        {
            return Err(refused(
                path,
                "it is a program for another kind of processor than this one",
            ));
        }
        match &self.interpreter {
            None => Err(refused(
                path,
                "it is linked statically, so no library can be put in front of the one that it contains; link it dynamically",
            )),
            Some(linker) if linker.windows(4).any(|part| part == b"musl") => Err(refused(
                path,
                "it runs on musl, and the preload library needs the GNU C library",
            )),
            Some(_) => Ok(()),
        }
    }
}
