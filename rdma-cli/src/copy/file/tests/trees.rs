//! Trees: what a listing may say, and what comes of it.

use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use super::super::listing::{Entry, Kind, decode, encode, is_name};
use super::super::{listing, part, tree};
use super::*;

fn entry(parent: u32, name: &str, kind: Kind) -> Entry {
    Entry {
        parent,
        name: name.into(),
        mode: 0o644,
        written: (1_700_000_000, 123),
        kind,
    }
}

fn root() -> Entry {
    entry(0, "", Kind::Directory)
}

#[test]
fn listings_survive_the_way() {
    let entries = vec![
        root(),
        entry(0, "a", Kind::File(7)),
        entry(0, "d", Kind::Directory),
        entry(2, "a", Kind::Link("../../etc/passwd".into())),
        entry(2, "caf\u{e9}", Kind::File(0)),
    ];
    let bytes = encode(&entries);
    assert_eq!(decode(&bytes, 7).unwrap(), entries);
    // What is cut between two entries is a shorter one.
    let between = |cut: usize| (1..entries.len()).any(|n| encode(&entries[..n]).len() == cut);
    for cut in 0..bytes.len() {
        let refused = decode(&bytes[..cut], 7).is_err();
        assert!(refused || between(cut), "cut at {cut}");
    }
    for announced in [6, 8, u64::MAX] {
        assert!(decode(&bytes, announced).unwrap_err().contains("announced"));
    }
    // No byte makes it panic, whatever it becomes.
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut other = bytes.clone();
            other[at] = value;
            let _ = decode(&other, 7);
        }
    }
}

#[test]
fn a_listing_that_leaves_its_tree_is_refused() {
    let file = |name: &str| entry(0, name, Kind::File(0));
    let link = |to: &str| entry(0, "l", Kind::Link(to.into()));
    for (more, word) in [
        (vec![file("..")], "no name"),
        (vec![file(".")], "no name"),
        (vec![file("")], "no name"),
        (vec![file("a/b")], "no name"),
        (vec![file("/etc/passwd")], "no name"),
        (vec![file("nul\0")], "no name"),
        // In itself, in what comes later, in a file, in a link.
        (vec![entry(1, "x", Kind::Directory)], "no directory"),
        (vec![entry(9, "x", Kind::File(0))], "no directory"),
        (vec![entry(u32::MAX, "x", Kind::File(0))], "no directory"),
        (
            vec![file("f"), entry(1, "x", Kind::File(0))],
            "no directory",
        ),
        (
            vec![link("/tmp"), entry(1, "x", Kind::File(0))],
            "no directory",
        ),
        (vec![file("f"), file("f")], "twice"),
        (vec![link("/tmp"), entry(0, "l", Kind::Directory)], "twice"),
        (vec![link("")], "target"),
        (vec![link(&"x".repeat(5000))], "target"),
    ] {
        let mut entries = vec![root()];
        entries.extend(more);
        let why = decode(&encode(&entries), 0).unwrap_err();
        assert!(why.contains(word), "{entries:?}: {why}");
    }
    let odd = Entry {
        written: (0, 1_000_000_000),
        ..file("f")
    };
    assert!(
        decode(&encode(&[root(), odd]), 0)
            .unwrap_err()
            .contains("time")
    );
    for no_root in [
        vec![file("f")],
        vec![entry(0, "d", Kind::Directory)],
        vec![],
    ] {
        assert!(decode(&encode(&no_root), 0).is_err(), "{no_root:?}");
    }
    let many = [
        root(),
        entry(0, "a", Kind::File(u64::MAX)),
        entry(0, "b", Kind::File(2)),
    ];
    assert!(decode(&encode(&many), 1).is_err(), "lengths that overflow");
    assert!(!is_name(OsStr::new("..")) && is_name(OsStr::new("...")));
}

/// A tree with something of everything.
fn grow(at: &Path) {
    fs::create_dir_all(at.join("empty")).unwrap();
    fs::create_dir_all(at.join("deep/er")).unwrap();
    fs::write(at.join("nothing"), "").unwrap();
    fs::write(at.join("deep/er/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("deep/er/script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(at.join("big"), vec![3; 2 * CHUNK + 77]).unwrap();
    fs::File::create(at.join("hole"))
        .unwrap()
        .set_len(3 * CHUNK as u64)
        .unwrap();
    symlink("../nowhere", at.join("deep/link")).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 5_000);
    let file = fs::File::options()
        .write(true)
        .open(at.join("big"))
        .unwrap();
    file.set_modified(old).unwrap();
    fs::set_permissions(at.join("deep/er"), fs::Permissions::from_mode(0o555)).unwrap();
}

fn of_tree(source: &Source, resume: bool) -> Coming {
    Coming {
        size: source.size,
        mode: source.mode,
        listing: source.tree.map(|(listing, _)| listing),
        resume,
    }
}

/// Everything in a tree, as text.
fn describe(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let (mode, time) = (about.mode() & 0o7777, (about.mtime(), about.mtime_nsec()));
        let what = if about.is_dir() {
            rest.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            "directory".to_owned()
        } else if about.is_symlink() {
            format!("to {:?}", fs::read_link(&path).unwrap())
        } else {
            format!(
                "{:?}",
                Source::open(&path).map(|source| read(&source).1).unwrap()
            )
        };
        all.push(format!("{name} {mode:o} {time:?} {what}"));
    }
    all.sort();
    all
}

#[test]
fn a_tree_arrives_as_it_is() {
    let scratch = Scratch::new("tree");
    grow(&scratch.at("from"));
    let source = Source::open(&scratch.at("from")).unwrap();
    let counts = source.tree.unwrap().1;
    let expected = listing::Counts {
        files: 4,
        directories: 4,
        links: 1,
        skipped: 0,
    };
    assert_eq!(counts, expected);
    let (chunks, end, skipped) = read(&source);
    assert!(skipped >= 2 * CHUNK as u64, "{skipped}");
    let (mut opened, mut partial) = target(&scratch.at("to"), false)
        .create(&of_tree(&source, false))
        .unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let whole = opened.finish().unwrap();
    assert_eq!(whole.digest, end.unwrap());
    assert!(!scratch.at("to").exists());
    partial.publish(&whole).unwrap();
    assert_eq!(describe(&scratch.at("to")), describe(&scratch.at("from")));
    assert_eq!(scratch.names(), ["from", "to"]);
    let on_disk = fs::metadata(scratch.at("to/hole")).unwrap().blocks() * 512;
    assert!(
        on_disk < 2 * CHUNK as u64,
        "{on_disk} bytes of zeros on the disk"
    );
}

#[test]
fn the_part_of_a_tree_is_gone_on_with() {
    let scratch = Scratch::new("part");
    grow(&scratch.at("from"));
    let source = Source::open(&scratch.at("from")).unwrap();
    let (chunks, end, _) = read(&source);
    let to = target(&scratch.at("to"), false);
    let (mut opened, partial) = to.create(&of_tree(&source, true)).unwrap();
    assert!(opened.left().unwrap().is_none());
    // The listing and some of the first file, by name.
    for (index, bytes) in &chunks[..2] {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    drop((opened, partial));
    assert_eq!(scratch.names().len(), 2, "it is kept");

    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    let (count, sum) = opened.left().unwrap().unwrap();
    assert_eq!(count, 2);
    // What the sender makes of it.
    let (mut from, mut rest) = (None, Vec::new());
    let mut digest = None;
    source.read(
        Some((count, sum.to_string())),
        &Progress::default(),
        || Some(Vec::new()),
        |piece| {
            match piece {
                Piece::From(chunk) => from = Some(chunk),
                Piece::Chunk { index, bytes } => rest.push((index, bytes)),
                Piece::End(sum) => digest = Some(sum),
                Piece::Failed(why) => panic!("{why}"),
            }
            true
        },
    );
    assert_eq!((from, digest), (Some(2), end.ok()));
    for (index, bytes) in &rest {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let whole = opened.finish().unwrap();
    assert_eq!(Some(whole.digest), digest);
    partial.publish(&whole).unwrap();
    assert_eq!(describe(&scratch.at("to")), describe(&scratch.at("from")));
}

/// Zeros do not travel: where the source has them now, nothing of what was there may stay, in whichever file.
#[test]
fn what_is_behind_the_last_whole_chunk_of_a_tree_is_not_kept() {
    let scratch = Scratch::new("behind");
    let from = scratch.at("from");
    grow(&from);
    let source = Source::open(&from).unwrap();
    let to = target(&scratch.at("to"), false);
    let (mut opened, partial) = to.create(&of_tree(&source, true)).unwrap();
    for (index, bytes) in &read(&source).0 {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    drop((opened, partial));
    // Not what was written last has to be on the disk last.
    let part = scratch.at(&scratch.names()[0]);
    let big = fs::File::options().write(true).open(part.join("tree/big"));
    big.unwrap().set_len(2 * CHUNK as u64 + 76).unwrap();

    // Of the same length and time, so that the listing stays as it is.
    let zero = |name: &str, at: u64| {
        let file = fs::File::options().write(true).open(from.join(name));
        let (file, about) = (file.unwrap(), fs::metadata(from.join(name)).unwrap());
        let zeros = vec![0; (about.len() - at) as usize];
        file.write_all_at(&zeros, at).unwrap();
        file.set_modified(about.modified().unwrap()).unwrap();
    };
    zero("big", 2 * CHUNK as u64 - source.tree.unwrap().0);
    zero("deep/er/script", 0);
    let source = Source::open(&from).unwrap();
    let (chunks, end, _) = read(&source);
    assert_eq!(chunks.len(), 2, "all the rest is zeros");
    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    let left = opened.left().unwrap();
    assert_eq!(left.map(|(count, _)| count), Some(2));
    opened.keep(2).unwrap();
    let whole = opened.finish().unwrap();
    assert_eq!(whole.digest, end.unwrap());
    partial.publish(&whole).unwrap();
    assert_eq!(describe(&scratch.at("to")), describe(&from));
}

/// The sender is told that it may begin before anything is done that takes the longer, the more there is.
#[test]
fn what_takes_long_is_done_after_the_sender_was_accepted() {
    let scratch = Scratch::new("long-work");
    grow(&scratch.at("from"));
    let source = Source::open(&scratch.at("from")).unwrap();
    let (chunks, ..) = read(&source);
    let to = target(&scratch.at("to"), false);
    let (mut opened, partial) = to.create(&of_tree(&source, true)).unwrap();
    opened.write_at(0, &chunks[0].1).unwrap();
    drop((opened, partial));
    let part = scratch.at(&scratch.names()[0]);
    fs::remove_dir(part.join("tree/empty")).unwrap();
    // An older one, which is not gone on with.
    let old = scratch.at(".to.qp-copy-0");
    fs::create_dir(&old).unwrap();
    let listing = fs::File::create(old.join(part::LISTING)).unwrap();
    listing.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    drop(listing);

    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    assert!(!part.join("tree/empty").exists(), "planted already");
    assert!(old.exists(), "removed already");
    assert_eq!(opened.left().unwrap().map(|(count, _)| count), Some(1));
    assert!(part.join("tree/empty").exists());
    partial.remains().remove();
    assert!(!old.exists());
}

/// Where letters of two cases are the same, what one entry is written to may be what another one has made.
#[test]
fn what_is_there_is_neither_replaced_nor_followed() {
    let scratch = Scratch::new("followed");
    grow(&scratch.at("from"));
    fs::write(scratch.at("outside"), "somebody else's").unwrap();
    fs::set_permissions(scratch.at("outside"), fs::Permissions::from_mode(0o600)).unwrap();
    let source = Source::open(&scratch.at("from")).unwrap();
    let listing = source.tree.unwrap().0 as usize;
    let (chunks, ..) = read(&source);
    let to = target(&scratch.at("to"), false);
    let grown = |scratch: &Scratch| scratch.at(&scratch.names()[0]).join("tree");

    let (mut opened, partial) = to.create(&of_tree(&source, false)).unwrap();
    opened.write_at(0, &chunks[0].1[..listing]).unwrap();
    let big = grown(&scratch).join("big");
    fs::write(&big, "of another entry").unwrap();
    let why = opened.write_at(listing as u64, &chunks[0].1[listing..]);
    assert!(why.unwrap_err().contains("to/big: File exists"));
    assert_eq!(fs::read(&big).unwrap(), b"of another entry");
    drop((opened, partial));

    let (mut opened, _partial) = to.create(&of_tree(&source, false)).unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let nothing = grown(&scratch).join("nothing");
    fs::remove_file(&nothing).unwrap();
    symlink(scratch.at("outside"), &nothing).unwrap();
    assert!(opened.finish().unwrap_err().contains("to/nothing"));
    let about = fs::metadata(scratch.at("outside")).unwrap();
    assert_eq!((about.mode() & 0o7777, about.len()), (0o600, 15));
}

#[test]
fn what_could_not_get_its_name_is_gone_on_with() {
    let scratch = Scratch::new("nameless");
    grow(&scratch.at("from"));
    fs::set_permissions(scratch.at("from"), fs::Permissions::from_mode(0o555)).unwrap();
    let source = Source::open(&scratch.at("from")).unwrap();
    let (chunks, end, _) = read(&source);
    let to = target(&scratch.at("to"), false);
    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let whole = opened.finish().unwrap();
    fs::write(scratch.at("to"), "somebody else's").unwrap();
    assert!(partial.publish(&whole).unwrap_err().contains("exists"));
    assert!(partial.is_kept());
    drop((opened, partial, whole));
    fs::remove_file(scratch.at("to")).unwrap();

    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    let (count, _) = opened.left().unwrap().unwrap();
    assert_eq!(count, source.size / CHUNK as u64);
    let rest = chunks.iter().filter(|(index, _)| *index >= count);
    rest.for_each(|(index, bytes)| opened.write_at(index * CHUNK as u64, bytes).unwrap());
    let whole = opened.finish().unwrap();
    assert_eq!(whole.digest, end.unwrap());
    partial.publish(&whole).unwrap();
    assert_eq!(describe(&scratch.at("to")), describe(&scratch.at("from")));
}

#[test]
fn nobody_else_enters_a_part_that_is_gone_on_with() {
    let scratch = Scratch::new("entered");
    grow(&scratch.at("from"));
    let source = Source::open(&scratch.at("from")).unwrap();
    let to = target(&scratch.at("to"), false);
    drop(to.create(&of_tree(&source, true)).unwrap());
    let part = scratch.at(&scratch.names()[0]);
    fs::set_permissions(&part, fs::Permissions::from_mode(0o777)).unwrap();
    let _again = to.create(&of_tree(&source, true)).unwrap();
    let part = scratch.at(&scratch.names()[0]);
    assert_eq!(fs::metadata(part).unwrap().mode() & 0o7777, 0o700);
}

/// Its listing is longer than a chunk, and so are not its files: what could be compared would be a part of the listing.
#[test]
fn a_part_is_gone_on_with_only_behind_its_whole_listing() {
    let scratch = Scratch::new("listing");
    fs::create_dir(scratch.at("from")).unwrap();
    for number in 0..3000 {
        fs::write(scratch.at(&format!("from/{number:0100}")), "x").unwrap();
    }
    let source = Source::open(&scratch.at("from")).unwrap();
    let listing = source.tree.unwrap().0;
    assert!(listing > CHUNK as u64 && source.size < 2 * CHUNK as u64);
    let (chunks, end, _) = read(&source);
    let to = target(&scratch.at("to"), false);
    let (mut opened, partial) = to.create(&of_tree(&source, true)).unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    drop((opened, partial));
    let (mut opened, mut partial) = to.create(&of_tree(&source, true)).unwrap();
    assert!(opened.left().unwrap().is_none());
    opened.keep(0).unwrap();
    for (index, bytes) in &chunks {
        opened.write_at(index * CHUNK as u64, bytes).unwrap();
    }
    let whole = opened.finish().unwrap();
    assert_eq!(whole.digest, end.unwrap());
    partial.publish(&whole).unwrap();
    assert_eq!(describe(&scratch.at("to")), describe(&scratch.at("from")));
}

#[test]
fn a_part_of_something_else_is_not_gone_on_with() {
    let scratch = Scratch::new("other");
    fs::write(scratch.at("file"), vec![7; 3 * CHUNK]).unwrap();
    let source = Source::open(&scratch.at("file")).unwrap();
    let mut from = None;
    let wrong = "00".repeat(32);
    source.read(
        Some((2, wrong)),
        &Progress::default(),
        || Some(Vec::new()),
        |piece| {
            if let Piece::From(chunk) = piece {
                from = Some(chunk);
            }
            true
        },
    );
    assert_eq!(from, Some(0));
    // More than there is.
    source.read(
        Some((u64::MAX, "00".repeat(32))),
        &Progress::default(),
        || Some(Vec::new()),
        |piece| !matches!(piece, Piece::From(_)),
    );
}

#[test]
fn a_tree_whose_directories_may_not_be_written_to_can_be_removed() {
    let scratch = Scratch::new("removed");
    grow(&scratch.at("from"));
    part::remove(&scratch.at("from"));
    assert!(scratch.names().is_empty());
}

#[test]
fn what_is_neither_file_nor_directory_is_left_out() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let scratch = Scratch::new("odd");
    fs::create_dir(scratch.at("from")).unwrap();
    mknodat(CWD, scratch.at("from/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let walked = tree::walk(&scratch.at("from")).unwrap();
    assert_eq!((walked.counts.skipped, walked.counts.files), (1, 0));
    assert_eq!(tree::name_of(Path::new("/a/b/")).unwrap(), "b");
    assert!(tree::name_of(Path::new(".")).is_some());
}

#[test]
fn a_tree_that_is_written_meanwhile_is_no_whole_tree() {
    let scratch = Scratch::new("changing");
    grow(&scratch.at("from"));
    let source = Source::open(&scratch.at("from")).unwrap();
    fs::write(scratch.at("from/big"), vec![4; 2 * CHUNK + 77]).unwrap();
    let why = read(&source).1.unwrap_err();
    assert!(why.contains("big was written to while"), "{why}");
}
