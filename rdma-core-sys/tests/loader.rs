//! The loaders against small libraries made with `cc`: each failure, and who wins.

mod common;

use common::Stub;
use rdma_core_sys::{LoadError, Verbs, ops};
use std::error::Error;
use std::path::Path;
use std::process::Command;

/// Builds a stub or skips the test.
macro_rules! build {
    ($test:expr, $stub:expr, $dir:expr, $file:expr) => {
        match $stub.build(&$dir, $file) {
            Some(path) => path,
            None => return common::skip($test, "no C compiler (cc)"),
        }
    };
}

fn load(path: &Path) -> Result<Verbs, LoadError> {
    // SAFETY: the stubs have no initialisers, and the tests call no function of theirs with a meaning.
    unsafe { Verbs::load(path) }
}

fn optional() -> impl Iterator<Item = (&'static str, &'static str)> {
    Verbs::SYMBOLS
        .iter()
        .filter(|(.., required)| !required)
        .map(|&(name, version, _)| (name, version))
}

#[test]
fn no_library() {
    let error = load(Path::new("/nonexistent/libibverbs.so.1")).unwrap_err();
    assert!(
        matches!(&error, LoadError::Library { library, .. } if library == "/nonexistent/libibverbs.so.1")
    );
    assert_eq!(
        error.to_string(),
        "cannot load /nonexistent/libibverbs.so.1: install rdma-core (Debian: libibverbs1), or use the software device"
    );
    let words = error.source().unwrap().to_string();
    assert!(words.contains("cannot open shared object file"), "{words}");
}

#[test]
fn a_whole_library() {
    let dir = common::scratch("whole");
    let path = build!("loader_whole", Stub::whole(0x11), dir, "libwhole.so");
    let verbs = load(&path).unwrap();
    assert_eq!(verbs.source, path.to_str().unwrap());
    assert_eq!(verbs.missing().count(), 0);
    // SAFETY: the stub's function takes nothing and returns a number.
    assert_eq!(unsafe { verbs.get_device_guid(std::ptr::null_mut()) }, 0x11);
}

#[test]
fn a_missing_required_symbol_is_named() {
    let dir = common::scratch("required");
    // Each build costs a compiler run: every tenth symbol will do.
    let required: Vec<_> = Verbs::SYMBOLS
        .iter()
        .filter(|(.., required)| *required)
        .collect();
    assert!(required.len() > 40, "{} required symbols", required.len());
    for (symbol, version, _) in required.into_iter().step_by(10) {
        let path = build!(
            "loader_missing_required",
            Stub::whole(1).without(symbol),
            dir,
            &format!("lib{symbol}.so")
        );
        let error = load(&path).unwrap_err();
        let LoadError::Symbol {
            library,
            symbol: named,
            version: wanted,
            source,
        } = &error
        else {
            panic!("{symbol}: {error:?}")
        };
        assert_eq!(
            (&**library, &**named, &**wanted),
            (path.to_str().unwrap(), *symbol, *version)
        );
        assert!(source.to_string().contains(symbol), "{source}");
        assert_eq!(
            error.to_string(),
            format!(
                "{} has no symbol {symbol} ({version}): it is not a whole libibverbs",
                path.display()
            )
        );
    }
}

#[test]
fn a_missing_version_is_named() {
    let dir = common::scratch("version");
    let stub = Stub::whole(1).version("ibv_create_qp", "IBVERBS_9.9");
    let path = build!("loader_missing_version", stub, dir, "libversion.so");
    let error = load(&path).unwrap_err();
    let LoadError::Version {
        symbol,
        version,
        source,
        ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!((&**symbol, &**version), ("ibv_create_qp", "IBVERBS_1.1"));
    assert!(source.to_string().contains("IBVERBS_1.1"), "{source}");
    assert_eq!(
        error.to_string(),
        format!(
            "{} has ibv_create_qp, but not in version IBVERBS_1.1",
            path.display()
        )
    );
}

#[test]
fn missing_optional_symbols_are_optional_and_answer_eopnotsupp() {
    let dir = common::scratch("optional");
    let mut stub = Stub::whole(1);
    for (symbol, _) in optional() {
        stub = stub.without(symbol);
    }
    let path = build!("loader_missing_optional", stub, dir, "liboptional.so");
    let verbs = load(&path).unwrap();
    assert_eq!(
        verbs.missing().collect::<Vec<_>>(),
        optional().collect::<Vec<_>>()
    );
    assert!(
        verbs
            .missing()
            .any(|missing| missing == ("_ibv_query_gid_table", "IBVERBS_1.11"))
    );

    use std::ptr::null_mut;
    // SAFETY: a missing function is not called, so its arguments are not used.
    unsafe {
        assert_eq!(
            verbs.query_gid_ex(null_mut(), 1, 0, null_mut(), 0, 0),
            libc::EOPNOTSUPP
        );
        assert_eq!(
            verbs.query_gid_table(null_mut(), null_mut(), 0, 0, 0),
            -libc::EOPNOTSUPP as isize
        );
        assert_eq!(verbs.set_ece(null_mut(), null_mut()), libc::EOPNOTSUPP);
        assert_eq!(
            verbs.query_qp_data_in_order(null_mut(), rdma_core_sys::IBV_WR_SEND, 0),
            0
        );
        assert_eq!(
            verbs.is_fork_initialized(),
            rdma_core_sys::IBV_FORK_DISABLED
        );
        ops::set_errno(0);
        assert!(
            verbs
                .reg_mr_iova2(null_mut(), null_mut(), 0, 0, 0)
                .is_null()
        );
        assert_eq!(ops::errno(), libc::EOPNOTSUPP);
        ops::set_errno(0);
        assert_eq!(verbs.get_device_index(null_mut()), -1);
        assert_eq!(ops::errno(), libc::EOPNOTSUPP);
        ops::set_errno(0);
        verbs.unimport_pd(null_mut());
        assert_eq!(ops::errno(), libc::EOPNOTSUPP);
    }
}

/// An optional symbol in another version is one whose signature is not known: it is left out.
#[test]
fn an_optional_symbol_in_another_version_is_missing() {
    let dir = common::scratch("optional-version");
    let stub = Stub::whole(1).version("ibv_set_ece", "IBVERBS_9.9");
    let path = build!("loader_optional_version", stub, dir, "liboptver.so");
    let verbs = load(&path).unwrap();
    assert_eq!(
        verbs.missing().collect::<Vec<_>>(),
        [("ibv_set_ece", "IBVERBS_1.10")]
    );
}

#[test]
fn a_library_without_versions_will_do() {
    let dir = common::scratch("unversioned");
    let path = build!(
        "loader_unversioned",
        Stub::whole(0x22).unversioned(),
        dir,
        "libplain.so"
    );
    let verbs = load(&path).unwrap();
    assert_eq!(verbs.missing().count(), 0);
    // SAFETY: the stub's function takes nothing and returns a number.
    assert_eq!(unsafe { verbs.get_device_guid(std::ptr::null_mut()) }, 0x22);
}

/// Not a test of its own: what the process of each test below does.
#[test]
#[ignore = "run by other tests of this file, in a process with its own preloads"]
fn child() {
    match Verbs::open() {
        Ok(verbs) => {
            // SAFETY: the stubs' function takes nothing and returns a number.
            let guid = unsafe { verbs.get_device_guid(std::ptr::null_mut()) };
            println!("open: {} {guid:#x}", verbs.source);
        }
        Err(error) => println!("open: {error}"),
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    println!("loaded: {}", maps.contains("/libibverbs.so.1"));
}

/// What `Verbs::open()` finds in a process with these preloads and this directory for libraries, and whether a
/// `libibverbs.so.1` got loaded.
fn open_in_child(preload: &[&Path], libraries: &Path) -> (String, bool) {
    let preload: Vec<_> = preload.iter().map(|path| path.to_str().unwrap()).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("LD_PRELOAD", preload.join(":"))
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let line = |name: &str| {
        let after = text
            .split_once(name)
            .unwrap_or_else(|| panic!("no `{name}` in {text}"))
            .1;
        after.lines().next().unwrap().to_owned()
    };
    (line("open: "), line("loaded: ") == "true")
}

#[test]
fn symbols_of_the_process_win_over_the_library() {
    let dir = common::scratch("wins");
    let test = "loader_process_wins";
    let _library = build!(test, Stub::whole(0xb), dir, "libibverbs.so.1");
    let whole = build!(test, Stub::whole(0xa), dir, "libwhole.so");
    let plain = build!(test, Stub::whole(0xc).unversioned(), dir, "libplain.so");
    let guid_only = build!(
        test,
        Stub::whole(0xd).only("ibv_get_device_guid").unversioned(),
        dir,
        "libguid.so"
    );
    let wrong_node = build!(
        test,
        Stub::whole(0xe)
            .only("ibv_get_device_guid")
            .version("ibv_get_device_guid", "IBVERBS_9.9"),
        dir,
        "libnode.so"
    );
    let partial = build!(
        test,
        Stub::whole(0xf).without("ibv_create_qp"),
        dir,
        "libpartial.so"
    );

    // Nothing in the process: the library.
    assert_eq!(
        open_in_child(&[], &dir),
        ("libibverbs.so.1 0xb".into(), true)
    );
    // A whole one in the process: the library is not even loaded.
    assert_eq!(
        open_in_child(&[&whole], &dir),
        ("this process 0xa".into(), false)
    );
    assert_eq!(
        open_in_child(&[&plain], &dir),
        ("this process 0xc".into(), false)
    );
    // The first preload stands in for one function, with or without versions of its own, as the linker would have it.
    assert_eq!(
        open_in_child(&[&guid_only, &whole], &dir),
        ("this process 0xd".into(), false)
    );
    assert_eq!(
        open_in_child(&[&wrong_node, &whole], &dir),
        ("this process 0xa".into(), false)
    );
    // A broken one in the process is told, not papered over with a second copy.
    assert_eq!(
        open_in_child(&[&partial], &dir),
        (
            "this process has no symbol ibv_create_qp (IBVERBS_1.1): it is not a whole libibverbs"
                .into(),
            false
        )
    );
}

#[test]
fn from_process_says_when_there_is_nothing() {
    // This program does not link libibverbs, with the feature `link` neither: it does not call `Verbs::linked`.
    let error = Verbs::from_process().unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::NotInProcess {
                symbol: "ibv_get_device_list",
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error
            .source()
            .unwrap()
            .to_string()
            .contains("undefined symbol: ibv_get_device_list")
    );
}

/// The system's own library, where it is installed: the list of symbols and versions is right.
#[test]
fn the_systems_library_has_every_required_symbol() {
    match Verbs::open() {
        Ok(verbs) => {
            assert_eq!(verbs.source, "libibverbs.so.1");
            // SAFETY: the function takes a number and returns a static text.
            let text = unsafe {
                std::ffi::CStr::from_ptr(verbs.wc_status_str(rdma_core_sys::IBV_WC_RETRY_EXC_ERR))
            };
            assert_eq!(text.to_str().unwrap(), "transport retry counter exceeded");
            // Symbols newer than the library are missing, those of its age and older are there: no hole in between.
            let number =
                |version: &str| version.rsplit_once('.').unwrap().1.parse::<u32>().unwrap();
            if let Some(oldest) = verbs.missing().map(|(_, version)| number(version)).min() {
                for (name, version) in optional() {
                    let missing = verbs.missing().any(|(missing, _)| missing == name);
                    assert_eq!(
                        missing,
                        number(version) >= oldest,
                        "{name} {version} of {verbs:?}"
                    );
                }
            }
        }
        Err(LoadError::Library { .. }) => {
            common::skip("loader_system", "no libibverbs.so.1 (Debian: libibverbs1)")
        }
        Err(error) => panic!("{error}"),
    }
}
