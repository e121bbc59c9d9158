//! What several test files need: skips that show, and the C compiler.
#![allow(dead_code)]

use rdma_core_sys::Verbs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Says on the real standard output, past the test harness's capture, that a check cannot run here.
pub fn skip(name: &str, reason: &str) {
    // One write, so that lines of tests running beside each other stay whole.
    let line = format!("SKIP {name}: {reason}\n");
    std::io::stdout()
        .write_all(line.as_bytes())
        .expect("standard output is open");
}

/// Runs `cc` in the C locale. `None` when there is no compiler.
pub fn cc(args: &[&str]) -> Option<Output> {
    match Command::new("cc").env("LC_ALL", "C").args(args).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("cc does not run: {error}"),
    }
}

/// A directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

/// A library to build: what it exports, under which versions, and the GUID by which it is known.
pub struct Stub {
    symbols: Vec<(&'static str, Option<&'static str>)>,
    guid: u64,
}

impl Stub {
    /// Everything, in the versions of libibverbs.
    pub fn whole(guid: u64) -> Self {
        Self {
            symbols: Verbs::SYMBOLS
                .iter()
                .map(|&(name, version, _)| (name, Some(version)))
                .collect(),
            guid,
        }
    }

    pub fn without(mut self, symbol: &str) -> Self {
        let before = self.symbols.len();
        self.symbols.retain(|(name, _)| *name != symbol);
        assert_eq!(self.symbols.len() + 1, before);
        self
    }

    pub fn version(mut self, symbol: &str, version: &'static str) -> Self {
        self.symbols
            .iter_mut()
            .find(|(name, _)| *name == symbol)
            .unwrap()
            .1 = Some(version);
        self
    }

    pub fn unversioned(mut self) -> Self {
        self.symbols
            .iter_mut()
            .for_each(|(_, version)| *version = None);
        self
    }

    pub fn only(mut self, symbol: &str) -> Self {
        self.symbols.retain(|(name, _)| *name == symbol);
        assert_eq!(self.symbols.len(), 1);
        self
    }

    /// Builds it as `dir/file`; `None` when there is no compiler.
    pub fn build(&self, dir: &Path, file: &str) -> Option<PathBuf> {
        std::fs::create_dir_all(dir).unwrap();
        // A call into libc, as in any real library: it makes the linker note versions that are needed, which is not the same as
        // versions that are defined.
        let mut code = String::from(
            "extern int puts(const char *);\nint stub_says(void) { return puts(\"\"); }\n",
        );
        for (symbol, _) in &self.symbols {
            let value = if *symbol == "ibv_get_device_guid" {
                self.guid
            } else {
                0
            };
            code += &format!(
                "unsigned long {symbol}(void) {{ return {value}; }}
"
            );
        }
        let mut nodes: Vec<&str> = self
            .symbols
            .iter()
            .filter_map(|(_, version)| *version)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut script = String::new();
        for node in &nodes {
            let members: Vec<_> = self
                .symbols
                .iter()
                .filter(|(_, version)| *version == Some(node))
                .map(|(name, _)| *name)
                .collect();
            script += &format!(
                "{node} {{ global: {}; }};
",
                members.join("; ")
            );
        }
        let (source, map, library) = (
            dir.join(format!("{file}.c")),
            dir.join(format!("{file}.map")),
            dir.join(file),
        );
        std::fs::write(&source, code).unwrap();
        std::fs::write(&map, &script).unwrap();
        let script = format!("-Wl,--version-script={}", map.display());
        let mut args = vec![
            "-shared",
            "-fPIC",
            "-o",
            library.to_str().unwrap(),
            source.to_str().unwrap(),
        ];
        if !nodes.is_empty() {
            args.push(&script);
        }
        let output = cc(&args)?;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(library)
    }
}
