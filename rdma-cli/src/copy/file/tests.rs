use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::*;

mod trees;

/// A directory of this test alone, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("qp-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        part::remove(&self.0);
    }
}

fn target(path: &Path, force: bool) -> Target {
    Target::new(path, OsStr::new("unused"), force).unwrap()
}

/// A file of that length is to come.
fn coming(size: u64, mode: u32) -> Coming {
    Coming {
        size,
        mode,
        listing: None,
        resume: false,
    }
}

/// Chunks with their numbers.
type Chunks = Vec<(u64, Vec<u8>)>;

/// Everything that a source gives: the chunks, how it ended, and how many bytes were left out.
fn read(source: &Source) -> (Chunks, Result<Digest, String>, u64) {
    let progress = Progress::default();
    let mut chunks = Vec::new();
    let mut end = Err("no end".to_owned());
    source.read(
        None,
        &progress,
        || Some(Vec::new()),
        |piece| {
            match piece {
                Piece::Chunk { index, bytes } => chunks.push((index, bytes)),
                Piece::End(digest) => end = Ok(digest),
                Piece::Failed(why) => end = Err(why),
                Piece::From(chunk) => panic!("nothing is there up to chunk {chunk}"),
            }
            true
        },
    );
    (chunks, end, progress.skipped())
}

#[test]
fn chunks_cover_a_file() {
    let chunk = CHUNK as u64;
    for (size, count, last) in [(0, 0, 0), (1, 1, 1), (chunk, 1, CHUNK), (chunk + 1, 2, 1)] {
        assert_eq!(chunks(size), count);
        assert_eq!(chunk_len(size, count.saturating_sub(1)), last);
        assert_eq!(chunk_len(size, count), 0);
    }
    assert_eq!(chunk_len(5, u64::MAX), 0);
}

/// SHA-256 of "" and "abc" from FIPS 180-4's examples; that of 3 zeros from `printf '\0\0\0' | sha256sum`.
#[test]
fn digests_are_sha_256() {
    let scratch = Scratch::new("digest");
    for (content, digest) in [
        (
            &b""[..],
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            b"abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            b"\0\0\0",
            "709e80c88487a2411e1ee4dfb9f22a861492d20c4765150c0c794abd70f8147c",
        ),
    ] {
        fs::write(scratch.at("file"), content).unwrap();
        let (_, end, _) = read(&Source::open(&scratch.at("file")).unwrap());
        assert_eq!(end.unwrap().to_string(), digest);
    }
}

#[test]
fn zeros_are_left_out_and_still_counted() {
    let scratch = Scratch::new("holes");
    let path = scratch.at("sparse");
    let file = fs::File::create(&path).unwrap();
    let size = 9 * CHUNK as u64 + 10;
    file.set_len(size).unwrap();
    file.write_all_at(b"x", 2 * CHUNK as u64 + 7).unwrap();
    file.write_all_at(&[0; CHUNK], 4 * CHUNK as u64).unwrap();
    file.write_all_at(b"y", size - 1).unwrap();
    let source = Source::open(&path).unwrap();
    let (chunks, end, skipped) = read(&source);
    assert_eq!(
        chunks.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [2, 9]
    );
    assert_eq!(skipped, 8 * CHUNK as u64);
    assert_eq!(chunks[1].1.len(), 10);

    let (mut opened, mut partial) = target(&scratch.at("copy"), false)
        .create(&coming(size, source.mode))
        .unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let whole = opened.finish().unwrap();
    assert_eq!(whole.digest, end.unwrap());
    partial.publish(&whole).unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        fs::read(scratch.at("copy")).unwrap()
    );
    let on_disk = fs::metadata(scratch.at("copy")).unwrap().blocks() * 512;
    assert!(
        on_disk <= 2 * CHUNK as u64 + 8192,
        "{on_disk} bytes on disk: the zeros are no holes"
    );
}

#[test]
fn what_is_no_file_is_no_source() {
    let scratch = Scratch::new("source");
    let told = |path: &Path| Source::open(path).unwrap_err().to_string();
    assert!(told(&scratch.at("missing")).contains("No such file"));
    std::os::unix::fs::symlink("nowhere", scratch.at("dangling")).unwrap();
    assert!(told(&scratch.at("dangling")).contains("does not exist"));
    assert!(told(Path::new("/dev/null")).contains("regular file"));
    assert!(told(Path::new("/proc/version")).contains("length of 0"));
    assert!(
        told(Path::new("/proc/self/mem")).contains("error"),
        "nobody can read its first byte"
    );
}

#[test]
fn a_source_that_shrinks_is_noticed() {
    let scratch = Scratch::new("shrinks");
    fs::write(scratch.at("file"), vec![1; 3 * CHUNK]).unwrap();
    let source = Source::open(&scratch.at("file")).unwrap();
    fs::write(scratch.at("file"), vec![1; CHUNK + 1]).unwrap();
    let (chunks, end, _) = read(&source);
    assert_eq!(chunks.len(), 1);
    assert!(end.unwrap_err().contains("became shorter"));
}

/// Nobody gives back the buffer of a chunk that is not given: one is enough for a file of written zeros of any length.
#[test]
fn a_file_of_zeros_takes_one_buffer() {
    let scratch = Scratch::new("zeros");
    let path = scratch.at("zeros");
    fs::write(&path, vec![0; 20 * CHUNK]).unwrap();
    let (mut buffers, mut end) = (0, None);
    Source::open(&path).unwrap().read(
        None,
        &Progress::default(),
        || {
            buffers += 1;
            Some(Vec::new())
        },
        |piece| {
            end = Some(matches!(piece, Piece::End(_)));
            true
        },
    );
    assert_eq!((buffers, end), (1, Some(true)));
}

#[test]
fn nothing_stands_under_the_final_name_before_it_is_whole() {
    let scratch = Scratch::new("partial");
    let (mut opened, partial) = target(&scratch.at("copy"), false)
        .create(&coming(9, 0o640))
        .unwrap();
    opened.write_at(0, b"half").unwrap();
    assert!(!scratch.at("copy").exists());
    assert_eq!(scratch.names().len(), 1);
    drop(partial);
    assert!(
        scratch.names().is_empty(),
        "the temporary file goes with its guard"
    );
}

#[test]
fn permissions_follow_the_source_without_its_special_bits() {
    let scratch = Scratch::new("mode");
    let (mut opened, mut partial) = target(&scratch.at("copy"), false)
        .create(&coming(0, 0o4500))
        .unwrap();
    partial.publish(&opened.finish().unwrap()).unwrap();
    let mode = fs::metadata(scratch.at("copy"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o500);
}

#[test]
fn what_exists_is_kept_unless_forced() {
    let scratch = Scratch::new("exists");
    let path = scratch.at("copy");
    fs::write(&path, "old").unwrap();
    assert!(
        target(&path, false)
            .create(&coming(0, 0o600))
            .unwrap_err()
            .contains("--force")
    );
    let (mut opened, mut partial) = target(&path, true).create(&coming(3, 0o600)).unwrap();
    opened.write_at(0, b"new").unwrap();
    partial.publish(&opened.finish().unwrap()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");

    fs::create_dir(scratch.at("folder")).unwrap();
    let folder = Target {
        path: scratch.at("folder"),
        force: true,
    };
    assert!(folder.check(false).unwrap_err().contains("directory"));
    let device = Target {
        path: "/dev/null".into(),
        force: true,
    };
    assert!(device.check(false).unwrap_err().contains("no regular file"));
}

#[test]
fn what_appears_meanwhile_is_kept_too() {
    let scratch = Scratch::new("meanwhile");
    let path = scratch.at("copy");
    let (mut opened, mut partial) = target(&path, false).create(&coming(0, 0o600)).unwrap();
    fs::write(&path, "somebody else's").unwrap();
    assert!(
        partial
            .publish(&opened.finish().unwrap())
            .unwrap_err()
            .contains("exists already")
    );
    drop(partial);
    assert_eq!(scratch.names(), ["copy"]);
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn remains_of_killed_processes_are_swept_and_those_at_work_are_not() {
    let scratch = Scratch::new("sweep");
    let path = scratch.at("copy");
    for name in [".copy.qp-copy-1", ".copy.qp-copy-x", ".other.qp-copy-1"] {
        fs::write(scratch.at(name), "half").unwrap();
    }
    let busy = fs::File::create(scratch.at(".copy.qp-copy-2")).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let (mut opened, mut partial) = target(&path, false).create(&coming(0, 0o600)).unwrap();
    partial.remains().remove();
    partial.publish(&opened.finish().unwrap()).unwrap();
    assert_eq!(
        scratch.names(),
        [
            ".copy.qp-copy-2",
            ".copy.qp-copy-x",
            ".other.qp-copy-1",
            "copy"
        ]
    );
}

/// It may be removed at any time.
#[test]
fn what_is_about_to_be_removed_is_not_taken_over() {
    let scratch = Scratch::new("removing");
    let to = target(&scratch.at("copy"), false);
    let (opened, first) = to.create(&coming(1, 0o600)).unwrap();
    drop(opened);
    let resume = Coming {
        resume: true,
        ..coming(1, 0o600)
    };
    let (_opened, _second) = to.create(&resume).unwrap();
    assert_eq!(scratch.names().len(), 2);
    drop(first);
    assert_eq!(scratch.names().len(), 1);
}

/// Such as that of a copy which runs, in another container, as the process of the same number.
#[test]
fn a_temporary_name_that_is_taken_is_left_to_whoever_has_it() {
    let scratch = Scratch::new("taken");
    let own = format!(".copy.qp-copy-{}", std::process::id());
    let busy = fs::File::create(scratch.at(&own)).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let to = target(&scratch.at("copy"), false);
    for listing in [None, Some(1)] {
        let coming = Coming {
            listing,
            ..coming(1, 0o600)
        };
        let (_, partial) = to.create(&coming).unwrap();
        assert_eq!(scratch.names().len(), 2, "{listing:?}");
        drop(partial);
        assert_eq!(scratch.names(), [&*own], "{listing:?}");
    }
}

/// Opening a pipe waits for somebody who writes to it.
#[test]
fn a_pipe_with_the_name_of_remains_is_left_alone() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let scratch = Scratch::new("pipe");
    let pipe = scratch.at(".copy.qp-copy-1");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let path = scratch.at("copy");
    std::thread::spawn(move || {
        let (mut opened, mut partial) = target(&path, false).create(&coming(0, 0o600)).unwrap();
        done.send(partial.publish(&opened.finish().unwrap()))
            .unwrap();
    });
    let ended = ended.recv_timeout(std::time::Duration::from_secs(10));
    ended.expect("it waits for the pipe").unwrap();
    assert_eq!(scratch.names(), [".copy.qp-copy-1", "copy"]);
}

#[test]
fn a_source_that_is_written_meanwhile_is_no_whole_file() {
    let scratch = Scratch::new("written");
    let path = scratch.at("source");
    fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
    let source = Source::open(&path).unwrap();
    // The clock of a file system is coarse.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(&[2], 0).unwrap();
    let (_, end, _) = read(&source);
    assert!(end.unwrap_err().contains("written to while"));
}

/// NAME_MAX of Linux file systems is 255 bytes.
#[test]
fn places_where_no_file_can_be_are_refused_before_the_copy() {
    let scratch = Scratch::new("nowhere");
    fs::write(scratch.at("file"), "").unwrap();
    for (name, word) in [
        (&*"n".repeat(256), "too long"),
        ("file/copy", "Not a directory"),
    ] {
        let why = target(&scratch.at(name), true).check(false).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn a_slash_at_the_end_asks_for_a_directory() {
    let scratch = Scratch::new("slash");
    let why = Target::new(&scratch.at("no/"), OsStr::new("name"), false).unwrap_err();
    assert!(why.contains("not a directory"), "{why}");
}

#[test]
fn names_from_the_peer_stay_in_the_directory() {
    let scratch = Scratch::new("names");
    for name in ["", ".", "..", "a/b", "../up", "/etc/passwd", "nul\0"] {
        assert!(
            Target::new(&scratch.0, OsStr::new(name), true).is_err(),
            "{name:?}"
        );
    }
    let target = Target::new(&scratch.0, OsStr::new("plain name"), false).unwrap();
    assert_eq!(target.path, scratch.at("plain name"));
}

/// A later copy would take what has such a name for what an earlier one has left.
#[test]
fn temporary_names_from_the_peer_are_refused() {
    let scratch = Scratch::new("chosen");
    let long = "n".repeat(255);
    for name in ["victim", "a.qp-copy-", ".hidden", &long] {
        let (_, partial) = target(&scratch.at(name), false)
            .create(&coming(0, 0o600))
            .unwrap();
        let made = scratch.names();
        let why = Target::new(&scratch.0, OsStr::new(&made[0]), true).unwrap_err();
        assert!(why.contains("not whole"), "{made:?}: {why}");
        drop(partial);
    }
    let refused = |name: &str| Target::new(&scratch.0, OsStr::new(name), true).is_err();
    assert!(refused(".victim.qp-copy-1") && refused("..qp-copy-007"));
    for name in ["victim.qp-copy-1", ".victim.qp-copy-", ".qp-copy-1x", ".1"] {
        assert!(!refused(name), "{name}");
    }
}

#[test]
fn the_longest_name_has_a_temporary_one() {
    let scratch = Scratch::new("long");
    let path = scratch.at(&"n".repeat(255));
    let (mut opened, mut partial) = target(&path, false).create(&coming(0, 0o600)).unwrap();
    partial.publish(&opened.finish().unwrap()).unwrap();
    assert!(path.exists());
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let scratch = Scratch::new("nodir");
    let why = target(&scratch.at("no/copy"), false)
        .create(&coming(0, 0o600))
        .unwrap_err();
    assert!(
        why.contains("no/copy") && why.contains("create the directory"),
        "{why}"
    );
}
