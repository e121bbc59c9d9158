//! What the environment says about a software device, where a command starts both ends: it is said of the first one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Nothing is given up early where the machine is busy.
const COMMANDS: [&str; 3] = [
    "ping -c 1 -W 20s --timeout 22",
    "lat -n 10 -s 8 --timeout 22",
    "bw -n 10 -s 8 --timeout 22",
];

/// `qp` with these words and this environment; it must succeed. Gives what it prints.
fn qp<'a>(words: impl IntoIterator<Item = &'a str>, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qp"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RDMA_SOFT_")) {
        command.env_remove(name);
    }
    command.args(words).envs(environment.iter().copied());
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (printed, said) = (String::from_utf8(stdout), String::from_utf8(stderr));
    let printed = printed.unwrap();
    assert!(
        status.success(),
        "{environment:?}: {command:?}: {printed}{}",
        said.unwrap()
    );
    printed
}

/// A directory of the test `name` alone.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("environment-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Every command that starts both ends, with more `options` and in this environment, by a device of the address `address`.
fn both_ends(test: &str, options: &str, environment: &[(&str, &str)], address: &str) {
    let directory = directory(test);
    let [source, copy] = ["source", "copy"].map(|name| directory.join(name));
    std::fs::write(&source, "some bytes").unwrap();
    let paths = [&source, &copy].map(|path| path.to_str().unwrap());
    let options = || options.split_whitespace();
    let by = format!("(::ffff:{address}, RoCE v2)\n");
    for line in COMMANDS {
        let printed = qp(line.split_whitespace().chain(options()), environment);
        assert!(printed.contains(&by), "{line}: {printed}");
    }
    let words = ["copy", "--timeout", "22"].into_iter().chain(paths);
    let printed = qp(words.chain(options()), environment);
    assert!(printed.contains(&by), "{printed}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"some bytes");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_address_is_that_of_the_first_of_two_ends() {
    let environment = [("RDMA_SOFT_ADDR", "127.6.5.1")];
    both_ends("address", "", &environment, "127.6.5.1");
}

#[test]
fn so_are_an_address_and_a_table_in_a_file_of_settings() {
    let directory = directory("file");
    let profile = directory.join("profile");
    let settings = "addr = 127.6.5.2\ngids = fe80::1,127.6.5.2\nseed = 7\nmtu = 1024\n";
    std::fs::write(&profile, settings).unwrap();
    let environment = [("RDMA_SOFT_PROFILE", profile.to_str().unwrap())];
    both_ends("settings", "", &environment, "127.6.5.2");
    // An entry of that table is none of the other end's.
    both_ends("settings", "--gid-index 1", &environment, "127.6.5.2");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// The option with the code `wanted` of a block, whose options stand behind the first `skipped` bytes of its body.
fn option(body: &[u8], skipped: usize, wanted: u16) -> &[u8] {
    let mut rest = &body[skipped..];
    loop {
        let word = |at: usize| u16::from_le_bytes(rest[at..at + 2].try_into().unwrap());
        let (code, len) = (word(0), usize::from(word(2)));
        assert_ne!(code, 0, "no option {wanted}");
        if code == wanted {
            return &rest[4..4 + len];
        }
        rest = &rest[4 + len.next_multiple_of(4)..];
    }
}

/// The capture is that of one node, and nobody else writes to it. pcapng: blocks that begin with their type and
/// their length, and end with their length, little endian here.
#[test]
fn a_capture_is_the_first_ends_and_whole() {
    let directory = directory("capture");
    let path = directory.join("frames.pcapng");
    let settings = directory.join("profile");
    std::fs::write(&settings, format!("pcap = {}\n", path.display())).unwrap();
    for environment in [
        [("RDMA_SOFT_PCAP", path.to_str().unwrap())],
        [("RDMA_SOFT_PROFILE", settings.to_str().unwrap())],
    ] {
        let line = "ping -c 50 -i 0 -W 20s --timeout 22";
        let printed = qp(line.split_whitespace(), &environment);
        let mut bytes = &std::fs::read(&path).unwrap()[..];
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut kinds, mut directions) = (Vec::new(), [0; 3]);
        let mut interface = String::new();
        while !bytes.is_empty() {
            let len = word(bytes, 4) as usize;
            let (block, rest) = bytes.split_at(len);
            assert_eq!(word(block, len - 4) as usize, len, "a broken block");
            let body = &block[8..len - 4];
            match word(block, 0) {
                1 => interface = String::from_utf8(option(body, 8, 2).to_vec()).unwrap(),
                6 => {
                    let captured = (word(body, 12) as usize).next_multiple_of(4);
                    // 1 came in, 2 went out.
                    let flags = option(body, 20 + captured, 2);
                    directions[usize::from(flags[0] & 3)] += 1;
                }
                other => kinds.push(other),
            }
            bytes = rest;
        }
        assert_eq!(kinds, [0x0a0d_0d0a], "one capture");
        let by = format!("(::ffff:{interface}, RoCE v2)\n");
        assert!(printed.contains(&by), "of {interface}: {printed}");
        // 50 pings went, and 50 came.
        assert!(directions[1] >= 50 && directions[2] >= 50, "{directions:?}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
